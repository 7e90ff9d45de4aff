"""How good attributions are: methods measured over many pictures, with intervals, and compared picture by picture."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import pathx
from pathx.engine import check_depth, check_settings, check_width
from pathx.errors import PathxError
from pathx.folders import PictureFile
from pathx.methods import METHODS, Subject, captum_is_missing
from pathx.pictures import shown
from pathx.prepared import Prepared, Seen
from pathx.protocols import PROTOCOLS, Protocol
from pathx.records import Record, RecordFile, record_key
from pathx.statistics import bootstrap, compare

SCHEMA = "pathx/evaluation@1"
MEASURES = {"insertion": "↑", "deletion": "↓"}
"""What is measured, and whether more or less of it is better."""

INSTALL = "pip install 'pathx[evaluate]'"


@dataclass(frozen=True)
class Contender:
    """A method with its settings. Of two with the same name, such as paths of two widths, the title differs."""

    name: str
    title: str
    settings: Mapping[str, Any]

    @property
    def described(self) -> dict[str, Any]:
        """Its settings and fixed choices, for result files."""
        return {**self.settings, **METHODS[self.name].facts}

    def attribution(self, subject: Subject) -> Tensor:
        """(B, C, H, W)"""
        return METHODS[self.name].compute(subject, **self.settings)


def contender(name: str, protocol: str, title: str | None = None, **settings: Any) -> Contender:
    """A method by name, as a protocol takes it, with some of its settings."""
    if name not in METHODS:
        raise PathxError(f"there is no method {name!r}: choose from {', '.join(METHODS)}", usage=True)
    chosen = {**METHODS[name].settings, **PROTOCOLS[protocol].settings.get(name, {}), **settings}
    return Contender(name, title or METHODS[name].title, chosen)


@dataclass(eq=False)
class Evaluation:
    """What came out.

    Args:
        pictures: name, label (None if it has none) and predicted class of every picture that was used.
        records: of every contender that ran, by title, one record per picture.
        not_run: contenders that could not run, by title, and why.
        unread: pictures that could not be used, by name, and why.
    """

    prepared: Prepared
    protocol: Protocol
    contenders: tuple[Contender, ...]
    pictures: list[tuple[str, str | None, int]] = field(default_factory=list)
    records: dict[str, list[Record]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def ran(self) -> list[Contender]:
        """The contenders that have figures."""
        return [one for one in self.contenders if one.title not in self.not_run and self.areas(one, "insertion")]

    def areas(self, one: Contender, measure: str) -> dict[str, float]:
        """A measure of every picture that the contender has figures for."""
        records = self.records.get(one.title, ())
        return {record.picture: record.areas[measure] for record in records if record.problem is None}

    def curve(self, one: Contender, measure: str) -> Tensor:
        """The mean curve, (steps + 1,)."""
        good = [getattr(record, measure) for record in self.records[one.title] if record.problem is None]
        return torch.tensor(good, dtype=torch.float64).mean(0)

    def figures(self, one: Contender) -> dict[str, Any]:
        """A contender's entry in a result file."""
        good = [record for record in self.records[one.title] if record.problem is None]
        intervals = {measure: asdict(bootstrap(list(self.areas(one, measure).values()))) for measure in MEASURES}
        return {**intervals, "seconds": sum(record.seconds for record in good) / len(good)}

    def comparison(self, first: Contender, second: Contender) -> dict[str, Any]:
        """The first less the second, over the pictures that both have figures for."""
        result = {}
        for measure in MEASURES:
            one, other = self.areas(first, measure), self.areas(second, measure)
            both = [name for name in one if name in other]
            if both:
                found = compare([one[name] for name in both], [other[name] for name in both])
                result[measure] = {**asdict(found.difference), "higher": found.higher, "pictures": found.pictures}
        return result

    def counts(self, one: Contender) -> dict[str, int]:
        records = self.records[one.title]
        good = [record for record in records if record.problem is None]
        return {
            "pictures": len(good),
            "tied": sum(record.tied for record in good),
            "not_finite": len(records) - len(good),
        }

    @cached_property
    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        notes = [f"{title} was not run: {reason}" for title, reason in self.not_run.items()]
        if self.unread:
            notes.append(f"{len(self.unread)} pictures could not be used and are left out")
        for one in self.contenders:
            if one.title not in self.records:
                continue
            counts = self.counts(one)
            if counts["not_finite"]:
                notes.append(
                    f"{one.title}: {counts['not_finite']} maps were NaN or infinite and are left out of its figures"
                )
            if counts["tied"]:
                notes.append(
                    f"{one.title}: {counts['tied']} maps were the same everywhere; pixels were taken row by row"
                )
        classes = Counter(target for _, _, target in self.pictures)
        if len(self.pictures) > 1 and len(classes) == 1:
            only = self.prepared.labels[next(iter(classes))]
            notes.append(f"every picture is predicted as {only}: the figures speak for that class only")
        if unknown := self.unknown_labels:
            some = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
            notes.append(
                f"{len(unknown)} folders are not named after classes of the model ({some}): no accuracy for them"
            )
        return notes

    @property
    def unknown_labels(self) -> list[str]:
        """Labels of pictures that are no classes of the model."""
        labels = sorted({label for _, label, _ in self.pictures if label is not None})
        return [label for label in labels if self.prepared.class_of(label) is None]

    @property
    def accuracy(self) -> float | None:
        """The share of labelled pictures whose predicted class is their label; None without labels of the model."""
        known = {label: self.prepared.class_of(label) for _, label, _ in self.pictures if label is not None}
        pairs = [(known[label], target) for _, label, target in self.pictures if label and known[label] is not None]
        return sum(right == target for right, target in pairs) / len(pairs) if pairs else None

    @property
    def document(self) -> dict[str, Any]:
        """evaluation.json."""
        ran = self.ran
        own = next((one for one in ran if one.name == "pathx"), None)
        return {
            "schema": SCHEMA,
            "protocol": self.protocol.name,
            "parameters": self.protocol.parameters,
            "pictures": len(self.pictures),
            "methods": {one.name: self.figures(one) for one in ran},
            "settings": {one.name: one.described for one in ran},
            "comparison": {one.name: self.comparison(own, one) for one in ran if own and one is not own},
            "counts": {one.name: self.counts(one) for one in ran},
            "accuracy": self.accuracy,
            "not_run": {one.name: self.not_run[one.title] for one in self.contenders if one.title in self.not_run},
            "unread": self.unread,
            "notes": self.notes,
            "model": self.prepared.about,
            "created_by": {
                "pathx": pathx.__version__,
                "torch": str(torch.__version__),
                "device": str(self.prepared.device),
            },
        }

    @property
    def table(self) -> list[list[Any]]:
        """One row per picture and contender, headings first."""
        labels = self.prepared.labels
        about = {name: (label or "", labels[target]) for name, label, target in self.pictures}
        rows: list[list[Any]] = [["picture", "label", "predicted", "method", *MEASURES, "seconds", "tied", "problem"]]
        for one in self.contenders:
            for record in self.records.get(one.title, ()):
                areas = record.areas.values() if record.problem is None else ("", "")
                start = [
                    record.picture,
                    *about[record.picture],
                    one.title if one.title != METHODS[one.name].title else one.name,
                ]
                rows.append([*start, *areas, record.seconds, record.tied, record.problem or ""])
        return rows


