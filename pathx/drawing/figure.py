"""figure.png, what one opens first, and sheets of what is compared: features of a decision, several classes, several settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image, ImageDraw
from torch import Tensor

from pathx.contrast import Contrast
from pathx.decomposition import LEAST_SHARE, Decomposition, Feature
from pathx.drawing.page import Bar, Panel, sheet
from pathx.drawing.render import Drawing, Overlay, draw_overlay, enlarged_map, pixel_map, png, shared_scale
from pathx.drawing.words import LINE, brief_removal, count_of, path_line, percent, settings_line
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.maps import plane, smooth

Region = tuple[float, float, float, float]

TILE = 340  # a square picture's side; others have the same area
_LONGEST = 620  # side of a tile, in pixels
_CRISP = 4  # from so many times on, pixels stay squares
_KEPT = 0.9, 1.25  # so much smaller or larger would blur a photo for nothing: it stays as it is
_FAINT = 0.03  # of the largest magnitude: no colour that one could see
_INSET = 0.28  # of a picture's shorter side: what an inset shows


@dataclass(frozen=True, eq=False)
class View:
    """What explanations are drawn on.

    Args:
        region: the part of the photo that the network saw, in its pixels.
        label: of the explained class.
        source: the names of photo and model, as a figure says them.
        probability: of the explained class, where the explanation itself does not know the other logits.
        other: the class that it is explained against, if there is one.
        more: further pictures that a figure shows, such as what its units look for elsewhere.
    """

    photo: Image.Image
    region: Region
    label: str = ""
    source: str = ""
    probability: float | None = None
    other: str = ""
    more: tuple[Panel, ...] = ()

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
                f"the input ({shape}) is no image (channels, height, width): nothing to draw on", usage=True
            )
        if photo is None and explanation.origin is not None and explanation.origin.photo is not None:
            photo, region = explanation.origin.photo, explanation.origin.region
        photo = photo or _input_image(explanation)
        whole = (0.0, 0.0, float(photo.width), float(photo.height))
        label = explanation.label if label is None else label
        return View(photo, region or whole, label, other=explanation.other_label)

    def overlay(self, drawn: Explanation | Tensor, drawing: Drawing, **how: Any) -> Image.Image:
        """An explanation on all of the photo, as `draw` lays it there."""
        return self.draw(drawn, drawing, **how).full

    def draw(
        self,
        drawn: Explanation | Tensor,
        drawing: Drawing,
        *,
        scale: float | None = None,
    ) -> Overlay:
        """An explanation on the photo, or values that `heat_of` gave.

        Args:
            scale: the magnitude in the strongest colour, where pictures are compared.
        """
        values = heat_of(drawn, drawing) if isinstance(drawn, Explanation) else drawn
        return draw_overlay(self.photo, values, self.region, drawing, scale=scale)

    @property
    def _box(self) -> tuple[int, int, int, int]:
        """What the network saw of the photo, in whole pixels."""
        left, top, right, bottom = self.region
        return (
            max(0, round(left)),
            max(0, round(top)),
            min(self.photo.width, max(round(right), round(left) + 1)),
            min(self.photo.height, max(round(bottom), round(top) + 1)),
        )

    def tile(self) -> View:
        """What the network saw of the photo, in the size that sheets have it."""
        (left, top, right, bottom), box = self.region, self._box
        seen = self.photo.crop(box).convert("RGB")
        times = tile_times(*seen.size)
        shown = seen if _KEPT[0] <= times <= _KEPT[1] else resize_to_tile(seen)
        across, down = shown.width / seen.width, shown.height / seen.height
        # Whole pixels, unless the network saw beyond the photo.
        sides = zip(
            (round(left), round(top), round(right), round(bottom)), box[:2] * 2, (across, down) * 2, strict=True
        )
        x0, y0, x1, y1 = ((side - origin) * times for side, origin, times in sides)
        return replace(self, photo=shown, region=(x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)))


def heat_of(explanation: Explanation, drawing: Drawing) -> Tensor:
    """What overlays and sheets show of an explanation, (H, W): its path map, its pixels or all layers; smoothed."""
    if drawing.heat == "layers":
        if explanation.layer_map is None:
            raise PathxError("there is no map of the layers: explain the image with heat layers", usage=True)
        return smooth(explanation.layer_map, drawing.smoothing)
    if drawing.heat == "path":
        return plane(explanation.path_map(smoothing=drawing.smoothing))
    return smooth(explanation.attribution, drawing.smoothing)


def used_ends(heats: Iterable[Tensor]) -> tuple[float, float]:
    """What a colour bar must show of some maps: both signs, or the only one that they have, but for faint traces."""
    low, high = 0.0, 0.0
    for heat in heats:
        low, high = min(low, float(heat.min())), max(high, float(heat.max()))
    faint = _FAINT * max(-low, high)
    if low >= -faint:
        return 0.0, 1.0
    return (-1.0, 1.0) if high > faint else (-1.0, 0.0)


def tile_times(width: int, height: int) -> float:
    """How many times larger than a picture its tile is."""
    return min(TILE / math.sqrt(width * height), _LONGEST / max(width, height))


def resize_to_tile(picture: Image.Image) -> Image.Image:
    """A picture in the size that sheets have it; few pixels stay sharp pixels."""
    times = tile_times(*picture.size)
    if times >= _CRISP:
        times = math.floor(times)
    size = max(1, round(picture.width * times)), max(1, round(picture.height * times))
    return picture.resize(size, Image.Resampling.NEAREST if times >= _CRISP else Image.Resampling.LANCZOS)


def map_tile(drawn: Image.Image, beside: Image.Image) -> Image.Image:
    """What `pixel_map` drew in the size that sheets have it: that of a photo's tile, unless its pixels stay squares."""
    if tile_times(*drawn.size) >= _CRISP:
        return resize_to_tile(drawn).convert("RGB")
    return enlarged_map(drawn, beside.size)


