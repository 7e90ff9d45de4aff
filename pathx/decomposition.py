"""A decision taken apart: one path per unit that a layer keeps, and those that look at the same spot as one group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pathx.engine import decompose_frozen, explain_frozen, targets_of
from pathx.errors import PathxError
from pathx.explanation import Explanation, PathLayer, Unit
from pathx.frozen import Frozen, freeze
from pathx.places import Place, place
from pathx.render import Drawing, smooth

if TYPE_CHECKING:
    from PIL import Image

ALIKE = math.sqrt(0.5)
"""Features are near-duplicates where their overlap, a cosine, is at least this.

The square of the cosine is the share of one that the other accounts for: from here on, more is common to the two than
tells them apart.
"""

SPOT = 0.05
"""Overlap is measured on attributions smoothed by this, as a share of the shorter side: twice what overlays are.

Units that look at one spot read its pixels with different weights; the same spot is meant, not the same grain.
"""

MOST_FEATURES = 256
"""A layer that keeps more units is refused: each would be followed alone."""

EXACT = 1e-4
"""The parts sum to the whole where what is missing is less than this share of them: rounding in float32."""


@dataclass(frozen=True, eq=False)
class Feature:
    """What one unit of the layer adds.

    Args:
        explanation: the path through this unit alone.
        unit: the unit.
        share: of the scores of all features together; None where these do not add up to more than 0.
        place: None where the attribution is all zero, or the input no picture.
    """

    explanation: Explanation
    unit: Unit
    share: float | None
    place: Place | None

    @property
    def score(self) -> float:
        return self.explanation.score


@dataclass(frozen=True, eq=False)
class Group:
    """Features that look at the same spot, and what they add together.

    Args:
        features: their positions in the decomposition, the strongest first.
        attribution: the sum of theirs.
    """

    features: tuple[int, ...]
    attribution: Tensor
    score: float
    share: float | None
    place: Place | None


@dataclass(frozen=True)
class Remainder:
    """What is not shown, because no more features were asked for: units, groups, and their score and share."""

    units: int = 0
    groups: int = 0
    score: float = 0.0
    share: float | None = None


@dataclass(frozen=True)
class Difference:
    """All the parts together, less the whole.

    Below the layer each part chooses its own units, so that together they keep more routes than the whole does.

    Args:
        score: of the scores.
        bias: of the biases.
        attribution: the magnitude of the difference of the attributions, as a share of the whole's magnitude; None where
            that is 0.
        exact: the parts sum to the whole, up to rounding.
    """

    score: float
    bias: float
    attribution: float | None
    exact: bool


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The path behind one class, taken apart at one of its layers.

    Args:
        whole: the explanation that is taken apart.
        layer: where, and
        reason: why there.
        features: one per unit that the layer keeps, by falling score.
        groups: which of them look at the same spot, by falling score; every feature is in one group.
        alike: the overlap that any two of a group have at least; None where none were to be grouped.
        overlap: the cosine between any two features, smoothed to spots.
        others: what was left out of the above.
        difference: all parts, those left out included, less the whole.
    """

    whole: Explanation
    layer: int
    reason: str
    features: tuple[Feature, ...]
    groups: tuple[Group, ...]
    alike: float | None
    overlap: tuple[tuple[float, ...], ...]
    others: Remainder
    difference: Difference

    @cached_property
    def below_alpha(self) -> bool:
        """No unit of the layer was above alpha, so the single most important one stands alone."""
        return _kept(self.whole, self.layer).below_alpha

    def figure(
        self,
        photo: Image.Image | None = None,
        region: tuple[float, float, float, float] | None = None,
        *,
        label: str | None = None,
        drawing: Drawing | None = None,
    ) -> Image.Image:
        """A sheet: the whole, and each group of features, in one colour scale.

        Args:
            photo, region, label, drawing: as for `Explanation.figure`.
        """
        from pathx.sheets import View, decomposition_sheet

        return decomposition_sheet(self, View.of(self.whole, photo, region, label), drawing or Drawing())

    def _repr_png_(self) -> bytes | None:
        from pathx.sheets import notebook_png

        return notebook_png(self.whole, self.figure)


