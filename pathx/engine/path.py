"""Algorithm 1 of the paper: from the output down, the units of each hidden layer that send most to the target class.

With W_prev the matrix of what the units kept above send to every class (the identity over the logits, to begin with),

    1.  W = W_prev · ∂h⁽ⁿ⁺¹⁾[path] / ∂h⁽ⁿ⁾        what each unit of layer n sends to every class through them
    2.  importance = softmax over classes of W · diag(h⁽ⁿ⁾), at the target
    3.  path⁽ⁿ⁾ = the `width` most important units with an importance above alpha; the most important one if there is none
    4.  W_prev = W[:, path⁽ⁿ⁾]

for n = N, N - 1, … With importance="effect", step 2 ranks units by (W_target - sum of p_c / (1 - p_target) · W_c over the other
classes c) · h⁽ⁿ⁾ instead, the first-order effect of a unit on the log-odds of the target, and step 3 keeps what is above 0.

Steps 1 to 3 are `most_important` of search.py; the rows of the Jacobian are in rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept
from pathx.engine.freeze import Frozen
from pathx.engine.rows import Rows, class_rows, unit_rows
from pathx.engine.search import LayerInputs, Strategy, most_important


@dataclass(frozen=True)
class PathSettings:
    """What Algorithm 1 is given beside the network.

    Args:
        depth: how many layers, from the output down.
        widths: how many units layer n may keep.
        threshold: margin, or effect, above which a unit may be kept.
        skips: "all" follows routes that jump over layers too; "adjacent" only those from layer to layer.
        split: the layer where every branch is split into one branch per kept unit, if any.
    """

    depth: int
    widths: dict[int, int]
    threshold: float
    skips: str
    split: int | None = None
    strategy: Strategy = field(default_factory=Strategy)


@dataclass(frozen=True, eq=False)
class Paths:
    """The path of every branch.

    Args:
        layers: the kept units, from the output down.
        jumping: rows that jump over the last of these layers.
    """

    branches: Branches
    layers: Sequence[Kept]
    jumping: Sequence[Rows]


def find_paths(frozen: Frozen, branches: Branches, settings: PathSettings) -> Paths:
    """Algorithm 1 for every (image, target) at once."""
    top = frozen.network.depth
    path: list[Kept] = []
    jumping: list[Rows] = []
    rows = class_rows(frozen, branches)  # path of layer N + 1: all logits; W_prev is the identity
    edges = _EdgeBudget()
    for n in range(top, top - settings.depth, -1):
        reaching = [one for one in (*jumping, rows) if one.lands & 1 << n] or [rows]
        inputs = [LayerInputs(one, n, settings.strategy) for one in reaching]
        kept, W = most_important(inputs, branches, settings.widths[n], settings.threshold, settings.strategy)
        path.append(edges.fit(kept, pairs=len(branches) // branches.parts))
        if settings.skips == "all":
            jumping = [one for one in (*jumping, rows) if one.lands & ((1 << n) - 1)]
        if n == settings.split:
            branches, path, W = _split(branches, path, W)
            jumping = []
        rows = unit_rows(frozen, branches, path[-1], W)  # W_prev = W[:, path of layer n]
    return Paths(branches, path, jumping)


def _split(branches: Branches, path: list[Kept], W: Tensor) -> tuple[Branches, list[Kept], Tensor]:
    """One branch per unit that the last layer keeps: only what that unit sends is followed from there on."""
    units = path[-1].units
    number = torch.arange(units.numel(), device=units.device)
    parent, column = number // units.shape[1], number % units.shape[1]
    above = [kept.select(parent) for kept in path[:-1]]
    return branches.select(parent), [*above, path[-1].select(parent, column)], W[parent, column].unsqueeze(1)


MOST_EDGES = 1 << 24
"""Numbers that the edges of one layer may have for each (image, target), whatever the batch."""

MOST_EDGES_IN_ALL = 1 << 26
"""And those of the whole path: where routes jump, every layer has edges to all above it."""


@dataclass
class _EdgeBudget:
    """Bounds the memory of edges: they are left out where they would be too many."""

    total: int = 0

    def fit(self, kept: Kept, pairs: int) -> Kept:
        sizes = [link.columns.numel() // pairs for link in kept.links if link.layer is not None]
        if max(sizes, default=0) > MOST_EDGES or self.total + sum(sizes) > MOST_EDGES_IN_ALL:
            return replace(kept, links=())
        self.total += sum(sizes)
        return kept
