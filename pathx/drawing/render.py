"""Attributions as pictures: exact as a heatmap, readable as an overlay on the photo."""

from __future__ import annotations

import ctypes
import math
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from pathx.drawing.colours import COLOURS, HEATS, ZERO, glow_table, heat_table
from pathx.errors import PathxError
from pathx.maps import plane

PERCENTILE = 99.0
"""The strongest colour stands for this percentile of the magnitudes that are not zero; the few above it saturate."""

SMOOTHING = 0.025
"""Default width of the overlay's Gaussian: its sigma as a share of the input's shorter side (5.6 of 224 pixels)."""

LONGEST_SIDE = 900
"""Larger photos are scaled down to this for the overlay."""

LEGIBLE_SIDE = 512
"""Photos of less than a third of this on their longer side are enlarged by a whole number, to at least this."""

HALF = 0.5
"""The line on an overlay encloses the fewest places that carry this share of all support."""

LEAST_SPOT = 0.03
"""A spot with less of all support has no line around it."""

_CELLS = 56  # along the shorter side of a map: fine enough to tell spots apart, and quick
_COLOUR, _WHITE = 0.4, 215  # the photo keeps this much of its colour, and its brightest places become this light
_UNSEEN_COLOUR, _UNSEEN_WHITE = 0.2, 110  # the same where the network did not look
_LIGHT = 0.4  # what a photo's mean lightness becomes before that, as far as the exponents below allow
_LIGHTEN, _DARKEN = 0.5, 2.2
_STEP = 3  # of lightness, below what one sees; files of overlays and sheets are a fifth smaller


@dataclass(frozen=True)
class Drawing:
    """How attributions are drawn; none of it changes a number.

    Args:
        smoothing: width of the Gaussian for overlays and sheets: its sigma as a share of the input's shorter side; 0
            for none.
        colours: a name of COLOURS.
        percentile: of the magnitudes that are not zero, what the strongest colour stands for.
        heat: what overlays and sheets show: `path`, where the units of the path look, `pixels`, the attribution, or
            `layers`, where every unit of the upper half of the layers looks (`Explanation.layer_map`).
    """

    smoothing: float = SMOOTHING
    colours: str = "red-blue"
    percentile: float = PERCENTILE
    heat: str = "path"

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing <= 1:
            raise PathxError(
                f"smoothing {self.smoothing} is out of range; use 0 for none, up to 1, such as {SMOOTHING}", usage=True
            )
        if self.colours not in COLOURS:
            raise PathxError(f"colours are {' or '.join(COLOURS)}, not {self.colours!r}", usage=True)
        if self.heat not in HEATS:
            raise PathxError(f"heat is {' or '.join(HEATS)}, not {self.heat!r}", usage=True)
        if not 0 < self.percentile <= 100:
            raise PathxError(
                f"percentile {self.percentile} is out of range; use above 0, up to 100, such as {PERCENTILE:g}",
                usage=True,
            )


@dataclass(frozen=True, eq=False)
class Overlay:
    """Heat on a photo.

    Args:
        crop: what the network saw of the photo, with the heat on it.
        full: all of the photo, in the same size.
    """

    crop: Image.Image
    full: Image.Image


def pixel_map(attribution: Tensor, drawing: Drawing | None = None, *, scale: float | None = None) -> Image.Image:
    """The exact signed values, (C, H, W) summed over channels or (H, W), one pixel each, as places in a table of colours.

    Args:
        scale: the magnitude shown in the strongest colour, where pictures are compared; by default their percentile.
    """
    drawing, values = drawing or Drawing(), plane(attribution)
    scale = scale or colour_scale(values, drawing.percentile)
    return _with_table(_picture(_steps(values / scale)), heat_table(drawing.colours))


