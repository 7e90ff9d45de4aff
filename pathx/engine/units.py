"""Single units: what they can see of the input, and what they did see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.branches import Branches
from pathx.engine.device import engine_precision
from pathx.engine.fields import boxes
from pathx.engine.freeze import Frozen
from pathx.engine.linear import pull_to_input
from pathx.engine.network import Gate, Network
from pathx.engine.window import Window, unravel


def unit_maps(frozen: Frozen, units: Sequence[tuple[int, str, Sequence[int]]]) -> Tensor:
    """(units, *input shape) what every input element adds to each unit's pre-activation.

    Args:
        units: (image of the batch, name of the activation, index there).
    """
    gates = {gate.name: gate for layer in frozen.network.layers for gate in layer}
    device = frozen.images.device
    image = torch.tensor([number for number, _, _ in units], device=device)
    branches = Branches(image=image, target=torch.zeros_like(image), classes=2)
    with engine_precision(device):
        seeds = []
        for name in dict.fromkeys(name for _, name, _ in units):
            rows = torch.tensor([row for row, (_, other, _) in enumerate(units) if other == name], device=device)
            gate = gates[name]
            index = torch.tensor([_number(units[row][2], gate.shape) for row in rows.tolist()], device=device)
            ones = torch.ones(len(rows), dtype=frozen.images.dtype, device=device)
            window = Window.one_hot(ones, index, gate.shape, rows, image[rows])
            seeds.append((gate.source, replace(window, ordered=False)))
        weight, _ = pull_to_input(frozen, branches, seeds)
    return weight * frozen.images[image]


def fields_of(network: Network, gate: Gate, units: Tensor) -> Tensor:
    """(n, 4) the receptive fields of units of an activation, by their flat indices there; (n, 0) where inputs are no images."""
    size = network.shape(network.graph.input)
    return boxes(network.fields.get(gate.source), unravel(units, gate.shape), size)


def _number(index: Sequence[int], shape: Sequence[int]) -> int:
    """A unit's place in its tensor as one number."""
    number = 0
    for place, size in zip(index, shape, strict=True):
        number = number * size + place
    return number