def with_inset(drawn: Image.Image, tile: View, values: Tensor) -> Image.Image:
    """A picture with its strongest place as the photo has it, enlarged, in the corner that is farthest from there.

    Args:
        drawn: the tile with heat on it.
        values: the heat, (H, W).
    """
    (width, height), size = tile.photo.size, round(_INSET * min(drawn.size))
    side = _INSET * min(width, height)
    if size < 40:
        return drawn
    left, top, right, bottom = tile.region
    y, x = divmod(int(values.argmax()), values.shape[1])
    across, down = (
        low + (at + 0.5) / count * (high - low)
        for low, high, at, count in ((left, right, x, values.shape[1]), (top, bottom, y, values.shape[0]))
    )
    x0, y0 = min(max(across - side / 2, 0), width - side), min(max(down - side / 2, 0), height - side)
    seen = tile.photo.crop((round(x0), round(y0), round(x0 + side), round(y0 + side)))
    shown, zoom, large = drawn.copy(), drawn.width / width, round(1.35 * size)
    corner = (0 if across > width / 2 else drawn.width - large, 0 if down > height / 2 else drawn.height - large)
    shown.paste(seen.resize((large, large), Image.Resampling.LANCZOS), corner)
    draw = ImageDraw.Draw(shown)
    draw.rectangle((*corner, corner[0] + large - 1, corner[1] + large - 1), outline="white", width=3)
    draw.rectangle([round(zoom * end) for end in (x0, y0, x0 + side, y0 + side)], outline="white")
    return shown


def notebook_png(explanation: Explanation, figure: Callable[[], Image.Image]) -> bytes | None:
    """A figure for a notebook, or None where the input is no image."""
    return png(figure()) if explanation.attribution.dim() == 3 else None


def _input_image(explanation: Explanation) -> Image.Image:
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


MAPS = (
    "The path map shows where the units of the path look; the pixel map shows what each pixel adds through them, so the two can be "
    "strongest at different places."
)


def explanation_figure(explanation: Explanation, view: View, drawing: Drawing) -> Image.Image:
    """One explanation on a page that needs nothing beside it."""
    tile, heat = view.tile(), heat_of(explanation, drawing)
    exact = map_tile(pixel_map(explanation.attribution, drawing), tile.photo)
    ImageDraw.Draw(exact).rectangle((0, 0, exact.width - 1, exact.height - 1), outline="#cccccc")
    ends = (f"for {view.other}", f"for {view.label}") if view.other else ("against", "for")
    panels = [
        Panel(tile.photo, "photo", ("the part that the network saw",)),
        Panel(
            tile.overlay(heat, drawing),
            *caption(explanation, drawing),
            bar=Bar(drawing.colours, *ends, ends=used_ends([heat])),
        ),
        Panel(
            exact,
            "pixel map",
            ("exact values",),
            bar=Bar(drawing.colours, *ends, exact=True, ends=used_ends([plane(explanation.attribution)])),
        ),
    ]
    probability = explanation.probability if view.probability is None else view.probability
    title = f"{view.label}, {percent(probability)}" if not view.other else f"why {view.label} and not {view.other}"
    return sheet(panels, title=title, more=view.more, words=words(explanation, view))