def glow_map(values: Tensor, colours: str = "red-blue") -> Image.Image:
    """Values (H, W) in the colours of overlays, one pixel each, to be laid on a photo: the weaker the more transparent."""
    picture = _with_table(_picture(_steps(values / colour_scale(values))), glow_table(colours))
    picture.info["transparency"] = bytes(_OPACITIES)
    return picture


def enlarged_map(drawn: Image.Image, size: tuple[int, int]) -> Image.Image:
    """What `pixel_map` drew, smoothly in another size and in RGB: values are mixed, and not their colours."""
    steps = Image.frombytes("L", drawn.size, drawn.tobytes()).resize(size, Image.Resampling.LANCZOS)
    steps.putpalette(drawn.getpalette() or b"")
    return steps.convert("RGB")


def draw_overlay(
    photo: Image.Image,
    values: Tensor,
    region: tuple[float, float, float, float],
    drawing: Drawing,
    *,
    scale: float | None = None,
) -> Overlay:
    """The heat on the photo, which is paler and of middling lightness below it, and dim where the network did not look.

    Maps have a line that encloses half of the support, but for spots with less than 3 % of it. Pixels have none, and are
    squares of one colour where they are not smoothed.

    Args:
        values: (C, H, W), summed over channels, or (H, W).
        region: (left, top, right, bottom) in pixels of the photo: what the network saw, and the values cover.
        scale: the magnitude shown in the strongest colour, where pictures are compared; by default their percentile.
    """
    photo, zoom = _display_size(photo if photo.mode == "RGB" else photo.convert("RGB"))
    left, top, right, bottom = (side * zoom[axis % 2] for axis, side in enumerate(region))
    values, pixels = plane(values), drawing.heat == "pixels"
    scale = scale or colour_scale(values, drawing.percentile)
    squares = pixels and not drawing.smoothing

    height, width = values.shape
    x_step, y_step = width / (right - left), height / (bottom - top)  # input pixels per pixel shown
    box = _pixels(photo.size, (left, top, right, bottom))
    if squares:
        affine = (x_step, 0, -left * x_step, 0, y_step, -top * y_step)
        steps = _picture(_steps(values / scale))
        heat = steps.transform(photo.size, Image.Transform.AFFINE, affine, fillcolor=ZERO).crop(box)
    else:
        across = _spline(width, (box[0] - left) * x_step, x_step, box[2] - box[0])
        down = _spline(height, (box[1] - top) * y_step, y_step, box[3] - box[1])
        narrow = torch.sparse.mm(down, (values / scale).to(across.dtype))
        enlarged = torch.sparse.mm(across, narrow.T.contiguous()).T.contiguous()
        heat = _picture(_steps(enlarged))

    seen = _lay_on(photo.crop(box), heat, drawing.colours)
    level = 0.0 if pixels else half_level(values)
    if level > 0:
        small = small_spots(values, level).to(across.dtype)
        hidden = torch.sparse.mm(across, torch.sparse.mm(down, small).T.contiguous()).T.contiguous()
        _enclose(seen, enlarged, level / scale, hidden > 0.5)
    shown = seen
    if box != (0, 0, *photo.size):
        shown = _tone(photo, _UNSEEN_COLOUR, _UNSEEN_WHITE)
        shown.paste(seen, box)
        _frame(shown, box)
    return Overlay(seen, shown)


def half_level(values: Tensor, share: float = HALF) -> float:
    """The value from which on the strongest places carry that share of all that supports the class; 0 where none does."""
    support = values.clamp(min=0).flatten()
    wanted = share * support.sum()
    if not wanted > 0:
        return 0.0
    strongest = support.sort(descending=True).values
    enough = int((strongest.cumsum(0) < wanted).sum())
    return float(strongest[min(enough, int(support.count_nonzero()) - 1)])  # rounding: the sum in another order


