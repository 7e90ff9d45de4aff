"""Algorithm 1: from the output down, the units of each hidden layer that send the target class most.

`find_paths` is the algorithm. It works on branches: one (image, target) each, all in one batch. A branch knows the
units it kept in the layers above and what each of them sends to every class; `search` finds those of the next layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept, Link
from pathx.engine.entries import Entries
from pathx.engine.freeze import Frozen
from pathx.engine.recording import repeated
from pathx.engine.rows import Rows, rows_of_classes, rows_of_units
from pathx.engine.search import Strategy, search
from pathx.engine.selection import certain, threshold_of

if TYPE_CHECKING:
    from pathx.engine.linear import LinearModel

MOST_LINKS = 1 << 24  # numbers that the links between two layers may have for each (image, target), whatever the batch
MOST_IN_ALL = 1 << 26  # and those of the whole path: where routes jump, every layer is linked with all above it
MORE = 8  # times as many candidates are looked at where the first were too few


@dataclass(frozen=True, eq=False)
class Paths:
    """The kept units of every layer, from the output down.

    Args:
        jumping: rows that may have jumped over the last of these layers; empty where routes run from layer to layer.
        made: what `PathSettings.finish` made of them, where it was played back together with the walk.
    """

    branches: Branches
    layers: tuple[Kept, ...] = ()
    jumping: tuple[Rows, ...] = ()
    made: LinearModel | None = None

    def above(self, layer: int) -> Paths:
        """Without the layers from this one down."""
        layers = tuple(kept for kept in self.layers if kept.layer > layer)
        last = layers[-1].layer if layers else 0
        jumping = tuple(rows for rows in self.jumping if layers and (rows.layer is None or rows.layer > last))
        return Paths(self.branches, layers, jumping)

    def apart(self) -> Paths:
        """One branch per unit that the last layer keeps: only what that unit sends is followed from there on."""
        *above, last = self.layers
        number = torch.arange(last.units.numel(), device=last.units.device)
        parent, column = number // last.units.shape[1], number % last.units.shape[1]
        layers = (*(kept.of(parent) for kept in above), last.of(parent, column))
        return Paths(self.branches.of(parent), layers)


@dataclass(frozen=True)
class PathSettings:
    """What Algorithm 1 is given beside the network.

    Args:
        depth: how many layers, from the output down.
        widths: how many units layer n may keep.
        alpha: importance above which a unit may be kept; None for 1/C.
        skips: "adjacent" or "all".
        split: the layer where every branch falls apart into one branch per kept unit, if any.
        finish: what will be made of the paths: it may be recorded and played back together with the walk.
    """

    depth: int
    widths: dict[int, int]
    alpha: float | None
    skips: str
    split: int | None = None
    strategy: Strategy = field(default_factory=Strategy)
    finish: Callable[[Frozen, Paths], LinearModel] | None = None


def find_paths(frozen: Frozen, branches: Branches, settings: PathSettings) -> Paths:
    """Algorithm 1 for all branches at once."""
    top = frozen.network.depth
    last = top - settings.depth + 1
    if settings.split is None:
        return _certain(frozen, Paths(branches), range(top, last - 1, -1), settings)
    whole = _certain(frozen, Paths(branches), range(top, settings.split - 1, -1), settings)
    return _certain(frozen, whole.apart(), range(settings.split - 1, last - 1, -1), settings)


def _certain(frozen: Frozen, paths: Paths, layers: range, settings: PathSettings) -> Paths:
    """Go down through some layers, and ask once, at the end, whether every choice is certain.

    Where some are not, the walk is taken up again from the highest of them, with more candidates in each of these layers.
    """
    threshold = threshold_of(settings.alpha, paths.branches.classes)
    more: dict[int, int] = {}
    while layers:
        if more or paths.layers:
            paths = descend(frozen, paths, layers, settings, more)
        else:
            paths = _from_the_top(frozen, paths.branches, layers, settings)
        doubtful = _doubtful([kept for kept in paths.layers if kept.layer <= layers[0]], threshold)
        if not doubtful:
            break
        more.update({n: MORE * more.get(n, 1) for n in doubtful})
        layers = range(doubtful[0], layers.stop, -1)
        paths = paths.above(doubtful[0])
    return paths


def _from_the_top(frozen: Frozen, branches: Branches, layers: range, settings: PathSettings) -> Paths:
    """The first walk down, which is nearly always the same list of operations for every image."""

    def work(frozen: Frozen, branches: Branches) -> Paths:
        return descend(frozen, Paths(branches), layers, settings)

    def finished(frozen: Frozen, paths: Paths) -> Paths:
        return paths if finish is None else replace(paths, made=finish(frozen, paths))

    finish = settings.finish if settings.split is None else None
    widths = tuple(settings.widths[n] for n in layers)
    form = (layers, widths, settings.alpha, settings.skips, settings.strategy, finish)
    return repeated(work, frozen, branches, form, settings.strategy.recorded, finished)


def descend(
    frozen: Frozen, paths: Paths, layers: range, settings: PathSettings, more: Mapping[int, int] = MappingProxyType({})
) -> Paths:
    """Go down through some layers without asking whether the choices are certain.

    Args:
        more: layers with so many times as many candidates as at first.
    """
    threshold = threshold_of(settings.alpha, paths.branches.classes)
    for n in layers:
        paths = _step(frozen, paths, n, threshold, more.get(n, 1), settings)
    return paths


def _step(frozen: Frozen, paths: Paths, n: int, threshold: float, more: int, settings: PathSettings) -> Paths:
    """One step of Algorithm 1: layer n, from what the layers above send there."""
    branches, width, strategy = paths.branches, settings.widths[n], settings.strategy
    last = rows_of_units(frozen, branches, paths.layers[-1]) if paths.layers else rows_of_classes(frozen, branches)
    sources = (last,) if settings.skips == "adjacent" else (*paths.jumping, last)
    arriving = [rows for rows in sources if rows.reach(n)] or [last]
    slack = (strategy.first_slack(width) + width * (more > 1)) * more
    found = search(
        *(frozen, branches, arriving, n),
        width=width,
        slack=slack,
        threshold=threshold,
        careful=more > 1,
        strategy=strategy,
    )
    favour, sent = (branches.sums(found.weights) * found.best.valid[:, :, None]).unbind(2)
    kept = Kept(
        n,
        frozen.network.layers[n - 1],
        found.units,
        found.best,
        found.weights,
        favour,
        sent,
        found.gain,
        _links(arriving, found.columns, paths),
        found.evidence,
    )
    return Paths(branches, (*paths.layers, kept), () if settings.skips == "adjacent" else sources)


def _links(sources: Sequence[Rows], columns: Sequence[Tensor | Entries | None], paths: Paths) -> tuple[Link, ...]:
    """How the rows arrived at the candidates, (Q, rows, n) each, for `Kept.links`; none where they would be too many."""
    known = [Link(rows.layer, own, rows.sent) for rows, own in zip(sources, columns, strict=True) if own is not None]
    explained = len(paths.branches) // paths.branches.parts
    sizes = [link.columns.numel() // explained for link in known if link.layer is not None]
    held = sum(
        link.columns.numel() // explained for kept in paths.layers for link in kept.links if link.layer is not None
    )
    fits = max(sizes, default=0) <= MOST_LINKS and held + sum(sizes) <= MOST_IN_ALL
    return tuple(known) if fits and len(known) == len(columns) else ()


def _doubtful(layers: Sequence[Kept], threshold: float) -> list[int]:
    """The layers whose choice is not certain for every branch, from the output down; all are asked in one transfer."""
    open_to_doubt = [kept for kept in layers if kept.evidence is not None]
    if not open_to_doubt:
        return []
    evidence = [kept.evidence for kept in open_to_doubt if kept.evidence is not None]
    sure = certain(evidence, threshold).all(1).tolist()
    return [kept.layer for kept, good in zip(open_to_doubt, sure, strict=True) if not good]
