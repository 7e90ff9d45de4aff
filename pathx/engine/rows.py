"""Rows of Jacobians on their way down: one per class from the logits, or one per kept unit from a hidden layer.

A row starts as a single element and is taken down, operation by operation, to the ReLUs that it meets or to the input.
Rows that each branch weighs and sums at the start go down as one whole map instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept
from pathx.engine.freeze import Frozen
from pathx.engine.record.operations import Value
from pathx.engine.rules.table import Slopes
from pathx.engine.window import Window, counted, ones

Landed = dict[Value, list[Window]]


@dataclass(frozen=True, eq=False)
class Start:
    """The value that rows start at.

    Args:
        place: (Q, K) flat index of each row's element, never out of range; (1, K) where branches share the rows.
        here: (Q, K) 1 for rows that start at this value and 0 for the others, and for those that are none; None where all do.
        slopes: of the gate whose pre-activations these are; None where it passes on as it is what its kept units send.
    """

    value: Value
    shape: tuple[int, ...]
    place: Tensor
    here: Tensor | None = None
    slopes: Slopes | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """K rows for each of Q branches.

    Args:
        layer: the hidden layer that they start from; None for the logits.
        image: (Q,) the image of every branch.
        weights: (Q, K, C) what each row sends to every class; None where the rows are the classes.
        favour: (Q, K) how much more each sends to the target than to the mean of the other classes.
        sent: (Q, K) what each sends of what is explained.
        shared: the rows are the same for every branch, because no gate or route of an image is in them yet.
    """

    frozen: Frozen
    layer: int | None
    starts: tuple[Start, ...]
    image: Tensor
    weights: Tensor | None
    favour: Tensor
    sent: Tensor
    shared: bool = False

    @cached_property
    def count(self) -> int:
        return self.favour.shape[1]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """How many sets of rows there are, and how many rows in each."""
        return (1 if self.shared else len(self.image)), self.count

    @cached_property
    def images(self) -> Tensor:
        """The image of every row of every set; of shared rows, of none in particular."""
        sets, count = self.shape
        if self.shared:
            return torch.zeros(count, dtype=torch.long, device=self.image.device)
        return self.image.expand(count) if sets == 1 else self.image.repeat_interleave(count)

    def reach(self, layer: int) -> bool:
        """Whether there is a way from here to a layer with no other gate between."""
        return any(self.frozen.network.lands[start.value] & 1 << layer for start in self.starts)

    def down(
        self, wanted: int, some: slice | None = None, *, windows: bool = True, without_empty: bool = False
    ) -> Landed:
        """Take rows down one by one; row k of branch q has the number q * rows + k, or just k where they are shared.

        Args:
            wanted: where they may land: a bit for every hidden layer, bit 0 for the input.
            some: which rows of every branch; all by default.
            without_empty: at each value, only the rows that start there; so shapes depend on numbers.
        """
        return walk(self.frozen, self._seeds(some, without_empty), wanted, windows=windows)

    def _seeds(self, some: slice | None, without_empty: bool) -> Iterator[tuple[Value, Window]]:
        for start in self.starts:
            place, here, image = start.place, start.here, self.images
            if some is not None:
                place, here = place[:, some], None if here is None else here[:, some]
                image = image.reshape(self.shape)[:, some].flatten()
            row = counted(place.numel(), place.device)
            one = ones(place.numel(), self.favour) if here is None else here.reshape(-1)
            seed = Window.one_hot(one, place.reshape(-1), start.shape, row, image)
            if without_empty and len(self.starts) > 1:
                seed = seed.rows(one.nonzero().squeeze(1))
                if not len(seed.data):
                    continue
            yield start.value, seed if start.slopes is None else start.slopes.passed(seed)

    def weighed(self, factors: Tensor, wanted: int) -> Landed:
        """Take sums of rows down as whole maps: the rows of branch q times (Q, c, K), which makes c maps of each."""
        branches, count, _ = factors.shape
        row = counted(branches * count, factors.device)
        image = self.image if count == 1 else self.image.repeat_interleave(count)
        seeds = []
        for start in self.starts:
            maps = factors.new_zeros(branches, count, torch.Size(start.shape).numel())
            part = factors if start.here is None else factors * start.here[:, None]
            maps.scatter_add_(2, start.place[:, None].expand(branches, count, -1), part)
            seed = Window.full(maps.reshape(-1, *start.shape), row, image)
            seeds.append((start.value, seed if start.slopes is None else start.slopes.passed(seed)))
        return walk(self.frozen, seeds, wanted, windows=False)


def rows_of_classes(frozen: Frozen, branches: Branches) -> Rows:
    """One row per class, at the logits."""
    network = frozen.network
    value, shape = network.logits, network.shape(network.logits)
    device = frozen.images.device
    if branches.logits is not None:
        start = Start(value, shape, branches.logits)
    else:
        start = Start(value, shape, counted(network.outputs, device)[None])
    shared = branches.logits is None and network.top_is_shared
    if not shared and len(start.place) != len(branches):
        start = replace(start, place=start.place.expand(len(branches), -1))
    if network.outputs > 1:
        favour, sent = branches.favour(frozen.images), branches.explained(frozen.images)
        return Rows(frozen, None, (start,), branches.image, None, favour, sent, shared)
    pair = torch.arange(2, dtype=frozen.images.dtype, device=device)  # the logits (0, y)
    weights = pair.expand(len(branches), 1, 2)
    favour, sent = branches.sums(weights).unbind(2)
    return Rows(frozen, None, (start,), branches.image, weights, favour, sent, shared)


def rows_of_units(frozen: Frozen, branches: Branches, kept: Kept) -> Rows:
    """One row per unit that a layer keeps, at its pre-activation."""
    starts = []
    for gate, place, here in kept.places():
        slopes = frozen.slopes(gate)
        # A plain ReLU's slope is 1 for every unit that is kept, and nothing is sent through those that are not.
        factor, known = kept.real if here is None else here, None if slopes.given is None else slopes
        starts.append(Start(gate.source, gate.shape, place, factor, known))
    return Rows(frozen, kept.layer, tuple(starts), branches.image, kept.weights, kept.favour, kept.sent)


def walk(frozen: Frozen, seeds: Iterable[tuple[Value, Window]], wanted: int, *, windows: bool = True) -> Landed:
    """Take cotangents down to where they land: the outputs of the gates they meet, or the input.

    Args:
        windows: keep cotangents as windows; otherwise as whole maps.
    """
    network = frozen.network
    landed: Landed = {}
    pending: Landed = {}
    queue: list[int] = []  # numbers of nodes to visit, the highest first

    def put(value: Value, window: Window) -> None:
        if not network.lands[value] & wanted:
            return
        if not windows:
            window = window.dense()
        node = network.producers.get(value)
        if node is None or node.index in network.gates:
            merge(landed.setdefault(value, []), window)
            return
        if value not in pending:
            pending[value] = []
            heapq.heappush(queue, -node.index)
        merge(pending[value], window)

    for value, window in seeds:
        put(value, window)
    while queue:
        node = network.graph.nodes[-heapq.heappop(queue)]
        for output, made in enumerate(node.outputs):
            for window in pending.pop(made, ()) if made is not None else ():
                for source, cotangent in frozen.pull(node, output, window):
                    put(source, cotangent)
    return landed


def merge(windows: list[Window], window: Window) -> None:
    """Add a cotangent to those of the same value: into one of them where the boxes are the same."""
    for number, other in enumerate(windows):
        if other.is_full and window.is_full and other.row is window.row:
            windows[number] = replace(other, data=other.data + window.data)
            return
    windows.append(window)
