"""Text in pictures: legible in any script that a font at hand can write, wrapped, and never a crash."""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

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


@lru_cache(maxsize=256)
def ink(text: str, size: float, across: float, down: float) -> tuple[Image.Image, int, int]:
    """A line as a mask of its ink, and where that starts, in pixels from the place where the line does.

    Args:
        across, down: the fractions of a pixel that the line's place has.
    """
    text, font = legible(text, size)
    around = 2 * math.ceil(size)  # letters may reach out to any side
    mask = Image.new("L", (math.ceil(font.getlength(text)) + 2 * around, 3 * around))
    ImageDraw.Draw(mask).text((around + across, around + down), text, fill=255, font=font)
    left, top, right, bottom = mask.getbbox() or (0, 0, 1, 1)
    return mask.crop((left, top, right, bottom)), left - around, top - around


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
