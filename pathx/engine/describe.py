"""The layers of a path as explanations hold them: units and edges become plain numbers when somebody reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept, Link
from pathx.engine.fields import boxes
from pathx.engine.freeze import Frozen
from pathx.engine.rules.geometry import Field
from pathx.engine.search import importance_of
from pathx.engine.window import unravel
from pathx.explanation import Edges, LayerTensor, PathLayer, Unit


def describe_layer(
    frozen: Frozen, branches: Branches, kept: Kept, valid: Mapping[int, Tensor]
) -> Callable[[int, bool], PathLayer]:
    """A function from the number of a branch, and whether its layer is below alpha, to that layer of its path.

    Args:
        valid: by layer, which of the kept units are real.
    """
    network = frozen.network
    size = tuple(frozen.images.shape[1:])
    fields = [network.fields.get(gate.source) for gate in kept.gates]
    tensors = tuple(map(network.tensor, kept.gates))
    above = [(link, None if link.layer is None else valid[link.layer]) for link in kept.links]
    own = (kept.units, kept.valid, kept.slope_times_h, kept.weight, kept.margin)  # not all of `kept`: W is large

    def one(branch: int, below: bool) -> PathLayer:
        numbers = partial(_unit_numbers, None if branches.log_odds is not None else branches.classes, branch, *own)
        return PathLayer.later(
            *(kept.layer, below, tensors),
            partial(_units, tensors, fields, size, numbers),
            partial(_edges, branch, kept.place, own[1], own[2], above),
            partial(_contributions, numbers),
        )

    return one


def _unit_numbers(classes: int | None, branch: int, *known: Tensor) -> tuple[Tensor, Tensor]:
    """The real units of one layer, (K,) by number, and (K, 4) activation, weight, contribution and importance of each.

    Args:
        classes: None where units are ranked by effect, which is the importance then.
    """
    units, valid, gain, sent, margins = (part[branch] for part in known)
    importance = margins if classes is None else importance_of(margins, classes)
    numbers = torch.stack([gain, sent, sent * gain, importance], 1)
    return units[valid], numbers[valid]


Numbers = Callable[[], tuple[Tensor, Tensor]]


def _contributions(known: Numbers) -> tuple[Tensor, Tensor]:
    """The units of one layer by number, and what each contributes."""
    units, numbers = known()
    return units, numbers[:, 2]


def _edges(
    branch: int, place: Tensor, valid: Tensor, gain: Tensor, links: Sequence[tuple[Link, Tensor | None]]
) -> tuple[Edges, ...]:
    """What the real units of one branch send through each real unit above, for `PathLayer.edges`.

    Args:
        place, valid, gain: (Q, K) of the units: where among the candidates, whether real, and what they pass on.
        links: with which of the units above are real; None for the class.
    """
    edges = []
    for link, real in links:
        sent = link.through(branch, place[branch]) * gain[branch]
        edges.append(Edges(link.layer, (sent if real is None else sent[real[branch]])[:, valid[branch]].t()))
    return tuple(edges)


def _units(
    tensors: tuple[LayerTensor, ...],
    fields: Sequence[Field | None],
    size: tuple[int, ...],
    known: Numbers,
) -> tuple[Unit, ...]:
    """The units of one layer as plain numbers."""
    units, numbers = known()
    last = torch.tensor([prod(tensor.shape) for tensor in tensors], device=units.device).cumsum(0)
    owner = torch.searchsorted(last, units, right=True)
    places: list[tuple[str, list[int], list[int]]] = [("", [], [])] * len(units)
    for position, (tensor, field) in enumerate(zip(tensors, fields, strict=True)):
        here = (owner == position).nonzero().flatten()
        first = last[position] - prod(tensor.shape)
        coordinates = unravel(units[here] - first, tensor.shape)
        seen = boxes(field, coordinates, size).tolist()
        for unit, index, box in zip(here.tolist(), torch.stack(coordinates, -1).tolist(), seen, strict=True):
            places[unit] = (tensor.name, index, box)
    return tuple(
        Unit(name, tuple(index), gain, weight, contribution, share, tuple(box))
        for (name, index, box), (gain, weight, contribution, share) in zip(places, numbers.tolist(), strict=True)
    )
