"""A run on Ray: images are read in tasks, explained by a pool of actors that hold the model, and written in tasks.

The same code reads, computes and writes as in a run on one machine, in the same batches, so that either goes on where the
other was stopped. The index is written here, in the process that started the run, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from pathx.cluster import DIED, Actors, Stages, join_cluster
from pathx.engine.device import resolve_batch_size
from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import read_input
from pathx.results.files import Line
from pathx.results.store import Result, ResultStore
from pathx.runs.compute import Computed, Computer, Item, Job, Read, unfinished_batches
from pathx.runs.index import Index
from pathx.runs.run import write_image

if TYPE_CHECKING:
    from pathx.runs.run import Run

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

    def explain(self, run: Run, index: Index, items: Sequence[Item]) -> Generator[Result]:
        """The results of images that are to be done."""
        settings = run.job.settings
        read, write = partial(_read, run.model.preprocessing), partial(_write, run.store, self.documents)
        with join_cluster(self.address, self.actors, settings.device) as cluster:
            size = resolve_batch_size(settings.batch_size, torch.device("cuda" if cluster.gpus else "cpu"))
            index.begin()
            stages = Stages(read, partial(Explainer, self.load, run.job), write)
            for batch, written in cluster.outcomes(unfinished_batches(items, size), stages):
                if written is None:
                    died = Computed(error=PathxError(DIED))
                    written = _write(run.store, True, ([(one, died) for one, wanted in batch if wanted], ()))
                for text in written[1]:
                    run.note(text)
                for results, line in written[0]:
                    index.append(line)
                    yield from results
                    run.stop.check()


def _read(preprocessing: Preprocessing, batch: Sequence[Item]) -> list[Read]:
    """All images of a batch, those that are done as well: last digits depend on the batch."""
    return [(read_input(source, preprocessing), wanted) for source, wanted in batch]


class Explainer:
    """In an actor: a model that explains batches."""

    def __init__(self, load: Callable[[], LoadedModel], job: Job) -> None:
        self._notes: list[str] = []
        self._computer = Computer(load(), job, self._notes.append)

    def __call__(self, batch: Sequence[Read]) -> ComputedImages:
        made = self._computer.compute(batch)
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