def decompose(
    model: nn.Module,
    images: Tensor,
    *,
    target: int | Sequence[int] | None = None,
    from_layer: int | None = None,
    features: int | None = None,
    group: bool = True,
    depth: int | str = 3,
    width: int | str = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
) -> list[Decomposition]:
    """Take apart the decision for each of a batch of preprocessed pictures.

    Args:
        model, images, target, depth, width, alpha, skips: as for `pathx.explain`.
        from_layer: the layer whose units are the features, counted from the input. By default the top one, or, where each
            unit of that speaks for one class only, the one below it.
        features: how many groups of features to keep at most, the strongest; all by default.
        group: put features that look at the same spot into one group.
    """
    frozen = freeze(model, images)
    wanted = list(enumerate(targets_of(frozen, target)))
    return decompose_wanted(
        frozen,
        wanted,
        from_layer=from_layer,
        features=features,
        group=group,
        depth=depth,
        width=width,
        alpha=alpha,
        skips=skips,
    )


def decompose_wanted(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int]],
    *,
    from_layer: int | None = None,
    features: int | None = None,
    group: bool = True,
    depth: int | str = 3,
    width: int | str = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
) -> list[Decomposition]:
    """Take apart (picture, class) pairs of a frozen batch, in one pass for the wholes and one for the parts."""
    if features is not None and features < 1:
        raise PathxError(f"{features} features are out of range; use 1 or more", usage=True)
    wholes = explain_frozen(frozen, wanted, depth=depth, width=width, alpha=alpha, skips=skips)
    chosen = [choose_layer(whole) if from_layer is None else (from_layer, "as asked") for whole in wholes]
    for whole, (layer, _) in zip(wholes, chosen, strict=True):
        units = sum(len(kept.units) for kept in whole.path if kept.layer == layer)
        if units > MOST_FEATURES:
            raise PathxError(
                f"layer {layer} keeps {units} units, and each would be followed alone; "
                f"use a width of at most {MOST_FEATURES}",
                usage=True,
            )
    parts: list[list[Explanation]] = [[] for _ in wanted]
    for layer in sorted({layer for layer, _ in chosen}):  # one, but for odd pictures
        at = [number for number, (own, _) in enumerate(chosen) if own == layer]
        pairs = [wanted[number] for number in at]
        found = decompose_frozen(frozen, pairs, from_layer=layer, depth=depth, width=width, alpha=alpha, skips=skips)
        for number, several in zip(at, found, strict=True):
            parts[number] = several
    return [
        _put_together(whole, own, layer, reason, features, group)
        for whole, own, (layer, reason) in zip(wholes, parts, chosen, strict=True)
    ]


def choose_layer(whole: Explanation) -> tuple[int, str]:
    """The layer to take a path apart at, and why there.

    A unit of the top layer that speaks for one class only is that class itself at one place, as in networks that end in
    one map per class (SqueezeNet); what it saw there is only told apart in the layer below.
    """
    top, classes = whole.path[0], whole.logits.numel()
    one_logit = classes == 2 and float(whole.logits.flatten()[0]) == 0  # where no unit could speak for another class
    if one_logit or not top.units or not all(_speaks_for_one(unit, classes) for unit in top.units):
        return top.layer, "the top layer"
    if len(whole.path) == 1:
        return top.layer, "the only layer of the path, though each of its units speaks for one class only"
    return top.layer - 1, f"below layer {top.layer}, each unit of which speaks for one class only"


def _speaks_for_one(unit: Unit, classes: int) -> bool:
    """Whether a unit sends nothing to the other classes: its importance is then given by what it sends to its own."""
    if not 0 < unit.importance < 1 - 1e-5:  # where nothing can be told any more
        return False
    margin = math.log(unit.importance) - math.log1p(-unit.importance) + math.log(classes - 1)
    return abs(margin - unit.contribution) <= 1e-3 * abs(unit.contribution) + 1e-6


