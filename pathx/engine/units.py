"""Units as explanations hold them, written out when somebody reads them; and what single units saw of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept
from pathx.engine.device import engine_precision
from pathx.engine.freeze import Frozen
from pathx.engine.linear import pull_to_input
from pathx.engine.network import Gate, Network
from pathx.engine.search import importance_of
from pathx.engine.window import Window, unravel
from pathx.explanation import Edges, PathLayer, Unit


def path_layer(
    network: Network, branches: Branches, kept: Kept, valid: Mapping[int, Tensor], branch: int, below_alpha: bool
) -> PathLayer:
    """One layer of the path of one branch.

    Args:
        valid: by layer, which of the kept units are real.
    """
    gates, place, links = kept.gates, kept.place, kept.links
    tensors = (kept.units, kept.valid, kept.slope_times_h, kept.weight, kept.margin)

    def numbers() -> tuple[Tensor, Tensor]:
        """The real units by number, (K,), and (K, 4) activation, weight, contribution and importance of each."""
        units, real, gain, weight, margin = (tensor[branch] for tensor in tensors)
        importance = margin if branches.log_odds is not None else importance_of(margin, branches.classes)
        return units[real], torch.stack([gain, weight, weight * gain, importance], 1)[real]

    def contributions() -> tuple[Tensor, Tensor]:
        units, values = numbers()
        return units, values[:, 2]

    def edges() -> tuple[Edges, ...]:
        written = []
        for link in links:
            sent = link.through(branch, place[branch]) * tensors[2][branch]
            sent = sent if link.layer is None else sent[valid[link.layer][branch]]
            written.append(Edges(link.layer, sent[:, tensors[1][branch]].t()))
        return tuple(written)

    return PathLayer.later(
        kept.layer,
        below_alpha,
        tuple(map(network.tensor, gates)),
        units=lambda: _write_out(network, gates, *numbers()),
        edges=edges,
        contributions=contributions,
    )


def _write_out(network: Network, gates: Sequence[Gate], units: Tensor, values: Tensor) -> tuple[Unit, ...]:
    """Units of a layer by number, with (K, 4) values, as plain numbers."""
    last = torch.tensor([gate.units for gate in gates], device=units.device).cumsum(0)
    owner = torch.searchsorted(last, units, right=True)
    places: dict[int, tuple[str, list[int], list[int]]] = {}
    for position, gate in enumerate(gates):
        here = (owner == position).nonzero().flatten()
        flat = units[here] - (last[position] - gate.units)
        index, boxes = torch.stack(unravel(flat, gate.shape), -1).tolist(), network.boxes(gate, flat).tolist()
        places.update(zip(here.tolist(), zip([gate.name] * len(index), index, boxes, strict=True), strict=True))
    return tuple(
        Unit(name, tuple(index), gain, weight, contribution, importance, tuple(box))
        for (name, index, box), (gain, weight, contribution, importance) in zip(
            (places[number] for number in range(len(units))), values.tolist(), strict=True
        )
    )


def unit_maps(frozen: Frozen, units: Sequence[tuple[int, str, Sequence[int]]]) -> Tensor:
    """(units, *input shape) what every input element adds to each unit's pre-activation.

    Args:
        units: (image of the batch, name of the activation, index there).
    """
    device = frozen.images.device
    image = torch.tensor([number for number, _, _ in units], device=device)
    branches = Branches(image=image, target=torch.zeros_like(image), classes=2)
    with engine_precision(device):
        seeds = []
        for gate in frozen.network.gates.values():
            own = [(row, index) for row, (_, name, index) in enumerate(units) if name == gate.name]
            if not own:
                continue
            flat = [frozen.network.tensor(gate).number(index) for _, index in own]
            rows = torch.tensor([row for row, _ in own], device=device)
            ones = torch.ones(len(own), dtype=frozen.images.dtype, device=device)
            window = Window.one_hot(ones, torch.tensor(flat, device=device), gate.shape, rows, image[rows])
            seeds.append((gate.source, replace(window, ordered=False)))
        weight, _ = pull_to_input(frozen, branches, seeds)
    return weight * frozen.images[image]