def words(explanation: Explanation, view: View) -> list[str]:
    """What becomes of the class without the path, what the two maps are, and how it was found."""
    return [
        path_line(explanation, view.label, view.other),
        *([MAPS] if explanation.mapped else []),
        f"{settings_line(explanation)}{f'; {view.source}' if view.source else ''}",
    ]


def caption(explanation: Explanation, drawing: Drawing) -> tuple[str, tuple[str, ...]]:
    """The name of what the overlay shows, and how to read it."""
    if drawing.heat == "pixels":
        blur = f"smoothed by {drawing.smoothing:.1%} of the shorter side" if drawing.smoothing else "not smoothed"
        return "pixel map on the photo", (blur,)
    if drawing.heat == "layers":
        return "map of all layers", ("every unit of the upper half of the layers, on the path or not",)
    note = explanation.map_note
    if note is not None and not explanation.mapped:
        return "pixel map on the photo", (f"{note}.",)
    return "path map", (LINE,) if note is None else (LINE, note)


def decomposition_sheet(made: Decomposition, view: View, drawing: Drawing) -> Image.Image:
    """The whole path, and each feature that is drawn, in one colour scale."""
    tile = view.tile()
    heats = _decomposition_heats(made, drawing)
    scale = shared_scale(heats, drawing.percentile)
    details = (
        f"{count_of(len(made.units), 'unit')} of layer {made.layer}, in {count_of(len(made.features), 'feature')}",
    )
    panels = [Panel(tile.overlay(heats[0], drawing, scale=scale), "the whole path", details)]
    for feature, values in zip(made.drawn, heats[1:], strict=True):
        units = [made.units[position] for position in feature.units]
        picture = tile.overlay(values, drawing, scale=scale)
        panels.append(
            Panel(
                with_inset(picture, tile, values) if bool(values.any()) else picture,
                f"feature {feature.number}" + ("" if feature.share is None else f": {percent(feature.share)}"),
                (f"{count_of(len(units), 'unit')}; {channels_line(made, feature)}",),
            )
        )
    notes = [settings_line(made.whole), *decomposition_remarks(made)]
    return sheet(panels, title=view.label, more=view.more, notes=notes, bar=_bar(drawing, scale, heats, view.label))


def channels_line(made: Decomposition, feature: Feature) -> str:
    """A feature's strongest channel, and how many others there are: `conv5, channel 145 (6 of 25 units) and 7 others`."""
    (tensor, channel), units = next(iter((found := made.channels(feature)).items()))
    if len(found) == 1:
        return f"{tensor}, channel {channel}"
    return f"{tensor}, channel {channel} ({len(units)} of {len(feature.units)}) and {count_of(len(found) - 1, 'other')}"


def feature_heat(feature: Feature, drawing: Drawing) -> Tensor:
    """What overlays and sheets show of a feature, (H, W): its path map, or its pixels; smoothed."""
    if drawing.heat == "path" and feature.path_map is not None:
        return smooth(feature.path_map, drawing.smoothing)
    return smooth(feature.attribution, drawing.smoothing)


def decomposition_scale(made: Decomposition, drawing: Drawing) -> float:
    """The one colour scale of a decomposition: of the whole path, and of the features that are drawn."""
    if made.whole.attribution.dim() != 3:
        return 1.0
    return shared_scale(_decomposition_heats(made, drawing), drawing.percentile)


def _decomposition_heats(made: Decomposition, drawing: Drawing) -> list[Tensor]:
    """What is shown of the whole path, and of each feature that is drawn."""
    return [heat_of(made.whole, drawing), *(feature_heat(feature, drawing) for feature in made.drawn)]


def decomposition_remarks(made: Decomposition) -> list[str]:
    """What a reader must know of a decomposition, in sentences."""
    if not made.units:
        return ["No unit of this layer is on the path: there is nothing to decompose."]
    if made.below_alpha:
        return ["No unit of this layer is above alpha; the best one stands alone."]
    if len(made.units) == 1:
        return ["The layer keeps a single unit: there is one feature."]
    sent = f"The {len(made.units)} units of layer {made.layer} send {made.contribution:.3g} to the class"
    remarks = [f"{sent}; a feature's share is its part of that."]
    if len(made.features) == 1:
        remarks = [f"All {len(made.units)} units look at the same spot: there is one feature."]
    drawn = {one.number for one in made.drawn}
    left = [one for one in made.features if one.number not in drawn]
    if left:
        shares = [one.share for one in left if one.share is not None]
        share = f", {percent(sum(shares))} together" if shares else ""
        units = count_of(sum(len(one.units) for one in left), "unit")
        why = " below 1%" if shares and all(abs(one) < LEAST_SHARE for one in shares) else ""
        remarks.append(f"Not drawn: {count_of(len(left), 'feature')}{why} ({units}{share}).")
    return remarks


