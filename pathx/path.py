"""Algorithm 1: from the output down, the units of each hidden layer that send the target class most.

`find_paths` is the algorithm. It works on branches: one (picture, target) each, all in one batch. A branch knows the
units it kept in the layer above and what each of them sends to every class; going down one layer takes one cotangent
per kept unit (or per class, at the top), as a window that ends at the ReLUs it meets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathx.frozen import Frozen
from pathx.network import Gate
from pathx.selection import Candidates, Chosen, select
from pathx.trace import Value
from pathx.window import Window

Landed = dict[Value, list[Window]]


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of a Jacobian on their way down.

    Args:
        landed: where the rows arrived: outputs of gates, or the input.
        weights: (Q, C, K) what each of a branch's K rows sends to every class; None where the rows are the classes.
        rows: K. Row k of branch q has the number q * K + k.
    """

    landed: Landed
    weights: Tensor | None
    rows: int


@dataclass(frozen=True, eq=False)
class Branches:
    """What is explained, one entry per (picture, target).

    Args:
        image: (Q,) number of the picture in the batch.
        target: (Q,) class.
        classes: C; a single logit y counts as two classes with the logits (0, y).
    """

    image: Tensor
    target: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.image)


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


@dataclass(frozen=True)
class Strategy:
    """How a step is computed. Whatever is set here, the kept units are the same and the numbers agree to rounding.

    Args:
        prune: rank by a bound first and compute exact margins only where the bound leaves a chance. Needs to look at
            numbers between steps, so it is for devices where that is cheap.
        windows: keep cotangents as windows; otherwise as full maps.
        chunk: how many numbers an intermediate result may have.
    """

    prune: bool
    windows: bool = True
    chunk: int = 1 << 26


@dataclass(frozen=True, eq=False)
class Paths:
    """The kept units of every layer, from the output down, and the rows still on their way below the deepest one."""

    branches: Branches
    layers: tuple[Kept, ...]
    sources: tuple[Source, ...]


def find_paths(
    frozen: Frozen,
    branches: Branches,
    *,
    depth: int,
    widths: dict[int, int],
    alpha: float | None,
    skips: str,
    strategy: Strategy,
) -> Paths:
    """Algorithm 1 for all branches at once. `widths` says how many units layer n may keep."""
    top = frozen.network.depth
    layers: list[Kept] = []
    sources = [_from_classes(frozen, branches, _wanted(top, skips), strategy)]
    for n in range(top, top - depth, -1):
        gates = frozen.network.layers[n - 1]
        candidates = _candidates(frozen, branches, gates, sources, strategy)
        chosen = select(candidates, widths[n], _threshold(alpha, branches.classes), prune=strategy.prune)
        weights = candidates.weights(chosen.units)
        kept = Kept(n, gates, chosen, weights, candidates.gain(chosen.units))
        layers.append(kept)
        if n > top - depth + 1:
            below = _from_units(frozen, branches, kept, _wanted(n - 1, skips), strategy)
            sources = [below] if skips == "adjacent" else [*sources, below]
    return Paths(branches, tuple(layers), tuple(sources))


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
    frozen: Frozen, branches: Branches, gates: tuple[Gate, ...], sources: Iterable[Source], strategy: Strategy
) -> Candidates:
    """Everything that arrived at the gates of one layer."""
    arrivals = [
        (position, window, source.weights, source.rows)
        for source in sources
        for position, gate in enumerate(gates)
        for window in source.landed.get(gate.output, ())
    ]
    gains = [frozen.slopes(gate).gain for gate in gates]
    return Candidates(branches.image, branches.target, branches.classes, gains, arrivals, strategy.chunk, frozen.compact)


def _from_classes(frozen: Frozen, branches: Branches, wanted: int, strategy: Strategy) -> Source:
    """One row per logit, at the logits themselves."""
    network = frozen.network
    outputs, device = network.outputs, frozen.images.device
    index = torch.arange(outputs, device=device).repeat(len(branches))
    row = torch.arange(len(branches) * outputs, device=device)
    ones = frozen.images.new_ones(len(index))
    seed = Window.one_hot(ones, index, network.shape(network.logits), row, branches.image.repeat_interleave(outputs))
    landed = walk(frozen, [(network.logits, seed)], wanted, strategy)
    weights = None
    if outputs == 1:  # the logits (0, y)
        weights = frozen.images.new_tensor([0.0, 1.0]).reshape(1, 2, 1).expand(len(branches), 2, 1)
    return Source(landed, weights, outputs)


def _from_units(frozen: Frozen, branches: Branches, kept: Kept, wanted: int, strategy: Strategy) -> Source:
    """One row per kept unit, at its pre-activation."""
    units = kept.chosen.units
    rows = units.shape[1]
    row = torch.arange(units.numel(), device=units.device)
    image = branches.image.repeat_interleave(rows)
    seeds = []
    offset = 0
    for gate in kept.gates:
        index = (units - offset).flatten()
        here = kept.chosen.valid.flatten() & (index >= 0) & (index < gate.units)
        offset += gate.units
        value = here.to(frozen.images.dtype)
        seed = Window.one_hot(value, index.clamp(0, gate.units - 1), gate.shape, row, image)
        if frozen.compact:
            seed = seed.rows(torch.nonzero(here).flatten())
        if len(seed.data):
            seeds.append((gate.source, seed.scale(frozen.slopes(gate).slope)))
    return Source(walk(frozen, seeds, wanted, strategy), kept.weights, rows)


def walk(frozen: Frozen, seeds: Iterable[tuple[Value, Window]], wanted: int, strategy: Strategy) -> Landed:
    """Take cotangents down to where they land: the outputs of the gates they meet, or the input."""
    network = frozen.network
    landed: Landed = {}
    pending: Landed = {}
    queue: list[int] = []  # numbers of nodes to visit, the highest first

    def put(value: Value, window: Window) -> None:
        if not network.lands[value] & wanted:
            return
        if not strategy.windows:
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
        for output, value in enumerate(node.outputs):
            for window in pending.pop(value, ()) if value is not None else ():
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
