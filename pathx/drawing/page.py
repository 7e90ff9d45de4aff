"""Contact sheets: pictures in rows, with captions that are never cut off and legible in any script that a font can write."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pathx.drawing.render import colour_bar
from pathx.maps import smooth

_NARROWEST, _WIDEST = 260, 1560  # of a picture's cell, and of a sheet, in pixels
_MARGIN, _GAP = 24, 20
_TITLE, _TEXT = 22, 15  # font sizes
_LEADING = 1.35
_INK, _GREY, _PAPER = "#1a1a1a", "#595959", "white"


@dataclass(frozen=True)
class Bar:
    """A colour bar.

    Args:
        against: what is said at its left end,
        towards: and at its right end.
        scale: what the strongest colours stand for, plus and minus; None for no numbers.
        exact: in the colours of exact heatmaps, not of overlays.
        ends: what is shown, from -1 for most against to 1 for most for; half of it where a picture has one sign.
    """

    colours: str
    against: str
    towards: str
    scale: float | None = None
    exact: bool = False
    ends: tuple[float, float] = (-1.0, 1.0)

    @property
    def names(self) -> tuple[str, str]:
        """What is said at the two ends."""
        return (self.against if self.ends[0] < 0 else "0", self.towards if self.ends[1] > 0 else "0")

    def strip(self, length: int, height: int) -> Image.Image:
        return colour_bar(length, height, self.colours, exact=self.exact, ends=self.ends)


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture with its caption: a line that stands out, and smaller print; and on request a colour bar below it."""

    image: Image.Image
    caption: str
    details: tuple[str, ...] = ()
    bar: Bar | None = None


