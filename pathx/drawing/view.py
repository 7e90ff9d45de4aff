"""What explanations are drawn on, and what is drawn of them: the photo, what the network saw of it, path map or pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image, ImageDraw
from torch import Tensor

from pathx.drawing.page import Panel
from pathx.drawing.render import Drawing, Overlay, draw_overlay, enlarged_map, png
from pathx.errors import PathxError
from pathx.explanation import Explanation, Unit
from pathx.maps import plane, smooth

Region = tuple[float, float, float, float]

TILE = 340  # a square picture's side; others have the same area
_LONGEST = 620  # side of a tile, in pixels
_CRISP = 4  # from so many times on, pixels stay squares
_KEPT = 0.9, 1.25  # so much smaller or larger would blur a photo for nothing: it stays as it is
_MOST_BOXES = 8
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
        boxes: Sequence[Sequence[float]] = (),
    ) -> Overlay:
        """An explanation on the photo, or values that `heat_of` gave.

        Args:
            scale: the magnitude in the strongest colour, where pictures are compared.
            boxes: of units, to go with values; drawn if the drawing shows units.
        """
        if isinstance(drawn, Explanation):
            boxes, drawn = unit_boxes(drawn), heat_of(drawn, drawing)
        boxes = boxes if drawing.show_units else ()
        return draw_overlay(self.photo, drawn, self.region, drawing, scale=scale, boxes=boxes)

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


def unit_boxes(explanation: Explanation) -> list[tuple[int, ...]]:
    """Receptive fields of the strongest units that the deepest layer of the path keeps."""
    return field_boxes(explanation.path[-1].units)


def field_boxes(units: Iterable[Unit]) -> list[tuple[int, ...]]:
    """Receptive fields of the strongest of some units, each once."""
    strongest = sorted(units, key=lambda unit: -unit.contribution)
    return list(dict.fromkeys(unit.receptive_field for unit in strongest if unit.receptive_field))[:_MOST_BOXES]


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
