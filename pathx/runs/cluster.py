"""A run on Ray: images are read in tasks, explained by a pool of actors that hold the model, and written in tasks.

The same code reads, computes and writes as in a run on one machine, in the same batches, so that either goes on where the
other was stopped. The index is written here, in the process that started the run, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pathx.cluster import DIED, Actors, Cluster, Stages, check_one_device, join_cluster, other_machines
from pathx.engine.device import resolve_batch_size
from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import Input, Unreadable, in_batches, read_input
from pathx.results.files import NoRoomError, check_folder
from pathx.results.lines import Line
from pathx.results.store import Result, ResultStore, result_store
from pathx.runs.compute import EXPLAIN, Computed, Computer, Job, Settings, Task
from pathx.runs.index import Index, KeptImage
from pathx.runs.run import Plan, check_kept, deliver, index_of, merge_last_shard
from pathx.runs.stop import Stop
from pathx.runs.write import write_image
from pathx.threads import start_workers

LOOKED_AT = 64
"""How many images at once are checked for being done."""

Outcome = tuple[list[Result], Line, Sequence[str]]
"""The results of an image, its line for the index, and notes for the user."""

Load = Callable[[], LoadedModel]
Item = tuple[ImageFile, bool]
"""An image, and whether it is to be done. Others are only computed along, since the last digits depend on the batch."""


def explain_on_ray(
    load: Load,
    files: Sequence[str | Path] | Plan,
    out: str | Path,
    *,
    address: str = "local",
    actors: Actors | None = None,
    targets: Sequence[str] = (),
    settings: Settings | None = None,
    task: Task | None = None,
    pack: str | None = None,
    stop: Stop | None = None,
    note: Callable[[str], None] = lambda text: None,
    documents: bool = True,
) -> Generator[Result]:
    """As `explain_files`, on a Ray cluster. Results come as they are done; they do not hold the explanations themselves.

    Args:
        load: gives the model; called once here and once in every actor, so it must mean the same on every machine.
        address: `local` starts a Ray of its own on this machine, `auto` joins the one at hand; or where one is.
        actors: how many processes explain.
        pack: as for `explain_files`; a shard holds what one process wrote of one batch.
        documents: whether results hold their whole documents, or only what these say of the class. Receiving whole documents is
            most of the work of this process, so leave them out on a large cluster.
    """
    settings, stop = settings or Settings(), stop or Stop()
    job = Job(task or EXPLAIN, targets, settings)
    plan = files if isinstance(files, Plan) else Plan.of(files, out)
    job.check()
    check_one_device(settings.device)
    check_folder(out)
    model = load()
    with closing(result_store(out, pack)) as store:
        store.open()
        index = index_of(plan, model, job, store)
        stages = Stages(
            partial(_read, model.preprocessing),
            partial(Explainer, load, job),
            partial(_write, store, documents),
        )
        yield from deliver(_explain(model, job, plan, index, stages, address, actors, stop, note), index, note)
    merge_last_shard(plan, out, note)


def _explain(
    model: LoadedModel,
    job: Job,
    plan: Plan,
    index: Index,
    stages: Stages,
    address: str,
    actors: Actors | None,
    stop: Stop,
    note: Callable[[str], None],
) -> Generator[Result]:
    """The results of a run."""
    done: set[str] = set()
    if not plan.overwrite:
        here = replace(job, settings=replace(job.settings, device="cpu"))
        check_kept(Computer(model, here, note), model.preprocessing, plan.images, index, note)
        for kept in _done_before(plan.images, index):
            stop.check()
            done.add(kept.source.name)
            yield from kept.results
    with closing(index), ExitStack() as stack:
        outcomes: Iterator[Outcome] = iter(())
        if len(done) < len(plan.images):
            cluster = stack.enter_context(join_cluster(address, actors, job.settings.device))
            outcomes = _outcomes(cluster, stages, _batches(plan, done, cluster, job.settings), index.store)
        index.begin()
        told: set[str] = set()  # every process may have the same to say
        for results, line, notes in outcomes:
            for text in dict.fromkeys(notes):
                if text not in told:
                    told.add(text)
                    note(text)
            index.append(line)
            yield from results
            stop.check()
        index.finish()


def _done_before(images: Sequence[ImageFile], index: Index) -> Iterator[KeptImage]:
    """The images that an earlier run has done."""
    with start_workers(None) as workers:
        for _, kept in workers.ahead(in_batches(images, LOOKED_AT), index.find_kept):
            yield from filter(None, kept)


def _batches(plan: Plan, done: set[str], cluster: Cluster, settings: Settings) -> list[list[Item]]:
    """The batches of a local run in which something is to be done."""
    size = resolve_batch_size(settings.batch_size, torch.device("cuda" if cluster.gpus else "cpu"))
    batches = [[(one, one.name not in done) for one in batch] for batch in in_batches(plan.images, size)]
    return [batch for batch in batches if any(wanted for _, wanted in batch)]


def _outcomes(
    cluster: Cluster, stages: Stages, batches: Sequence[Sequence[Item]], store: ResultStore
) -> Iterator[Outcome]:
    """The results of every image that was to be done, its line for the index, and notes for the user."""
    for batch, outcome in cluster.outcomes(batches, stages):
        if outcome is not None:
            notes = outcome.notes
            for results, line in outcome.images:
                yield results, line, notes
                notes = ()
            continue
        for found, wanted in batch:
            if wanted:
                results, (line,) = write_image(found, Computed(error=PathxError(DIED)), store)
                yield results, line, ()


@dataclass(frozen=True)
class WrittenBatch:
    """What was written of a batch: of each image the results and the line for the index."""

    images: Sequence[tuple[list[Result], Any]]
    notes: Sequence[str]


Image = tuple[ImageFile, Computed]
"""An image that is to be done, and what was computed of it."""


@dataclass(frozen=True)
class ComputedBatch:
    """What was computed of a batch."""

    images: Sequence[Image]
    notes: Sequence[str]


class Explainer:
    """In an actor: a model that explains batches."""

    def __init__(self, load: Load, job: Job) -> None:
        self._notes: list[str] = []
        self._computer = Computer(load(), job, self._notes.append)

    def __call__(self, batch: Sequence[tuple[Input | Unreadable, bool]]) -> ComputedBatch:
        made = self._computer.compute([read for read, _ in batch])
        notes, self._notes[:] = tuple(self._notes), []
        return ComputedBatch([(read.source, made[read.source.name]) for read, wanted in batch if wanted], notes)


def _read(preprocessing: Preprocessing, batch: Sequence[Item]) -> list[tuple[Input | Unreadable, bool]]:
    """All images of a batch, those that are done as well: last digits depend on the batch."""
    return [(read_input(found, preprocessing), wanted) for found, wanted in batch]


def _write(store: ResultStore, documents: bool, made: ComputedBatch) -> WrittenBatch:
    """Draw and write what was computed of a batch; what finds no room here is written by another machine, if there is one."""
    done = dict(enumerate(_write_images(store, made.images)))
    machines = other_machines()
    while short := [number for number, (results, _) in done.items() if _without_room(results)]:
        there = next(machines, None)
        if there is None:
            break
        done |= zip(short, there(partial(_write_images, store), [made.images[number] for number in short]), strict=True)
    if not documents:
        done = {number: (list(map(_brief, results)), line) for number, (results, line) in done.items()}
    return WrittenBatch(list(done.values()), made.notes)


def _brief(result: Result) -> Result:
    """A result without its document, except for what one line of output needs."""
    return replace(result, document={key: result.document[key] for key in ("target",) if key in result.document})


def _write_images(store: ResultStore, images: Sequence[Image]) -> list[tuple[list[Result], Any]]:
    """Write results and commit them: of each image the results, and the line for the index that is true then."""
    made, true = [], dict[str, Any]()
    for source, computed in images:
        results, lines = write_image(source, computed, store)
        made.append((source.name, results))
        true |= {one["name"]: one for one in lines}
    true |= {one["name"]: one for one in store.flush()}
    return [
        ([replace(one, made=None) for one in _results_in_index(results, true[name])], true[name])
        for name, results in made
    ]


def _results_in_index(results: list[Result], line: dict[str, Any]) -> list[Result]:
    """Results as the index has them: an image that was lost with a shard has failed."""
    if "error" not in line or any(result.failed for result in results):
        return results
    return [Result.failure(line["file"], PathxError(line["error"]))]


def _without_room(results: Sequence[Result]) -> bool:
    return any(isinstance(result.error, NoRoomError) for result in results)
