"""Several classes of one picture against each other: what speaks for the first and not for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from pathx.decomposition import overlaps
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.places import Place, place
from pathx.render import Drawing, plane, shared_scale

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class Pair:
    """The linear model of the first class less that of another.

    Args:
        attribution: positive where a pixel adds more to the first class.
        overlap: the cosine between the two, smoothed to spots.
        first: where the picture speaks more for the first class, and how much; the place is None where nowhere.
        second: the same for the other.
        shared_units: for each layer of the paths, how many units both keep.
    """

    attribution: Tensor
    score: float
    bias: float
    overlap: float
    first: tuple[float, Place | None]
    second: tuple[float, Place | None]
    shared_units: dict[int, int]


@dataclass(frozen=True, eq=False)
class Contrast:
    """Explanations of one picture for several classes; the first is held against each other.

    Args:
        reason: why these, where it was not asked for.
    """

    MOST_SHOWN: ClassVar[int] = 6  # classes in the picture

    explanations: tuple[Explanation, ...]
    pairs: tuple[Pair, ...]
    reason: str = ""

    @staticmethod
    def of(explanations: Sequence[Explanation], *, reason: str = "") -> Contrast:
        """Hold the first of a picture's explanations against each of the others."""
        if len(explanations) < 2:
            raise PathxError("a contrast needs explanations of one picture for two classes or more", usage=True)
        if len({tuple(explanation.attribution.shape) for explanation in explanations}) > 1:
            raise PathxError("a contrast needs explanations of one picture; these are of different sizes", usage=True)
        first, *others = explanations
        return Contrast(tuple(explanations), tuple(_pair(first, other) for other in others), reason)

    def scale(self, drawing: Drawing) -> float:
        """The one colour scale of all that is shown."""
        classes = [explanation.attribution for explanation in self.explanations[: self.MOST_SHOWN]]
        differences = [pair.attribution for pair in self.pairs[: self.MOST_SHOWN - 1]]
        return shared_scale([*classes, *differences], drawing.smoothing, drawing.percentile)

    def figure(
        self,
        photo: Image.Image | None = None,
        region: tuple[float, float, float, float] | None = None,
        *,
        labels: Sequence[str] | None = None,
        drawing: Drawing | None = None,
    ) -> Image.Image:
        """A sheet: each class, and the differences, in one colour scale.

        Args:
            photo, region, drawing: as for `Explanation.figure`.
            labels: of the classes; their numbers by default.
        """
        from pathx.sheets import View, contrast_sheet

        view = View.of(self.explanations[0], photo, region)
        names = labels or [f"class {explanation.target}" for explanation in self.explanations]
        probabilities = [explanation.probability for explanation in self.explanations]
        return contrast_sheet(self, view, names, probabilities, drawing or Drawing())

    def _repr_png_(self) -> bytes | None:
        from pathx.sheets import notebook_png

        return notebook_png(self.explanations[0], self.figure)


def _pair(first: Explanation, second: Explanation) -> Pair:
    attribution = first.attribution - second.attribution
    seen = plane(attribution) if attribution.dim() == 3 else attribution.detach().cpu().double()
    towards, away = seen.clamp(min=0), (-seen).clamp(min=0)
    return Pair(
        attribution=attribution,
        score=first.score - second.score,
        bias=first.bias - second.bias,
        overlap=float(overlaps([first.attribution, second.attribution])[0, 1]),
        first=(float(towards.sum()), place(towards)),
        second=(float(away.sum()), place(away)),
        shared_units={
            one.layer: len(
                {(unit.tensor, unit.index) for unit in one.units} & {(u.tensor, u.index) for u in other.units}
            )
            for one, other in zip(first.path, second.path, strict=True)
        },
    )