def evaluate(
    prepared: Prepared,
    pictures: Sequence[PictureFile],
    contenders: Iterable[Contender],
    protocol: Protocol,
    *,
    records: RecordFile | None = None,
    batch_size: int = 8,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Measure every contender on every picture.

    A contender that cannot run is left out and named, and so is a picture that cannot be read.

    Args:
        records: what is known already, and where new records go.
        progress: called with the number of attributions that were measured just now.
    """
    if batch_size < 1:
        raise PathxError(f"batch size {batch_size} is out of range; use 1 or more", usage=True)
    records = records or RecordFile(None)
    result = Evaluation(prepared, protocol, tuple(contenders))
    _check(prepared, result)
    for one in result.contenders:
        if METHODS[one.name].captum and captum_is_missing():
            result.not_run[one.title] = f"it needs Captum: {INSTALL}"

    def failed(source: PictureFile, error: PathxError) -> None:
        result.unread[source.name] = str(error)
        progress(len(result.contenders))

    for batch in prepared.see(pictures, batch_size, failed):
        result.pictures += [(seen.source.name, seen.source.label, seen.target) for seen in batch]
        subjects: dict[tuple[int, ...], Subject] = {}  # contenders that lack the same pictures share a frozen pass
        for one in result.contenders:
            keys = [_key(prepared, protocol, one, seen) for seen in batch]
            missing = tuple(place for place, key in enumerate(keys) if key not in records.known)
            if one.title not in result.not_run and missing:
                if missing not in subjects:
                    subjects[missing] = subject_of(prepared, [batch[place] for place in missing])
                try:
                    measured = _measured(protocol, one, subjects[missing], [keys[place] for place in missing])
                except (PathxError, RuntimeError, NotImplementedError, AssertionError) as error:
                    result.not_run[one.title] = " ".join(str(error).split()) or type(error).__name__
                else:
                    records.add(measured)
            if one.title not in result.not_run:
                result.records.setdefault(one.title, []).extend(records.known[key] for key in keys)
            progress(len(batch))
    if not result.pictures:
        raise PathxError(f"none of the {len(pictures)} pictures could be used: {next(iter(result.unread.values()))}")
    for one in result.contenders:
        if one.title in result.not_run:
            result.records.pop(one.title, None)
        elif not result.areas(one, "insertion"):
            result.not_run[one.title] = "none of its maps was finite"
    return result


def _check(prepared: Prepared, result: Evaluation) -> None:
    """Refuse settings of paths that no picture could be explained with."""
    for one in result.contenders:
        if one.name == "pathx":
            check_depth(one.settings["depth"], prepared.network)
            check_width(one.settings["width"])
            check_settings(one.settings["alpha"], one.settings["skips"])


def subject_of(prepared: Prepared, batch: Sequence[Seen]) -> Subject:
    """A batch as methods take it."""
    images = torch.stack([seen.input for seen in batch])
    return Subject(prepared.classifier, images, [seen.target for seen in batch], [seen.source.name for seen in batch])


def _key(prepared: Prepared, protocol: Protocol, one: Contender, seen: Seen) -> str:
    model = prepared.model
    network = (model.sha256, asdict(model.preprocessing), str(prepared.dtype))
    picture = (seen.source.name, seen.picture.sha256, seen.target)
    return record_key(network, protocol.name, protocol.parameters, one.name, one.described, picture)


def _measured(protocol: Protocol, one: Contender, subject: Subject, keys: Sequence[str]) -> list[Record]:
    """Records of one contender for a batch."""
    start = perf_counter()
    attribution = one.attribution(subject)
    seconds = (perf_counter() - start) / len(keys)
    finite = attribution.flatten(1).isfinite().all(1)
    good = [place for place, fine in enumerate(finite.tolist()) if fine]
    with torch.no_grad():
        targets = [subject.targets[place] for place in good]
        curves = iter(protocol.curves(subject.classifier, subject.images[good], targets, attribution[good]))
    records = []
    for place, (key, name, target) in enumerate(zip(keys, subject.names, subject.targets, strict=True)):
        if place not in good:
            records.append(Record(key, name, target, seconds=seconds, problem="the map holds NaN or infinite values"))
            continue
        found = next(curves)
        if not all(map(_is_number, (*found.insertion, *found.deletion))):
            records.append(Record(key, name, target, seconds=seconds, problem="the model's output is NaN on the way"))
            continue
        records.append(Record(key, name, target, found.insertion, found.deletion, seconds, found.tied))
    return records


def _is_number(value: float) -> bool:
    return value == value


def write_text(file: Path, text: str) -> None:
    """A file of results, replaced whole. Bytes of names that are not text are written as JSON would escape them."""
    unfinished = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
        unfinished.replace(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PathxError(f"cannot write {shown(file)} ({reason}): choose another folder with --out") from None


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    write_text(file, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_csv(file: Path, rows: Iterable[Sequence[Any]]) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    write_text(file, stream.getvalue())
