"""Drawing and writing what was computed of an image, and its line for the index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

from pathx.contrast import Contrast
from pathx.decomposition import Decomposition
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.images.find import ImageFile
from pathx.models.labels import target_slug
from pathx.pipeline import unexpected_error
from pathx.results.contrast import save_contrast
from pathx.results.decomposition import decomposition_files, save_decomposition
from pathx.results.explanation import ResultSubject, explanation_folder, remove_others, save
from pathx.results.files import check_inside, document_bytes
from pathx.results.lines import Line
from pathx.results.store import Kind, Result, ResultStore, State
from pathx.runs.compute import Computed

_ALONE = Lock()


def write_image(source: ImageFile, computed: Computed, store: ResultStore) -> tuple[list[Result], list[Line]]:
    """Draw and write what was computed of an image: its results, and the lines of the index that are true then."""
    start = perf_counter()
    results = write_results(source, computed, store.results)
    line = _line(source, results, computed, computed.seconds + perf_counter() - start, store.results)
    return store.commit(results, line)


def write_results(source: ImageFile, computed: Computed, out: Path) -> list[Result]:
    """Draw and write the results of an image for every class, then their contrast where there are several."""
    if computed.error is not None or computed.subject is None:
        return [Result.failure(source.file, computed.error)] if computed.error else []
    writer = _Writer(source, computed, computed.subject, out)
    writes: list[Callable[[], Result]] = [partial(writer.write, *one) for one in computed.found]
    if computed.differences:
        writes.append(writer.write_contrast)
    return [_attempt(write, source.file) for write in writes]


def _attempt(write: Callable[[], Result], file: str) -> Result:
    """Write a result; where memory is short, once more while no other thread writes."""
    try:
        with suppress(MemoryError):
            return write()
        with _ALONE:
            return write()
    except PathxError as error:
        return Result.failure(file, error)
    except Exception as error:
        return Result.failure(file, unexpected_error(error))


@dataclass(frozen=True)
class _Writer:
    """Writes the results of one image below an output folder."""

    source: ImageFile
    computed: Computed
    subject: ResultSubject
    out: Path

    def folder(self, target: int, against: int | None = None) -> Path:
        """Where the results for one class go, or for one against another."""
        name = target_slug(target, self.subject.labels)
        name = name if against is None else f"{name}-against-{target_slug(against, self.subject.labels)}"
        folder = explanation_folder(self.out, self.source.name, name)
        check_inside(folder, self.out)
        return folder

    def write(self, made: Explanation | Decomposition, references: Any = ()) -> Result:
        """Write an explanation or a decomposition."""
        whole = made.whole if isinstance(made, Decomposition) else made
        folder = self.folder(whole.target, whole.against)
        replaced = remove_others(folder, whole, self.subject)
        if isinstance(made, Decomposition):
            document = save_decomposition(made, folder, self.subject, references)
            kind, files = Kind.decomposition, decomposition_files(document)
        else:
            document = save(made, folder, self.subject, references)
            kind, files = Kind.explanation, [*document["files"].values(), Kind.explanation.value]
        return self._result(kind, folder, document, files, made, replaced)

    def write_contrast(self) -> Result:
        """Write the differences between the first class and the others, and what compares all of them."""
        several = [one.whole if isinstance(one, Decomposition) else one for one, _ in self.computed.found]
        truth, (predicted, label, _), reason = self.computed.truth, self.computed.top[0], ""
        if truth is not None and truth != predicted:
            reason = f"The network says {label}; the label is {self.subject.label(truth)}."
        contrast = Contrast.of(several, differences=self.computed.differences, reason=reason)
        between = [self.write(difference).folder.name for difference in self.computed.differences]
        folders = [self.folder(explanation.target) for explanation in several]
        place = folders[0].parent
        document = save_contrast(contrast, place, self.subject, [folder.name for folder in folders], between)
        files = [*document["files"].values(), Kind.contrast.value]
        return self._result(Kind.contrast, place, document, files, contrast)

    def _result(
        self, kind: Kind, folder: Path, document: dict[str, Any], files: Sequence[str], made: Any, replaced: str = ""
    ) -> Result:
        return Result(
            self.source.file,
            State.done,
            kind,
            folder,
            document,
            tuple(files),
            made,
            predictions=tuple((label, probability) for _, label, probability in self.computed.top),
            truth=_true_label(self.computed),
            notes=self.subject.image.notes,
            replaced=replaced,
        )


def _true_label(computed: Computed) -> str | None:
    return None if computed.truth is None or computed.subject is None else computed.subject.label(computed.truth)


def _line(source: ImageFile, results: Sequence[Result], computed: Computed, seconds: float, out: Path) -> Line:
    """What the index says of an image."""
    done = [result for result in results if result.state is State.done]
    line: Line = {"file": source.file, "name": source.name}
    line |= {"version": source.version} if source.version else {}
    line["explanations"] = [_class_entry(one, out) for one in done if one.kind is not Kind.contrast]
    for contrast in (one for one in done if one.kind is Kind.contrast):
        line["contrast"] = _result_entry(contrast, out)
    truth, top = _true_label(computed), computed.top
    line["label"] = truth
    line["correct"] = truth == top[0][1] if truth is not None and top else None
    line["top"] = [{"class": number, "label": label, "probability": probability} for number, label, probability in top]
    line["seconds"] = round(seconds, 4)
    errors = [str(result.error) for result in results if result.failed]
    return line | ({"error": "; ".join(errors)} if errors else {})


def _class_entry(result: Result, out: Path) -> dict[str, Any]:
    """What the index says of the results for one class."""
    target = {key: result.document["target"][key] for key in ("label", "probability")}
    score = (result.document["linear_model"] if result.kind is Kind.explanation else result.document)["score"]
    removal = result.document.get("removal")
    proof = {} if removal is None else {"removal": {key: removal[key] for key in ("before", "after", "at_random")}}
    about = {"score": score, **proof, **_result_entry(result, out)}
    return {"target": result.document["target"]["index"], **target, **about}


def _result_entry(result: Result, out: Path) -> dict[str, Any]:
    """Where results are below the output folder, and the hash of the document that makes them whole."""
    return {
        "folder": str(result.folder.relative_to(out)),
        "files": list(result.files),
        "document": result.kind.value,
        "sha256": hashlib.sha256(document_bytes(result.document)).hexdigest(),  # an equal run may be writing it again
    }
