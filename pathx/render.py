"""Attributions as pictures: exact as a heatmap, readable as an overlay on the photo."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache

import torch
from PIL import Image, ImageDraw
from torch import Tensor

ColourMap = Callable[[Tensor], Tensor]
"""Values in [-1, 1], (n,) -> colours in [0, 1], (n, 3). Zero is white."""

COLOURS: dict[str, ColourMap] = {}
"""Every colour map by name; filled by @colour_map."""

PERCENTILE = 99.0
"""The strongest colour stands for this percentile of the magnitudes that are not zero; the few above it saturate."""

SMOOTHING = 0.025
"""Default width of the overlay's Gaussian: its sigma as a share of the input's shorter side (5.6 of 224 pixels)."""

LONGEST_SIDE = 2048
"""Larger photos are scaled down to this for the overlay."""

LEGIBLE_SIDE = 512
"""Photos of less than a third of this on their longer side are enlarged by a whole number, to at least this."""

_COLOUR, _LIGHT = 0.15, 0.2  # under the heat the photo keeps this much of its colour, and goes this far towards white
_DIM = 0.55  # how far the photo goes towards black where the network did not look


def colour_map(name: str) -> Callable[[ColourMap], ColourMap]:
    """Register a colour map under the name that users choose it by."""

    def register(function: ColourMap) -> ColourMap:
        COLOURS[name] = function
        return function

    return register


@colour_map("red-blue")
def red_blue(value: Tensor) -> Tensor:
    """Red for, blue against (ColorBrewer's RdBu)."""
    return _between(value, ("#053061", "#2166ac", "#67a9cf", "#ffffff", "#ef6a4c", "#c4161c", "#67000d"))


@colour_map("orange-purple")
def orange_purple(value: Tensor) -> Tensor:
    """Orange for, purple against (ColorBrewer's PuOr): told apart with any colour vision."""
    return _between(value, ("#2d004b", "#542788", "#998ec3", "#ffffff", "#f1a340", "#b35806", "#7f3b08"))


def heatmap(attribution: Tensor, *, colours: str = "red-blue") -> Image.Image:
    """The exact signed values, (C, H, W) summed over channels or (H, W), one pixel each."""
    values = _plane(attribution)
    return _recoloured(_picture(_steps(values / colour_scale(values)).to(torch.uint8)), colours)


def overlay(
    photo: Image.Image,
    attribution: Tensor,
    region: tuple[float, float, float, float],
    *,
    sigma: float = SMOOTHING,
    colours: str = "red-blue",
) -> Image.Image:
    """The heat on the photo, which is pale beneath it and dim where the network did not look.

    Args:
        region: (left, top, right, bottom) in pixels of the photo: what the network saw, and the attribution covers.
        sigma: of the Gaussian that smooths the heat for display, as a share of the input's shorter side; 0 for none.
    """
    photo, zoom = _display_size(photo.convert("RGB"))
    left, top, right, bottom = (side * zoom[axis % 2] for axis, side in enumerate(region))
    values = smooth(attribution, sigma)
    values = (values / colour_scale(values)).clamp(-1, 1)

    height, width = values.shape
    x_step, y_step = width / (right - left), height / (bottom - top)  # input pixels per pixel shown
    steps = _picture(_steps(values).to(torch.float32)).transform(
        photo.size,
        Image.Transform.AFFINE,
        (x_step, 0, -left * x_step, 0, y_step, -top * y_step),
        Image.Resampling.BICUBIC if sigma else Image.Resampling.NEAREST,
        fillcolor=128,
    )
    steps = steps.point(lambda value: value * 1 + 0.5).convert("L")  # Pillow cuts the fraction off

    grey = photo.convert("L").convert("RGB")
    seen = Image.blend(Image.blend(grey, photo, _COLOUR), Image.new("RGB", photo.size, "white"), _LIGHT)
    seen.paste(_recoloured(steps, colours, _vivid), mask=steps.point([_opacity(step) for step in range(256)]))

    box = _pixels(photo.size, (left, top, right, bottom))
    shown = Image.blend(Image.blend(grey, photo, _COLOUR), Image.new("RGB", photo.size, "black"), _DIM)
    shown.paste(seen.crop(box), box)
    if box != (0, 0, *photo.size):
        _frame(shown, box)
    return shown


def smooth(attribution: Tensor, sigma: float) -> Tensor:
    """The values summed over channels, (H, W), blurred for display; their sum is kept.

    The Gaussian is reflected at the edges, so nothing is lost there and a flat map stays flat.

    Args:
        sigma: as a share of the shorter side; 0 for none.
    """
    values = _plane(attribution)
    width = sigma * min(values.shape)
    if width == 0:
        return values
    rows, columns = (_reflected_gaussian(length, width) for length in values.shape)
    return rows @ values @ columns


def colour_scale(values: Tensor) -> float:
    """The magnitude shown in the strongest colour; 1 where all is zero."""
    magnitudes = values.abs()[values != 0]
    if len(magnitudes) == 0:
        return 1.0
    return float(magnitudes.kthvalue(math.ceil(len(magnitudes) * PERCENTILE / 100)).values)


def _plane(attribution: Tensor) -> Tensor:
    values = attribution.detach().cpu().double().nan_to_num(0.0, 0.0, 0.0)
    return values.sum(0) if values.dim() == 3 else values


@lru_cache(maxsize=8)  # the same for every picture of a run
def _reflected_gaussian(length: int, sigma: float) -> Tensor:
    # Rows and columns both sum to one. (length, length)
    at = torch.arange(length, dtype=torch.float64)
    weights = torch.zeros(length, length, dtype=torch.float64)
    for turn in range(-2, 3):
        for mirrored in (at, -1 - at):
            weights += torch.exp(-0.5 * ((at[:, None] - mirrored - 2 * length * turn) / sigma) ** 2)
    return weights / weights.sum(0)


def _steps(values: Tensor) -> Tensor:
    # [-1, 1] -> 1..255, with zero at 128: what a colour table of 256 can tell apart.
    return (values.clamp(-1, 1) * 127).round() + 128


def _recoloured(steps: Image.Image, colours: str, shade: Callable[[Tensor], Tensor] = torch.clone) -> Image.Image:
    value = ((torch.arange(256, dtype=torch.float64) - 128) / 127).clamp(-1, 1)
    table = (COLOURS[colours](shade(value)) * 255).round().to(torch.uint8)
    steps = steps.copy()
    steps.putpalette(table.flatten().tolist())
    return steps.convert("RGB")


def _vivid(value: Tensor) -> Tensor:
    # On a photo the opacity tells the magnitude, and the map's ends hide what is beneath: white and near black.
    return value.sign() * (0.45 + 0.2 * value.abs())


def _opacity(step: int) -> int:
    # Little for weak values, which are many, and never so much that the photo's outlines are gone.
    return round(255 * 0.8 * math.pow(min(1, abs(step - 128) / 127), 1.2))


def _between(value: Tensor, stops: tuple[str, ...]) -> Tensor:
    colours = torch.tensor([[int(stop[i : i + 2], 16) / 255 for i in (1, 3, 5)] for stop in stops], dtype=value.dtype)
    place = (value + 1) / 2 * (len(stops) - 1)
    below = place.floor().clamp(0, len(stops) - 2).long()
    return torch.lerp(colours[below], colours[below + 1], (place - below)[:, None])


def _picture(plane: Tensor) -> Image.Image:
    plane = plane.contiguous()
    data = ctypes.string_at(plane.data_ptr(), plane.numel() * plane.element_size())  # no numpy needed
    return Image.frombytes("L" if plane.dtype == torch.uint8 else "F", (plane.shape[1], plane.shape[0]), data)


def _display_size(photo: Image.Image) -> tuple[Image.Image, tuple[float, float]]:
    # The photo in the size to show, and how much it grew in x and y.
    longest = max(photo.size)
    if longest > LONGEST_SIDE:
        width, height = (max(1, round(side * LONGEST_SIDE / longest)) for side in photo.size)
        shown = photo.resize((width, height), Image.Resampling.LANCZOS)
    elif longest < LEGIBLE_SIDE / 3:
        times = math.ceil(LEGIBLE_SIDE / longest)
        shown = photo.resize((photo.width * times, photo.height * times), Image.Resampling.NEAREST)
    else:
        shown = photo
    return shown, (shown.width / photo.width, shown.height / photo.height)


def _pixels(size: tuple[int, int], region: tuple[float, float, float, float]) -> tuple[int, int, int, int]:
    # The region in whole pixels of the photo, at least one.
    left, top = (min(max(round(start), 0), side - 1) for start, side in zip(region[:2], size, strict=True))
    right, bottom = (min(max(round(end), 1), side) for end, side in zip(region[2:], size, strict=True))
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _frame(shown: Image.Image, box: tuple[int, int, int, int]) -> None:
    # Around the region, white on black, so that it shows on any photo.
    line = max(1, round(max(shown.size) / 400))
    left, top, right, bottom = box
    draw = ImageDraw.Draw(shown)
    for colour, outset in (("black", line), ("white", 0)):
        edges = (left - outset, top - outset, right - 1 + outset, bottom - 1 + outset)
        draw.rectangle(edges, outline=colour, width=line)