def small_spots(values: Tensor, level: float, least: float = LEAST_SPOT) -> Tensor:
    """Where a line along that level would enclose a spot with less than that share of all support; with a margin. (H, W)"""
    cell = math.ceil(min(values.shape) / _CELLS)
    coarse = torch.nn.functional.avg_pool2d(values[None], cell, ceil_mode=True)[0]
    above = torch.nn.functional.max_pool2d(values[None], cell, ceil_mode=True)[0] >= level
    labels = torch.arange(1, coarse.numel() + 1, dtype=torch.float32).view(coarse.shape) * above
    while True:  # every cell takes the largest number of its neighbours, until each spot has one
        spread = _largest_near(labels) * above
        if torch.equal(spread, labels):
            break
        labels = spread
    support = torch.zeros(coarse.numel() + 1, dtype=coarse.dtype)
    support.index_add_(0, labels.long().flatten(), coarse.clamp(min=0).flatten())
    small = above & (support < least * support.sum())[labels.long()]
    margin = (_largest_near(small.float()) > 0) & ~(above & ~small)
    wide = margin.repeat_interleave(cell, 0).repeat_interleave(cell, 1)
    return wide[: values.shape[0], : values.shape[1]]


def _largest_near(values: Tensor) -> Tensor:
    return torch.nn.functional.max_pool2d(values[None], 3, 1, 1)[0]


def colour_scale(values: Tensor, percentile: float = PERCENTILE) -> float:
    """The magnitude shown in the strongest colour; 1 where all is zero."""
    count = int(values.count_nonzero())
    if count == 0:
        return 1.0
    zeros = values.numel() - count  # which come first; to pick out the others would take longer than all the rest
    return float(values.abs().flatten().kthvalue(zeros + max(1, math.ceil(count * percentile / 100))).values)


def shared_scale(maps: Iterable[Tensor], percentile: float = PERCENTILE) -> float:
    """The magnitude shown in the strongest colour of pictures that are compared: the largest of their own.

    So one colour means one value in all of them, and in none does more saturate than if it stood alone.
    """
    return max((colour_scale(one, percentile) for one in map(plane, maps) if one.any()), default=1.0)


@lru_cache(maxsize=16)  # to be looked at and not drawn on
def colour_bar(
    width: int, height: int, colours: str, *, exact: bool = False, ends: tuple[float, float] = (-1.0, 1.0)
) -> Image.Image:
    """Colours between two values, -1 for most against and 1 for most for, as overlays show them on grey, or heatmaps on white."""
    low, high = ends
    line = low + (high - low) * torch.linspace(0, 1, width, dtype=torch.float64)
    steps = _picture(_steps(line).expand(height, width))
    if exact:
        return _colour(steps, heat_table(colours))
    return _lay_on(Image.new("RGB", (width, height), (150, 150, 150)), steps, colours)


@lru_cache(maxsize=32)  # the photos of a folder often share their sizes
def _spline(length: int, start: float, step: float, shown: int) -> Tensor:
    # What each of the pixels shown takes of those of the input; nothing where it lies beyond them. (shown, length), sparse
    # A cubic B-spline: smooth, and never of a sign that no value near has, as Pillow's bicubic is around a lone value.
    at = start + (torch.arange(shown, dtype=torch.float64) + 0.5) * step
    within = (at >= 0) & (at < length)
    before = (at - 0.5).floor()
    d = at - 0.5 - before
    shares = torch.stack([(1 - d) ** 3, d * d * (3 * d - 6) + 4, d * (d * (3 - 3 * d) + 3) + 1, d**3]) / 6
    columns = (before.long() + torch.arange(-1, 3)[:, None]).clamp(0, length - 1)
    places = torch.stack([torch.arange(shown).repeat(4), columns.flatten()])
    taken = (shares * within).flatten().to(torch.float32)
    return torch.sparse_coo_tensor(places, taken, (shown, length), check_invariants=True).coalesce()


def _steps(values: Tensor) -> Tensor:
    # [-1, 1] -> -127..127: what a colour table of 256 can tell apart.
    return (values.clamp(-1, 1) * 127).round()


