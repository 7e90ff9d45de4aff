"""A decision split into features: groups of units that look at the same spot, and what each sends to the class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.explain import Loaded, decompose_frozen, explain_frozen, freeze_model
from pathx.engine.freeze import Frozen
from pathx.engine.settings import Target, class_numbers, in_one_line, targets_of, whole_number
from pathx.errors import PathxError
from pathx.explanation import Explanation, LayerTensor, PathLayer, Unit
from pathx.maps import Place, overlaps, place

if TYPE_CHECKING:
    from PIL import Image

    from pathx.drawing.render import Drawing

ALIKE = math.sqrt(0.5)
"""Two patches look at the same spot where their overlap, a cosine, is at least this.

The square of the cosine is the share of one that the other accounts for: from here on, more is common to the two than
tells them apart.
"""

LEAST_SHARE = 0.01
"""A feature with a smaller share, for or against the class, is listed and not drawn."""

MOST_UNITS = 256
"""A layer that keeps more units is refused: each would be followed alone."""


@dataclass(frozen=True, eq=False, repr=False)
class Feature:
    """A group of units that look at the same spot: what a person sees as one thing, such as a face or a wheel.

    Args:
        number: 1 for the strongest.
        units: their positions in `Decomposition.units`, the strongest first.
        contribution: what they send to the class: the sum of their contributions.
        share: of the contributions of all units of the layer; None where these do not add up to more than 0.
        attribution: the sum of the attributions of the units' own paths.
        path_map: the sum of their path maps, (H, W); None where the input is no image.
        place: where the path map is; None where it is all zero, or the input no image.
    """

    number: int
    units: tuple[int, ...]
    contribution: float
    share: float | None
    attribution: Tensor
    path_map: Tensor | None
    place: Place | None

    def __repr__(self) -> str:
        share = "" if self.share is None else f", {self.share:.1%}"
        return f"<Feature {self.number}: {len(self.units)} units{share}>"


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition:
    """The path behind one class, split into features at one of its layers.

    The contributions of the layer's units add up, so those of the features do: their shares are parts of one whole. Below
    the layer each unit is followed alone, on a path of its own.

    Args:
        whole: the explanation that is split.
        layer: the layer whose units are grouped.
        units: those that the layer keeps, by falling contribution.
        paths: the path through each of the units alone; empty where the decomposition was read from files.
        features: the groups, by falling contribution. Every unit is in one. Units of one channel at neighbouring places are
            one patch, and patches that look at the same spot are one feature.
        most: how many features are drawn at most; None for any number.
    """

    whole: Explanation
    layer: int
    units: tuple[Unit, ...]
    paths: tuple[Explanation, ...]
    features: tuple[Feature, ...]
    most: int | None = None

    def __repr__(self) -> str:
        return (
            f"<Decomposition of {self.whole.label!r}: {len(self.features)} features, {len(self.units)} units of layer "
            f"{self.layer}>"
        )

    @property
    def contribution(self) -> float:
        """What the layer's units send to the class together."""
        return math.fsum(unit.contribution for unit in self.units)

    @property
    def drawn(self) -> tuple[Feature, ...]:
        """The strongest features, as many as were asked for, without those below 1 %."""
        first = self.features[: self.most]
        return tuple(one for one in first if one.share is None or abs(one.share) >= LEAST_SHARE) or first[:1]

    @property
    def below_alpha(self) -> bool:
        """No unit of the layer was above alpha, so the single most important one stands alone."""
        return _layer(self.whole, self.layer).below_alpha

    def channels(self, feature: Feature) -> dict[tuple[str, int], list[Unit]]:
        """The units of a feature by tensor and channel, the channels first that send most."""
        tensors, by_channel = _layer(self.whole, self.layer).tensors, dict[tuple[str, int], list[Unit]]()
        for unit in (self.units[number] for number in feature.units):
            by_channel.setdefault(_position(unit, tensors)[:2], []).append(unit)
        sent = {key: math.fsum(unit.contribution for unit in units) for key, units in by_channel.items()}
        return {key: by_channel[key] for key in sorted(by_channel, key=lambda key: -sent[key])}

    def figure(
        self,
        photo: Image.Image | None = None,
        region: tuple[float, float, float, float] | None = None,
        *,
        label: str | None = None,
        drawing: Drawing | None = None,
    ) -> Image.Image:
        """A sheet of the whole path and each drawn feature, in one colour scale. Takes the arguments of `Explanation.figure`."""
        from pathx.drawing.figure import View, decomposition_sheet
        from pathx.drawing.render import Drawing

        return decomposition_sheet(self, View.of(self.whole, photo, region, label), drawing or Drawing())

    def _repr_png_(self) -> bytes | None:
        from pathx.drawing.figure import notebook_png

        return notebook_png(self.whole, self.figure)


