"""Insertion and deletion of every method on many images, with intervals and paired differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pathx.cluster import DIED, Actors, Stages, join_cluster
from pathx.engine.device import in_parts
from pathx.engine.settings import check_depth, check_settings, check_width
from pathx.errors import PathxError
from pathx.evaluation.choices import METHODS, PATHS, PROTOCOLS, choose
from pathx.evaluation.methods import Subject, captum_is_missing
from pathx.evaluation.protocols import Protocol, area
from pathx.evaluation.records import Record, RecordFile, Unread, record_key
from pathx.evaluation.statistics import bootstrap, compare
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import Input, Prepared, SeenImage, Unreadable, in_batches, prepare, read_input, usable
from pathx.results.schema import created_by

SCHEMA = "pathx/evaluation@1"
MEASURES = {"insertion": "↑", "deletion": "↓"}
"""What is measured, and whether more or less is better."""

DIFFERENCE = "difference"
"""Insertion minus deletion, the one figure to compare by; more is better."""

CANNOT_RUN = (PathxError, RuntimeError, NotImplementedError, AssertionError)
"""Errors of methods that cannot be applied to a network."""


@dataclass(frozen=True)
class Contender:
    """A method with its settings. Contenders of one name, such as paths of two widths, differ in their titles."""

    name: str
    title: str
    settings: Mapping[str, Any]

    @property
    def description(self) -> dict[str, Any]:
        """Its settings and fixed choices, for result files."""
        return {**self.settings, **METHODS[self.name].facts}

    def attribution(self, subject: Subject) -> Tensor:
        """(B, C, H, W)"""
        found: Tensor = METHODS[self.name].compute(subject, **self.settings)
        return found

    @property
    def missing(self) -> str | None:
        """What must be installed before it can run; None if nothing."""
        if METHODS[self.name].captum and captum_is_missing():
            return "it needs Captum: pip install 'pathx-relu[evaluate]'"
        return None


def contender(name: str, protocol: str, title: str | None = None, **settings: Any) -> Contender:
    """A method by name, with the settings that a protocol needs and those given."""
    method, ranking = choose("method", name, METHODS), choose("protocol", protocol, PROTOCOLS)
    return Contender(name, title or method.title, {**method.settings, **ranking.settings.get(name, {}), **settings})


# Records: `image`, `target`, `insertion` and `deletion` (the probability before the first step and after each), `seconds` of
# the attribution, `tied` (the share of pixels with a value that others have), and `problem`: why there are no figures.

_NUMBER = (int, float)
_SHAPE = {"key": str, "image": str, "target": int, "insertion": [_NUMBER], "deletion": [_NUMBER]}
_SHAPE |= {"seconds": _NUMBER, "tied": _NUMBER, "problem": (str, type(None))}


def curve_records(file: Path | None) -> RecordFile:
    """The curves in a file."""
    return RecordFile(file, _SHAPE, lambda line: line["problem"] or len(line["insertion"]) == len(line["deletion"]) > 1)


def areas(record: Record) -> dict[str, float]:
    """The measures of a record without a problem."""
    insertion, deletion = area(record["insertion"]), area(record["deletion"])
    return {"insertion": insertion, "deletion": deletion, DIFFERENCE: insertion - deletion}


@dataclass(eq=False)
class Evaluation:
    """What came out.

    Args:
        images: name, label (None if it has none) and predicted class of every image that was used.
        records: of every contender that ran, by title, one record per image.
        not_run: contenders that could not run, by title, and why.
        unread: images that could not be used, by name, and why.
        device: where it was computed, if not on the device of `prepared`.
    """

    prepared: Prepared
    protocol: Protocol
    contenders: tuple[Contender, ...]
    images: list[tuple[str, str | None, int]] = field(default_factory=list)
    records: dict[str, list[Record]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    unread: Unread = field(default_factory=Unread)
    device: str = ""

    def take(self, outcome: Outcome, records: RecordFile) -> None:
        """Add the outcome of one contender on one batch."""
        if outcome.problem is not None:
            self.not_run.setdefault(outcome.title, outcome.problem)
        elif outcome.title not in self.not_run:
            self.records.setdefault(outcome.title, []).extend(records.known[key] for key in outcome.keys)

    def close(self, asked: int) -> None:
        """Leave out the contenders that could not run on all images."""
        self.unread.check_any(self.images, asked)
        for one in self.contenders:
            if one.title in self.not_run:
                self.records.pop(one.title, None)
            elif not self.good(one):
                self.not_run[one.title] = "none of its maps was finite"

    @property
    def running(self) -> list[Contender]:
        """The contenders that can run, as far as is known."""
        return [one for one in self.contenders if one.title not in self.not_run]

    @property
    def ran(self) -> list[Contender]:
        """The contenders that have figures."""
        return [one for one in self.running if self.good(one)]

    @property
    def own(self) -> Contender | None:
        """The contender that is compared with all others."""
        return next((one for name in PATHS for one in self.ran if one.name == name), None)

    def good(self, one: Contender) -> list[Record]:
        """The records of a contender that have figures."""
        return [record for record in self.records.get(one.title, ()) if record["problem"] is None]

    def areas(self, one: Contender, measure: str) -> dict[str, float]:
        """A measure, or DIFFERENCE, of every image for which the contender has figures."""
        return {record["image"]: areas(record)[measure] for record in self.good(one)}

    def curve(self, one: Contender, measure: str) -> Tensor:
        """The mean curve, (steps + 1,)."""
        return torch.tensor([record[measure] for record in self.good(one)], dtype=torch.float64).mean(0)

    def figures(self, one: Contender) -> dict[str, Any]:
        """A contender's entry in a result file."""
        good = self.good(one)
        intervals = {measure: bootstrap(list(self.areas(one, measure).values())) for measure in (*MEASURES, DIFFERENCE)}
        tied, seconds = (sum(record[key] for record in good) / len(good) for key in ("tied", "seconds"))
        return {**intervals, "tied_pixels": tied, "seconds": seconds}

    def comparison(self, first: Contender, second: Contender) -> dict[str, Any]:
        """The first minus the second, over the images for which both have figures."""
        result = {}
        for measure in (*MEASURES, DIFFERENCE):
            one, other = self.areas(first, measure), self.areas(second, measure)
            if both := [name for name in one if name in other]:
                result[measure] = compare([one[name] for name in both], [other[name] for name in both])
        return result

    def counts(self, one: Contender) -> dict[str, int]:
        records, good = self.records.get(one.title, ()), self.good(one)
        tied = sum(record["tied"] == 1 for record in good)
        return {"images": len(good), "tied": tied, "not_finite": len(records) - len(good)}

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures should know."""
        notes = [f"{title} was not run: {reason}" for title, reason in self.not_run.items()]
        if self.unread:
            notes.append(f"{len(self.unread)} images could not be used and are left out")
        texts = {
            "not_finite": "maps were NaN or infinite and are left out of its figures",
            "tied": "maps gave no pixel a value of its own; the order was that of ties",
        }
        for one in self.contenders:
            counts = self.counts(one)
            notes += [f"{one.title}: {counts[kind]} {text}" for kind, text in texts.items() if counts[kind]]
        classes = Counter(target for _, _, target in self.images)
        if len(self.images) > 1 and len(classes) == 1:
            only = self.prepared.labels[next(iter(classes))]
            notes.append(f"every image is predicted as {only}: the figures are about that class only")
        if unknown := sorted(label for label, number in self.classes_of_labels.items() if number is None):
            some = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
            notes.append(f"no accuracy for folders that are not named after classes of the model: {some}")
        return notes

    @property
    def classes_of_labels(self) -> dict[str, int | None]:
        """The class that each label means; None if it is no class of the model."""
        labels = {label for _, label, _ in self.images if label is not None}
        return {label: self.prepared.class_of(label) for label in labels}

    @property
    def accuracy(self) -> float | None:
        """The share of labelled images that are predicted as labelled; None if no label is a class of the model."""
        known = self.classes_of_labels
        right = [known[label] == target for _, label, target in self.images if label and known[label] is not None]
        return sum(right) / len(right) if right else None

    @property
    def document(self) -> dict[str, Any]:
        """evaluation.json."""
        ran, own = self.ran, self.own
        return {
            "schema": SCHEMA,
            "protocol": self.protocol.name,
            "parameters": self.protocol.parameters,
            "images": len(self.images),
            "methods": {one.name: self.figures(one) for one in ran},
            "settings": {one.name: one.description for one in ran},
            "compared": own.name if own else None,
            "comparison": {one.name: self.comparison(own, one) for one in ran if own and one is not own},
            "counts": {one.name: self.counts(one) for one in ran},
            "accuracy": self.accuracy,
            "not_run": {one.name: self.not_run[one.title] for one in self.contenders if one.title in self.not_run},
            "unread": self.unread,
            "notes": self.notes,
            "model": self.prepared.about,
            "created_by": created_by(device=self.device or str(self.prepared.device)),
        }

    @property
    def table(self) -> list[list[Any]]:
        """One row per image and contender, headings first."""
        about = {name: (label or "", self.prepared.labels[target]) for name, label, target in self.images}
        rows: list[list[Any]] = [["image", "label", "predicted", "method", *MEASURES, "seconds", "tied", "problem"]]
        for one in self.contenders:
            name = one.title if one.title != METHODS[one.name].title else one.name
            for record in self.records.get(one.title, ()):
                image, problem = record["image"], record["problem"]
                figures = [areas(record)[measure] if problem is None else "" for measure in MEASURES]
                start = [image, *about.get(image, ("", "")), name]
                rows.append([*start, *figures, record["seconds"], record["tied"], problem or ""])
        return rows


def measure_images(
    prepared: Prepared,
    images: Sequence[ImageFile],
    contenders: Iterable[Contender],
    protocol: Protocol,
    *,
    records: RecordFile | None = None,
    batch_size: int | str = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Measure every contender on every image.

    A contender that cannot run is left out and named, and so is an image that cannot be read.

    Args:
        records: known records; new ones are added.
        progress: called with the number of attributions just measured.
    """
    records = records or curve_records(None)
    result = new_evaluation(prepared, contenders, protocol, batch_size)
    result.unread = Unread(progress, len(result.contenders))
    for batch in prepared.see(images, batch_size, result.unread):
        result.images += map(describe_image, batch)
        progress(len(batch) * (len(result.contenders) - len(result.running)))
        for outcome in measure_batch(prepared, protocol, result.running, batch, records.known):
            records.add(outcome.records)
            result.take(outcome, records)
            progress(len(batch))
    result.close(len(images))
    return result


