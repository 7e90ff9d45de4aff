"""What channels look for, as pictures: parts of images, bright where the unit looked."""

from __future__ import annotations

import math
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
    x, y = math.floor(box[0]), math.floor(box[1])
    part = photo.convert("RGB").crop((x, y, math.ceil(box[2]), math.ceil(box[3])))  # which pads it with black
    return part.resize(shown, Image.Resampling.BILINEAR, box=(box[0] - x, box[1] - y, box[2] - x, box[3] - y))


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