def _put_together(
    whole: Explanation, parts: list[Explanation], layer: int, reason: str, most: int | None, group: bool
) -> Decomposition:
    parts = sorted(parts, key=lambda part: -part.score)  # stable: equal scores stay by importance
    total = math.fsum(part.score for part in parts)
    overlap = overlaps([part.attribution for part in parts])
    groups = grouped(overlap) if group else [[number] for number in range(len(parts))]
    groups.sort(key=lambda members: -math.fsum(parts[number].score for number in members))
    left, groups = groups[most:] if most else [], groups[:most]
    shown = sorted(number for members in groups for number in members)
    new = {number: position for position, number in enumerate(shown)}
    out = [number for members in left for number in members]
    score = math.fsum(parts[number].score for number in out)
    return Decomposition(
        whole=whole,
        layer=layer,
        reason=reason,
        features=tuple(
            Feature(part, _kept(part, layer).units[0], _share(part.score, total), place(part.attribution))
            for part in (parts[number] for number in shown)
        ),
        groups=tuple(_group([parts[n] for n in members], [new[n] for n in members], total) for members in groups),
        alike=ALIKE if group else None,
        overlap=tuple(tuple(row) for row in overlap[shown][:, shown].tolist()),
        others=Remainder(len(out), len(left), score, _share(score, total) if out else None),
        difference=_difference(whole, parts),
    )


def _kept(explanation: Explanation, layer: int) -> PathLayer:
    return next(kept for kept in explanation.path if kept.layer == layer)


def _share(score: float, total: float) -> float | None:
    return score / total if total > 0 else None


def _group(members: list[Explanation], numbers: list[int], total: float) -> Group:
    attribution = torch.stack([member.attribution for member in members]).sum(0)
    score = math.fsum(member.score for member in members)
    return Group(tuple(numbers), attribution, score, _share(score, total), place(attribution))


def _difference(whole: Explanation, parts: list[Explanation]) -> Difference:
    own = whole.attribution.double()
    together = sum((part.attribution.double() for part in parts), torch.zeros_like(own))
    missing, size = float((together - own).abs().sum()), float(own.abs().sum())
    scale = size + sum(float(part.attribution.double().abs().sum()) for part in parts)
    score = math.fsum(part.score for part in parts) - whole.score
    largest = abs(whole.score) + sum(abs(part.score) for part in parts)
    return Difference(
        score=score,
        bias=math.fsum(part.bias for part in parts) - whole.bias,
        attribution=missing / size if size else None,
        exact=missing <= EXACT * scale and abs(score) <= EXACT * largest,
    )


def overlaps(attributions: Sequence[Tensor]) -> Tensor:
    """(n, n) cosines between attributions, summed over channels and smoothed to spots.

    1 for alike, 0 where they share nothing or one is all zero, below 0 where one speaks for what the other speaks against.
    """
    if not attributions:
        return torch.zeros(0, 0, dtype=torch.float64)
    rows = torch.stack([_spots(attribution) for attribution in attributions])
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / largest.where(largest > 0, 1.0)  # so that no square overflows or vanishes
    norms = rows.norm(dim=1, keepdim=True)
    rows = rows / norms.where(norms > 0, 1.0)
    return torch.clamp(rows @ rows.T, -1, 1)


def _spots(attribution: Tensor) -> Tensor:
    if attribution.dim() in (2, 3):
        return smooth(attribution, SPOT).flatten()
    return attribution.detach().cpu().double().flatten()


def grouped(overlap: Tensor, alike: float = ALIKE) -> list[list[int]]:
    """A partition of n features by their (n, n) overlap, such that any two of a group are alike.

    Complete linkage: the two groups whose least similar members are most similar become one, as long as these are alike.
    """
    groups = [[number] for number in range(len(overlap))]
    similar = overlap.clone()
    similar.fill_diagonal_(-math.inf)
    while len(groups) > 1 and float(similar.max()) >= alike:
        first, second = sorted(divmod(int(similar.argmax()), len(groups)))
        joined = torch.minimum(similar[first], similar[second])
        similar[first], similar[:, first] = joined, joined
        similar[first, first] = -math.inf
        rest = [number for number in range(len(groups)) if number != second]
        similar = similar[rest][:, rest]
        groups[first] = sorted(groups[first] + groups.pop(second))
    return groups
