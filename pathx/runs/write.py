"""Drawing and writing what was computed of an image, and its line for the index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from threading import Lock
from time import perf_counter
from typing import Any, cast

from pathx.contrast import Contrast
from pathx.decomposition import Decomposition
from pathx.drawing.page import Panel
from pathx.errors import PathxError, shown
from pathx.explanation import Explanation
from pathx.images.find import ImageFile
from pathx.models.labels import target_slug
from pathx.pipeline import unexpected_error
from pathx.results.documents import contrast_files, decomposition_files, explanation_files
from pathx.results.files import Kind, ResultFiles, document_bytes
from pathx.results.lines import Line
from pathx.results.packs import failed_line
from pathx.results.store import Result, ResultStore, State
from pathx.runs.compute import Computed

_ALONE = Lock()


def write_image(source: ImageFile, computed: Computed, store: ResultStore) -> tuple[list[Result], list[Line]]:
    """Draw and write what was computed of an image: its results, and the lines of the index that are true then."""
    start = perf_counter()
    results = [Result.failure(source.file, computed.error)] if computed.error is not None else []
    contents: dict[str, bytes] = {}  # what goes to the store together
    for write in _writes(source, computed, store, contents):
        try:
            with suppress(MemoryError):
                results.append(write())
                continue
            with _ALONE:  # memory is short: once more while no other thread writes
                results.append(write())
        except PathxError as error:
            results.append(Result.failure(source.file, error))
        except Exception as error:
            results.append(Result.failure(source.file, unexpected_error(error)))
    line = _line(source, results, computed, computed.seconds + perf_counter() - start)
    try:
        place, lines = store.commit(contents, line)
    except PathxError as error:
        return [Result.failure(source.file, error)], [failed_line(line, error)]
    return [one if one.failed else replace(one, folder=cast(Any, place / one.folder)) for one in results], lines


def _writes(
    source: ImageFile, computed: Computed, store: ResultStore, contents: dict[str, bytes]
) -> Iterator[Callable[[], Result]]:
    """What draws and writes the result for every class, then their contrast where there are several."""
    subject = computed.subject
    if subject is None:
        return

    def folder_of(target: int, against: int | None = None) -> PurePath:
        name = target_slug(target, subject.labels)
        name = name if against is None else f"{name}-against-{target_slug(against, subject.labels)}"
        return result_folder(source.name, name)

    def draw(made: Explanation | Decomposition, *more: tuple[Panel, ...]) -> tuple[PurePath, ResultFiles]:
        if isinstance(made, Decomposition):
            return folder_of(made.whole.target), decomposition_files(made, subject, *more)
        return folder_of(made.target, made.against), explanation_files(made, subject, *more[:1])

    def write(made: Any, folder: PurePath, files: ResultFiles) -> Result:
        replaced = ""
        if store.in_place:
            replaced = store.write(folder, files)
        else:
            contents.update({(folder / name).as_posix(): data for name, data in files.all_bytes().items()})
        return Result(
            source.file,
            State.done,
            files.kind,
            cast(Any, folder),
            files.document,
            files.names,
            made,
            predictions=tuple((label, probability) for _, label, probability in computed.top),
            truth=_true_label(computed),
            notes=subject.image.notes,
            replaced=replaced,
        )

    def write_contrast() -> Result:
        several = [one.whole if isinstance(one, Decomposition) else one for one, *_ in computed.found]
        (predicted, label, _), reason = computed.top[0], ""
        if computed.truth not in (None, predicted):
            reason = f"The network says {label}; the label is {_true_label(computed)}."
        contrast = Contrast.of(several, differences=computed.differences, reason=reason)
        folders, between = [folder_of(one.target) for one in several], list(map(draw, computed.differences))
        names = [folder.name for folder in folders], [folder.name for folder, _ in between]
        files = contrast_files(contrast, subject, *names)
        for difference, drawn in zip(computed.differences, between, strict=True):
            write(difference, *drawn)
        return write(contrast, folders[0].parent, files)

    for made, *more in computed.found:
        yield lambda made=made, more=more: write(made, *draw(made, *more))  # type: ignore[misc]
    if computed.differences:
        yield write_contrast


def result_folder(image: str, target_slug: str) -> PurePath:
    """`<path of the image>/<target slug>`, never outside of the folder that it is below.

    Args:
        image: its path below the folder that the user named; of one that is absolute or climbs (`..`), only the file's name
            is used.
    """
    relative = PurePath(image)
    if relative.anchor or ".." in relative.parts:
        relative = PurePath(relative.name)
    for part in (relative.name, target_slug):
        if part in ("", ".", "..") or PurePath(part).name != part:
            raise PathxError(f"{shown(part)} cannot name a folder of results: give the image by its file name")
    return relative / target_slug


def _true_label(computed: Computed) -> str | None:
    return None if computed.truth is None or computed.subject is None else computed.subject.label(computed.truth)


def _line(source: ImageFile, results: list[Result], computed: Computed, seconds: float) -> Line:
    """What the index says of an image."""
    line: Line = {"file": source.file, "name": source.name}
    line |= {"version": source.version} if source.version else {}
    line["explanations"] = []
    for result in results:
        if result.kind is Kind.contrast:
            line["contrast"] = _entry(result)
        elif not result.failed:
            target = result.document["target"]
            score = (result.document["linear_model"] if result.kind is Kind.explanation else result.document)["score"]
            entry = {"target": target["index"], "label": target["label"], "probability": target["probability"]}
            entry["score"] = score
            if (removal := result.document.get("removal")) is not None:
                entry["removal"] = {key: removal[key] for key in ("before", "after", "at_random")}
            line["explanations"].append(entry | _entry(result))
    truth, top = _true_label(computed), computed.top
    line["label"] = truth
    line["correct"] = truth == top[0][1] if truth is not None and top else None
    line["top"] = [{"class": number, "label": label, "probability": probability} for number, label, probability in top]
    line["seconds"] = round(seconds, 4)
    errors = [str(result.error) for result in results if result.failed]
    return line | ({"error": "; ".join(errors)} if errors else {})


def _entry(result: Result) -> dict[str, Any]:
    """Where results are below the output folder, and the hash of the document that makes them whole."""
    return {
        "folder": str(result.folder),
        "files": list(result.files),
        "document": result.kind.value,
        "sha256": hashlib.sha256(document_bytes(result.document)).hexdigest(),  # an equal run may be writing it again
    }
