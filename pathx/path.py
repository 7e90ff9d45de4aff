"""Algorithm 1: from the output down, the units of each hidden layer that send the target class most.

`find_paths` is the algorithm. It works on branches: one (picture, target) each, all in one batch. A branch knows the
units it kept in the layer above and what each of them sends to every class; going down one layer takes one cotangent
per kept unit (or per class, at the top), as a window that ends at the ReLUs it meets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor

from pathx.arrivals import Arrival, Candidates, Rows
from pathx.entries import LiveCandidates
from pathx.frozen import Frozen
from pathx.network import Gate
from pathx.selection import Chosen, select
from pathx.trace import Value
from pathx.window import Window

NONE = torch.zeros(0, dtype=torch.long)
Landed = dict[Value, list[Window]]
SUM_FIRST = 1.0  # measured; see _sum_first


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of a Jacobian on their way down.

    Args:
        landed: where the rows arrived: outputs of gates, or the input.
        leaned: the same for the sum of each branch's rows, each times its lean, as whole maps; None where summing up what
            landed is less work.
    """

    landed: Landed
    rows: Rows
    leaned: Landed | None = None

    def arrivals(self, gates: Sequence[Gate]) -> list[Arrival]:
        """What arrived at the gates of one layer."""
        return [
            Arrival(position, window, self.rows, self.leaned is not None)
            for position, gate in enumerate(gates)
            for window in self.landed.get(gate.output, ())
        ]

    def sums(self, gates: Sequence[Gate]) -> list[tuple[int, Tensor]]:
        """Gates of one layer, by position, with the sums (Q, *shape) that are known there."""
        leaned = {value: maps for value, maps in (self.leaned or {}).items() if value in self.landed}
        return [(at, window.data) for at, gate in enumerate(gates) for window in leaned.get(gate.output, ())]


@dataclass(frozen=True, eq=False)
class ClassSource:
    """One row per class through the units that a layer kept, walked down whenever some classes are asked for.

    It serves where the kept units outnumber the classes by far: whole maps then cost less than a window per unit.
    """

    frozen: Frozen
    branches: Branches
    kept: Kept

    def maps(self, values: Sequence[Value], classes: range) -> list[Tensor]:
        """(Q, c, *shape) what arrives at the values, for some classes."""
        return self._pulled(values, self.kept.weights[:, classes.start : classes.stop])

    def for_target(self, values: Sequence[Value]) -> list[Tensor]:
        """(Q, *shape) what arrives at the values for the explained class."""
        row = explained(self.kept.weights, self.branches, self.frozen.network.outputs)
        return [maps[:, 0] for maps in self._pulled(values, row[:, None])]

    def _pulled(self, values: Sequence[Value], weights: Tensor) -> list[Tensor]:
        """(Q, c, *shape) what arrives at the values, for rows that weigh the kept units by (Q, c, K)."""
        network = self.frozen.network
        wanted = 0
        for value in values:
            wanted |= network.lands[value]
        landed = walk_weighted(self.frozen, self.branches, self.kept, weights, wanted)
        branches, count, _ = weights.shape
        result = []
        for value in values:
            total = weights.new_zeros(branches * count, *network.shape(value))
            for window in landed.get(value, ()):
                total = total + window.data
            result.append(total.reshape(branches, count, *total.shape[1:]))
        return result


@dataclass(frozen=True, eq=False)
class Branches:
    """What is explained, one entry per (picture, target).

    Args:
        image: (Q,) number of the picture in the batch.
        target: (Q,) class.
        classes: C; a single logit y counts as two classes with the logits (0, y).
        parent: (Q,) which branch each came from, where branches were split.
    """

    image: Tensor
    target: Tensor
    classes: int
    parent: Tensor | None = None
    memory: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.image)

    def lean(self, like: Tensor) -> Tensor:
        """(Q, C) 1 at the target, and less than 0 at the others, which is 0 in all."""
        if "lean" not in self.memory:
            rest = like.new_full((len(self), self.classes), -1 / (self.classes - 1))
            self.memory["lean"] = rest.scatter_(1, self.target[:, None], 1.0)
        return self.memory["lean"]

    def of(self, parent: Tensor) -> Branches:
        """One branch for each of the given ones (Q',)."""
        return Branches(self.image[parent], self.target[parent], self.classes, parent)