def decompose(
    model: nn.Module | Loaded,
    images: Any,
    *,
    target: Target = None,
    from_layer: int | None = None,
    features: int | None = None,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
) -> list[Decomposition]:
    """Split the decision for each of a batch of images into features. Other arguments are those of `pathx.explain`.

    Args:
        from_layer: the layer whose units are grouped into features, counted from the input; the top one by default.
        features: how many to draw at most, the strongest; by default all with a share of at least 1%.
    """
    target = class_numbers(model, target)
    frozen, origins = freeze_model(model, images, exact)
    how: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    wanted = list(enumerate(targets_of(frozen.logits, target)))
    several = decompose_targets(frozen, wanted, from_layer=from_layer, features=features, **how)
    return [
        replace(made, whole=replace(made.whole, origin=origin)) for made, origin in zip(several, origins, strict=True)
    ]


def decompose_targets(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int]],
    *,
    from_layer: int | None = None,
    features: int | None = None,
    **options: Any,
) -> list[Decomposition]:
    """Split (image, class) pairs of a frozen batch into features: one pass for the whole paths, one for those of the units.

    Args:
        options: as for `explain_frozen`.
    """
    most = None if features is None else whole_number(features)
    if features is not None and (most is None or most < 1):
        raise PathxError(f"{in_one_line(features)} features are out of range; use 1 or more", usage=True)
    wholes = explain_frozen(frozen, wanted, **options)
    layer = frozen.network.depth if from_layer is None else whole_number(from_layer)
    units = max((len(kept.units) for whole in wholes for kept in whole.path if kept.layer == layer), default=0)
    if units > MOST_UNITS:
        raise PathxError(
            f"layer {layer} keeps {units} units, and each would be followed alone; use a width of at most {MOST_UNITS}",
            usage=True,
        )
    paths = decompose_frozen(frozen, wanted, from_layer=from_layer, **options)
    assert layer is not None  # or it was refused
    return [
        _decomposition(whole, [replace(path, branch=layer) for path in several], layer, most)
        for whole, several in zip(wholes, paths, strict=True)
    ]


def _decomposition(whole: Explanation, paths: list[Explanation], layer: int, most: int | None) -> Decomposition:
    """Put together from the path through each unit of a layer."""
    paths = sorted(paths, key=lambda path: -_unit(path, layer).contribution)  # stable: equal ones stay by importance
    units = [_unit(path, layer) for path in paths]
    total = math.fsum(unit.contribution for unit in units)
    groups = _group([_position(unit, _layer(whole, layer).tensors) for unit in units], paths)
    groups.sort(key=lambda members: -math.fsum(units[number].contribution for number in members))
    features = [_feature(number, members, units, paths, total) for number, members in enumerate(groups, start=1)]
    return Decomposition(whole, layer, tuple(units), tuple(paths), tuple(features), most)


def _layer(explanation: Explanation, layer: int) -> PathLayer:
    return next(kept for kept in explanation.path if kept.layer == layer)


def _unit(path: Explanation, layer: int) -> Unit:
    """The one unit that the path through it has in its layer."""
    return _layer(path, layer).units[0]


def _feature(
    number: int, members: list[int], units: Sequence[Unit], paths: Sequence[Explanation], total: float
) -> Feature:
    attribution = torch.stack([paths[member].attribution for member in members]).sum(0)
    path_map = None
    if attribution.dim() == 3:
        path_map = torch.stack([paths[member].path_map() for member in members]).sum(0)
    contribution = math.fsum(units[member].contribution for member in members)
    share = contribution / total if total > 0 else None
    where = None if path_map is None else place(path_map)
    return Feature(number, tuple(members), contribution, share, attribution, path_map, where)


def _group(positions: Sequence[Position], paths: Sequence[Explanation]) -> list[list[int]]:
    """Units by channel and by spot: first what one channel sees over one patch, then patches that look at the same spot."""
    parts = patches(positions)
    together = overlaps([torch.stack([paths[number].attribution for number in patch]).sum(0) for patch in parts])
    return [sorted(number for patch in group for number in parts[patch]) for group in group_alike(together)]


Position = tuple[str, int, tuple[int, ...] | None]
"""The tensor and the channel of a unit, and its row and column there; None where it has no place."""


def _position(unit: Unit, tensors: Sequence[LayerTensor]) -> Position:
    tensor = next(one for one in tensors if one.name == unit.tensor)
    return tensor.name, unit.index[tensor.channel_dim], tensor.position(unit.index)


def patches(positions: Sequence[Position]) -> list[list[int]]:
    """A partition of units: those of one channel whose places touch each other, directly or through others, are one."""
    left, parts = set(range(len(positions))), []
    while left:
        patch, edge = [], [min(left)]
        left.discard(edge[0])
        while edge:
            patch.append(edge.pop())
            near = {number for number in left if _touch(positions[patch[-1]], positions[number])}
            left -= near
            edge += sorted(near)
        parts.append(sorted(patch))
    return parts


def _touch(one: Position, other: Position) -> bool:
    """Whether two units are of one channel, next to each other or corner to corner."""
    if one[:2] != other[:2] or one[2] is None or other[2] is None:
        return False
    return all(abs(a - b) <= 1 for a, b in zip(one[2], other[2], strict=True))


def group_alike(overlap: Tensor, alike: float = ALIKE) -> list[list[int]]:
    """A partition of n maps by their (n, n) overlap, such that any two of a group are alike.

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
