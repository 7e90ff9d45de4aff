"""From image files to files of explanations: what `pathx explain` does, for Python to call."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from signal import SIGINT
from typing import Any

import torch

from pathx.errors import PathxError, shown
from pathx.images.find import ImageFile, find_images
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import Input, Unreadable, in_batches, read_input
from pathx.results.explanation import EARLIER
from pathx.results.files import NoRoomError, check_folder
from pathx.results.result import Result, State
from pathx.results.store import ResultStore, result_store
from pathx.runs.computing import Computer
from pathx.runs.index import Index, KeptImage, merge_if_finished
from pathx.runs.settings import Settings
from pathx.runs.shards import Shard
from pathx.runs.stop import Stop
from pathx.runs.tasks import EXPLAIN, Job, Task
from pathx.runs.writing import Computed, write_image
from pathx.threads import Workers, start_workers

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
        named = found and (found[0].piped is not None or found[0].source == str(inputs[0]))
        if len(found) == len(inputs) == 1 and named and found[0].error is None:
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
    job, stop = Job(task or EXPLAIN, targets, settings or Settings()), stop or Stop()
    plan = files if isinstance(files, Plan) else Plan.of(files, out)
    job.check()
    check_folder(out)
    with closing(result_store(out, pack)) as store:
        store.open()
        plan = plan if pack is None else replace(plan, indexed=True)
        yield from _explain(model, job, plan, store, stop, note)
    stop.check()
    merge_last_shard(plan, out, note)


def _explain(
    model: LoadedModel, job: Job, plan: Plan, store: ResultStore, stop: Stop, note: Callable[[str], None]
) -> Generator[Result]:
    """As `explain_files`, with everything that it needs made ready."""
    computer = Computer(model, job, store.results, note)
    batches = in_batches(plan.images, computer.size)
    index = index_of(plan, model, job, store) if plan.indexed else None
    known = None if plan.overwrite else index
    check_kept(computer, model.preprocessing, plan.images, known, note)
    behind: deque[Future[list[Result]]] = deque()
    delivery = Delivery(note, index)
    count = job.settings.workers if len(batches) > 1 else 0

    def read(source: ImageFile) -> Read:
        kept = None if known is None else known.kept(source)
        return kept or read_input(source, model.preprocessing)

    with (
        closing(index) if index else nullcontext(),
        commit_at_end(store, index),
        start_workers(count, behind=torch.get_num_threads() > 1) as workers,
    ):
        for _, batch in takewhile(lambda _: not stop.asked, workers.ahead(batches, read)):
            inputs = with_companions(batch, model.preprocessing, workers)
            try:  # a network is never run twice at a time, nor copied
                made = computer.compute(inputs)
            except KeyboardInterrupt:  # of a caller that has no handler of its own
                stop.ask(stop.asked or SIGINT)
                break
            if index is not None and not index.begun:
                record(index.begin, file=index.file)
            for one in batch:
                behind.append(workers.submit(_finish, one, made.get(one.source.name), store, index))
            while len(behind) > computer.size:
                yield from delivery.results(behind.popleft().result())
        while behind:
            yield from delivery.results(behind.popleft().result())
    if index is not None and plan.shard is not None and not index.begun:  # none of the images fell to this one
        record(index.begin, file=index.file)
    if index is not None and index.begun:
        record(partial(index.finish, complete=not stop.asked), file=index.file)


def merge_last_shard(plan: Plan, out: str | Path, note: Callable[[str], None]) -> None:
    """Merge the shards of a run if this one was the last to finish."""
    if plan.shard is not None and merge_if_finished(out):
        note(f"all shards have finished and are merged: {shown(out)}")


Read = Input | Unreadable | KeptImage
"""What was read of an image, why nothing was, or what an earlier run wrote of it."""


def with_companions(batch: Sequence[Read], preprocessing: Preprocessing, workers: Workers) -> list[Input]:
    """The inputs of a batch: if one image is not done, all images of its batch are computed.

    The last digits of a result depend on how many images it is computed with and on its place among them. So a run
    that goes on writes, to the byte, what it would have written undisturbed.
    """
    if not any(isinstance(one, Input) for one in batch):
        return []
    several: list[Read | Future[Input | Unreadable]] = [
        workers.submit(read_input, one.source, preprocessing) if isinstance(one, KeptImage) else one for one in batch
    ]
    opened = [one.result() if isinstance(one, Future) else one for one in several]
    return [one for one in opened if isinstance(one, Input)]


def check_kept(
    computer: Computer,
    preprocessing: Preprocessing,
    images: Sequence[ImageFile],
    index: Index | None,
    note: Callable[[str], None],
) -> None:
    """Compute the first result that is to be kept again; if its logit differs, nothing is kept."""
    if index is None:
        return
    for kept in filter(None, map(index.kept, images)):
        again = read_input(kept.source, preprocessing)
        if not kept.results or not isinstance(again, Input):
            continue
        first = kept.results[0]
        logits, target = computer.logits(again), first.document["target"]
        rounding = 1e-3 * max(map(abs, logits))
        if not math.isclose(logits[target["index"]], target["logit"], abs_tol=rounding):
            index.forget()
            problem = f"the network gives {target['label']} another logit in {first.file} than it did then"
            note(f"{problem}: what is in {index.out} is made again")
        return


def _finish(read: Read, made: tuple[Computed, float] | None, store: ResultStore, index: Index | None) -> list[Result]:
    """Draw and write what was computed of an image, and then what is true by now in the index."""
    if isinstance(read, KeptImage):
        return list(read.results)
    results, lines = write_image(read, made, store)
    for line in lines if index is not None else ():
        record(index.append, line, file=index.file)  # type: ignore[union-attr]
    return results


@contextmanager
def commit_at_end(store: ResultStore, index: Index | None) -> Iterator[None]:
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


def record(write: Callable[..., None], *arguments: Any, file: Path) -> None:
    try:
        write(*arguments)
    except OSError as error:
        remedy = "mend that, then run the same command again to go on"
        raise PathxError(f"cannot write {file} ({error.strerror or error}): {remedy}") from error


class Delivery:
    """Passes results on to the caller, says once what they replace, and ends a run that can write no more."""

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


def index_of(plan: Plan, model: LoadedModel, job: Job, store: ResultStore) -> Index:
    """The index of a run, whose key is the same for all runs that would write the same of the same images."""
    about = {
        "command": job.task.name,
        "model": model.identity,
        "preprocessing": asdict(model.preprocessing),
        "targets": list(job.targets),
        "settings": {**job.settings.decisive, **job.task.settings},
    }
    key = hashlib.sha256(json.dumps([about, model.labels]).encode()).hexdigest()[:16]
    return Index(store, plan.shard, {"run": key, **about}, [found.name for found in plan.images])