def new_evaluation(
    prepared: Prepared, contenders: Iterable[Contender], protocol: Protocol, batch_size: int | str
) -> Evaluation:
    """An evaluation without images so far. Raises PathxError for wrong settings."""
    prepared.batch_size(batch_size)
    result = Evaluation(prepared, protocol, tuple(contenders))
    for one in result.contenders:
        if one.name in PATHS:
            check_depth(one.settings["depth"], prepared.network)
            check_width(one.settings["width"])
            check_settings(*(one.settings[key] for key in ("alpha", "skips", "importance")))
        if one.missing is not None:
            result.not_run[one.title] = one.missing
    return result


@dataclass(frozen=True)
class Outcome:
    """The outcome of one contender on a batch.

    Args:
        keys: of the records of the batch's images.
        records: the new ones among them.
        problem: why it cannot run.
    """

    title: str
    keys: tuple[str, ...]
    records: tuple[Record, ...] = ()
    problem: str | None = None


def measure_batch(
    prepared: Prepared,
    protocol: Protocol,
    contenders: Sequence[Contender],
    batch: Sequence[SeenImage],
    known: Container[str],
) -> Iterator[Outcome]:
    """Measure contenders on the images of a batch that have no records yet."""
    subjects: dict[tuple[int, ...], Subject] = {}  # contenders without records of the same images share a frozen pass
    for one in contenders:
        keys = tuple(_key(prepared, protocol, one, seen) for seen in batch)
        missing = tuple(place for place, key in enumerate(keys) if key not in known)
        if not missing:
            yield Outcome(one.title, keys)
            continue

        def measure(places: Sequence[int], one: Contender = one, keys: Sequence[str] = keys) -> list[Record]:
            subject = subjects.pop(tuple(places), None) or subject_of(prepared, [batch[place] for place in places])
            records = _measure_contender(protocol, one, subject, [keys[place] for place in places])
            subjects[tuple(places)] = subject  # skipped if memory was short
            return records

        try:
            records = [record for part in in_parts(missing, measure) for record in part]
        except CANNOT_RUN as error:
            yield Outcome(one.title, keys, problem=reason(error))
        else:
            yield Outcome(one.title, keys, tuple(records))


