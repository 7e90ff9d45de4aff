"""Attributions as pictures: exact as a heatmap, readable as an overlay on the photo."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from pathx.errors import PathxError

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
_ZERO = 128  # the place of zero in a colour table of 256
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


@dataclass(frozen=True)
class Drawing:
    """How attributions are drawn; none of it changes a number.

    Args:
        smoothing: width of the Gaussian for overlays and sheets: its sigma as a share of the input's shorter side; 0
            for none.
        colours: a name of COLOURS.
        percentile: of the magnitudes that are not zero, what the strongest colour stands for.
        show_units: draw the receptive fields of the kept units of the deepest layer.
        magnify: show weak features of a decomposition, and weak ones of runs that are compared, stronger by a round
            factor that the caption says.
    """

    smoothing: float = SMOOTHING
    colours: str = "red-blue"
    percentile: float = PERCENTILE
    show_units: bool = False
    magnify: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing <= 1:
            raise PathxError(
                f"smoothing {self.smoothing} is out of range; use 0 for none, up to 1, such as {SMOOTHING}", usage=True
            )
        if self.colours not in COLOURS:
            raise PathxError(f"colours are {' or '.join(COLOURS)}, not {self.colours!r}", usage=True)
        if not 0 < self.percentile <= 100:
            raise PathxError(
                f"percentile {self.percentile} is out of range; use above 0, up to 100, such as {PERCENTILE:g}",
                usage=True,
            )


def heatmap(
    attribution: Tensor,
    *,
    colours: str = "red-blue",
    percentile: float = PERCENTILE,
    scale: float | None = None,
) -> Image.Image:
    """The exact signed values, (C, H, W) summed over channels or (H, W), one pixel each.

    Args:
        scale: the magnitude shown in the strongest colour, where pictures are compared; by default their percentile.
    """
    values = plane(attribution)
    scale = scale or colour_scale(values, percentile)
    return _recoloured(_picture(_steps(values / scale)), colours)


def overlay(
    photo: Image.Image,
    attribution: Tensor,
    region: tuple[float, float, float, float],
    *,
    sigma: float = SMOOTHING,
    colours: str = "red-blue",
    percentile: float = PERCENTILE,
    scale: float | None = None,
    boxes: Sequence[Sequence[float]] = (),
) -> Image.Image:
    """The heat on the photo, which is pale beneath it and dim where the network did not look.

    Args:
        region: (left, top, right, bottom) in pixels of the photo: what the network saw, and the attribution covers.
        sigma: of the Gaussian that smooths the heat for display, as a share of the input's shorter side; 0 for none.
        scale: the magnitude shown in the strongest colour, where pictures are compared; by default their percentile.
        boxes: (left, top, right, bottom) in pixels of the network's input, to be drawn as outlines.
    """
    photo, zoom = _display_size(photo if photo.mode == "RGB" else photo.convert("RGB"))
    left, top, right, bottom = (side * zoom[axis % 2] for axis, side in enumerate(region))
    values = smooth(attribution, sigma)
    scale = scale or colour_scale(values, percentile)

    height, width = values.shape
    x_step, y_step = width / (right - left), height / (bottom - top)  # input pixels per pixel shown
    box = _pixels(photo.size, (left, top, right, bottom))
    steps = _steps(values / scale)
    if sigma:
        across = _bicubic(width, (box[0] - left) * x_step, x_step, box[2] - box[0])
        down = _bicubic(height, (box[1] - top) * y_step, y_step, box[3] - box[1])
        heat = _picture(torch.sparse.mm(across, torch.sparse.mm(down, steps).T.contiguous()).T)
    else:
        affine = (x_step, 0, -left * x_step, 0, y_step, -top * y_step)
        heat = _picture(steps).transform(photo.size, Image.Transform.AFFINE, affine, fillcolor=_ZERO).crop(box)

    pale = Image.blend(photo.convert("L").convert("RGB"), photo, _COLOUR)
    seen = pale.crop(box).point(_faded("white", _LIGHT))
    seen.paste(_recoloured(heat, colours, _vivid), mask=heat.point(_OPACITIES))
    shown = pale.point(_faded("black", _DIM))
    shown.paste(seen, box)
    if box != (0, 0, *photo.size):
        _frame(shown, box)
    for number, (a, b, c, d) in reversed(list(enumerate(boxes))):  # the first is on top, and stands out
        place = left + a / x_step, top + b / y_step, left + c / x_step, top + d / y_step
        shown = _outline(shown, _pixels(shown.size, place), strong=number == 0)
    return shown


def smooth(attribution: Tensor, sigma: float) -> Tensor:
    """The values summed over channels, (H, W), blurred for display; their sum is kept.

    The Gaussian is reflected at the edges, so nothing is lost there and a flat map stays flat.

    Args:
        sigma: as a share of the shorter side; 0 for none.
    """
    values = plane(attribution)
    width = sigma * min(values.shape)
    if width == 0:
        return values
    rows, columns = (_reflected_gaussian(length, width) for length in values.shape)
    return rows @ values @ columns


def colour_scale(values: Tensor, percentile: float = PERCENTILE) -> float:
    """The magnitude shown in the strongest colour; 1 where all is zero."""
    count = int(values.count_nonzero())
    if count == 0:
        return 1.0
    zeros = values.numel() - count  # which come first; to pick out the others would take longer than all the rest
    return float(values.abs().flatten().kthvalue(zeros + max(1, math.ceil(count * percentile / 100))).values)


def shared_scale(attributions: Iterable[Tensor], sigma: float, percentile: float = PERCENTILE) -> float:
    """The magnitude shown in the strongest colour of pictures that are compared: the largest of their own.

    So one colour means one value in all of them, and in none does more saturate than if it stood alone.

    Args:
        sigma: of the Gaussian that they are smoothed with.
    """
    planes = [smooth(attribution, sigma) for attribution in attributions]
    return max((colour_scale(plane, percentile) for plane in planes if plane.any()), default=1.0)


def magnification(own: float, shared: float) -> int:
    """The largest of 1, 2, 5, 10, 20, … by which a picture of that scale can be shown stronger in a shared one."""
    factor = 1
    for step in (step * 10**power for power in range(9) for step in (1, 2, 5)):
        factor = step if step * own <= shared else factor
    return factor


def colour_bar(width: int, height: int, colours: str) -> Image.Image:
    """From most against to most for, as overlays show it on a light grey photo."""
    steps = Image.linear_gradient("L").rotate(90).resize((width, height))
    bar = Image.new("RGB", (width, height), (215, 215, 215))
    bar.paste(_recoloured(steps, colours, _vivid), mask=steps.point(_OPACITIES))
    return bar


def plane(attribution: Tensor) -> Tensor:
    """The values summed over channels, (H, W) in float64, on the CPU; what is no number counts as 0."""
    values = attribution.detach().cpu()
    summed = values.sum(0, dtype=torch.float64) if values.dim() == 3 else values.double()
    return summed if summed.sum().isfinite() else plane(values.double().nan_to_num(0.0, 0.0, 0.0))


@lru_cache(maxsize=8)  # the same for every picture of a run
def _reflected_gaussian(length: int, sigma: float) -> Tensor:
    # Rows and columns both sum to one. (length, length)
    at = torch.arange(length, dtype=torch.float64)
    weights = torch.zeros(length, length, dtype=torch.float64)
    for turn in range(-2, 3):
        for mirrored in (at, -1 - at):
            weights += torch.exp(-0.5 * ((at[:, None] - mirrored - 2 * length * turn) / sigma) ** 2)
    return weights / weights.sum(0)


@lru_cache(maxsize=32)  # the photos of a folder often share their sizes
def _bicubic(length: int, start: float, step: float, shown: int) -> Tensor:
    # What each of the pixels shown takes of those of the input; nothing where it lies beyond them. (shown, length), sparse
    at = start + (torch.arange(shown, dtype=torch.float64) + 0.5) * step
    within = (at >= 0) & (at < length)
    before = (at - 0.5).floor()
    d = at - 0.5 - before
    shares = torch.stack([d * (d * (2 - d) - 1), d * d * (d - 2) + 1, d * (d * (1 - d) + 1), d * d * (d - 1)])
    columns = (before.long() + torch.arange(-1, 3)[:, None]).clamp(0, length - 1)
    places = torch.stack([torch.arange(shown).repeat(4), columns.flatten()])
    weights = torch.sparse_coo_tensor(places, (shares * within).flatten(), (shown, length), check_invariants=True)
    return weights.coalesce()


def _steps(values: Tensor) -> Tensor:
    # [-1, 1] -> -127..127: what a colour table of 256 can tell apart.
    return (values.clamp(-1, 1) * 127).round()


def _recoloured(steps: Image.Image, colours: str, shade: Callable[[Tensor], Tensor] = torch.clone) -> Image.Image:
    steps = steps.copy()
    steps.putpalette(_palette(COLOURS[colours], shade))
    return steps.convert("RGB")


@lru_cache(maxsize=8)
def _palette(colours: ColourMap, shade: Callable[[Tensor], Tensor]) -> bytes:
    value = ((torch.arange(256, dtype=torch.float64) - _ZERO) / 127).clamp(-1, 1)
    return bytes((colours(shade(value)) * 255).round().to(torch.uint8).flatten().tolist())


@lru_cache(maxsize=2)
def _faded(colour: str, share: float) -> list[int]:
    # A table for RGB: each value, and that share of the way from it to the colour.
    every = Image.frombytes("L", (256, 1), bytes(range(256)))
    return list(Image.blend(every, Image.new("L", every.size, colour), share).tobytes()) * 3


def _vivid(value: Tensor) -> Tensor:
    # On a photo the opacity tells the magnitude, and the map's ends hide what is beneath: white and near black.
    return value.sign() * (0.45 + 0.2 * value.abs())


def _opacity(step: int) -> int:
    # Little for weak values, which are many, and never so much that the photo's outlines are gone.
    return round(255 * 0.8 * math.pow(min(1, abs(step - _ZERO) / 127), 1.2))


_OPACITIES = [_opacity(step) for step in range(256)]


def _between(value: Tensor, stops: tuple[str, ...]) -> Tensor:
    colours = torch.tensor([[int(stop[i : i + 2], 16) / 255 for i in (1, 3, 5)] for stop in stops], dtype=value.dtype)
    place = (value + 1) / 2 * (len(stops) - 1)
    below = place.floor().clamp(0, len(stops) - 2).long()
    return torch.lerp(colours[below], colours[below + 1], (place - below)[:, None])


def _picture(steps: Tensor) -> Image.Image:
    # -127..127, (H, W) -> 1..255, rounded; in single precision, where a half is a half whatever the last digits were.
    rounded = ((steps + _ZERO).to(torch.float32) + 0.5).clamp(0, 255).to(torch.uint8).contiguous()
    data = ctypes.string_at(rounded.data_ptr(), rounded.numel())  # no numpy needed
    return Image.frombytes("L", (rounded.shape[1], rounded.shape[0]), data)


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


def _outline(shown: Image.Image, box: tuple[int, int, int, int], *, strong: bool) -> Image.Image:
    # Of a receptive field: yellow on black, so that it shows on any photo.
    line = max(1, round(max(shown.size) / 500))
    left, top, right, bottom = box
    drawn = shown.copy()
    draw = ImageDraw.Draw(drawn)
    draw.rectangle((left, top, right - 1, bottom - 1), outline="black", width=(3 if strong else 1) * line)
    draw.rectangle((left, top, right - 1, bottom - 1), outline="#ffe119", width=(2 if strong else 1) * line)
    return drawn if strong else Image.blend(shown, drawn, 0.5)
