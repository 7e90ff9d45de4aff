"""One operation between a ReLU and the logits: what the engine pulls through it, and what autograd says of it.

Windows of every kind over a map are tried: whole maps, boxes for all rows and for each, single elements, and what sticks out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.engine.branches import Branches
from pathx.engine.dependence import Dependence
from pathx.engine.fields import boxes
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.linear import pull_to_input
from pathx.engine.record.operations import Node, Value
from pathx.engine.window import Corners, Origin, Window, unravel

DOUBLE = torch.float64


def fixed(*shape: int, seed: int = 0) -> Tensor:
    """Positive numbers, so that what is seen never cancels out."""
    numbers = torch.arange(prod(shape), dtype=DOUBLE) + 31 * seed
    return 0.2 + (numbers * 0.6180339887498949).remainder(1).reshape(shape)


def pictures(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


class Above(nn.Module):
    """An operation between a ReLU and the logits, of which every element is one."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function(F.relu(x))
        return y.flatten(1) + 1  # a head, as it were: features are not explained


class Seen(nn.Module):
    """An operation between two hidden layers, all of whose units are active, below a head that mixes them."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def units(self, x: Tensor) -> Tensor:
        h = F.relu(F.conv2d(x, fixed(4, 1, 3, 2), stride=(2, 1)))
        return F.relu(self.function(h)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        units = self.units(x)
        return units @ fixed(units.shape[1], 2)


def pulled(frozen: Frozen, *, windows: bool) -> tuple[Tensor, Tensor]:
    """Weight and bias of every logit of every picture: (B, n, *input), (B, n)."""
    if frozen.parts:  # the model takes the pictures of a batch together
        weights, biases = zip(*(pulled(part, windows=windows) for part in frozen.parts), strict=True)
        return torch.cat(weights), torch.cat(biases)
    network = frozen.network
    batch, count = len(frozen.images), network.outputs
    row, image = torch.arange(batch * count), torch.arange(batch).repeat_interleave(count)
    shape = network.shape(network.logits)
    seed = Window.one_hot(torch.ones(batch * count, dtype=DOUBLE), row % count, shape, row, image)
    branches = Branches(image, row % count, max(2, count))
    weight, bias = pull_to_input(frozen, branches, [(network.logits, seed if windows else seed.dense())])
    return weight.unflatten(0, (batch, count)), bias.unflatten(0, (batch, count))


def jacobian(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """(B, n, *input)."""
    x = images.clone().requires_grad_()
    logits = model(x)
    rows = torch.eye(logits.shape[1], dtype=DOUBLE)[:, None].expand(-1, len(images), -1)
    try:
        return torch.autograd.grad(logits, x, rows, is_grads_batched=True, retain_graph=True)[0].transpose(0, 1)
    except RuntimeError:  # some operations do not take their gradients in batches
        return torch.stack([torch.autograd.grad(logits, x, row, retain_graph=True)[0] for row in rows], 1)


def assert_as_autograd(model: nn.Module, images: Tensor, twin: nn.Module | None = None) -> Frozen:
    """Weight and bias of every logit, from single elements and from whole maps.

    Args:
        twin: the model with its multipliers detached, where it has any.
    """
    with torch.no_grad():
        frozen, logits = freeze(model, images), model(images)
    expected = jacobian(twin or model, images)
    for alone in (True, False):
        with torch.no_grad():
            weight, bias = pulled(frozen, windows=alone)
        assert_close(weight, expected, rtol=1e-7, atol=1e-12)  # of hardsigmoid torch has a float's sixth
        assert_close(bias, logits - (weight * images[:, None]).flatten(2).sum(2), rtol=1e-7, atol=1e-10)
    return frozen


ROWS = 4
IMAGE = torch.tensor([0, 1, 1, 0])


def corners(places: Tensor | list[int]) -> Corners:
    """Corners at these places; what they know of is the lowest and the highest of them."""
    numbers = torch.as_tensor(places)
    low, high = int(numbers.min()), int(numbers.max())
    return Corners(numbers - low, high - low + 1, offset=low)


def window(shape: tuple[int, ...], starts: tuple[int | Tensor, ...], extent: tuple[int, ...]) -> Window:
    """Four cotangents of two images; what sticks out of the map holds numbers all the same."""
    data = torch.randn(ROWS, *extent, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    origin: tuple[Origin, ...] = tuple(one if isinstance(one, int) else corners(one) for one in starts)
    made = Window(data, origin, shape, torch.arange(ROWS), IMAGE)
    return replace(made, clean=not any(made.overhang))


def windows(shape: tuple[int, ...]) -> dict[str, Window]:
    """By what they are."""
    if not shape:
        return {"numbers": window((), (), ())}
    half = tuple((size + 1) // 2 for size in shape)
    ones, zeros = (1,) * len(shape), (0,) * len(shape)
    inside = tuple(
        (torch.tensor([0, 3, 1, 2]) + dim) * (size - part) // 3 % (size - part + 1)
        for dim, (size, part) in enumerate(zip(shape, half, strict=True))
    )
    anywhere = tuple((torch.tensor([0, 5, 3, 7]) + 2 * dim) % size for dim, size in enumerate(shape))
    beside = tuple(torch.tensor([-1, size - 1, 0, size - part + 1]) for size, part in zip(shape, half, strict=True))
    outside = tuple(torch.tensor([-1, size - 1, size, 0]).roll(dim) for dim, size in enumerate(shape))
    return {
        "whole maps": window(shape, zeros, shape),
        "a box for all, at the start": window(shape, zeros, half),
        "a box for all, at the end": window(shape, tuple(a - b for a, b in zip(shape, half, strict=True)), half),
        "a box for all, in a corner": window(shape, tuple(size - 1 for size in shape), ones),
        "a box each": window(shape, inside, half),
        "a box each of all channels": window(shape, (0, *inside[1:]), (shape[0], *half[1:])),
        "a column each": window(shape, (0, *anywhere[1:]), (shape[0], *ones[1:])),
        "a plane each": window(shape, (anywhere[0], *zeros[1:]), (1, *shape[1:])),
        "an element each": window(shape, anywhere, ones),
        **(
            {
                "a beam each, down": window(shape, (inside[0], 0, *inside[2:]), (half[0], shape[1], *half[2:])),
                "a beam each, across": window(shape, (*inside[:-1], 0), (*half[:-1], shape[-1])),
            }
            if len(shape) > 2
            else {}
        ),
        "sticking out": window(shape, (0, *beside[1:]), (shape[0], *half[1:])),
        "sticking out of channels too": window(shape, beside, half),
        "columns outside": window(shape, (0, *outside[1:]), (shape[0], *ones[1:])),
        "elements outside": window(shape, outside, ones),
        "elements of channels outside": window(shape, (outside[0], *anywhere[1:]), ones),
    }


def added_up(cotangents: Iterable[tuple[Value, Window]]) -> dict[Value, Tensor]:
    """By value, whole maps for every row: whatever boxes and rows there are."""
    result: dict[Value, Tensor] = {}
    for value, one in cotangents:
        maps = result.setdefault(value, one.data.new_zeros(ROWS, *one.shape))
        maps.index_add_(0, one.row, one.dense().data)
    return result


def assert_boxes_go_down(frozen: Frozen, of: Callable[[Node], bool] = lambda node: True) -> None:
    """Through linear operations, windows of every kind are whole maps with zeros around them."""
    for part in frozen.parts:
        assert_boxes_go_down(part, of)
    if frozen.parts:
        return
    network = frozen.network
    for node in network.nodes:
        for output, made in enumerate(node.outputs):
            if made is None or network.reading.states[made] is not Dependence.VARIES:
                continue
            if node.index in network.gates or not of(node):
                continue
            for name, window in windows(network.shape(made)).items():
                with torch.no_grad():
                    whole = window.dense()
                    found, expected = (added_up(frozen.pull(node, output, one)) for one in (window, whole))
                    for value, maps in expected.items():
                        assert_close(
                            found.get(value, torch.zeros_like(maps)),
                            maps,
                            msg=lambda text, name=name: f"{name}: {text}",
                        )
                    if output == 0:
                        assert_close(frozen.constant(node, window), frozen.constant(node, whole))


def assert_field(function: Callable[[Tensor], Any], images: Tensor, *, exact: bool) -> None:
    """Between two hidden layers: nothing is seen beside the field, and nothing is too much where every element counts."""
    model = Seen(function)
    network = freeze(model, images).network
    gate = network.layers[-1][0]
    seen = (jacobian(model.units, images) != 0).any(0).any(1)  # (units, height, width)
    found = boxes(network.fields[gate.source], unravel(torch.arange(gate.units), gate.shape), tuple(images.shape[1:]))
    for unit, (left, top, right, bottom) in zip(seen, found.tolist(), strict=True):
        outside = unit.clone()
        outside[top:bottom, left:right] = False
        assert not outside.any()
        if exact and unit.any():
            rows, columns = unit.any(1).nonzero(), unit.any(0).nonzero()
            exactly = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
            assert [left, top, right, bottom] == exactly