@dataclass(frozen=True, eq=False)
class Kept:
    """The units that the branches keep in one hidden layer.

    Args:
        layer: n.
        gates: the ReLUs of the layer; a unit's number counts through them in order.
        chosen: unit numbers, importance margins and which entries are real, (Q, K) each.
        weights: (Q, C, K) what each unit's output sends to every class.
        gain: (Q, K) what the units pass on.
    """

    layer: int
    gates: tuple[Gate, ...]
    chosen: Chosen
    weights: Tensor
    gain: Tensor

    def places(self) -> Iterator[tuple[Gate, Tensor, Tensor]]:
        """Each gate with the units' flat indices in it, (Q, K), never out of range, and which of them are on it."""
        offset = 0
        for gate in self.gates:
            index = self.chosen.units - offset
            here = self.chosen.valid & (index >= 0) & (index < gate.units)
            yield gate, index.clamp(0, gate.units - 1), here
            offset += gate.units

    def of(self, parent: Tensor) -> Kept:
        """The same units for each of the given branches (Q',)."""
        return replace(self, chosen=self.chosen.of(parent), weights=self.weights[parent], gain=self.gain[parent])


@dataclass(frozen=True)
class Strategy:
    """How a step is computed. Whatever is set here, the kept units are the same and the numbers agree to rounding.

    Args:
        prune: rank by a bound first and compute exact margins only where the bound leaves a chance. Needs to look at
            numbers between steps, so it is for devices where that is cheap.
        windows: keep cotangents as windows; otherwise as full maps.
        basis: one row per kept unit, one per class, or whichever is less.
        chunk: how many numbers an intermediate result may have.
    """

    prune: bool
    windows: bool = True
    basis: Literal["auto", "unit", "class"] = "auto"
    chunk: int = 1 << 26


@dataclass(frozen=True, eq=False)
class Paths:
    """The kept units of every layer, from the output down.

    Args:
        jumping: rows that may have jumped over the deepest of these layers.
    """

    branches: Branches
    layers: tuple[Kept, ...]
    jumping: tuple[Source | ClassSource, ...]


def find_paths(
    frozen: Frozen,
    branches: Branches,
    *,
    depth: int,
    widths: dict[int, int],
    alpha: float | None,
    skips: str,
    strategy: Strategy,
    split: int | None = None,
) -> Paths:
    """Algorithm 1 for all branches at once.

    Args:
        widths: how many units layer n may keep.
        split: the layer where every branch falls apart into one branch per kept unit: only what that unit sends is
            followed from there on.
    """
    top = frozen.network.depth
    layers: list[Kept] = []
    sources: list[Source | ClassSource] = [_from_classes(frozen, branches, _wanted(top, skips), strategy)]
    for n in range(top, top - depth, -1):
        gates = frozen.network.layers[n - 1]
        candidates = _candidates(frozen, branches, gates, sources, _threshold(alpha, branches.classes), strategy)
        kept = Kept(n, gates, *_keep(candidates, widths[n], strategy))
        if n == split:
            parent, kept = _apart(kept)
            branches = branches.of(parent)
            layers, sources = [above.of(parent) for above in layers], []
        layers.append(kept)
        if n > top - depth + 1:
            below = _from_units(frozen, branches, kept, _wanted(n - 1, skips), strategy)
            sources = [below] if skips == "adjacent" else [*sources, below]
    jumping = sources if skips == "all" else []
    return Paths(branches, tuple(layers), tuple(jumping))


def _apart(kept: Kept) -> tuple[Tensor, Kept]:
    """Each kept unit on its own, as the only one of a branch, and the number of the branch it was kept by, (Q',)."""
    chosen = kept.chosen
    number = torch.arange(chosen.units.numel(), device=chosen.units.device)
    if chosen.listed is not None and any(chosen.listed):
        number = number[chosen.valid.flatten()]  # only real ones
    parent, column = number // chosen.units.shape[1], number % chosen.units.shape[1]
    weights = kept.weights[parent, :, column][:, :, None]
    alone = replace(kept, chosen=chosen.apart(number), weights=weights, gain=kept.gain[parent, column][:, None])
    return parent, alone


def explained(weights: Tensor, branches: Branches, outputs: int) -> Tensor:
    """(Q, K) the row of the target, of weights (Q, C, K).

    The negative class of a single logit has the logit 0 and an all-zero row: there, what speaks against the positive
    class is explained.
    """
    at = branches.target[:, None, None].expand(-1, 1, weights.shape[2])
    row = weights.gather(1, at)[:, 0]
    return torch.where(branches.target[:, None] == 0, -weights[:, 1], row) if outputs == 1 else row


def _wanted(layer: int, skips: str) -> int:
    """Where rows may land: in the next layer, or anywhere (a bit for every layer, bit 0 for the input)."""
    return 1 << layer if skips == "adjacent" else -1


