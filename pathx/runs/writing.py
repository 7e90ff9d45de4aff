"""Drawing and writing what was computed of an image, and its line for the index."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.pipeline import Input, Unreadable, unexpected
from pathx.results.files import document_bytes
from pathx.results.lines import Line
from pathx.results.result import Kind, Result, State
from pathx.results.store import ResultStore
from pathx.runs.tasks import Computed, Work

_ALONE = Lock()


def write_image(
    read: Input | Unreadable, made: tuple[Computed, float] | None, store: ResultStore
) -> tuple[list[Result], list[Line]]:
    """Draw and write what was computed of an image: its results, and the lines of the index that are true then.

    Args:
        made: what was computed of an image that was read, and the seconds that it took.
    """
    start = perf_counter()
    if isinstance(read, Unreadable):
        results, computed, seconds = [Result.failure(read.source.file, read.error)], Computed(), 0.0
    else:
        assert made is not None
        computed, seconds = made[0], read.seconds + made[1]
        results = [computed.failure] if computed.failure else list(map(_write, computed.works))
    line = _line(read.source, results, computed, seconds + perf_counter() - start, store.results)
    return store.commit(results, line)


def _write(work: Work) -> Result:
    """Write the files of a result; where memory is short once more, with nobody else at it."""
    try:
        with suppress(MemoryError):
            return work.write()
        with _ALONE:
            return work.write()
    except PathxError as error:
        return Result.failure(work.file, error)
    except Exception as error:
        return Result.failure(work.file, unexpected(error))


def _line(source: ImageFile, results: Sequence[Result], computed: Computed, seconds: float, out: Path) -> Line:
    """What the index says of an image."""
    done = [result for result in results if result.state is State.done]
    line: Line = {"file": source.file, "name": source.name}
    line |= {"version": source.version} if source.version else {}
    line["explanations"] = [_explained(one, out) for one in done if one.kind is not Kind.contrast]
    for contrast in (one for one in done if one.kind is Kind.contrast):
        line["contrast"] = _described(contrast, out)
    line["label"] = computed.truth
    line["correct"] = computed.truth == computed.top[0][1] if computed.truth is not None and computed.top else None
    line["top"] = [
        {"class": number, "label": label, "probability": probability} for number, label, probability in computed.top
    ]
    line["seconds"] = round(seconds, 4)
    errors = [str(result.error) for result in results if result.failed]
    return line | ({"error": "; ".join(errors)} if errors else {})


def _explained(result: Result, out: Path) -> dict[str, Any]:
    """What the index says of the results for one class."""
    target = {key: result.document["target"][key] for key in ("label", "probability")}
    score = (result.document["linear_model"] if result.kind is Kind.explanation else result.document)["score"]
    removal = result.document.get("removal")
    proof = {} if removal is None else {"removal": {key: removal[key] for key in ("before", "after", "at_random")}}
    return {"target": result.document["target"]["index"], **target, "score": score, **proof, **_described(result, out)}


def _described(result: Result, out: Path) -> dict[str, Any]:
    """Where results are below the output folder, and the hash of the document that makes them whole."""
    return {
        "folder": str(result.folder.relative_to(out)),
        "files": list(result.files),
        "document": result.kind.value,
        "sha256": hashlib.sha256(document_bytes(result.document)).hexdigest(),  # an equal run may be writing it again
    }
