"""What channels look for, as pictures: parts of images, bright where the unit looked."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import Tensor

from pathx.drawing.page import Panel, sheet
from pathx.maps import smooth

CROP = 104
"""The side of a crop, in pixels."""

_GAP = 6
_DIM = 0.22
"""How bright the parts stay that the unit did not look at."""

_SPREAD = 0.02
"""What a unit saw is smoothed by this share of the input's shorter side."""

_LOOKED = 0.35
"""From this share of the strongest value on, the unit looked at a place in full."""

Box = tuple[float, float, float, float]


def crop(
    photo: Image.Image, region: Box, field: Sequence[int], size: tuple[int, int], saw: Tensor | None
) -> Image.Image:
    """The part of a photo inside a receptive field, darkened where the unit did not look.

    Args:
        region: the part of the photo that the network saw, in its pixels.
        field: (left, top, right, bottom) in pixels of the model's input; empty for the whole input.
        size: (width, height) of the model's input.
        saw: (H, W) what the unit got from every pixel of the input, or None where that is not known.
    """
    part = cut(photo, region, field, size, CROP)
    if saw is not None:
        dim = part.point(lambda value: value * _DIM)
        part = Image.composite(part, dim, _look_mask(saw, field or (0, 0, *size), part.size))
    framed = Image.new("RGB", (CROP, CROP), "white")
    framed.paste(part, ((CROP - part.width) // 2, (CROP - part.height) // 2))
    return framed


def cut(photo: Image.Image, region: Box, field: Sequence[int], size: tuple[int, int], longest: int) -> Image.Image:
    """The part of a photo inside a receptive field, of so many pixels on its longer side; black beyond the photo.

    Args:
        region, field, size: as for `crop`.
    """
    left, top, right, bottom = field or (0, 0, *size)
    across, down = (region[2] - region[0]) / size[0], (region[3] - region[1]) / size[1]
    box = (region[0] + left * across, region[1] + top * down, region[0] + right * across, region[1] + bottom * down)
    scale = longest / max(box[2] - box[0], box[3] - box[1])
    shown = max(1, round((box[2] - box[0]) * scale)), max(1, round((box[3] - box[1]) * scale))
    inside = max(box[0], 0), max(box[1], 0), min(box[2], photo.width), min(box[3], photo.height)
    part = Image.new("RGB", shown)
    across, down = shown[0] / (box[2] - box[0]), shown[1] / (box[3] - box[1])
    place = [round((inside[0] - box[0]) * across), round((inside[1] - box[1]) * down)]
    end = [round((inside[2] - box[0]) * across), round((inside[3] - box[1]) * down)]
    if inside[0] < inside[2] and inside[1] < inside[3] and place[0] < end[0] and place[1] < end[1]:
        fitting = photo.convert("RGB").resize(
            (end[0] - place[0], end[1] - place[1]), Image.Resampling.BILINEAR, box=inside
        )
        part.paste(fitting, (place[0], place[1]))
    return part


def _look_mask(saw: Tensor, field: Sequence[int], shown: tuple[int, int]) -> Image.Image:
    """How much the unit looked at each place of its field, 0 to 255."""
    left, top, right, bottom = field
    heat = smooth(saw.abs(), _SPREAD)[top:bottom, left:right].clamp(min=0)
    most = float(heat.max())
    steps = (heat / (most * _LOOKED)).clamp(max=1) if most > 0 else heat
    mask = Image.frombytes("L", (right - left, bottom - top), bytes((steps * 255).round().byte().flatten().tolist()))
    return mask.resize(shown, Image.Resampling.BILINEAR)


def strip(crops: Sequence[Image.Image]) -> Image.Image:
    """Crops in a row."""
    row = Image.new("RGB", (len(crops) * (CROP + _GAP) - _GAP, CROP), "white")
    for number, picture in enumerate(crops):
        row.paste(picture, (number * (CROP + _GAP), 0))
    return row


def channel_sheet(
    title: str, notes: Sequence[str], channels: Sequence[tuple[str, str, Sequence[Image.Image]]]
) -> Image.Image:
    """Channels below each other: name, words and crops of each."""
    panels = [Panel(strip(crops), name, (words,)) for name, words, crops in channels]
    return sheet(panels, title=title, notes=notes)
