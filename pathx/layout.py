"""Contact sheets: pictures in rows, with captions that are legible and never cut off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from pathx.lettering import legible, width, wrapped
from pathx.render import colour_bar

_NARROWEST, _WIDEST = 260, 1560  # of a picture's cell, and of a sheet, in pixels
_MARGIN, _GAP = 24, 20
_TITLE, _TEXT = 22, 15  # font sizes
_LEADING = 1.35
_INK, _GREY, _PAPER = "#1a1a1a", "#595959", "white"


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture with its caption: a line that stands out, and smaller print."""

    image: Image.Image
    caption: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bar:
    """A colour bar.

    Args:
        scale: what the strongest colours stand for, plus and minus.
        against: what is said at its left end,
        towards: and at its right end.
    """

    colours: str
    scale: float
    against: str
    towards: str


def sheet(
    panels: Sequence[Panel],
    *,
    title: str,
    notes: Iterable[str] = (),
    bar: Bar | None = None,
    columns: int | None = None,
) -> Image.Image:
    """Panels in rows below a title, with a colour bar at the foot.

    Args:
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
    if bar is not None:
        canvas.bar(bar, inner)
    return canvas.finished()


class _Canvas:
    """A page that grows downwards."""

    def __init__(self, width: int) -> None:
        self.image = Image.new("RGB", (width, 64), _PAPER)
        self.y: float = _MARGIN

    def space(self, height: float) -> None:
        self.y += height

    def text(self, text: str, size: int, colour: str, left: float, room: float, most: int = 3) -> None:
        for line in wrapped(text, size, room, most):
            self.write(line, size, colour, left)
            self.y += size * _LEADING

    def write(self, line: str, size: int, colour: str, left: float) -> None:
        """One line, without moving on."""
        self._reach(self.y + 2 * size)
        line, font = legible(line, size)
        ImageDraw.Draw(self.image).text((left, self.y), line, fill=colour, font=font)

    def paste(self, picture: Image.Image, left: float) -> None:
        self._reach(self.y + picture.height)
        self.image.paste(picture, (round(left), round(self.y)))

    def row(self, panels: Sequence[Panel], cell: int) -> None:
        top, lowest = self.y, self.y
        height = max(panel.image.height for panel in panels)
        for number, panel in enumerate(panels):
            left = _MARGIN + number * (cell + _GAP)
            self.y = top
            self.paste(panel.image, left)
            self.y = top + height + 8
            self.text(panel.caption, _TEXT + 1, _INK, left, cell)
            for detail in panel.details:
                self.text(detail, _TEXT - 1, _GREY, left, cell)
            lowest = max(lowest, self.y)
        self.y = lowest + _GAP * 0.8

    def bar(self, bar: Bar, inner: float) -> None:
        """The strip with its ends named beside it and its numbers beneath, as wide as the room allows."""
        length = 240
        room = (inner - length) / 2 - 24
        if room < 90:  # no room beside it: the names go above
            self.text(f"{bar.against} | {bar.towards}", _TEXT, _INK, _MARGIN, inner)
            start = float(_MARGIN)
        else:
            (against, *_), (towards, *_) = (wrapped(end, _TEXT, room, 1) for end in (bar.against, bar.towards))
            self.write(against, _TEXT, _INK, _MARGIN)
            start = _MARGIN + width(against, _TEXT) + 10
            self.write(towards, _TEXT, _INK, start + length + 10)
        self.space(3)
        self.paste(colour_bar(length, 14, bar.colours), start)
        self.space(17)
        number = f"{bar.scale:.2g}"
        for text, share in ((f"-{number}", 0.0), ("0", 0.5), (f"+{number}", 1.0)):
            self.write(text, _TEXT - 2, _GREY, start + share * (length - width(text, _TEXT - 2)))
        self.space(_TEXT * _LEADING)

    def finished(self) -> Image.Image:
        return self.image.crop((0, 0, self.image.width, round(self.y) + _MARGIN // 2))

    def _reach(self, bottom: float) -> None:
        if bottom > self.image.height:
            grown = Image.new("RGB", (self.image.width, math.ceil(bottom * 1.5)), _PAPER)
            grown.paste(self.image)
            self.image = grown