def reason(error: Exception) -> str:
    """Why a method cannot run, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def describe_image(seen: SeenImage) -> tuple[str, str | None, int]:
    """Name, label and predicted class of an image."""
    return seen.source.name, seen.source.label, seen.target


def subject_of(prepared: Prepared, batch: Sequence[SeenImage]) -> Subject:
    """A batch in the form that methods take."""
    images = torch.stack([seen.input for seen in batch])
    return Subject(prepared.classifier, images, [seen.target for seen in batch], [seen.source.name for seen in batch])


def _key(prepared: Prepared, protocol: Protocol, one: Contender, seen: SeenImage) -> str:
    model = prepared.model
    network = (model.sha256 + model.identity.get("made_of", ""), asdict(model.preprocessing), str(prepared.dtype))
    image = (seen.source.name, seen.image.sha256, seen.target)
    return record_key(network, protocol.name, protocol.parameters, one.name, one.description, image)


def _measure_contender(protocol: Protocol, one: Contender, subject: Subject, keys: Sequence[str]) -> list[Record]:
    """Records of one contender for a batch."""
    start = perf_counter()
    attribution = one.attribution(subject)
    seconds = (perf_counter() - start) / len(keys)
    finite = attribution.flatten(1).isfinite().all(1).tolist()
    good = [place for place, fine in enumerate(finite) if fine]
    with torch.no_grad():
        targets, names = [subject.targets[place] for place in good], [subject.names[place] for place in good]
        curves = iter(protocol.curves(subject.classifier, subject.images[good], targets, attribution[good], names))
    records = []
    for key, name, target, fine in zip(keys, subject.names, subject.targets, finite, strict=True):
        record: Record = {"key": key, "image": name, "target": target, "insertion": [], "deletion": []}
        record |= {"seconds": seconds, "tied": 0.0, "problem": None}
        if not fine:
            record["problem"] = "the map holds NaN or infinite values"
        elif not all(map(math.isfinite, (*(own := next(curves)).insertion, *own.deletion))):
            record["problem"] = "the model's output is NaN on the way"
        else:
            record |= {"insertion": list(own.insertion), "deletion": list(own.deletion), "tied": own.tied}
        records.append(record)
    return records


# On Ray, in the same batches: tasks read images, actors measure them, and the process that started it writes the records


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
