"""From image files to files of explanations: what `pathx explain` does, for Python to call."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import torch

from pathx.engine.device import resolve_batch_size, resolve_device, resolve_dtype
from pathx.engine.explain import check_settings, check_width
from pathx.engine.freeze import Frozen
from pathx.errors import PathxError, shown
from pathx.images.find import ImageFile, find_images
from pathx.models.inputs import unexpected
from pathx.models.load import LoadedModel
from pathx.results.explanation import EARLIER
from pathx.results.files import NoRoomError, check_folder, document_bytes
from pathx.results.result import Kind, Result, State
from pathx.results.store import ResultStore, result_store
from pathx.runs.computing import Computer, computed
from pathx.runs.index import Index
from pathx.runs.reading import Read, Reader
from pathx.runs.settings import Settings, check_workers
from pathx.runs.shards import Shard
from pathx.runs.stop import Stop
from pathx.runs.tasks import EXPLAIN, Batch, Computed, Task, Work
from pathx.runs.workers import working

_ALONE = Lock()
__all__ = ["Plan", "Result", "Settings", "State", "explain_files"]


@dataclass(frozen=True)
class Plan:
    """The images of a run, and how it goes on with an earlier one.

    Args:
        indexed: keep an index, and leave images alone that are done; not for an image that is named by itself.
        overwrite: make all results again.
    """

    images: tuple[ImageFile, ...]
    shard: Shard | None = None
    indexed: bool = True
    overwrite: bool = False

    @classmethod
    def of(
        cls,
        inputs: Sequence[str | Path],
        out: str | Path,
        *,
        shard: Shard | None = None,
        overwrite: bool = False,
        every: int | None = None,
    ) -> Plan:
        """What files, folders, patterns and lists lead to (see `find_images`)."""
        found = tuple(find_images(inputs, out=out, every=every))
        if len(found) == len(inputs) == 1 and found[0].source == str(inputs[0]) and found[0].error is None:
            return cls(found, indexed=False, overwrite=True)
        return cls(tuple(one for one in found if shard is None or shard.holds(one.name)), shard, overwrite=overwrite)


def explain_files(
    model: LoadedModel,
    files: Sequence[str | Path] | Plan,
    out: str | Path,
    *,
    targets: Sequence[str] = (),
    settings: Settings | None = None,
    task: Task | None = None,
    pack: str | None = None,
    stop: Stop | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Generator[Result]:
    """Explain images and write the files of each explanation below `out`, as they come, in the order of the images.

    An image that fails costs one result that says so; what is wrong with the call or the model is raised. However a run
    ends, what it has begun to write is written, and the next one goes on from there.

    Args:
        files: images, folders, patterns and lists of images, or a plan that was made of these.
        targets: classes by label or number, or `top:K`; the predicted class by default.
        out: a folder, or the address of one in a store.
        task: what to make of each image, if not an explanation.
        pack: `tar` or `parquet`, to pack results into shards instead of a folder each.
        stop: when asked, the run ends after what has been computed is written, with KeyboardInterrupt.
        note: is told what a user should know of the run, such as that memory was short.
    """
    settings, task, stop = settings or Settings(), task or EXPLAIN, stop or Stop()
    plan = files if isinstance(files, Plan) else Plan.of(files, out)
    check_width(settings.width)
    check_settings(settings.alpha, settings.skips)
    check_workers(settings.workers)
    check_folder(out)
    with closing(result_store(out, pack)) as store:
        store.open()
        plan = plan if pack is None else replace(plan, indexed=True)
        yield from _explained_files(model, plan, store, targets, settings, task, stop, note)
    stop.check()


def _explained_files(
    model: LoadedModel,
    plan: Plan,
    store: ResultStore,
    targets: Sequence[str],
    settings: Settings,
    task: Task,
    stop: Stop,
    note: Callable[[str], None],
) -> Generator[Result]:
    """As `explain_files`, with everything that it needs made ready."""
    size = resolve_batch_size(settings.batch_size, resolve_device(settings.device))
    batches = [plan.images[start : start + size] for start in range(0, len(plan.images), size)]
    computer = computer_of(model, store.results, targets, settings, task, note)
    index = index_of(plan, model, targets, settings, task, store) if plan.indexed else None
    reader = Reader(model.preprocessing, None if plan.overwrite else index)
    check_kept(computer, reader, plan, index, note)
    behind: deque[Future[list[Result]]] = deque()
    delivery = Delivery(note, index)
    count = settings.workers if len(batches) > 1 else 0
    with (
        closing(index) if index else nullcontext(),
        settling(store, index),
        working(count, behind=torch.get_num_threads() > 1) as workers,
    ):
        going = takewhile(lambda _: not stop.asked, workers.ahead(batches, reader.read))
        wanted = ((slots, read, reader.with_companions(slots, read, workers)) for slots, read in going)
        for slots, read, made in computed(computer, wanted, stop):
            if index is not None and not index.begun:
                record(index.begin, file=index.file)
            for found, one in zip(slots, read, strict=True):
                behind.append(workers.submit(_finish, found, one, made.get(found.name), store, index))
            while len(behind) > size:
                yield from delivery.results(behind.popleft().result())
        while behind:
            yield from delivery.results(behind.popleft().result())
    if index is not None and plan.shard is not None and not index.begun:  # none of the images fell to this one
        record(index.begin, file=index.file)
    if index is not None and index.begun:
        record(index.finish, file=index.file)


def computer_of(
    model: LoadedModel,
    out: str | Path,
    targets: Sequence[str],
    settings: Settings,
    task: Task,
    note: Callable[[str], None],
) -> Computer:
    """What computes the batches of a run."""
    device = resolve_device(settings.device)
    size, dtype = resolve_batch_size(settings.batch_size, device), resolve_dtype(settings.dtype, device)

    def explain(frozen: Frozen, read: Sequence[Read]) -> Iterator[Computed]:
        return task.batch(Batch.asked(model, frozen, read, targets, out, settings))

    return Computer(model.on(device), explain, device=device, dtype=dtype, size=size, note=note)


def check_kept(
    computer: Computer, reader: Reader, plan: Plan, index: Index | None, note: Callable[[str], None]
) -> None:
    """Compute the first result that is to be kept once more: where its logit is another, none is kept."""
    if index is None or plan.overwrite or (first := reader.first_done(plan.images)) is None:
        return
    again, kept = first
    logits, target = computer.logits(again), kept.document["target"]
    rounding = 1e-3 * max(map(abs, logits))
    if not math.isclose(logits[target["index"]], target["logit"], abs_tol=rounding):
        index.forget()
        problem = f"the network gives {target['label']} another logit in {kept.file} than it did then"
        note(f"{problem}: what is in {index.out} is made again")


def _finish(
    found: ImageFile, read: Read, made: tuple[Computed, float] | None, store: ResultStore, index: Index | None
) -> list[Result]:
    """Draw and write what was computed of an image, and then what is true by now in the index."""
    results, line = written(found, read, made, store.results)
    if line is None:
        return results
    results, lines = store.commit(results, line)
    for one in lines if index is not None else ():
        record(index.append, one, file=index.file)  # type: ignore[union-attr]
    return results


@contextmanager
def settling(store: ResultStore, index: Index | None) -> Iterator[None]:
    """However a run ends, what it has written is committed, and in the index."""
    lost: list[str] = []
    try:
        yield
    finally:
        for line in store.flush() if index is not None else ():
            record(index.append, line, file=index.file)  # type: ignore[union-attr]
            lost += [line["error"]] if "error" in line else []
    if lost:
        raise PathxError(f"{len(lost)} images that were done are lost ({lost[0]}): run the same command again to go on")


def written(
    found: ImageFile, read: Read, made: tuple[Computed, float] | None, out: Path
) -> tuple[list[Result], dict[str, Any] | None]:
    """Draw and write what was computed of an image; with its line for the index, unless an earlier run wrote that."""
    start = perf_counter()
    if read.input is None or made is None:
        results, computed, seconds = list(read.results), Computed(), 0.0
    else:
        computed, share = made
        seconds = read.input.seconds + share
        results = [computed.failure] if computed.failure else list(map(_done, computed.works))
    if any(result.state is State.kept for result in results):
        return results, None
    return results, _line(found, results, computed, seconds + perf_counter() - start, out)


def _line(found: ImageFile, results: Sequence[Result], computed: Computed, seconds: float, out: Path) -> dict[str, Any]:
    """What the index says of an image."""
    done = [result for result in results if result.state is State.done]
    line: dict[str, Any] = {"file": found.file, "name": found.name}
    line |= {"version": found.version} if found.version else {}
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
    score = result.document["linear_model" if result.kind is Kind.explanation else "whole"]["score"]
    return {"target": result.document["target"]["index"], **target, "score": score, **_described(result, out)}


def _described(result: Result, out: Path) -> dict[str, Any]:
    """Where results are below the output folder, and the hash of the document that makes them whole."""
    return {
        "folder": str(result.folder.relative_to(out)),
        "files": list(result.files),
        "document": result.kind.value,
        "sha256": hashlib.sha256(document_bytes(result.document)).hexdigest(),  # an equal run may be writing it again
    }


def _done(work: Work) -> Result:
    """Write the files of a result; where memory is short once more, with nobody else at it."""
    try:
        with suppress(MemoryError):
            return work.write()
        with _ALONE:
            return work.write()
    except PathxError as error:
        return Result.failure(work.file, error)
    except Exception as error:
        problem = unexpected(error)
        problem.__cause__ = error
        return Result.failure(work.file, problem)


def record(write: Callable[..., None], *arguments: Any, file: Path) -> None:
    try:
        write(*arguments)
    except OSError as error:
        remedy = "mend that, then run the same command again to go on"
        raise PathxError(f"cannot write {file} ({error.strerror or error}): {remedy}") from error


class Delivery:
    """Results on their way to the caller: says once what they replace, and ends a run that can write no more."""

    def __init__(self, note: Callable[[str], None], index: Index | None) -> None:
        self._note, self._index, self._said = note, index, index is not None and index.distrusted
        if index is not None and index.replaced:
            self._say(index.replaced)

    def _say(self, replaced: str, why: str = "these settings are others") -> None:
        self._said = True
        self._note(f"{replaced} are replaced, as {why}; to keep both, choose another folder with `out`")

    def results(self, results: Sequence[Result]) -> Iterator[Result]:
        for result in results:
            if result.replaced and not self._said:
                where = shown(result.folder.parent)
                if result.replaced == EARLIER:
                    self._say(f"results of {EARLIER} in {where}", "that has changed since")
                else:
                    self._say(f"results with {result.replaced} in {where}")
            yield result
            if self._index is not None and isinstance(result.error, NoRoomError):
                raise PathxError("stopped, as nothing more can be written: make room, then run it again to go on")


def index_of(
    plan: Plan, model: LoadedModel, targets: Sequence[str], settings: Settings, task: Task, store: ResultStore
) -> Index:
    """The index of a run, whose key is the same for all runs that would write the same of the same images."""
    about = {
        "command": task.name,
        "model": model.identity,
        "preprocessing": asdict(model.preprocessing),
        "targets": list(targets),
        "settings": {**settings.decisive, **task.settings},
    }
    key = hashlib.sha256(json.dumps([about, model.labels]).encode()).hexdigest()[:16]
    return Index(store, plan.shard, {"run": key, **about}, [found.name for found in plan.images])
