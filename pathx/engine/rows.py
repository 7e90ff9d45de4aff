"""Rows of the Jacobian on their way down: one per class from the logits, or one per kept unit from a hidden layer.

A row starts as a single element and is pulled back, operation by operation, to the activations that it meets or to the
input. A unit of a feature map reaches only its receptive field, so a row is a window: a block with an origin. Sums of rows,
taken before they are pulled back, go down as one whole map instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept
from pathx.engine.freeze import Frozen
from pathx.engine.record.operations import Value
from pathx.engine.rules.table import Slopes
from pathx.engine.window import Window, cached_arange, cached_range, times

Landed = dict[Value, list[Window]]


@dataclass(frozen=True, eq=False)
class Start:
    """The value that rows start at.

    Args:
        index: (Q, K) flat index of each row's element, never out of range; (1, K) where branches share the rows.
        mask: (Q, K) 1 for rows that start at this value and 0 for the others; None where all do.
        slopes: of the gate whose pre-activations these are; None where the slope of every kept unit is 1.
        seed: (Q, K, elements) what the rows start as, where that is more than one element each.
    """

    value: Value
    shape: tuple[int, ...]
    index: Tensor
    mask: Tensor | None = None
    slopes: Slopes | None = None
    seed: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """K rows for each of Q branches.

    Args:
        layer: the hidden layer that they start from; None for the logits.
        image: (Q,) the image of every branch.
        W: (Q, K, C) what each row sends to every class, W_prev of Algorithm 1; None where the rows are the classes.
            (Q, K, 2) where units are ranked by effect, see `Branches.weigh`.
        target_minus_mean: (Q, K) what each sends to the target minus the mean of the other classes.
        weight: (Q, K) what each sends to the explained logit.
        shared: the rows are the same for every branch, because nothing in them was frozen at an image yet.
    """

    frozen: Frozen
    layer: int | None
    starts: tuple[Start, ...]
    image: Tensor
    W: Tensor | None
    target_minus_mean: Tensor
    weight: Tensor
    shared: bool = False

    @cached_property
    def count(self) -> int:
        """K."""
        return self.target_minus_mean.shape[1]

    @property
    def sets(self) -> int:
        """How many sets of K rows there are: 1 where branches share them, else Q."""
        return 1 if self.shared else len(self.image)

    @property
    def both(self) -> Tensor:
        """(Q, 2, K) what each sends to the target minus the mean of the other classes, and to the explained logit."""
        return torch.stack([self.target_minus_mean, self.weight], 1)

    @cached_property
    def lands(self) -> int:
        """The layers that rows reach with no other activation between: bit n for layer n, bit 0 for the input."""
        reached = 0
        for start in self.starts:
            reached |= self.frozen.network.lands[start.value]
        return reached

    def pull_back(self, layer: int, some: slice = slice(None), *, windows: bool = True) -> Landed:
        """Pull single rows back to a layer; row k of branch q has the number q * K + k, or k where they are shared.

        Args:
            some: which of the K rows.
            windows: keep rows as windows; otherwise as whole maps.
        """
        seeds = []
        for start in self.starts:
            index = start.index[:, some]
            count = index.shape[1]
            image = self.image[:1].expand(count) if self.sets == 1 else self.image.repeat_interleave(count)
            row = cached_arange(index.numel(), index.device)
            if start.seed is not None:
                seed = Window.full(start.seed[:, some].reshape(-1, *start.shape), row, image)
            else:
                ones = self.weight.new_ones(()).expand(index.shape) if start.mask is None else start.mask[:, some]
                seed = Window.one_hot(ones.reshape(-1), index.reshape(-1), start.shape, row, image)
            seeds.append((start.value, seed if start.slopes is None else start.slopes.pull_back(seed)))
        return pull_back(self.frozen, seeds, 1 << layer, windows=windows)

    def seeds_of_sums(self, factors: Tensor) -> list[tuple[Value, Window]]:
        """Where sums of rows start, (Q, c, K) of them, as whole maps."""
        branches, count, _ = factors.shape
        row = cached_arange(branches * count, factors.device)
        image = self.image if count == 1 else self.image.repeat_interleave(count)
        seeds = []
        for start in self.starts:
            if start.seed is not None:
                maps = torch.bmm(factors, start.seed)
            else:
                maps = factors.new_zeros(branches, count, prod(start.shape))
                part = factors if start.mask is None else factors * start.mask[:, None]
                maps.scatter_add_(2, start.index[:, None].expand(branches, count, -1), part)
            seed = Window.full(maps.reshape(-1, *start.shape), row, image)
            seeds.append((start.value, seed if start.slopes is None else start.slopes.pull_back(seed)))
        return seeds


def class_rows(frozen: Frozen, branches: Branches) -> Rows:
    """One row per class, at the logits: W_prev is the identity. For effects two rows, what they are and what is explained."""
    network = frozen.network
    value, shape, device = network.logits, network.shape(network.logits), branches.image.device
    if branches.log_odds is not None and network.outputs > 1 and branches.logits is None:
        both = branches.both.transpose(1, 2)
        W = torch.eye(2, dtype=branches.dtype, device=device).expand(len(branches), 2, 2)
        start = Start(value, shape, cached_arange(2, device).expand(len(branches), 2), seed=both)
        return Rows(frozen, None, (start,), branches.image, W, W[:, :, 0], W[:, :, 1])
    shared = branches.logits is None and network.top_is_shared
    index = cached_arange(network.outputs, device)[None] if branches.logits is None else branches.logits
    starts = (Start(value, shape, index if shared else index.expand(len(branches), -1)),)
    if network.outputs > 1:
        W_prev = None if branches.log_odds is None else branches.both
        return Rows(
            frozen, None, starts, branches.image, W_prev, branches.target_minus_mean, branches.explained, shared
        )
    W = torch.arange(2, dtype=branches.dtype, device=device).expand(len(branches), 1, 2)  # the logits (0, y)
    W = W if branches.log_odds is None else torch.bmm(W, branches.both)
    target_minus_mean, explained = branches.weigh(W).unbind(2)
    return Rows(frozen, None, starts, branches.image, W, target_minus_mean, explained, shared)


def unit_rows(frozen: Frozen, branches: Branches, kept: Kept, W_prev: Tensor) -> Rows:
    """One row per unit that a layer keeps, at its pre-activation.

    Args:
        W_prev: (Q, K, C) what each unit's output sends to every class; for effects (Q, K, 2), see `Branches.weigh`.
    """
    starts = []
    for gate, index, mask in kept.by_gate():
        slopes = frozen.slopes(gate)
        plain = slopes.given is None  # a plain ReLU: the slope of every kept unit is 1
        starts.append(Start(gate.source, gate.shape, index, mask, None if plain else slopes))
    return Rows(frozen, kept.layer, tuple(starts), branches.image, W_prev, kept.target_minus_mean, kept.weight)


def pull_back(
    frozen: Frozen,
    seeds: Iterable[tuple[Value, Window]],
    layers: int,
    *,
    windows: bool = True,
    stop_at: Container[Value] = (),
) -> Landed:
    """Pull cotangents back to where they land: the outputs of the activations that they meet, or the input.

    Args:
        layers: where they may land: a bit for every layer, bit 0 for the input.
        windows: keep cotangents as windows; otherwise as whole maps.
        stop_at: other values to land at.
    """
    network = frozen.network
    landed: Landed = {}
    pending: Landed = {}
    queue: list[int] = []  # numbers of nodes to visit, the highest first

    def put(value: Value, window: Window) -> None:
        if not network.lands[value] & layers:
            return
        if not windows:
            window = window.dense()
        node = network.producers.get(value)
        if node is None or node.index in network.gates or value in stop_at:
            add_window(landed.setdefault(value, []), window)
            return
        if value not in pending:
            pending[value] = []
            heapq.heappush(queue, -node.index)
        add_window(pending[value], window)

    for value, window in seeds:
        put(value, window)
    while queue:
        node = network.graph.nodes[-heapq.heappop(queue)]
        for output, result in enumerate(node.outputs):
            for window in pending.pop(result, ()) if result is not None else ():
                for source, cotangent in frozen.pull(node, output, window):
                    put(source, cotangent)
    return landed


MOST_WINDOWS = 4
"""Windows of one value that are carried on side by side. Without a limit, each block of linear skips would multiply them."""


def add_window(windows: list[Window], window: Window) -> None:
    """Add a cotangent to those of the same value: into a window of the same rows where one box can hold both, or a
    whole map does."""
    same_rows = [n for n, other in enumerate(windows) if other.row is window.row]
    for number in same_rows:
        other = windows[number]
        if other.is_full != window.is_full:
            windows[number] = window.whole(other.dense().data + window.dense().data)
            return
        union = other.union(window)
        if union is not None:
            windows[number] = union
            return
    if len(same_rows) < MOST_WINDOWS:
        windows.append(window)
        return
    dense = [windows.pop(number).dense().data for number in reversed(same_rows)]
    windows.append(window.whole(add([window.dense().data, *dense])))


def sum_into(maps: Tensor, window: Window, owner: Tensor) -> None:
    """Add the cotangents of a window to maps (Q, *shape), each to the map of its owner (P,)."""
    start = (owner * prod(window.shape)).reshape(-1, *(1,) * len(window.shape))
    index = (window.index() + start).expand_as(window.data)
    data = window.clear_outside().data
    maps.view(-1).index_add_(0, index.reshape(-1), data.reshape(-1))


def read_window(window: Window, places: tuple[Tensor, ...], here: Tensor | None, sets: tuple[int, int]) -> Tensor:
    """(S or Q, K, n) what the S * K cotangents of a window hold at places, (Q, n) for each dimension; 0 outside of the boxes.

    Args:
        here: (Q, n) which places are there at all; None for all.
        sets: S and K; S is Q, or 1 where every set has the same cotangents.
    """
    data = window.data
    # The index into memory: where a row's box would start if it began at the map's corner, plus the place.
    corner, before = window.corner(data.stride()[1:])
    start = cached_range(len(data), data.stride(0), -before, data.device)
    start = start if corner is None else start - corner
    step: Tensor | None = None
    inside = None if here is None else here[:, None]
    for dim in reversed(range(len(places))):  # the last often has a stride of 1
        stride, origin, place = data.stride(dim + 1), window.origin[dim], places[dim]
        if stride:
            step = times(place, stride) if step is None else torch.add(step, place, alpha=stride)
        if not window.covers(dim):
            first = origin if isinstance(origin, int) else origin.numbers.reshape(*sets, 1)
            within = (place[:, None] >= first) & (place[:, None] < first + window.extent[dim])
            inside = within if inside is None else inside & within
    step = torch.zeros_like(places[0]) if step is None else step
    span = 1 + sum((length - 1) * stride for length, stride in zip(data.shape, data.stride(), strict=True))
    narrow = torch.int32 if span < 1 << 31 else torch.int64  # half the memory to write and read, in a large table
    index = start.to(narrow).reshape(*sets, 1) + step[:, None].to(narrow)
    if inside is not None:
        index = index.mul_(inside)
    memory = data.as_strided((span,), (1,), data.storage_offset())
    values = memory.index_select(0, index.reshape(-1)).reshape(index.shape)
    return values if inside is None else torch.where(inside, values, 0.0)  # (a product with 0 may be NaN)


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenation; without a launch where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def take_rows(table: Tensor, place: Tensor) -> Tensor:
    """(Q, K, …) the rows of a table (Q, n, …) at places (Q, K): whole rows are copied, which `gather` does number by number."""
    first = cached_range(len(table), table.shape[1], 0, place.device)[:, None]
    index = place if len(table) == 1 else place + first
    return table.flatten(0, 1).index_select(0, index.flatten()).reshape(*place.shape, *table.shape[2:])


def add(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])
