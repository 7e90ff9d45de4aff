"""A run on Ray: images are read in tasks, explained by a pool of actors that hold the model, and written in tasks.

The same code reads, computes and writes as in a run on one machine, in the same batches, so that either goes on where the
other was stopped. The index is written here, in the process that started the run, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import torch

from pathx.cluster import DIED, Actors, Stages, check_one_device, join_cluster
from pathx.engine.device import resolve_batch_size
from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import Input, Note, Unreadable, in_batches, read_input, start_workers
from pathx.results.lines import Line
from pathx.results.store import Result, ResultStore
from pathx.runs.compute import Computed, Computer, Job
from pathx.runs.index import Index, KeptImage
from pathx.runs.run import Plan, check_kept
from pathx.runs.stop import Stop
from pathx.runs.write import write_image

LOOKED_AT = 64
"""How many images at once are checked for being done."""

Item = tuple[ImageFile, bool]
"""An image, and whether it is to be done. Others are only computed along, since the last digits depend on the batch."""

ComputedImages = tuple[Sequence[tuple[ImageFile, Computed]], Sequence[str]]
"""What was computed of the images of a batch that are to be done, and notes for the user."""

WrittenImages = tuple[Sequence[tuple[list[Result], Line]], Sequence[str]]
"""The results of each and its line for the index, and notes."""


@dataclass(frozen=True)
class OnRay:
    """Has `explain_files` run on a Ray cluster.

    Args:
        load: gives the model; called once in every actor, so it must mean the same on every machine.
        address: `local` starts a Ray of its own on this machine, `auto` joins the one at hand; or where one is.
        actors: how many processes explain.
        documents: whether results hold their whole documents, or only what these say of the class. Receiving whole documents
            is most of the work of this process, so leave them out on a large cluster.
    """

    load: Callable[[], LoadedModel]
    address: str = "local"
    actors: Actors | None = None
    documents: bool = True

    def explain(
        self, model: LoadedModel, job: Job, plan: Plan, store: ResultStore, index: Index | None, stop: Stop, note: Note
    ) -> Generator[Result]:
        """The results of a run, those first that an earlier one has done."""
        assert index is not None
        settings, done = job.settings, set[str]()
        check_one_device(settings.device)
        if not plan.overwrite:
            here = replace(job, settings=replace(settings, device="cpu"))
            check_kept(Computer(model, here, note), model.preprocessing, plan.images, index, note)
            for kept in _done_before(plan.images, index):
                stop.check()
                done.add(kept.source.name)
                yield from kept.results
        stages = Stages(
            partial(_read, model.preprocessing),
            partial(Explainer, self.load, job),
            partial(_write, store, self.documents),
        )
        with closing(index), ExitStack() as stack:
            outcomes: Iterator[tuple[Sequence[Item], WrittenImages | None]] = iter(())
            if len(done) < len(plan.images):
                cluster = stack.enter_context(join_cluster(self.address, self.actors, settings.device))
                size = resolve_batch_size(settings.batch_size, torch.device("cuda" if cluster.gpus else "cpu"))
                batches = [[(one, one.name not in done) for one in batch] for batch in in_batches(plan.images, size)]
                left = [batch for batch in batches if any(wanted for _, wanted in batch)]  # as a local run has them
                outcomes = cluster.outcomes(left, stages)
            index.begin()
            for batch, written in outcomes:
                if written is None:
                    died = Computed(error=PathxError(DIED))
                    written = _write(store, True, ([(one, died) for one, wanted in batch if wanted], ()))
                for text in written[1]:
                    note(text)
                for results, line in written[0]:
                    index.append(line)
                    yield from results
                    stop.check()
            index.finish()


def _done_before(images: Sequence[ImageFile], index: Index) -> Iterator[KeptImage]:
    """The images that an earlier run has done."""
    with start_workers(None) as workers:
        for _, kept in workers.ahead(in_batches(images, LOOKED_AT), index.find_kept):
            yield from filter(None, kept)


def _read(preprocessing: Preprocessing, batch: Sequence[Item]) -> list[tuple[Input | Unreadable, bool]]:
    """All images of a batch, those that are done as well: last digits depend on the batch."""
    return [(read_input(found, preprocessing), wanted) for found, wanted in batch]


class Explainer:
    """In an actor: a model that explains batches."""

    def __init__(self, load: Callable[[], LoadedModel], job: Job) -> None:
        self._notes: list[str] = []
        self._computer = Computer(load(), job, self._notes.append)

    def __call__(self, batch: Sequence[tuple[Input | Unreadable, bool]]) -> ComputedImages:
        made = self._computer.compute([read for read, _ in batch])
        notes, self._notes[:] = tuple(self._notes), []
        return [(read.source, made[read.source.name]) for read, wanted in batch if wanted], notes


def _write(store: ResultStore, documents: bool, computed: ComputedImages) -> WrittenImages:
    """Draw and write what was computed of a batch; a shard ends with it."""
    images, notes = computed
    written: dict[str, list[Result]] = {}
    lines: dict[str, Line] = {}
    for source, one in images:
        written[source.name], own = write_image(source, one, store)
        lines |= {line["name"]: line for line in own}
    lines |= {line["name"]: line for line in store.flush()}
    return [(_as_sent(results, lines[name], documents), lines[name]) for name, results in written.items()], notes


def _as_sent(results: Sequence[Result], line: Line, documents: bool) -> list[Result]:
    """Results as the index has them: an image that was lost with its shard has failed. What was made is not sent."""
    if "error" in line and not any(result.failed for result in results):
        return [Result.failure(line["file"], PathxError(line["error"]))]
    if documents:
        return [replace(one, made=None) for one in results]
    few = [{key: one.document[key] for key in ("target",) if key in one.document} for one in results]
    return [replace(one, made=None, document=document) for one, document in zip(results, few, strict=True)]
