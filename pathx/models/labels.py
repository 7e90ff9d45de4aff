"""Classes by name: labels, the targets that a user asks for, and names of folders."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from pathx.errors import PathxError, parse_json
from pathx.regular import read_regular

MOST_SUGGESTED = 8
"""The largest number of labels in an error."""

_DEVICES = re.compile(r"con|prn|aux|nul|com\d|lpt\d")  # names that Windows reserves
_LARGEST = 1 << 26
"""Largest file of labels, in bytes; a million classes take less."""


@dataclass(frozen=True)
class Targets:
    """The classes to explain in every image: indices, or `range(K)` for the K best; none for the best alone."""

    wanted: tuple[int | range, ...] = ()

    def targets_for(self, ranking: Sequence[int], truth: int | None = None) -> tuple[int, ...]:
        """The class indices to explain, each once, in the order asked for.

        Args:
            ranking: the image's classes from best to worst.
            truth: its true class, if known: also explained if the best class is explained and differs from it.
        """
        chosen: dict[int, None] = {}
        for want in self.wanted or (range(1),):
            chosen.update(dict.fromkeys([want] if isinstance(want, int) else (ranking[place] for place in want)))
        if truth is not None and ranking[0] in chosen:
            chosen[truth] = None
        return tuple(chosen)


def parse_targets(texts: Sequence[str], labels: Sequence[str]) -> Targets:
    """Read what a user asked for: indices, labels and `top:K`."""
    return Targets(tuple(_parse_target(text, labels) for text in texts))


def resolve_target(text: str, labels: Sequence[str]) -> int:
    """The class that an index or a label means. An integer in range is always an index.

    Case does not matter, nor whether words are joined by space, `_` or `-`, unless two labels differ in that alone.
    """
    text = text.strip()
    is_index = re.fullmatch(r"[+-]?\d+", text, re.ASCII) is not None
    if is_index and 0 <= int(text) < len(labels):
        return int(text)
    for same in (str, _fold):
        found = [index for index, label in enumerate(labels) if same(label) == same(text)]
        if len(found) == 1:
            return found[0]
        if found:
            choices = ", ".join(map(str, found))
            raise PathxError(f"target {text!r} is the label of classes {choices}: give the index", usage=True)
    if is_index:
        raise PathxError(f"target {text} is out of range: the classes are 0 to {len(labels) - 1}", usage=True)
    raise PathxError(f"no class is called {text!r}: {suggest_label(text, labels)}", usage=True)


def find_labels(text: str, labels: Sequence[str]) -> list[int]:
    """The classes whose label contains a text; those first that contain it as a word."""
    wanted = _fold(text)
    words = re.compile(rf"\b{re.escape(wanted)}\b")
    found = [index for index, label in enumerate(labels) if wanted in _fold(label)]
    return sorted(found, key=lambda index: words.search(_fold(labels[index])) is None)


def suggest_label(text: str, labels: Sequence[str], otherwise: str = "") -> str:
    """What a user may have meant: labels that contain the text, or those of similar spelling; otherwise another remedy."""
    holding = [repr(labels[index]) for index in find_labels(text, labels)] if text.strip() else []
    if holding:
        more = f" and {len(holding) - MOST_SUGGESTED} more" if len(holding) > MOST_SUGGESTED else ""
        return f"did you mean {', '.join(holding[:MOST_SUGGESTED])}{more}?"
    by_fold = {_fold(label): label for label in labels}
    near = [repr(by_fold[name]) for name in get_close_matches(_fold(text), list(by_fold), n=3)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise or f"give a label or an index from 0 to {len(labels) - 1}"


def true_classes(
    label: str | None, file: str | Path | None, labels: Sequence[str], archived: str | None = None
) -> list[int]:
    """The true class of an image, from the user or else from the name of its folder; several if they share a label.

    Args:
        archived: the label or number in the image's archive, which replaces the name of the folder.
    """
    if label is not None:
        return [resolve_target(label, labels)]
    if archived is not None and archived.isdecimal() and int(archived[:9]) < len(labels):
        return [int(archived[:9])]
    if file is None:
        return []
    folder = _fold(archived or os.path.basename(os.path.dirname(os.path.abspath(file))))
    return [index for index, known in enumerate(labels) if _fold(known) == folder]


@lru_cache(maxsize=1 << 16)  # a run asks for all classes with every image
def slug(label: str) -> str:
    """The label as a file name: `tiger-cat` for `tiger cat`. Labels that a file system may confuse have one slug."""
    words = re.sub(r"[\W_]+", "-", _one_spelling(label)).strip("-")
    words = words.encode()[:120].decode(errors="ignore").strip("-")
    return f"class-{words}".rstrip("-") if not words or _DEVICES.fullmatch(words) else words


def _one_spelling(text: str) -> str:
    """The text without differences of case, of composed and decomposed, wide and narrow characters."""
    for _ in range(2):  # folding can undo the normal form, and vice versa
        text = unicodedata.normalize("NFKC", text.casefold())
    return text


def target_slug(index: int, labels: Sequence[str]) -> str:
    """The folder name of a class: its slug, with the index where another class has the same one."""
    return _slugs(tuple(labels))[index]


@lru_cache(maxsize=8)
def _slugs(labels: tuple[str, ...]) -> tuple[str, ...]:
    """A folder name for every class, each different, whatever the labels."""
    own = [slug(label) for label in labels]
    shared = {name for name, count in Counter(own).items() if count > 1}
    taken = set(own)
    names: list[str] = []
    for index, name in enumerate(own):
        if name in shared:
            name = f"{name}-{index}"
            while name in taken:  # another class has this slug
                name = f"{name}-{index}"
            taken.add(name)
        names.append(name)
    return tuple(names)


def read_labels(file: str | Path) -> tuple[str, ...]:
    """Labels from a text file (one per line) or JSON (a list, or an object from index to label)."""
    remedy = "give a text file with one label per line, or JSON"
    try:
        text = read_regular(file, _LARGEST).decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null character in the name
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PathxError(f"the labels in {file} cannot be read ({reason}): {remedy}", usage=True) from error
    if not text.startswith(("[", "{")):
        return parse_labels([line.strip() for line in text.splitlines()], str(file))
    try:
        return parse_labels(parse_json(text), str(file))
    except ValueError as error:
        raise PathxError(f"the labels in {file} are not valid JSON: {error}", usage=True) from error


def parse_labels(value: object, source: str) -> tuple[str, ...]:
    """Labels from a list, or from an object `{"0": "cat", "1": "dog"}`; the source is named in errors."""
    if isinstance(value, dict):
        keys = [str(index) for index in range(len(value))]
        if set(value) != set(keys):
            raise PathxError(f'the labels in {source} must have the keys "0" to "{len(value) - 1}"', usage=True)
        value = [value[key] for key in keys]
        # {"0": ["n01440764", "tench"], ...}: the common form of ImageNet's class index
        value = [label[-1] if isinstance(label, list) and label else label for label in value]
    if not isinstance(value, (list, tuple)) or not value:
        raise PathxError(f'the labels in {source} must be a list such as ["cat", "dog"]', usage=True)
    for index, label in enumerate(value):
        if not isinstance(label, str) or not label.strip():
            raise PathxError(
                f"label {index} in {source} must be a text that is not empty, not {repr(label)[:60]}", usage=True
            )
    return tuple(" ".join(label.split()) for label in value)


def _parse_target(text: str, labels: Sequence[str]) -> int | range:
    kind, colon, count = text.strip().partition(":")
    if not colon or kind.strip().lower() != "top":
        return resolve_target(text, labels)
    if not re.fullmatch(r"\s*\d+\s*", count, re.ASCII) or not 1 <= int(count) <= len(labels):
        raise PathxError(f"target {text!r} must be top:K with K from 1 to {len(labels)}", usage=True)
    return range(int(count))


@lru_cache(maxsize=1 << 16)  # as for `slug`
def _fold(label: str) -> str:
    return " ".join(label.casefold().replace("_", " ").replace("-", " ").split())
