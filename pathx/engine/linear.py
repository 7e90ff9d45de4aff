"""The linear model of a path: its weight, bias and score, pulled down from the deepest path layer to the input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept
from pathx.engine.fields import extent
from pathx.engine.freeze import Frozen
from pathx.engine.network import Network
from pathx.engine.path import Paths
from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.sums import total
from pathx.engine.rules.table import Cotangents, precise
from pathx.engine.window import Window, counted


@dataclass(frozen=True, eq=False)
class LinearModel:
    """f(X) = weight · X + bias for every branch.

    Args:
        weight: (Q, *input shape).
        bias: (Q,) the constant parts of every operation below the path, each under the cotangent that reaches it. It
            is not taken from the score, so score - weight · X - bias is a real check.
        score: (Q,) what the deepest path layer sends to the target.
    """

    weight: Tensor
    bias: Tensor
    score: Tensor


NEAR = 1 / 5
"""Paths through less than this part of the layers, to units that can see half of the image, see so much of it together that cutting
maps to that saves little: at three layers 2 ms of 11 on SqueezeNet, 1 of 24 on ResNet-18, 7 of 86 on ResNet-50. Playing back
whole maps saves more."""


def linear_model(frozen: Frozen, paths: Paths) -> LinearModel:
    """The exact linear model of each branch's path."""
    branches, network = paths.branches, frozen.network
    score, seeds = _from_deepest(frozen, branches, paths.layers[-1])
    row = counted(len(branches), branches.image.device)
    for value, maps in _jumped(frozen, paths).items():
        window = Window.full(maps, row, branches.image)
        if value == network.graph.input:
            score = score + total(window, frozen.images)
        else:
            gate = network.gates[network.producers[value].index]
            score = score + total(window, frozen.activation(gate))
        seeds.append((value, window))
    weight, bias = pull_back(frozen, branches, seeds, boxes=not _sees_much(network, paths.layers[-1].layer))
    return LinearModel(weight, bias, score)


def _sees_much(network: Network, layer: int) -> bool:
    """Whether units of a layer see so much of the image that maps are not worth cutting."""
    size = network.shape(network.graph.input)
    seen = [prod(extent(network.fields.get(gate.source), size)) for gate in network.layers[layer - 1]]
    near = network.depth - layer + 1 < NEAR * network.depth
    return near and len(size) == 3 and 2 * min(seen) >= prod(size[1:])


def _from_deepest(frozen: Frozen, branches: Branches, kept: Kept) -> tuple[Tensor, list[tuple[Value, Window]]]:
    """Score of the deepest path layer, and what its kept units send down, at their pre-activations."""
    score = (kept.sent * kept.gain).sum(1, dtype=precise(kept.sent))
    count = kept.sent.shape[1]
    row = counted(len(branches), score.device).repeat_interleave(count)
    image = branches.image.repeat_interleave(count)
    seeds = []
    for gate, index, here in kept.places():
        sent = kept.sent if here is None else kept.sent * here
        seed = Window.one_hot(sent.flatten(), index.flatten(), gate.shape, row, image)
        seeds.append((gate.source, replace(frozen.slopes(gate).passed(seed), ordered=False)))
    return score, seeds


def _jumped(frozen: Frozen, paths: Paths) -> dict[Value, Tensor]:
    """What routes that jump over the deepest path layer send to the target, where they land below it: (Q, …) maps."""
    below = (1 << paths.layers[-1].layer) - 1
    result: dict[Value, Tensor] = {}
    for rows in paths.jumping:
        for value, windows in rows.weighed(rows.sent[:, None], below).items():
            for window in windows:
                result[value] = result[value] + window.data if value in result else window.data
    return result