def contrast_sheet(
    made: Contrast, view: View, labels: Sequence[str], probabilities: Sequence[float], drawing: Drawing
) -> Image.Image:
    """The photo, each class, and what supports the first and not each other, in one colour scale.

    Args:
        labels, probabilities: of the explained classes, in their order.
    """
    tile = view.tile()
    heats, differences = _contrast_heats(made, drawing)
    scale = shared_scale([*heats, *differences], drawing.percentile)
    panels = [Panel(tile.photo, "photo")]
    for label, probability, explanation, values in zip(labels, probabilities, made.explanations, heats, strict=False):
        said = "; ".join(filter(None, (percent(probability), brief_removal(explanation.removal, label))))
        picture = tile.overlay(values, drawing, scale=scale)
        panels.append(Panel(picture, label, (said,)))
    for label, values, pair in zip(labels[1:], differences, made.pairs, strict=False):
        one, other = drawing.colours.split("-")
        said = brief_removal(pair.difference.removal, labels[0], label)
        details = (f"{one}: for {labels[0]}; {other}: for {label}", *([said] if said else []))
        panels.append(Panel(tile.overlay(values, drawing, scale=scale), f"why {labels[0]} and not {label}", details))
    bar = _bar(drawing, scale, [*heats, *differences])
    notes = [settings_line(made.explanations[0]), *([made.reason] if made.reason else [])]
    if len(made.explanations) > made.MOST_SHOWN:
        notes.append(f"The first {made.MOST_SHOWN} of {len(made.explanations)} classes; contrast.json has all.")
    return sheet(panels, title=" or ".join(labels[: made.MOST_SHOWN]) + "?", notes=notes, bar=bar)


def contrast_scale(made: Contrast, drawing: Drawing) -> float:
    """The one colour scale of all that a contrast shows: the classes, and how they differ."""
    heats, differences = _contrast_heats(made, drawing)
    return shared_scale([*heats, *differences], drawing.percentile)


def _contrast_heats(made: Contrast, drawing: Drawing) -> tuple[list[Tensor], list[Tensor]]:
    """What is shown of each class, and of the first against each other."""
    heats = [heat_of(one, drawing) for one in made.explanations[: made.MOST_SHOWN]]
    return heats, [heat_of(pair.difference, drawing) for pair in made.pairs[: made.MOST_SHOWN - 1]]


def comparison_sheet(explanations: Sequence[Explanation], view: View, drawing: Drawing) -> Image.Image:
    """One image and class explained in several ways, such as depths and widths, each in a colour scale of its own.

    Settings that fill a grid of depths and widths are laid out so.
    """
    tile = view.tile()
    ordered = sorted(
        explanations, key=lambda made: (made.depth, _width_order(made), made.alpha, made.skips, made.importance)
    )
    depths, widths = {made.depth for made in ordered}, {made.width for made in ordered}
    told_apart = len({(made.alpha, made.skips, made.importance) for made in ordered}) > 1
    is_grid = len(ordered) == len(depths) * len(widths) and 1 < len(widths) <= 6
    panels, heats = [], [heat_of(made, drawing) for made in ordered]
    for made, values in zip(ordered, heats, strict=True):
        how = f"alpha {made.alpha:.4g}, skips {made.skips}, importance {made.importance}"
        details = (f"score {made.score:.4g}", *([how] if told_apart else []))
        picture = tile.overlay(values, drawing)
        panels.append(Panel(picture, f"depth {made.depth}, width {made.width}", details))
    return sheet(
        panels,
        title=view.label,
        notes=["Each picture has a colour scale of its own: compare where the heat is, not how strong."],
        bar=_bar(drawing, None, heats, view.label),
        columns=len(widths) if is_grid else None,
    )


def _width_order(explanation: Explanation) -> tuple[int, float]:
    if isinstance(explanation.width, int):
        return 0, explanation.width
    return (2, 0.0) if explanation.width == "all" else (1, float(explanation.width.rstrip("%")))


def _bar(drawing: Drawing, scale: float | None, heats: Iterable[Tensor], label: str = "") -> Bar:
    return Bar(drawing.colours, f"against {label}".strip(), f"for {label}".strip(), scale, ends=used_ends(heats))