def _threshold(alpha: float | None, classes: int) -> float:
    """The margin above which a unit's importance is above alpha; exactly 0 for alpha = 1/C."""
    if alpha is None or alpha == 1 / classes:
        return 0.0
    if alpha <= 0:
        return -math.inf
    return math.log(alpha / (1 - alpha)) + math.log(classes - 1) if alpha < 1 else math.inf


def _candidates(
    frozen: Frozen,
    branches: Branches,
    gates: tuple[Gate, ...],
    sources: Sequence[Source | ClassSource],
    threshold: float,
    strategy: Strategy,
) -> Candidates:
    """Everything that arrived at the gates of one layer."""
    outputs = [gate.output for gate in gates]
    eager = [source for source in sources if isinstance(source, Source)]
    everything = Candidates(
        branches.image,
        branches.target,
        branches.classes,
        gains=[frozen.slopes(gate).gain for gate in gates],
        arrivals=[arrival for source in eager for arrival in source.arrivals(gates)],
        class_maps=[partial(source.maps, outputs) for source in sources if isinstance(source, ClassSource)],
        threshold=threshold,
        chunk=strategy.chunk,
    )
    if not frozen.compact:
        return everything
    return LiveCandidates(**vars(everything), sums=[known for source in eager for known in source.sums(gates)])


def _keep(candidates: Candidates, width: int, strategy: Strategy) -> tuple[Chosen, Tensor, Tensor]:
    """The units to keep, what each sends to every class, (Q, C, K), and what it passes on, (Q, K)."""
    if isinstance(candidates, LiveCandidates) and not candidates.class_maps:
        return candidates.search(width, prune=strategy.prune)
    chosen = select(candidates, width)
    if isinstance(candidates, LiveCandidates):
        chosen = chosen.trimmed()
    return chosen, candidates.weights(chosen.units), candidates.gain(chosen.units)


def _from_classes(frozen: Frozen, branches: Branches, wanted: int, strategy: Strategy) -> Source:
    """One row per logit, at the logits themselves."""
    network = frozen.network
    outputs, shared = network.outputs, network.top_is_shared
    copies = 1 if shared else len(branches)
    device = frozen.images.device
    index = torch.arange(outputs, device=device).repeat(copies)
    row = torch.arange(copies * outputs, device=device)
    image = torch.zeros_like(row) if shared else branches.image.repeat_interleave(outputs)
    seed = Window.one_hot(frozen.images.new_ones(len(index)), index, network.shape(network.logits), row, image)
    landed = walk(frozen, [(network.logits, seed)], wanted, windows=strategy.windows)
    if outputs == 1:  # the logits (0, y)
        pair = torch.tensor([0.0, 1.0], dtype=frozen.images.dtype, device=device)
        weights = pair.reshape(1, 2, 1).expand(len(branches), 2, 1)
        return Source(landed, Rows(outputs, weights, _lean(branches, weights), shared))
    return Source(landed, Rows(outputs, None, branches.lean(frozen.images), shared))


def _lean(branches: Branches, weights: Tensor) -> Tensor:
    """(Q, K) how much more is sent to the target than to the mean of the other classes, of weights (Q, C, K)."""
    return torch.bmm(weights.transpose(1, 2), branches.lean(weights)[:, :, None])[:, :, 0]


def _from_units(
    frozen: Frozen, branches: Branches, kept: Kept, wanted: int, strategy: Strategy
) -> Source | ClassSource:
    """One row per kept unit, at its pre-activation; or one per class, where that is less."""
    count = kept.chosen.units.shape[1]
    if strategy.basis == "class":
        return ClassSource(frozen, branches, kept)
    if strategy.basis == "auto" and (count > 4 * branches.classes or count * len(branches) >= 4096):
        units, classes = _sizes(frozen, branches, kept, wanted)
        # A unit's row is mostly read off the weights, a class's row is computed for whole maps; but rows of units must
        # fit into memory at once, and those of classes can be taken in turns.
        if units > min(1.5 * classes, 2 * strategy.chunk):
            if not frozen.compact or classes > strategy.chunk:
                return ClassSource(frozen, branches, kept)
            landed = walk_weighted(frozen, branches, kept, kept.weights, wanted)
            return Source(landed, Rows(branches.classes, None, branches.lean(frozen.images)))
    landed = walk(frozen, _unit_seeds(frozen, branches, kept), wanted, windows=strategy.windows)
    rows = Rows(count, kept.weights, _lean(branches, kept.weights))
    leaned = None
    if frozen.compact and _sum_first(frozen, branches, landed):
        leaned = walk_weighted(frozen, branches, kept, rows.lean[:, None], wanted)
    return Source(landed, rows, leaned)


