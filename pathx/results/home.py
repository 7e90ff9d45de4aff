"""Where results end up: as a rule in the folder that they are written to.

What lives elsewhere is written to a folder of this machine first and taken from there; the line of the index comes after that.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

from pathx.errors import PathxError
from pathx.regular import open_regular
from pathx.results.files import FILES, PATH, is_inside, is_result, remove_parts, unwritable, whole_document
from pathx.results.lines import Line
from pathx.results.packs import packed_bytes
from pathx.results.result import Kind, Result, State

LOCK = Lock()
"""Of all homes: these go to other processes, where locks do not."""


@dataclass(frozen=True)
class Contents:
    """The files of an image's results, by their paths from the output folder, documents last."""

    files: dict[str, bytes]


class Home:
    """Results that stay in the folder where they are written.

    Args:
        place: where results are, to be shown.
        results: the folder that they are written to first.
        records: the folder with run.json and the index.
    """

    def __init__(self, out: str | Path) -> None:
        self.place: PurePath = Path(out)
        self.results = self.records = Path(out)

    def open(self) -> None:
        """Make ready for a run. Raises PathxError."""
        remove_parts(self.records)

    def take(self, results: Sequence[Result]) -> Contents | None:
        """The files of an image's results, gone from where they were written; None where they stay."""
        return None

    def keep(self, contents: Contents | None, line: Line) -> tuple[list[Line], PurePath]:
        """Bring the files of an image home: the lines for the index that are true then, and where the files are.

        Raises PathxError.
        """
        return [line], self.place

    def flush(self) -> list[Line]:
        """Bring home what is not there yet: the lines that are true then, those of images that were lost included."""
        return []

    def where(self, made: Line) -> PurePath:
        """Where results are that a line of the index tells of."""
        return PurePath(self.place, made["pack"], made["folder"]) if "pack" in made else self.place / made["folder"]

    def document(self, made: Line) -> Any:
        """The document of whole results, as `whole_document` has it, that a line of the index tells of."""
        if "pack" in made:
            data = packed_bytes(self.read, made["pack"], made["at"])
            if hashlib.sha256(data).hexdigest() != made["sha256"]:
                raise ValueError("not what was written")
            return json.loads(data)
        if not all(is_result(f"{made['folder']}/{name}") for name in (made["document"], *made["files"])):
            raise ValueError("not what was written")
        return self.plain_document(made)

    def plain_document(self, made: Line) -> Any:
        return whole_document(self.records / made["folder"], made["files"], made["document"], made["sha256"])

    def read(self, name: str, place: tuple[int, int] | None) -> Any:
        """Bytes of a shard from a place on, or the shard opened. Raises OSError and PathxError."""
        stream = open_regular(self.records / name)
        if place is None:
            return stream
        with stream:
            stream.seek(place[0])
            return stream.read(min(place[1], os.fstat(stream.fileno()).st_size))

    def put(self, file: Path, name: str) -> None:
        """Name a finished shard. Raises PathxError."""
        try:
            os.replace(file, self.records / name)
        except OSError as error:
            raise unwritable(self.records, error) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove files as far as they can be removed, and folders that are empty then."""
        for name in names:
            file = self.records / name
            with suppress(OSError):
                if is_inside(file.parent, self.records):
                    file.unlink()
                    remove_empty(file.parent, self.records)

    def forget(self, older: Line, newer: Line) -> None:
        """Remove files of earlier results of an image, whose place others have taken."""

    def publish(self, files: Sequence[Path], gone: Sequence[str] = ()) -> None:
        """Take note that records were written again, and that others are gone. Raises PathxError."""

    def log(self, file: Path, line: Line) -> None:
        """Take note of a line that was added to an index. Raises PathxError."""

    def settle(self) -> None:
        """The last lines were added. Raises PathxError."""

    def close(self) -> None:
        """Remove what was needed on the way."""


def taken(folder: Path, results: Sequence[Result]) -> Contents:
    """The files of an image's results, and of what a contrast rests on; they are gone from the folder afterwards."""
    files: dict[Path, bytes] = {}
    images: set[Path] = set()
    for result in results:
        if result.state is State.done:
            images.add(result.folder if result.kind is Kind.contrast else result.folder.parent)
            pairs = result.document.get("pairs", ()) if result.kind is Kind.contrast else ()
            for between in (result.folder / pair["folder"] for pair in pairs if pair.get("folder")):
                names = sorted((file for file in between.iterdir()), key=lambda file: file.suffix == ".json")
                files |= {file: file.read_bytes() for file in names}
            files |= {result.folder / name: (result.folder / name).read_bytes() for name in result.files}
    for file in files:
        with suppress(OSError):
            file.unlink()
            for image in images & {*file.parents}:  # other images are written beside it meanwhile
                remove_empty(file.parent, image.parent)
    return Contents({file.relative_to(folder).as_posix(): data for file, data in files.items()})


def failed_line(line: Line, error: PathxError) -> Line:
    """The line of an image whose results were written and did not get home."""
    return {key: line[key] for key in line if key != "contrast"} | {"explanations": [], "error": str(error)}


def described(line: Line) -> Iterator[Line]:
    """What a line of an index says of each of an image's results."""
    yield from line.get("explanations", ())
    if "contrast" in line:
        yield line["contrast"]


def files_of(line: Line) -> set[str]:
    """The files of an image's results that are in no shard, those included that a contrast rests on."""
    plain = [made for made in described(line) if "pack" not in made]
    found = {(PurePath(made["folder"]) / name).as_posix() for made in plain for name in made.get("files", ())}
    if "contrast" in line and line.get("explanations"):
        first, *others = line["explanations"]
        own = [name for name in first.get("files", ()) if name in (PATH, *FILES.values())] + [PATH]
        folders = [f"{first['folder']}-against-{PurePath(other['folder']).name}" for other in others]
        found |= {f"{folder}/{name}" for folder in folders for name in own if "pack" not in first}
    return set(filter(is_result, found))


def stage() -> Path:
    """A folder for what is on its way elsewhere; made by whoever writes to it, on whichever machine."""
    return Path(tempfile.gettempdir(), f"pathx-{secrets.token_hex(8)}")


def remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and those above it, up to a root, as far as they are empty. Raises OSError."""
    while folder != root and root in folder.parents:
        folder.rmdir()
        folder = folder.parent
