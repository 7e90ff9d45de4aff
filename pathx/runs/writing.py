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
from pathx.images.read import UserImage
from pathx.models.labels import target_slug
from pathx.models.load import LoadedModel
from pathx.pipeline import Input, Unreadable, unexpected_error
from pathx.results.contrast import save_contrast
from pathx.results.decomposition import decomposition_files, save_decomposition
from pathx.results.explanation import ModelInfo, explanation_folder, remove_others, save
from pathx.results.files import check_inside, document_bytes
from pathx.results.lines import Line
from pathx.results.result import Kind, Result, State
from pathx.results.store import ResultStore
from pathx.runs.settings import Settings

_ALONE = Lock()


@dataclass(frozen=True, eq=False)
class BatchImage:
    """An image of a batch, and what the files of its results say about it.

    It waits to be written while the next batch is computed, and must not hold on to a batch, whose network is large.

    Args:
        truth: the true class, where it is known.
        top: the best classes, (number, label, probability) each.
    """

    input: Input
    model: LoadedModel
    labels: Sequence[str]
    truth: int | None
    top: tuple[tuple[int, str, float], ...]
    device: str
    out: str | Path
    settings: Settings

    @property
    def image(self) -> UserImage:
        return self.input.image

    def folder(self, target: int, against: int | None = None) -> Path:
        """Where the results for one class go, or for one against another."""
        name = target_slug(target, self.labels)
        name = name if against is None else f"{name}-against-{target_slug(against, self.labels)}"
        folder = explanation_folder(self.out, self.input.source.name, name)
        check_inside(folder, self.out)
        return folder

    @property
    def about(self) -> dict[str, Any]:
        """What all files of its results are made with."""
        return {
            "image": self.image,
            "region": self.model.preprocessing.region(self.image.width, self.image.height),
            "model": ModelInfo(
                self.model.name, self.model.weights, self.model.sha256, len(self.labels), self.model.origin
            ),
            "device": self.device,
            "drawing": self.settings.drawing,
            "draw": self.settings.pictures,
        }

    @property
    def true_label(self) -> str | None:
        return None if self.truth is None else self.labels[self.truth]

    def result(self, kind: Kind, folder: Path, document: dict[str, Any], files: Sequence[str], **more: Any) -> Result:
        """What was written of it."""
        predictions = tuple((label, probability) for _, label, probability in self.top)
        about = {"predictions": predictions, "truth": self.true_label, "notes": self.image.notes, **more}
        return Result(self.image.file, State.done, kind, folder, document, tuple(files), **about)


@dataclass(frozen=True, eq=False)
class Computed:
    """What was computed of an image, free of the frozen network; or why there is nothing.

    Args:
        found: of each class in turn the explanation or the decomposition, and what its units look for elsewhere.
        differences: where there are several classes, the first one explained against each of the others.
    """

    image: BatchImage | None = None
    found: tuple[tuple[Explanation | Decomposition, Any], ...] = ()
    differences: tuple[Explanation, ...] = ()
    failure: Result | None = None


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
        results = write_results(computed)
    line = _line(read.source, results, computed, seconds + perf_counter() - start, store.results)
    return store.commit(results, line)


def write_results(computed: Computed) -> list[Result]:
    """Draw and write the results of an image for every class, then their contrast where there are several."""
    image = computed.image
    if image is None:
        return [computed.failure] if computed.failure else []
    writes: list[Callable[[], Result]] = [partial(_write_one, image, *one) for one in computed.found]
    if computed.differences:
        writes.append(partial(_write_contrast, image, [one for one, _ in computed.found], computed.differences))
    return [_attempt(write, image.image.file) for write in writes]


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


def _write_one(of: BatchImage, found: Explanation | Decomposition, references: Any) -> Result:
    if isinstance(found, Decomposition):
        return _write_decomposition(of, found, references)
    return _write_explanation(of, found, references)


def _write_explanation(of: BatchImage, explanation: Explanation, references: Any = ()) -> Result:
    folder = of.folder(explanation.target, explanation.against)
    replaced = remove_others(folder, explanation, of.about["model"], of.image)
    other = "" if explanation.against is None else of.labels[explanation.against]
    about = {"label": of.labels[explanation.target], "other": other, **of.about}
    document = save(explanation, folder, save_tensors=of.settings.save_tensors, more=references, **about)
    files = [*document["files"].values(), Kind.explanation.value]
    return of.result(Kind.explanation, folder, document, files, made=explanation, replaced=replaced)


def _write_decomposition(of: BatchImage, decomposition: Decomposition, references: Any) -> Result:
    target = decomposition.whole.target
    folder = of.folder(target)
    replaced = remove_others(folder, decomposition.whole, of.about["model"], of.image)
    how = {"label": of.labels[target], "save_tensors": of.settings.save_tensors, "references": references}
    document = save_decomposition(decomposition, folder, **how, **of.about)
    files = decomposition_files(document)
    return of.result(Kind.decomposition, folder, document, files, made=decomposition, replaced=replaced)


def _write_contrast(
    of: BatchImage, found: Sequence[Explanation | Decomposition], differences: Sequence[Explanation]
) -> Result:
    explanations = [one.whole if isinstance(one, Decomposition) else one for one in found]
    labels, predicted, reason = of.labels, of.top[0][0], ""
    if of.truth is not None and of.truth != predicted:
        reason = f"The network says {labels[predicted]}; the label is {labels[of.truth]}."
    contrast = Contrast.of(explanations, differences=differences, reason=reason)
    between = [_write_explanation(of, difference).folder.name for difference in differences]
    folders = [of.folder(explanation.target) for explanation in explanations]
    document = save_contrast(
        contrast,
        folders[0].parent,
        labels=[labels[explanation.target] for explanation in explanations],
        folders=[folder.name for folder in folders],
        between=between,
        **of.about,
    )
    files = [*document["files"].values(), Kind.contrast.value]
    return of.result(Kind.contrast, folders[0].parent, document, files, made=contrast)


def _line(source: ImageFile, results: Sequence[Result], computed: Computed, seconds: float, out: Path) -> Line:
    """What the index says of an image."""
    done = [result for result in results if result.state is State.done]
    line: Line = {"file": source.file, "name": source.name}
    line |= {"version": source.version} if source.version else {}
    line["explanations"] = [_class_entry(one, out) for one in done if one.kind is not Kind.contrast]
    for contrast in (one for one in done if one.kind is Kind.contrast):
        line["contrast"] = _result_entry(contrast, out)
    truth, top = (None, ()) if computed.image is None else (computed.image.true_label, computed.image.top)
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
