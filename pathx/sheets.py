"""What is drawn of explanations, decompositions and contrasts: overlays, and sheets of what is compared in one scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw
from torch import Tensor

from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.layout import Bar, Panel, sheet
from pathx.png import png
from pathx.render import Drawing, heatmap, magnification, overlay, plane, shared_scale

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition, Group

Region = tuple[float, float, float, float]

TILE = 340  # a square picture's side; others have the same area
_LONGEST = 620  # side of a tile, in pixels
_CRISP = 4  # from so many times on, pixels stay squares
_MOST_BOXES = 8


@dataclass(frozen=True, eq=False)
class View:
    """What attributions are drawn on.

    Args:
        region: the part of the photo that the network saw, in its pixels.
        label: of the explained class.
    """

    photo: Image.Image
    region: Region
    label: str = ""

    @staticmethod
    def of(
        explanation: Explanation,
        photo: Image.Image | None = None,
        region: Region | None = None,
        label: str | None = None,
    ) -> View:
        """With what is not given taken from the explanation."""
        if explanation.attribution.dim() != 3:
            shape = "x".join(map(str, explanation.attribution.shape))
            raise PathxError(
                f"the input ({shape}) is no picture (channels, height, width): nothing to draw on", usage=True
            )
        photo = photo or _input_picture(explanation)
        whole = (0.0, 0.0, float(photo.width), float(photo.height))
        return View(photo, region or whole, f"class {explanation.target}" if label is None else label)

    def overlay(
        self,
        drawn: Explanation | Tensor,
        drawing: Drawing,
        *,
        scale: float | None = None,
        boxes: Sequence[Sequence[float]] | None = None,
    ) -> Image.Image:
        """An explanation on the photo, or an attribution, in which case the boxes of units come with it.

        Args:
            scale: the magnitude in the strongest colour, where pictures are compared.
        """
        if isinstance(drawn, Explanation):
            boxes, drawn = unit_boxes(drawn), drawn.attribution
        return overlay(
            self.photo,
            drawn,
            self.region,
            sigma=drawing.smoothing,
            colours=drawing.colours,
            percentile=drawing.percentile,
            scale=scale,
            boxes=(boxes or ()) if drawing.show_units else (),
        )

    def tile(self) -> View:
        """What the network saw of the photo, in the size that sheets have it."""
        left, top, right, bottom = self.region
        box = (
            max(0, round(left)),
            max(0, round(top)),
            min(self.photo.width, max(round(right), round(left) + 1)),
            min(self.photo.height, max(round(bottom), round(top) + 1)),
        )
        seen = self.photo.convert("RGB").crop(box)
        shown = tile_sized(seen)
        across, down = shown.width / seen.width, shown.height / seen.height
        # Whole pixels, unless the network saw beyond the photo.
        sides = zip(
            (round(left), round(top), round(right), round(bottom)), box[:2] * 2, (across, down) * 2, strict=True
        )
        x0, y0, x1, y1 = ((side - origin) * times for side, origin, times in sides)
        return View(shown, (x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)), self.label)


def tile_sized(picture: Image.Image) -> Image.Image:
    """A picture in the size that sheets have it; few pixels stay sharp pixels."""
    times = min(TILE / math.sqrt(picture.width * picture.height), _LONGEST / max(picture.size))
    if times >= _CRISP:
        times = math.floor(times)
    size = max(1, round(picture.width * times)), max(1, round(picture.height * times))
    return picture.resize(size, Image.Resampling.NEAREST if times >= _CRISP else Image.Resampling.LANCZOS)


def heat(attribution: Tensor, drawing: Drawing, *, scale: float | None = None) -> Image.Image:
    """The exact heatmap, drawn so."""
    return heatmap(attribution, colours=drawing.colours, percentile=drawing.percentile, scale=scale)


def unit_boxes(explanation: Explanation) -> list[tuple[int, ...]]:
    """Receptive fields of the strongest units that the deepest layer of the path keeps, each once."""
    units = sorted(explanation.path[-1].units, key=lambda unit: -unit.contribution)
    return list(dict.fromkeys(unit.receptive_field for unit in units if unit.receptive_field))[:_MOST_BOXES]


def explanation_sheet(explanation: Explanation, view: View, drawing: Drawing) -> Image.Image:
    """The photo, the overlay and the exact heatmap of one explanation."""
    tile = view.tile()
    scale = shared_scale([explanation.attribution], drawing.smoothing, drawing.percentile)
    exact = tile_sized(heat(explanation.attribution, drawing))
    ImageDraw.Draw(exact).rectangle((0, 0, exact.width - 1, exact.height - 1), outline="#cccccc")
    panels = [
        Panel(tile.photo, "photo"),
        Panel(tile.overlay(explanation, drawing, scale=scale), f"score {explanation.score:.4g}", _smoothed(drawing)),
        Panel(exact, "exact values", ("of the network's input, not smoothed, in a scale of their own",)),
    ]
    return sheet(panels, title=view.label, notes=[settings_line(explanation)], bar=_bar(drawing, scale, view.label))


def decomposition_sheet(made: Decomposition, view: View, drawing: Drawing) -> Image.Image:
    """The whole, and each group of features, in one colour scale; weak ones are magnified, as their captions say."""
    tile = view.tile()
    whole = made.whole
    scale = decomposition_scale(made, drawing)
    panels = [Panel(tile.overlay(whole, drawing, scale=scale), "the whole path", (f"score {whole.score:.4g}",))]
    for group in made.groups:
        members = [made.features[position] for position in group.features]
        unit = members[0].unit
        boxes = [box for member in members for box in unit_boxes(member.explanation)]
        details = [f"unit {unit.tensor} [{','.join(map(str, unit.index))}]"]
        if len(members) > 1:
            details.append(f"and {len(members) - 1} more that look there")
        factor = magnified(group.attribution, scale, drawing)
        details += _strength(factor)
        if not group.place:
            details.append("nothing of it reaches the picture")
        panels.append(
            Panel(
                tile.overlay(group.attribution, drawing, scale=scale / factor, boxes=list(dict.fromkeys(boxes))),
                group_name(group) + (f": {percent(group.share)} of the score" if group.share is not None else ""),
                tuple(details),
            )
        )
    notes = [f"{settings_line(whole)}; taken apart at layer {made.layer}", *decomposition_remarks(made)]
    return sheet(panels, title=view.label, notes=notes, bar=_bar(drawing, scale, view.label))


def group_name(group: Group) -> str:
    """The features of a group by their numbers: `features 1-3, 6`."""
    return f"feature{'s' if len(group.features) > 1 else ''} {ranges(number + 1 for number in group.features)}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: `1-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def decomposition_scale(made: Decomposition, drawing: Drawing) -> float:
    """The one colour scale of a decomposition: of the whole, its features and their groups."""
    parts = [feature.explanation.attribution for feature in made.features]
    groups = [group.attribution for group in made.groups]
    return shared_scale([made.whole.attribution, *parts, *groups], drawing.smoothing, drawing.percentile)


def magnified(attribution: Tensor, scale: float, drawing: Drawing) -> int:
    """How many times stronger a part is shown than the scale says, so that it can be seen."""
    own = shared_scale([attribution], drawing.smoothing, drawing.percentile)
    return magnification(own, scale) if drawing.magnify and bool(attribution.any()) else 1


def decomposition_remarks(made: Decomposition) -> list[str]:
    """What a reader must know of a decomposition, in sentences."""
    remarks = []
    if made.below_alpha:
        remarks.append("No unit of this layer is above alpha; the best one stands alone.")
    elif len(made.features) + made.others.units == 1:
        remarks.append("The layer keeps a single unit: there is one feature.")
    elif len(made.groups) == 1 and made.others.units == 0:
        remarks.append(f"All {len(made.features)} units look at the same spot: there is one feature.")
    if made.others.units:
        share = f", {percent(made.others.share)} of the score" if made.others.share is not None else ""
        every = len(made.features) + made.others.units
        remarks.append(f"Not shown: {made.others.units} of {every} units{share}.")
    if not made.features:
        remarks.append("No unit of this layer is on the path: there is nothing to take apart.")
    return remarks


def contrast_sheet(
    made: Contrast, view: View, labels: Sequence[str], probabilities: Sequence[float], drawing: Drawing
) -> Image.Image:
    """The photo, each class, and what speaks for the first and not for each other, in one colour scale.

    Args:
        labels, probabilities: of the explained classes, in their order.
    """
    tile = view.tile()
    scale = made.scale(drawing)
    panels = [Panel(tile.photo, "photo")]
    shown = list(zip(labels, probabilities, made.explanations, strict=True))[: made.MOST_SHOWN]
    for label, probability, explanation in shown:
        details = f"probability {percent(probability)}, score {explanation.score:.4g}"
        panels.append(Panel(tile.overlay(explanation, drawing, scale=scale), label, (details,)))
    for label, pair in zip(labels[1:], made.pairs[: made.MOST_SHOWN - 1], strict=False):
        one, other = drawing.colours.split("-")
        details = f"{one}: more for {labels[0]}; {other}: more for {label}"
        panels.append(
            Panel(tile.overlay(pair.attribution, drawing, scale=scale), f"{labels[0]} less {label}", (details,))
        )
    notes = [settings_line(made.explanations[0]), *([made.reason] if made.reason else [])]
    if len(made.explanations) > made.MOST_SHOWN:
        notes.append(f"The first {made.MOST_SHOWN} of {len(made.explanations)} classes; contrast.json has all.")
    return sheet(panels, title=" or ".join(labels[: made.MOST_SHOWN]) + "?", notes=notes, bar=_bar(drawing, scale))


def comparison_sheet(explanations: Sequence[Explanation], view: View, drawing: Drawing) -> Image.Image:
    """One picture and class explained in several ways, such as depths and widths, in one colour scale.

    Weak ones are magnified, as their captions say. Settings that fill a grid of depths and widths are laid out so.
    """
    tile = view.tile()
    ordered = sorted(explanations, key=lambda made: (made.depth, _width_order(made), made.alpha, made.skips))
    scale = shared_scale([made.attribution for made in ordered], drawing.smoothing, drawing.percentile)
    depths, widths = {made.depth for made in ordered}, {made.width for made in ordered}
    told_apart = len({(made.alpha, made.skips) for made in ordered}) > 1
    is_grid = len(ordered) == len(depths) * len(widths) and 1 < len(widths) <= 6
    panels = []
    for made in ordered:
        factor = magnified(made.attribution, scale, drawing)
        details = (f"score {made.score:.4g}", *([f"alpha {made.alpha:.4g}, skips {made.skips}"] if told_apart else []))
        drawn = tile.overlay(made, drawing, scale=scale / factor)
        panels.append(Panel(drawn, f"depth {made.depth}, width {made.width}", (*details, *_strength(factor))))
    return sheet(
        panels, title=view.label, bar=_bar(drawing, scale, view.label), columns=len(widths) if is_grid else None
    )


def notebook_png(explanation: Explanation, figure: Callable[[], Image.Image]) -> bytes | None:
    """A figure for a notebook, or None where the input is no picture."""
    return png(figure()) if explanation.attribution.dim() == 3 else None


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "-" if share is None else f"{share:.1%}"


def settings_line(explanation: Explanation) -> str:
    """How an explanation was made."""
    return f"depth {explanation.depth} of {explanation.hidden_layers}, width {explanation.width}"


def _width_order(explanation: Explanation) -> tuple[int, float]:
    if isinstance(explanation.width, int):
        return 0, explanation.width
    return (2, 0.0) if explanation.width == "all" else (1, float(explanation.width.rstrip("%")))


def _strength(factor: int) -> list[str]:
    return [f"shown {factor} times stronger"] if factor > 1 else []


def _smoothed(drawing: Drawing) -> tuple[str, ...]:
    return (f"smoothed by {drawing.smoothing:.1%} of the shorter side",) if drawing.smoothing else ("not smoothed",)


def _bar(drawing: Drawing, scale: float, label: str = "") -> Bar:
    return Bar(drawing.colours, scale, f"against {label}".strip(), f"for {label}".strip())


def _input_picture(explanation: Explanation) -> Image.Image:
    """The network's input, scaled to be seen; plain grey where the explanation does not know it."""
    height, width = explanation.attribution.shape[1:]
    if explanation.origin is None:
        return Image.new("RGB", (width, height), "#bbbbbb")
    image = explanation.origin.image.detach().cpu().double()
    bands = [image[channel] for channel in range(3)] if len(image) == 3 else [plane(image)] * 3
    low, high = min(float(band.min()) for band in bands), max(float(band.max()) for band in bands)
    span = high - low or 1.0
    grey = [
        Image.frombytes("L", (width, height), bytes(((band - low) / span * 255).round().byte().flatten().tolist()))
        for band in bands
    ]
    return Image.merge("RGB", grey)
