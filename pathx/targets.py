"""Classes by name: labels, the targets that a user asks for, and the folder names that they get."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from pathx.errors import PathxError

_DEVICES = re.compile(r"con|prn|aux|nul|com\d|lpt\d")  # names that Windows keeps for itself


@dataclass(frozen=True)
class Targets:
    """The classes to explain in every picture: each an index, or `range(K)` for the K best; none for the best alone."""

    wanted: tuple[int | range, ...] = ()

    def targets_for(self, ranking: Sequence[int], truth: int | None = None) -> tuple[int, ...]:
        """The class indices to explain, each once, in the order asked for.

        Args:
            ranking: the picture's classes from best to worst.
            truth: its true class, where that is known: explained as well if the best one is, and is another.
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

    Case and the choice of space, `_` or `-` do not matter, unless they tell two labels apart.
    """
    text = text.strip()
    is_index = re.fullmatch(r"[+-]?\d+", text, re.ASCII) is not None
    if is_index and 0 <= int(text) < len(labels):
        return int(text)
    for same in (str, _folded):
        found = [index for index, label in enumerate(labels) if same(label) == same(text)]
        if len(found) == 1:
            return found[0]
        if found:
            choices = ", ".join(map(str, found))
            raise PathxError(f"target {text!r} is the label of classes {choices}: give the index", usage=True)
    if is_index:
        raise PathxError(f"target {text} is out of range: the classes are 0 to {len(labels) - 1}", usage=True)
    by_fold = {_folded(label): label for label in labels}
    near = [repr(by_fold[name]) for name in get_close_matches(_folded(text), list(by_fold), n=3)]
    remedy = f"did you mean {' or '.join(near)}?" if near else f"give a label or an index from 0 to {len(labels) - 1}"
    raise PathxError(f"no class is called {text!r}: {remedy}", usage=True)


def true_class(label: str | None, file: str | Path | None, labels: Sequence[str]) -> int | None:
    """The true class of a picture: as the user says, or else as its folder is called, if that is one label; else None."""
    if label is not None:
        return resolve_target(label, labels)
    if file is None:
        return None
    folder = _folded(os.path.basename(os.path.dirname(os.path.abspath(file))))
    found = [index for index, known in enumerate(labels) if _folded(known) == folder]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=1 << 16)  # a run asks for those of all classes with every picture
def slug(label: str) -> str:
    """The label as a file name: `tiger cat` gives `tiger-cat`."""
    words = re.sub(r"[\W_]+", "-", label.casefold()).strip("-")
    words = words.encode()[:120].decode(errors="ignore").strip("-")
    return f"class-{words}".rstrip("-") if not words or _DEVICES.fullmatch(words) else words


def target_slug(index: int, labels: Sequence[str]) -> str:
    """The folder name of a class: its slug, with the index where another class has the same one."""
    own = slug(labels[index])
    shared = any(slug(label) == own for other, label in enumerate(labels) if other != index)
    return f"{own}-{index}" if shared else own


def read_labels(file: str | Path) -> tuple[str, ...]:
    """Labels from a text file (one per line) or JSON (a list, or an object from index to label)."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        remedy = "give a text file with one label per line, or JSON"
        raise PathxError(f"the labels in {file} cannot be read ({reason}): {remedy}", usage=True) from error
    if not text.startswith(("[", "{")):
        return parse_labels([line.strip() for line in text.splitlines()], str(file))
    try:
        return parse_labels(json.loads(text), str(file))
    except json.JSONDecodeError as error:
        raise PathxError(f"the labels in {file} are not valid JSON: {error}", usage=True) from error


def parse_labels(value: object, source: str) -> tuple[str, ...]:
    """Labels from a list, or from an object `{"0": "cat", "1": "dog"}`; the source is named in errors."""
    if isinstance(value, dict):
        keys = [str(index) for index in range(len(value))]
        if set(value) != set(keys):
            raise PathxError(f'the labels in {source} must have the keys "0" to "{len(value) - 1}"', usage=True)
        value = [value[key] for key in keys]
        # {"0": ["n01440764", "tench"], ...}: the way ImageNet's class index is commonly passed around
        value = [label[-1] if isinstance(label, list) and label else label for label in value]
    if not isinstance(value, (list, tuple)) or not value:
        raise PathxError(f'the labels in {source} must be a list such as ["cat", "dog"]', usage=True)
    for index, label in enumerate(value):
        if not isinstance(label, str) or not label.strip():
            raise PathxError(f"label {index} in {source} must be a text that is not empty, not {label!r}", usage=True)
    return tuple(" ".join(label.split()) for label in value)


def _parse_target(text: str, labels: Sequence[str]) -> int | range:
    kind, colon, count = text.strip().partition(":")
    if not colon or kind.strip().lower() != "top":
        return resolve_target(text, labels)
    if not re.fullmatch(r"\s*\d+\s*", count, re.ASCII) or not 1 <= int(count) <= len(labels):
        raise PathxError(f"target {text!r} must be top:K with K from 1 to {len(labels)}", usage=True)
    return range(int(count))


@lru_cache(maxsize=1 << 16)  # as for `slug`
def _folded(label: str) -> str:
    return " ".join(label.casefold().replace("_", " ").replace("-", " ").split())
