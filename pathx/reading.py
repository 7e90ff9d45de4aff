"""From the pictures of a run to the network's input, but for those that an earlier run has done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from pathx.errors import PathxError
from pathx.index import Index
from pathx.inputs import Found
from pathx.pictures import Picture, open_picture, sha256_of
from pathx.preprocessing import Preprocessing
from pathx.workers import Workers


@dataclass(frozen=True, eq=False)
class Opened:
    """A picture that was read, where its results go, what the network sees of it, and what reading it took."""

    picture: Picture
    name: str
    input: Tensor
    seconds: float


@dataclass(frozen=True)
class Kept:
    """A picture that an earlier run has done in the same way, and what that wrote, as (folder, document) each."""

    file: str
    results: tuple[tuple[Path, dict[str, Any]], ...]


@dataclass(frozen=True)
class Failed:
    """A picture that could not be explained, and why."""

    file: str
    error: PathxError


class Reader:
    """Reads pictures, and tells those that are done already.

    Args:
        index: of the run that is gone on with; None to read everything.
    """

    def __init__(self, preprocessing: Preprocessing, out: str | Path, index: Index | None) -> None:
        self._preprocessing, self._out, self._index = preprocessing, Path(out), index

    def read(self, found: Found) -> Opened | Kept | Failed:
        if found.error is not None:
            return Failed(found.file, found.error)
        return self._kept(found) or self._open(found)

    def with_companions(
        self, slots: Sequence[Found], read: Sequence[Opened | Kept | Failed], workers: Workers
    ) -> list[Opened]:
        """What is to be computed at once: with a picture that is not done go all others of its batch.

        The last digits of a result depend on how many pictures it is computed with and on its place among them. So a run
        that goes on writes, to the byte, what it would have written undisturbed.
        """
        if not any(isinstance(one, Opened) for one in read):
            return []
        again = [found if isinstance(one, Kept) else None for found, one in zip(slots, read, strict=True)]
        opened = [
            one if found is None else workers.submit(self._open, found) for found, one in zip(again, read, strict=True)
        ]
        everyone = [one.result() if isinstance(one, Future) else one for one in opened]
        return [one for one in everyone if isinstance(one, Opened)]

    def _open(self, found: Found) -> Opened | Failed:
        start = perf_counter()
        try:
            picture = open_picture(found.file)
            return Opened(picture, found.name, self._preprocessing(picture.image), perf_counter() - start)
        except PathxError as error:
            return Failed(found.file, error)
        except Exception as error:  # one odd picture does not cost the run
            return Failed(found.file, unexpected(error))

    def _kept(self, found: Found) -> Kept | None:
        line = None if self._index is None else self._index.known(found.name)
        if line is None:
            return None
        try:
            digest = sha256_of(found.file)
            results = [
                (self._out / made["folder"], _document(self._out, made, digest)) for made in line["explanations"]
            ]
            if "contrast" in line:
                _document(self._out, line["contrast"], digest)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Kept(found.file, tuple(results))


def _document(out: Path, made: dict[str, Any], picture: str) -> dict[str, Any]:
    """A document as an earlier run wrote it, of this picture, with all its files; anything else is an error."""
    folder = out / made["folder"]
    data = (folder / made["document"]).read_bytes()
    document: dict[str, Any] = json.loads(data)
    if hashlib.sha256(data).hexdigest() != made["sha256"] or document["image"]["sha256"] != picture:
        raise ValueError("not what was written")
    for file in made["files"]:
        os.stat(folder / file)
    return document


def unexpected(error: Exception) -> PathxError:
    """A fault of ours, as the reason why one picture failed."""
    problem = PathxError(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)")
    problem.__cause__ = error
    return problem
