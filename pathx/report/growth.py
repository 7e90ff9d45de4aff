"""How a path grows with depth and width, and what its strongest units saw: one frozen forward pass serves it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from pathx.engine.branches import Branches
from pathx.engine.device import exactly
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen
from pathx.engine.linear import pull_to_input
from pathx.engine.window import Window
from pathx.explanation import Explanation
from pathx.maps import plane
from pathx.report.explanation import Growth
from pathx.results.explanation import layer_document

WIDTHS = (1, 5, 20)
"""Widths that a page offers beside the explanation's own."""

DEPTH = 6
"""Layers that a page offers at least, where the network has them."""

MOST_UNITS = 40
"""Units whose own map a page holds."""


def grow(frozen: Frozen, explanation: Explanation, image: int = 0) -> Growth:
    """The grid of paths around an explanation, and the maps of its strongest units.

    Args:
        frozen: the network at a batch of images, and
        image: which of them the explanation is about.
    """
    how: dict[str, Any] = {"alpha": explanation.alpha, "skips": explanation.skips}
    how["against"] = None if explanation.against is None else [explanation.against]
    deepest = max(explanation.depth, min(DEPTH, explanation.hidden_layers))
    documents, models, pixels = [], {}, {}
    for width in _widths(explanation.width):
        for depth in range(1, deepest + 1):
            (made,) = explain_frozen(frozen, [(image, explanation.target)], depth=depth, width=width, **how)
            total = float(made.attribution.detach().cpu().double().sum())
            models[width, depth] = {"score": made.score, "bias": made.bias, "attribution_sum": total}
            if made.attribution.dim() == 3:
                pixels[width, depth] = plane(made.attribution)
        documents.append({"width": width, "layers": [layer_document(layer) for layer in made.path]})
    return Growth(documents, models, pixels, unit_maps(frozen, explanation, strongest(explanation), image))


def _widths(own: int | str) -> list[int | str]:
    return [*WIDTHS, own] if isinstance(own, str) else sorted({*WIDTHS, own})


def strongest(explanation: Explanation) -> list[tuple[int, int]]:
    """(layer, position) of the units that contribute most: of every layer as many, up to a limit in all."""
    each = max(1, MOST_UNITS // max(1, len(explanation.path)))
    found = []
    for layer in explanation.path:
        order = sorted(range(len(layer.units)), key=lambda at: -abs(layer.units[at].contribution))
        found += [(layer.layer, at) for at in order[:each]]
    return found[:MOST_UNITS]


def unit_maps(
    frozen: Frozen, explanation: Explanation, units: Sequence[tuple[int, int]], image: int = 0
) -> dict[tuple[int, int], Tensor]:
    """What each unit's contribution is made of, (H, W): its own linear model, all gates below it included.

    With the constant parts below the unit a map sums to the contribution.
    """
    if explanation.attribution.dim() != 3 or not units:
        return {}
    kept = {layer.layer: layer for layer in explanation.path}
    device = frozen.images.device
    seeds = []
    for row, (number, position) in enumerate(units):
        unit = kept[number].units[position]
        gate = next(gate for gate in frozen.network.layers[number - 1] if gate.described.name == unit.tensor)
        seed = Window.one_hot(
            torch.tensor([unit.weight], dtype=frozen.images.dtype, device=device),
            torch.tensor([_flat(unit.index, gate.shape)], device=device),
            gate.shape,
            torch.tensor([row], device=device),
            torch.tensor([image], device=device),
        )
        seeds.append((gate.source, replace(frozen.slopes(gate).passed(seed), ordered=False)))
    images = torch.full((len(units),), image, device=device)
    branches = Branches(images, torch.zeros_like(images), max(2, frozen.logits.shape[1]))
    with exactly(device):
        weight, _ = pull_to_input(frozen, branches, seeds)
    return {unit: plane(weight[row] * frozen.images[image]) for row, unit in enumerate(units)}


def _flat(index: Sequence[int], shape: Sequence[int]) -> int:
    return sum(place * prod(shape[axis + 1 :]) for axis, place in enumerate(index))
