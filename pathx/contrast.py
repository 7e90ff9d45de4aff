"""Several classes of one image compared: what supports the first and not another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pathx.engine.explain import explain
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.maps import Place, overlaps, place, plane

if TYPE_CHECKING:
    from PIL import Image

    from pathx.drawing.render import Drawing


@dataclass(frozen=True, eq=False, repr=False)
class Pair:
    """Why the first class and not another.

    Args:
        difference: the explanation of the first class against the other: one path, and the linear model of the difference.
        logit: of the first class minus that of the other.
        overlap: the cosine between the attributions of the two classes, smoothed to spots.
        first: where the image supports the first class more, and how much; the place is None where nowhere.
        second: the same for the other.
        shared_units: for each layer, how many units are on the paths of both classes.
    """

    difference: Explanation
    logit: float
    overlap: float
    first: tuple[float, Place | None]
    second: tuple[float, Place | None]
    shared_units: dict[int, int]

    def __repr__(self) -> str:
        return f"<Pair: {self.difference.score:+.4g} of a difference of {self.logit:+.4g} between the logits>"

    @property
    def share(self) -> float | None:
        """What the path carries of the difference between the logits; below 0 where it points the other way."""
        return self.difference.score / self.logit if self.logit else None


@dataclass(frozen=True, eq=False, repr=False)
class Contrast:
    """Explanations of one image for several classes; the first is compared with each other.

    Args:
        reason: why these, where it was not asked for.
    """

    MOST_SHOWN: ClassVar[int] = 6  # classes in the picture

    explanations: tuple[Explanation, ...]
    pairs: tuple[Pair, ...]
    reason: str = ""

    def __repr__(self) -> str:
        return f"<Contrast of {', '.join(repr(one.label) for one in self.explanations)}>"

    @staticmethod
    def of(
        explanations: Sequence[Explanation], *, differences: Sequence[Explanation] | None = None, reason: str = ""
    ) -> Contrast:
        """Compare the first of an image's explanations with each of the others.

        Args:
            differences: the first class explained against each other; by default the model is run once more.
        """
        several = isinstance(explanations, Sequence)
        if not several or len(explanations) < 2 or not all(isinstance(one, Explanation) for one in explanations):
            raise PathxError("a contrast needs explanations of one image for two classes or more", usage=True)
        if len({tuple(explanation.attribution.shape) for explanation in explanations}) > 1:
            raise PathxError("a contrast needs explanations of one image; these are of different sizes", usage=True)
        if len({(one.depth, one.hidden_layers) for one in explanations}) > 1:
            raise PathxError("a contrast needs explanations of one depth, from one model", usage=True)
        first, *others = explanations
        known = _differences(first, others) if differences is None else differences
        pairs = (_pair(first, other, difference) for other, difference in zip(others, known, strict=True))
        return Contrast(tuple(explanations), tuple(pairs), reason)

    def figure(
        self,
        photo: Image.Image | None = None,
        region: tuple[float, float, float, float] | None = None,
        *,
        labels: Sequence[str] | None = None,
        drawing: Drawing | None = None,
    ) -> Image.Image:
        """A sheet: each class, and the differences, in one colour scale. Other arguments are those of `Explanation.figure`.

        Args:
            labels: of the classes; by default as the model's labels call them, or their numbers.
        """
        from pathx.drawing.figure import View, contrast_sheet
        from pathx.drawing.render import Drawing

        view = View.of(self.explanations[0], photo, region)
        names = labels or [explanation.label for explanation in self.explanations]
        probabilities = [explanation.probability for explanation in self.explanations]
        return contrast_sheet(self, view, names, probabilities, drawing or Drawing())

    def _repr_png_(self) -> bytes | None:
        from pathx.drawing.figure import notebook_png

        return notebook_png(self.explanations[0], self.figure)


def _differences(first: Explanation, others: Sequence[Explanation]) -> list[Explanation]:
    """The first class against each other, from the model itself."""
    origin = first.origin
    if origin is None:
        raise PathxError(
            "these explanations keep no model to contrast them with: give their differences, or explain again",
            usage=True,
        )
    images = torch.stack([origin.image] * len(others))
    against = [other.target for other in others]
    return explain(origin.model, images, target=first.target, against=against, **first.settings)


def _pair(first: Explanation, second: Explanation, difference: Explanation) -> Pair:
    attribution = difference.attribution
    seen = plane(attribution) if attribution.dim() == 3 else attribution.detach().cpu().double()
    towards, away = seen.clamp(min=0), (-seen).clamp(min=0)
    return Pair(
        difference=difference,
        logit=float(first.logits.flatten()[first.target]) - float(second.logits.flatten()[second.target]),
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