def _with_table(steps: Image.Image, table: bytes) -> Image.Image:
    steps = steps.copy()
    steps.putpalette(table)
    return steps


def _colour(steps: Image.Image, table: bytes) -> Image.Image:
    return _with_table(steps, table).convert("RGB")


def _lay_on(photo: Image.Image, heat: Image.Image, colours: str) -> Image.Image:
    # The heat on the photo, which is grey below it: gold shows on orange plumage, too.
    seen = _tone(photo, _COLOUR, _WHITE)
    _paste(seen, _tone(photo, 0.0, _WHITE), heat.point(_FADING))
    _paste(seen, _colour(heat, glow_table(colours)), heat.point(_OPACITIES))
    return seen


def _paste(below: Image.Image, what: Image.Image | str, mask: Image.Image) -> None:
    # Where there is any of it: most of a mask is nothing as a rule, and to leave that out is quicker than to lay it on.
    box = mask.getbbox()
    if box is not None:
        below.paste(what if isinstance(what, str) else what.crop(box), box, mask.crop(box))


def _tone(photo: Image.Image, colour: float, white: int) -> Image.Image:
    # Paler, and of middling lightness: dark photos are lightened and bright ones darkened, so that heat shows on either.
    grey = photo.convert("L")
    counts = grey.histogram()
    mean = sum(value * count for value, count in enumerate(counts)) / sum(counts) / 255
    power = min(max(math.log(_LIGHT) / math.log(min(max(mean, 0.01), 0.99)), _LIGHTEN), _DARKEN)
    table = [_STEP * round(white / _STEP * (value / 255) ** power) for value in range(256)]
    return Image.blend(grey.convert("RGB"), photo, colour).point(table * 3)


def _enclose(seen: Image.Image, values: Tensor, level: float, hidden: Tensor) -> None:
    # A white line on a dark one along that level: how far away it is, in pixels, follows from the slope. None where hidden.
    if min(values.shape) < 2:
        return
    down, across = torch.gradient(values)
    away = (values - level).abs() / torch.hypot(down, across).clamp(min=1e-9)
    half = max(seen.size) / 600 + 0.4
    for colour, reach, strength in (("black", 2 * half, 0.5), ("white", half, 0.95)):
        mask = (255 * strength * (reach + 0.5 - away).clamp(0, 1)).round().masked_fill(hidden, 0)
        _paste(seen, colour, _picture(mask - ZERO))


def _opacity(step: int) -> int:
    # Enough that weak values can be seen, and never so much that what is beneath is gone.
    size = min(1.0, abs(step - ZERO) / 127)
    return round(255 * 0.72 * math.pow(size, 0.75) * (1 - 0.25 * size))


_FADING = [min(255, 4 * abs(step - ZERO)) for step in range(256)]  # how grey the photo is below the heat
_OPACITIES = [_opacity(step) for step in range(256)]


def _picture(steps: Tensor) -> Image.Image:
    # -127..127, (H, W) -> 1..255, rounded; in single precision, where a half is a half whatever the last digits were.
    rounded = ((steps + ZERO).to(torch.float32) + 0.5).clamp(0, 255).to(torch.uint8).contiguous()
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


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_UP = 2  # PNG's number for the filter that stores what a row differs by from the row above


def png(image: Image.Image) -> bytes:
    """An RGB picture as a file.

    Pillow tries five filters on every row, which takes as long as the compression; for what is drawn here one of them does
    as well.
    """
    width, height = image.size
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, 3 * width)
    filtered = bytearray(height * (3 * width + 1))
    rows = torch.frombuffer(filtered, dtype=torch.uint8).view(height, 3 * width + 1)  # shares the memory
    rows[:, 0] = _UP
    rows[0, 1:] = pixels[0]
    torch.sub(pixels[1:], pixels[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
    compressor = zlib.compressobj(level=1)
    data = compressor.compress(filtered) + compressor.flush()
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