def pull_back(
    frozen: Frozen, branches: Branches, seeds: list[tuple[Value, Window]], *, boxes: bool = True
) -> tuple[Tensor, Tensor]:
    """Pull cotangents of the branches (rows) down to the input: the weight there, and the bias on the way.

    Args:
        boxes: on a CPU, maps are cut to the box that holds all cotangents, where that is smaller.
    """
    network = frozen.network
    pending: dict[Value, list[Window]] = {}
    for value, window in seeds:
        pending.setdefault(value, []).append(window)
    constants: list[tuple[Tensor, Tensor]] = []
    for node in reversed(network.nodes):
        for output, made in enumerate(node.outputs):
            if made is None or made not in pending:
                continue
            for cotangent in _gathered(pending.pop(made), branches, boxes and frozen.compact):
                below, constant = _step(frozen, node, output, cotangent)
                if constant is not None:
                    constants.append((cotangent.row, constant))
                for source, window in below:
                    pending.setdefault(source, []).append(window)
    bias = torch.zeros(len(branches), dtype=precise(frozen.images), device=frozen.images.device)
    if constants:
        rows, values = zip(*constants, strict=True)
        bias.index_add_(0, torch.cat(rows), torch.cat(values))
    arrived = pending.get(network.graph.input)
    if arrived is None:
        return torch.zeros_like(frozen.images).index_select(0, branches.image), bias
    return _whole(arrived, branches).data, bias


def _step(frozen: Frozen, node: Node, output: int, cotangent: Window) -> tuple[Cotangents, Tensor | None]:
    """Cotangents below one node, and what its constant part adds under these."""
    if node.index not in frozen.network.gates:
        return frozen.pull(node, output, cotangent), frozen.constant(node, cotangent)
    gate = frozen.network.gates[node.index]
    slopes = frozen.slopes(gate)
    constant = None if slopes.offset is None else total(cotangent, slopes.offset, finite=slopes.finite)
    return [(gate.source, slopes.passed(cotangent))], constant


def _gathered(windows: list[Window], branches: Branches, boxes: bool) -> list[Window]:
    """The cotangents as they are while their boxes are few and small; otherwise their sum, one box for every branch."""
    first = windows[0]
    alone = len(windows) == 1 and first.data.shape[0] == len(branches) and first.ordered
    if alone and not any(first.overhang):
        return windows
    if 4 * sum(window.data.numel() for window in windows) <= len(branches) * prod(first.shape):
        return windows
    return [(_boxed(windows, branches) if boxes else None) or _whole(windows, branches)]


def _boxed(windows: list[Window], branches: Branches) -> Window | None:
    """The sum of cotangents on the one box that holds them all, for every branch; None where that saves little."""
    shape = windows[0].shape
    first, last = list(shape), [0] * len(shape)
    for window in windows:
        for dim, origin in enumerate(window.origin):
            if isinstance(origin, int):
                low = high = origin
            else:
                low, high = int(origin.numbers.min()), int(origin.numbers.max())
            first[dim] = min(first[dim], max(low, 0))
            last[dim] = max(last[dim], min(high + window.extent[dim], shape[dim]))
    extent = [end - start for start, end in zip(first, last, strict=True)]
    if min(extent, default=1) <= 0 or 4 * prod(extent) > 3 * prod(shape):  # (boxes may all lie beside the map)
        return None
    inner = [
        replace(
            window.cleaned(),
            origin=tuple(
                origin - start if isinstance(origin, int) else origin.moved(1, -start)
                for origin, start in zip(window.origin, first, strict=True)
            ),
            shape=tuple(extent),
        )
        for window in windows
    ]
    return replace(_whole(inner, branches), origin=tuple(first), shape=shape)


def _whole(windows: list[Window], branches: Branches) -> Window:
    """The sum of cotangents as one whole map for every branch."""
    shape = windows[0].shape
    row = counted(len(branches), branches.image.device)
    sums = [window.data for window in windows if window.is_full and window.ordered]
    rest = [window.cleaned() for window in windows if not (window.is_full and window.ordered)]
    maps = sum(sums[1:], sums[0]) if sums else windows[0].data.new_zeros(len(branches), *shape)
    if rest and sums:
        maps = maps.clone(memory_format=torch.contiguous_format)
    flat = maps.reshape(-1)
    for window in rest:
        same = all(isinstance(origin, int) for origin in window.origin)
        if same and window.ordered and len(window.data) == len(branches):  # one box for all: nothing to look up
            window.cut(maps).add_(window.data)
            continue
        start = (window.row * prod(shape)).reshape(-1, *(1,) * len(shape))
        place = (window.index() + start).expand_as(window.data)
        flat.index_add_(0, place.flatten(), window.data.flatten())
    return Window.full(maps, row, branches.image)