def _sizes(frozen: Frozen, branches: Branches, kept: Kept, wanted: int) -> tuple[int, int]:
    """How many numbers land: rows of the kept units as windows, and rows of the classes as whole maps."""
    one = torch.arange(1, device=branches.image.device)
    sample = [(value, window.rows(one)) for value, window in _unit_seeds(frozen, branches, kept)]
    landed = walk(frozen, sample, wanted)
    footprint = max((sum(w.data.numel() for w in windows) for windows in landed.values()), default=0)
    whole = sum(prod(frozen.network.shape(value)) for value in landed)
    return kept.chosen.units.numel() * footprint, len(branches) * branches.classes * whole


def _sum_first(frozen: Frozen, branches: Branches, landed: Landed) -> bool:
    """Whether windows are so many that one map of their sum costs less than what is in them."""
    boxes = sum(window.data.numel() for windows in landed.values() for window in windows)
    maps = sum(prod(frozen.network.shape(value)) for value in landed)
    return boxes > SUM_FIRST * len(branches) * maps


def _unit_seeds(frozen: Frozen, branches: Branches, kept: Kept) -> list[tuple[Value, Window]]:
    """A window of one element at the pre-activation of every kept unit."""
    seeds = []
    for gate, (index, row, image, here) in zip(kept.gates, _units_on_gates(branches, kept), strict=True):
        if len(row):
            value = torch.ones(len(row), dtype=frozen.images.dtype, device=row.device) if here is None else here
            seed = Window.one_hot(value.to(frozen.images.dtype), index, gate.shape, row, image)
            seed = replace(seed, ordered=len(row) == kept.chosen.units.numel())
            slopes = frozen.slopes(gate)
            if slopes.given is not None:  # otherwise it is 1 for every unit that is kept
                seed = slopes.passed(seed)
            seeds.append((gate.source, seed))
    return seeds


def _units_on_gates(branches: Branches, kept: Kept) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """For each gate, the flat index, row and picture (P,) of the units kept on it, and which of these are real."""
    chosen = kept.chosen
    count = chosen.units.shape[1]
    if chosen.listed is None:
        row = torch.arange(chosen.units.numel(), device=chosen.units.device)
        image = branches.image.repeat_interleave(count)
        for _, index, here in kept.places():
            yield index.flatten(), row, image, here.flatten()
        return
    start = 0
    few = None
    if chosen.units.numel() < 64:  # plain numbers are faster
        few = [(unit, q * count + k) for q, some in enumerate(chosen.listed) for k, unit in enumerate(some)]
    flat, real = chosen.units.reshape(-1), chosen.valid.reshape(-1)
    for gate in kept.gates:
        end = start + gate.units
        if few is not None:
            own = [(unit - start, row) for unit, row in few if start <= unit < end]
            index, row = torch.tensor(own, dtype=torch.long).reshape(-1, 2).unbind(1)
        else:
            row = (real & (flat >= start) & (flat < end)).nonzero().view(-1)
            index = flat.take(row) - start
        image = branches.image.expand(len(row)) if len(branches) == 1 else branches.image[row // count]
        yield index, row, image, None
        start = end


def walk(frozen: Frozen, seeds: Iterable[tuple[Value, Window]], wanted: int, *, windows: bool = True) -> Landed:
    """Take cotangents down to where they land: the outputs of the gates they meet, or the input."""
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
            landed.setdefault(value, []).append(window)
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


def walk_weighted(frozen: Frozen, branches: Branches, kept: Kept, weights: Tensor, wanted: int) -> Landed:
    """Take rows that weigh the kept units by (Q, c, K) down as whole maps."""
    count = weights.shape[1]
    row = torch.arange(len(branches) * count, device=branches.image.device)
    image = branches.image.repeat_interleave(count)
    weights = weights * kept.chosen.valid[:, None]
    seeds = []
    for gate, index, here in kept.places():
        maps = weights.new_zeros(len(branches), count, gate.units)
        maps.scatter_add_(2, index[:, None].expand(-1, count, -1), weights * here[:, None])
        seed = Window.full(maps.reshape(-1, *gate.shape), row, image)
        seeds.append((gate.source, frozen.slopes(gate).passed(seed)))
    return walk(frozen, seeds, wanted, windows=False)


def merge(windows: list[Window], window: Window) -> None:
    """Add a cotangent to those of the same value: into one of them where the boxes are the same."""
    for number, other in enumerate(windows):
        if other.is_full and window.is_full and other.row is window.row:
            windows[number] = replace(other, data=other.data + window.data)
            return
    windows.append(window)
