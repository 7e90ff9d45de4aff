"""What units send to the classes through a class layer, such as SqueezeNet's ReLU over one map per class.

A class layer belongs to the output, so the layer below it is reached by one row per class, and each of these rows is a whole map.
They are never pulled back. A unit of the class layer sends to one class only, so two cotangents say to which class, and how much;
and a unit below reaches only a small box of the class layer. How much it adds to every element of that box is the gradient of one
cotangent per unit, pulled back from the box to the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate, Network
from pathx.engine.rows import Rows, pull_back, read_window
from pathx.engine.window import Corners, Origin, Window, counted, unravelled


def class_columns(rows: Rows, units: Sequence[tuple[Gate, Tensor, Tensor | None]], layer: int) -> Tensor:
    """(Q, K, n) what units of a layer send to each of the K rows of the logits.

    Args:
        units: by gate of the layer, the units' flat indices (Q, n), and which of them are on it; None for all.
    """
    frozen, network = rows.frozen, rows.frozen.network
    branches, count = units[0][1].shape
    branch = counted(branches, rows.image.device).repeat_interleave(count)
    total = rows.weight.new_zeros(branches * count, network.outputs)
    for class_gate, (weight, class_of) in _classes_of_units(rows).items():
        for gate, index, here in units:
            places = unravelled(index.reshape(-1), gate.shape)
            box = _reach(network, class_gate, gate, places, rows.image[branch])
            slope = _slopes(frozen, (class_gate, box), (gate, places), layer)
            box = replace(box, image=branch)
            sent = slope * box.read(weight)
            sent = sent if here is None else sent * here.reshape(-1, *(1,) * (sent.dim() - 1))
            total.scatter_add_(1, box.read(class_of).expand_as(sent).flatten(1), sent.flatten(1))
    columns = total.reshape(branches, count, -1).transpose(1, 2)
    asked = rows.starts[0].index[:, :, None]  # two of the logits, where one class is explained against another
    return columns.gather(1, asked.expand(branches, -1, count))


def _slopes(frozen: Frozen, above: tuple[Gate, Window], below: tuple[Gate, tuple[Tensor, ...]], layer: int) -> Tensor:
    """How much units at places (P,) of a gate add to every element of their boxes of the class layer."""
    (class_gate, box), (gate, places) = above, below

    def read_units(data: Tensor) -> Tensor:
        landed = pull_back(frozen, [(class_gate.source, box.holding(data))], 1 << layer)
        parts = [_read_each(window, places).sum() for window in landed.get(gate.output, ())]
        return sum(parts, data.sum() * 0)

    return gradient_of(read_units, frozen.images.new_zeros(box.data.shape))


def gradient_of(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """By plain autograd: the gradients of `torch.func` import torch's compiler, which takes as long as torch itself."""
    with torch.enable_grad():
        probe = at.requires_grad_()
        return torch.autograd.grad(function(probe), probe)[0]


def _classes_of_units(rows: Rows) -> dict[Gate, tuple[Tensor, Tensor]]:
    """For every gate of the class layer, (Q, *shape) what each unit sends to its class, and which class that is."""
    network, branches = rows.frozen.network, len(rows.image)
    number = counted(network.outputs, rows.image.device).to(rows.weight.dtype) + 1
    seed = torch.stack([torch.ones_like(number), number]).repeat(branches, 1)
    seed = seed.reshape(-1, *network.shape(network.logits))
    logits = Window.full(seed, counted(len(seed), seed.device), rows.image.repeat_interleave(2))
    gates = {gate.source: gate for gate in network.class_gates.values()}
    landed = pull_back(rows.frozen, [(network.logits, logits)], -1, windows=False, stop_at=gates)
    result = {}
    for value, gate in gates.items():
        sums = sum(window.data for window in landed.get(value, ()))
        if isinstance(sums, Tensor):
            weight, times_number = sums.unflatten(0, (branches, 2)).unbind(1)
            class_of = (times_number / weight).nan_to_num(1.0).round().long() - 1
            result[gate] = weight, class_of.clamp_(0, network.outputs - 1)
    return result


def _reach(network: Network, class_gate: Gate, gate: Gate, places: tuple[Tensor, ...], image: Tensor) -> Window:
    """The box of the class layer that each unit at places (P,) of a gate below reaches; the whole layer where that is not known."""
    shape = class_gate.shape
    row = counted(len(image), image.device)
    by_axis = network.class_reach(class_gate, gate)
    origin: list[Origin] = [0]
    extent = [shape[0]]
    if by_axis is not None and len(shape) == len(gate.shape) == 3:
        for axis, seen in enumerate(by_axis, start=1):  # element p of the class layer sees p + first up to p + last
            if seen is None or seen[1] - seen[0] >= shape[axis]:
                break
            origin.append(Corners(places[axis], gate.shape[axis], 1, 1 - seen[1]))
            extent.append(seen[1] - seen[0])
    if len(extent) < 3:
        origin, extent = [0] * len(shape), list(shape)
    data = torch.empty(1, device=image.device).expand(len(image), *extent)
    return Window(data, tuple(origin), shape, row, image, clean=False)


def _read_each(window: Window, places: tuple[Tensor, ...]) -> Tensor:
    """What each cotangent of a window holds at the place of its own row."""
    at = tuple(place.index_select(0, window.row)[:, None] for place in places)
    return read_window(window.cleaned(), at, None, (len(window.data), 1))