def sheet(
    panels: Sequence[Panel],
    *,
    title: str,
    notes: Iterable[str] = (),
    more: Sequence[Panel] = (),
    words: Sequence[str] = (),
    bar: Bar | None = None,
    columns: int | None = None,
) -> Image.Image:
    """Panels in rows below a title, with words and a colour bar at the foot.

    Args:
        notes: below the title, in smaller print.
        more: further panels, in rows of their own.
        words: below the panels: a first sentence that stands out, and smaller print.
        columns: as many as make even rows, by default.
    """
    cell = max(_NARROWEST, *(panel.image.width for panel in panels))
    if columns is None:
        fitting = max(1, (_WIDEST - 2 * _MARGIN + _GAP) // (cell + _GAP))
        rows = math.ceil(len(panels) / min(fitting, len(panels)))
        columns = math.ceil(len(panels) / rows)
    inner = max(columns * (cell + _GAP) - _GAP, 480)
    canvas = _Canvas(inner + 2 * _MARGIN)
    canvas.text(title, _TITLE, _INK, _MARGIN, inner)
    for note in notes:
        canvas.text(note, _TEXT, _GREY, _MARGIN, inner)
    canvas.space(_GAP * 0.7)
    for start in range(0, len(panels), columns):
        canvas.row(panels[start : start + columns], cell)
    for start in range(0, len(more), columns):
        canvas.row(more[start : start + columns], cell)
    for number, line in enumerate(words):
        canvas.text(line, _TEXT - number + 1, _GREY if number else _INK, _MARGIN, inner)
    if words:
        canvas.space(_GAP * 0.4)
    if bar is not None:
        canvas.bar(bar, _MARGIN, inner, _TEXT, longest=240)
    return canvas.draw()


class _Canvas:
    """A page that grows downwards."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.y: float = _MARGIN
        self.pictures: list[tuple[float, float, Image.Image]] = []
        self.lines: list[tuple[float, float, str, int, str]] = []

    def space(self, height: float) -> None:
        self.y += height

    def text(self, text: str, size: int, colour: str, left: float, room: float, most: int = 3) -> None:
        for line in wrap(text, size, room, most):
            self.write(line, size, colour, left)
            self.y += size * _LEADING

    def write(self, line: str, size: int, colour: str, left: float) -> None:
        """One line, without moving on."""
        self.lines.append((left, self.y, line, size, colour))

    def paste(self, picture: Image.Image, left: float) -> None:
        self.pictures.append((left, self.y, picture))

    def row(self, panels: Sequence[Panel], cell: int) -> None:
        top, lowest = self.y, self.y
        height = max(panel.image.height for panel in panels)
        for number, panel in enumerate(panels):
            left = _MARGIN + number * (cell + _GAP)
            self.y = top
            self.paste(panel.image, left)
            self.y = top + height + 8
            if panel.bar is not None:
                self.bar(panel.bar, left, max(panel.image.width, _NARROWEST), _TEXT - 2)
            if any(other.bar for other in panels):
                self.y = top + height + 8 + _TEXT * _LEADING
            self.text(panel.caption, _TEXT + 1, _INK, left, cell)
            for detail in panel.details:
                self.text(detail, _TEXT - 1, _GREY, left, cell)
            lowest = max(lowest, self.y)
        self.y = lowest + _GAP * 0.8

    def bar(self, bar: Bar, left: float, room: float, size: int, longest: float = math.inf) -> None:
        """The strip with its ends named beside it, as long as there is room."""
        against, towards = (wrap(end, size, room / 3, 1)[0] for end in bar.names)
        start = left + width(against, size) + 8
        length = round(min(longest, left + room - width(towards, size) - 8 - start))
        self.write(against, size, _INK, left)
        self.write(towards, size, _INK, start + length + 8)
        self.space(3)
        self.paste(bar.strip(length, size - 3), start)
        self.space(size + 2)
        if bar.scale is not None:
            low, high = bar.ends
            for value in (low, 0.0, high) if low * high else (low, high):
                text, share = f"{value * bar.scale:+.2g}" if value else "0", (value - low) / (high - low)
                self.write(text, size - 2, _GREY, start + share * (length - width(text, size - 2)))
            self.space(size * _LEADING)

    def draw(self) -> Image.Image:
        page = Image.new("RGB", (self.width, round(self.y) + _MARGIN // 2), _PAPER)
        for left, top, picture in self.pictures:
            page.paste(picture, (round(left), round(top)))
        draw = ImageDraw.Draw(page)
        for left, top, line, size, colour in self.lines:
            text, font = legible(line, size)
            draw.text((left, top), text, fill=colour, font=font)
        return page


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_ELSEWHERE = (  # Pillow's own font has little more than ASCII; common ones that have more, by the name of their files
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "arialuni.ttf",
    "Arial.ttf",
    "segoeui.ttf",
    "msyh.ttc",
)
_NO_GLYPH = "\U000fffff"  # for private use: what a font draws for it is what it draws for all that it lacks


@lru_cache(maxsize=1024)  # the figures of a folder say much the same
def legible(text: str, size: float) -> tuple[str, Font]:
    """The text as it can be written, and the font to write it in.

    Pillow's own font where it has every letter; else the one on this machine that has most of them. What that lacks is
    written without accents, or as `?`.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    own = _own(size)
    if not _missing(own, text):
        return text, own
    font = min((own, *_others(size)), key=lambda font: len(_missing(font, text)))
    missing = _missing(font, text)
    return "".join(_substitute(letter, font) if letter in missing else letter for letter in text), font


@lru_cache(maxsize=4096)
def width(text: str, size: float) -> float:
    """In pixels."""
    text, font = legible(text, size)
    return font.getlength(text)


def wrap(text: str, size: float, room: float, most: int = 3) -> list[str]:
    """The text in lines of at most that width in pixels; words too long are broken, and lines too many end in dots."""
    words = text.split()
    whole = " ".join(words)
    if width(whole, size) <= room:
        return [whole]
    lines: list[str] = []
    line = ""
    for word in words:
        longer = f"{line} {word}" if line else word
        if width(longer, size) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        while width(word, size) > room and len(word) > 1:
            fits = max((n for n in range(1, len(word)) if width(word[:n], size) <= room), default=1)
            lines.append(word[:fits])
            word = word[fits:]
        line = word
    lines.append(line)
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    while last and width(f"{last}…", size) > room:
        last = last[:-1]
    return [*lines[: most - 1], f"{last}…"]


@lru_cache(maxsize=8)
def _own(size: float) -> Font:
    return ImageFont.load_default(size)


@lru_cache(maxsize=8)
def _others(size: float) -> tuple[Font, ...]:
    found: list[Font] = []
    for name in _ELSEWHERE:
        try:
            found.append(ImageFont.truetype(name, size))
        except (OSError, ImportError):
            continue
    return tuple(found)


def _missing(font: Font, text: str) -> set[str]:
    """The letters of a text that a font cannot write."""
    return {letter for letter in text if not _has(font, letter)}


@lru_cache(maxsize=4096)
def _has(font: Font, letter: str) -> bool:
    if not isinstance(font, ImageFont.FreeTypeFont):  # a Pillow without FreeType
        return letter.isascii()
    return letter.isspace() or bytes(font.getmask(letter)) != bytes(font.getmask(_NO_GLYPH))


def _substitute(letter: str, font: Font) -> str:
    parts = unicodedata.normalize("NFKD", letter)
    plain = "".join(part for part in parts if not unicodedata.combining(part))
    return plain if plain and not _missing(font, plain) else "?"


# What channels look for: parts of images, bright where the unit looked


CROP = 104
"""The side of a crop, in pixels."""

_BETWEEN = 6  # crops, in pixels
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
    row = Image.new("RGB", (len(crops) * (CROP + _BETWEEN) - _BETWEEN, CROP), "white")
    for number, picture in enumerate(crops):
        row.paste(picture, (number * (CROP + _BETWEEN), 0))
    return row


def channel_sheet(
    title: str, notes: Sequence[str], channels: Sequence[tuple[str, str, Sequence[Image.Image]]]
) -> Image.Image:
    """Channels below each other: name, words and crops of each."""
    panels = [Panel(strip(crops), name, (words,)) for name, words, crops in channels]
    return sheet(panels, title=title, notes=notes)
