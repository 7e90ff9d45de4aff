"""An evaluation on Ray: images are read in tasks and measured by a pool of actors that hold the model.

The code and the batches are those of one machine, and only the process that started the evaluation writes records. So each
continues what the other began.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pathx.cluster import DIED, Actors, Stages, join_cluster
from pathx.evaluation.measure import (
    Contender,
    Evaluation,
    Outcome,
    curve_records,
    describe_image,
    measure_batch,
    new_evaluation,
)
from pathx.evaluation.protocols import Protocol
from pathx.evaluation.records import RecordFile, Unread
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import Input, Prepared, Unreadable, in_batches, prepare, read_input, usable

Item = tuple[ImageFile, tuple[str, ...]]
"""An image, and the keys of its known records."""


def measure_on_ray(
    load: Callable[[], LoadedModel],
    prepared: Prepared,
    images: Sequence[ImageFile],
    contenders: Iterable[Contender],
    protocol: Protocol,
    *,
    address: str = "local",
    actors: Actors | None = None,
    device: str = "auto",
    dtype: str = "float32",
    records: RecordFile | None = None,
    batch_size: int | str = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """As `measure_images`, on a Ray cluster.

    Args:
        load: gives the model; called once in every actor, so it must work on every machine.
        prepared: the model in this process, which measures nothing.
        address: `local` to start Ray on this machine, `auto` to join the running one, or its address.
        actors: the number of processes that measure.
        device, dtype: of these processes.
    """
    records = records or curve_records(None)
    result = new_evaluation(prepared, contenders, protocol, batch_size)
    known: dict[str, list[str]] = {}
    for record in records.known.values():
        known.setdefault(record["image"], []).append(record["key"])
    batches = [
        [(source, tuple(known.get(source.name, ()))) for source in batch]
        for batch in in_batches(images, prepared.batch_size(batch_size))
    ]
    stages = Stages(
        partial(_read, prepared.model.preprocessing),
        partial(Measurer, load, device, dtype, protocol, result.running),
    )
    made: dict[str, MeasuredBatch] = {}
    with join_cluster(address, actors, device) as cluster:
        for batch, found in cluster.outcomes(batches, stages):
            one = found or MeasuredBatch(unread={source.name: DIED for source, _ in batch})
            for outcome in one.outcomes:
                records.add(outcome.records)
            made[batch[0][0].name] = one
            progress(len(batch) * len(result.contenders))
    for one in (made[source.name] for source in images if source.name in made):  # in the order of the images
        result.unread.update(one.unread)
        result.images += one.images
        result.device = one.device or result.device
        for outcome in one.outcomes:
            result.take(outcome, records)
    result.close(len(images))
    return result


@dataclass(frozen=True)
class MeasuredBatch:
    """The outcomes of a batch; its images that could be used, and why the others could not; the device."""

    outcomes: Sequence[Outcome] = ()
    images: Sequence[tuple[str, str | None, int]] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    device: str = ""


class Measurer:
    """In an actor: a model whose attributions are measured."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        device: str,
        dtype: str,
        protocol: Protocol,
        contenders: Sequence[Contender],
    ) -> None:
        self._prepared = prepare(load(), device=device, dtype=dtype)
        self._protocol, self._contenders = protocol, contenders

    def __call__(self, batch: tuple[Sequence[Input | Unreadable], Container[str]]) -> MeasuredBatch:
        read, known = batch
        unread = Unread()
        seen = self._prepared.predict(usable(read, unread), unread)
        outcomes = list(measure_batch(self._prepared, self._protocol, self._contenders, seen, known)) if seen else []
        return MeasuredBatch(outcomes, list(map(describe_image, seen)), dict(unread), str(self._prepared.device))


def _read(preprocessing: Preprocessing, batch: Sequence[Item]) -> tuple[list[Input | Unreadable], set[str]]:
    """The inputs of a batch, and the keys of its known records."""
    read = [read_input(source, preprocessing) for source, _ in batch]
    return read, {key for _, keys in batch for key in keys}
