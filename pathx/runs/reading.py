"""The images of a run: those that an earlier run has done, and of the others what the network sees."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.images.read import sha256_of_image
from pathx.models.inputs import Input, read_input
from pathx.models.preprocessing import Preprocessing
from pathx.results.lines import Line
from pathx.results.result import Kind, Result, State
from pathx.results.store import ResultStore
from pathx.runs.index import Index
from pathx.runs.workers import Workers


@dataclass(frozen=True, eq=False)
class Read:
    """An image of a run.

    Args:
        name: where its results go.
        input: what was read, unless there is nothing to compute.
        results: what there is to say of it already: that it failed, or what an earlier run wrote.
    """

    name: str
    input: Input | None = None
    results: tuple[Result, ...] = ()

    @property
    def failed(self) -> bool:
        return any(result.failed for result in self.results)


class Reader:
    """Reads images, and tells those that are done already.

    Args:
        index: of the run that is gone on with; None to read everything.
    """

    def __init__(self, preprocessing: Preprocessing, index: Index | None) -> None:
        self._preprocessing, self._index = preprocessing, index

    def read(self, found: ImageFile) -> Read:
        if found.error is not None:
            return Read(found.name, results=(Result.failure(found.file, found.error),))
        return self.done_before(found) or self._open(found)

    def with_companions(self, slots: Sequence[ImageFile], read: Sequence[Read], workers: Workers) -> list[Read]:
        """What is to be computed at once: with an image that is not done go all others of its batch.

        The last digits of a result depend on how many images it is computed with and on its place among them. So a run
        that goes on writes, to the byte, what it would have written undisturbed.
        """
        if all(one.input is None for one in read):
            return []
        several: list[Read | Future[Read]] = [
            workers.submit(self._open, found) if one.input is None and not one.failed else one
            for found, one in zip(slots, read, strict=True)
        ]
        opened = [one.result() if isinstance(one, Future) else one for one in several]
        return [one for one in opened if one.input is not None]

    def _open(self, found: ImageFile) -> Read:
        try:
            return Read(found.name, read_input(found.source, self._preprocessing))
        except PathxError as error:
            return Read(found.name, results=(Result.failure(found.file, error),))

    def first_done(self, images: Sequence[ImageFile]) -> tuple[Read, Result] | None:
        """The first image that an earlier run has done, read again, and one of its results."""
        for found in images:
            done = self.done_before(found) if found.error is None else None
            if done is not None and done.results and (again := self._open(found)).input is not None:
                return again, done.results[0]
        return None

    def done_before(self, found: ImageFile) -> Read | None:
        if self._index is None or (line := self._index.known(found.name)) is None:
            return None
        store = self._index.store
        try:
            same = found.version and line.get("version") == found.version  # the store vouches for it, unread
            sha256 = None if same else sha256_of_image(found.source)
            results = tuple(_kept(store, found, line, made, sha256) for made in line["explanations"])
            if "contrast" in line:
                _kept(store, found, line, line["contrast"], sha256)
        except (OSError, ValueError, KeyError, TypeError, PathxError):
            return None
        return Read(found.name, results=results)


def _kept(store: ResultStore, found: ImageFile, line: Line, made: dict[str, Any], sha256: str | None) -> Result:
    """What an earlier run wrote. Raises an error where it is not whole, or of another image."""
    document = store.document(made)
    if sha256 is not None and document["image"]["sha256"] != sha256:
        raise ValueError("another image by now")
    top = tuple((one["label"], one["probability"]) for one in line.get("top", ()))
    about: dict[str, Any] = {"predictions": top, "truth": line.get("label"), "files": tuple(made["files"])}
    return Result(found.file, State.kept, Kind(made["document"]), cast(Path, store.where(made)), document, **about)
