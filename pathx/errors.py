"""The one error type of pathx, and how text that others wrote is read and shown safely."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import unicodedata
from pathlib import Path
from typing import Any


class PathxError(Exception):
    """Something the user can mend: one line that says what is wrong and how to fix it.

    Args:
        usage: the call itself was wrong (exit status 2), rather than one piece of work having failed (exit status 1).
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(without_secrets(message))
        self.usage, self._line = usage, str(self.args[0])

    def __str__(self) -> str:
        return self._line  # whatever code that it passes through adds to its arguments, as torch.fx does


_JOINERS = "\u200c\u200d"  # parts of words in several scripts, and of emoji; they move nothing on a terminal


def harmless(text: str) -> str:
    """Text as it may be printed: control characters, changes of writing direction and what is no text are escaped.

    File names, labels and the names of layers come from others; printed as they are, they could rewrite what stands
    on the terminal, its title or its clipboard. Newlines count as control characters here.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


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


def kind_in_words(value: object) -> str:
    """What kind of thing somebody gave, to stand in a sentence: `an int`, `a list`, `None`, `the class Net itself`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    name = type(value).__name__
    return f"{'an' if re.match('(?i)_*[aeio]|ndarray', name) else 'a'} {name}"


def parse_json(text: str | bytes) -> Any:
    """JSON that others wrote; whatever is wrong with it is a ValueError of one line.

    Also wrong: nesting too deep to read, and numbers that no float holds: NaN, infinities, hundreds of digits.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def _refuse_constant(constant: str) -> None:
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


# A name without a password may be a token on the web; stores of Microsoft and Oracle write containers like that.
_LOGIN = re.compile(r"(?i)\b(https?://(?=\S)|[a-z][a-z0-9+.-]*://(?=[^\s/?#@]*:))[^\s/?#]*@")
_QUERY = re.compile(r"(?i)\b((?:https?://[^\s?#]*|[a-z][a-z0-9+.-]*://[^\s?#]*(?=\?\S*=)))\?(?!\.\.\.[0-9a-f]{8})\S*")


def has_login(address: str) -> bool:
    """Whether an address holds a password, or what may be one."""
    return _LOGIN.match(address) is not None


def without_secrets(text: str) -> str:
    """Text whose addresses hold no user names, passwords and keys any more: who reads it may not be who may use them.

    What follows a question mark is left out as a whole, as whoever signs addresses calls signatures what they like.
    """
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?...", _LOGIN.sub(r"\1", text))


def public_address(address: str) -> str:
    """An address as it is shown and written down: without secrets, and still told from others by a hash of its query."""
    if "://" not in address:
        return address
    plain = _plain(address)
    return plain if without_secrets(plain) == plain else f"{plain.partition('?')[0]}?...{address_hash(address)}"


def address_hash(address: str) -> str:
    """Tells an address from others; without what signs it, which is another every time."""
    return hashlib.sha256(_drop_signature(_plain(address)).encode(errors="replace")).hexdigest()[:8]


def _plain(address: str) -> str:
    """An address without a login, and without what only a browser needs to know."""
    plain = _LOGIN.sub(r"\1", address)
    return plain.partition("#")[0] if plain.lower().startswith(("http://", "https://")) else plain


_SIGNING = re.compile(
    r"(?i)(x-(amz|goog|oss)-.*|signature|expires|awsaccesskeyid|googleaccessid|ossaccesskeyid|policy|key-pair-id)"
)
_SIGNED = re.compile(r"(?i)[?&](x-(amz|goog|oss)-signature|signature|sig)=")
_SHARED_ACCESS = re.compile(r"(?i)s(v|s|rt|r|p|t|e|ip|pr|ig|ks|koid|ktid|kt|ke|kv)")  # of Microsoft


def _drop_signature(address: str) -> str:
    """An address without what signs it, as stores of Amazon, Google, Alibaba and Microsoft do."""
    if not _SIGNED.search(address):
        return address
    whole, _, query = address.partition("?")
    parts = [part for part in query.split("&") if not _SIGNING.fullmatch(part.partition("=")[0])]
    if re.search(r"(?i)[?&]sig=", address):
        parts = [part for part in parts if not _SHARED_ACCESS.fullmatch(part.partition("=")[0])]
    return f"{whole}?{'&'.join(parts)}"


def shown(path: str | Path) -> str:
    """A path as it may stand in a one-line message: quoted where it holds newlines or bytes that are not text."""
    text = public_address(os.fspath(path))
    return text if text and text.isprintable() else repr(text)
