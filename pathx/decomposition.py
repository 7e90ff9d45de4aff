"""A decision taken apart: one path per unit that a layer keeps, and those that look at the same spot as one group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.explain import (
    Loaded,
    brief,
    check_exact,
    decompose_frozen,
    explain_frozen,
    opened,
    targets_of,
    whole_number,
)
from pathx.engine.freeze import Frozen, freeze
from pathx.errors import PathxError
from pathx.explanation import Explanation, PathLayer, Unit
from pathx.maps import Place, overlaps, place

if TYPE_CHECKING:
    from PIL import Image

    from pathx.drawing.render import Drawing

ALIKE = math.sqrt(0.5)
"""Features are near-duplicates where their overlap, a cosine, is at least this.

The square of the cosine is the share of one that the other accounts for: from here on, more is common to the two than
tells them apart.
"""

MOST_FEATURES = 256
"""A layer that keeps more units is refused: each would be followed alone."""

ROUNDING = 1e-4
"""The parts sum to the whole where what is missing is less than this share of them: rounding in float32."""


@dataclass(frozen=True, eq=False)
class Feature:
    """What one unit of the layer adds.

    Args:
        explanation: the path through this unit alone.
        unit: the unit.
        share: of the scores of all features together; None where these do not add up to more than 0.
        place: None where the attribution is all zero, or the input no image.
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
    """Features of one channel over one patch, and those that look at the same spot; and what they add together.

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
    """All the parts together, minus the whole.

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
        groups: which of them belong together, by falling score; every feature is in one group. Neighbouring places of
            one channel are one patch, and patches that look at the same spot are one group.
        alike: the overlap that any two patches of a group have at least; None where none were to be grouped.
        overlap: the cosine between any two features, smoothed to spots.
        others: what was left out of the above.
        difference: all parts, those left out included, minus the whole.
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
        from pathx.drawing.render import Drawing
        from pathx.drawing.sheets import decomposition_sheet
        from pathx.drawing.view import View

        return decomposition_sheet(self, View.of(self.whole, photo, region, label), drawing or Drawing())

    def _repr_png_(self) -> bytes | None:
        from pathx.drawing.view import notebook_png

        return notebook_png(self.whole, self.figure)


def decompose(
    model: nn.Module | Loaded,
    images: Tensor,
    *,
    target: int | Sequence[int] | None = None,
    from_layer: int | None = None,
    features: int | None = None,
    group: bool = True,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
) -> list[Decomposition]:
    """Take apart the decision for each of a batch of preprocessed images.

    Args:
        model, images, target, depth, width, alpha, skips, exact, importance: as for `pathx.explain`.
        from_layer: the layer whose units are the features, counted from the input; the top one by default.
        features: how many groups of features to keep at most, the strongest; all by default.
        group: put features of one channel at neighbouring places, and those that look at the same spot, into one group.
    """
    module, _ = opened(model)
    frozen = freeze(module, images)
    check_exact(frozen.network, exact)
    wanted = list(enumerate(targets_of(frozen.logits, target)))
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
        importance=importance,
    )


def decompose_wanted(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int]],
    *,
    from_layer: int | None = None,
    features: int | None = None,
    group: bool = True,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    importance: str = IMPORTANCE,
) -> list[Decomposition]:
    """Take apart (image, class) pairs of a frozen batch, in one pass for the wholes and one for the parts."""
    most = None if features is None else whole_number(features)
    if features is not None and (most is None or most < 1):
        raise PathxError(f"{brief(features)} features are out of range; use 1 or more", usage=True)
    how: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    wholes = explain_frozen(frozen, wanted, **how)
    asked = None if from_layer is None else whole_number(from_layer)
    if from_layer is not None and asked is None:
        raise PathxError(
            f"layer {brief(from_layer)} is not the number of a layer; layers are counted from the input", usage=True
        )
    layer, reason = (frozen.network.depth, "the top layer") if asked is None else (asked, "as asked")
    for whole in wholes:
        units = sum(len(kept.units) for kept in whole.path if kept.layer == layer)
        if units > MOST_FEATURES:
            raise PathxError(
                f"layer {layer} keeps {units} units, and each would be followed alone; "
                f"use a width of at most {MOST_FEATURES}",
                usage=True,
            )
    parts = decompose_frozen(frozen, wanted, from_layer=layer, **how)
    return [
        _put_together(whole, [replace(part, branch=layer) for part in own], layer, reason, most, group)
        for whole, own in zip(wholes, parts, strict=True)
    ]


def _put_together(
    whole: Explanation, parts: list[Explanation], layer: int, reason: str, most: int | None, group: bool
) -> Decomposition:
    parts = sorted(parts, key=lambda part: -part.score)  # stable: equal scores stay by importance
    total = math.fsum(part.score for part in parts)
    overlap = overlaps([part.attribution for part in parts])
    groups = _grouped_parts(parts, layer) if group else [[number] for number in range(len(parts))]
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
        exact=missing <= ROUNDING * scale and abs(score) <= ROUNDING * largest,
    )


def _grouped_parts(parts: Sequence[Explanation], layer: int) -> list[list[int]]:
    """Parts by channel and by spot: first what one channel sees over one patch, then patches that look at the same spot."""
    found = patches([_kept(part, layer).units[0] for part in parts])
    together = overlaps([torch.stack([parts[number].attribution for number in patch]).sum(0) for patch in found])
    return [sorted(number for patch in group for number in found[patch]) for group in grouped(together)]


def patches(units: Sequence[Unit]) -> list[list[int]]:
    """A partition of units: those of one channel whose places touch each other, directly or through others, are one."""
    left, found = set(range(len(units))), []
    while left:
        patch, edge = [], [min(left)]
        left.discard(edge[0])
        while edge:
            patch.append(edge.pop())
            near = {number for number in left if _touch(units[patch[-1]], units[number])}
            left -= near
            edge += sorted(near)
        found.append(sorted(patch))
    return found


def _touch(one: Unit, other: Unit) -> bool:
    """Whether two units are of one channel of a feature map, next to each other or corner to corner."""
    if one.tensor != other.tensor or len(one.index) < 2 or one.index[0] != other.index[0]:
        return False
    return all(abs(a - b) <= 1 for a, b in zip(one.index[1:], other.index[1:], strict=True))


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
