"""The one error type of pathx, and how text that others wrote is read and shown safely."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from pathlib import Path
from typing import Any


class PathxError(Exception):
    """Something the user can mend: one line that says what is wrong and how to fix it.

    Args:
        usage: the call itself was wrong (exit status 2), rather than one piece of work having failed (exit status 1).
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


_JOINERS = "\u200c\u200d"  # parts of words in several scripts, and of emoji; they move nothing on a terminal
_HARMLESS_SPACES = "Zs"


def harmless(text: str) -> str:
    """Text as it may be printed: control characters, changes of writing direction and what is no text are escaped.

    File names, labels and the names of layers come from others; printed as they are, they could rewrite what stands
    on the terminal, its title or its clipboard. Newlines count as control characters here.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _is_harmless(character) else _escape(character) for character in text)


def _is_harmless(character: str) -> bool:
    if character.isprintable() or character in _JOINERS:
        return True
    return unicodedata.category(character) == _HARMLESS_SPACES


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def as_text(cell: Any) -> Any:
    """A cell of a CSV file: harmless where it is printed, and no formula to a spreadsheet, by an apostrophe in front."""
    if not isinstance(cell, str):
        return cell
    is_formula = cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠"))  # noqa: RUF001, also wide
    return harmless(f"'{cell}" if is_formula else cell)


def reason_of(error: BaseException) -> str:
    """The first line of an error, of a length that fits into one of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def parse_json(text: str | bytes) -> Any:
    """JSON that others wrote; whatever is wrong with it is a ValueError of one line.

    Also wrong: nesting too deep to read, and numbers that no float holds: NaN, infinities, hundreds of digits.
    """
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:  # so that arithmetic with floats never overflows
        raise ValueError(f"{text[:20]}… is too large a number")
    return int(text)


_MOST_DIGITS = 300


def shown(path: str | Path) -> str:
    """A path as it may stand in a one-line message: quoted where it holds newlines or bytes that are not text."""
    text = os.fspath(path)
    return text if text and text.isprintable() else repr(text)
