"""From picture files to files of explanations: what `pathx explain` does, for Python to call."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from signal import SIGINT
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from pathx.computing import Computer
from pathx.contrast import Contrast
from pathx.contrasting import Contrasted, save_contrast
from pathx.engine import check_settings, check_width, class_logits, explain_frozen
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.frozen import Frozen
from pathx.index import Index
from pathx.inputs import Found, find_pictures
from pathx.models import LoadedModel
from pathx.pictures import Picture, sha256_of
from pathx.reading import Failed as Failed
from pathx.reading import Kept as Kept
from pathx.reading import Opened, Reader, unexpected
from pathx.render import Drawing
from pathx.results import DOCUMENT, ModelInfo, explanation_folder, remove_all, save
from pathx.shards import Shard
from pathx.targets import parse_targets, target_slug, true_class
from pathx.workers import Stop, working

if TYPE_CHECKING:
    from pathx.decomposing import Decomposed

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """How to explain; the defaults are those of the command line.

    Args:
        label: the true class of the pictures, where it is known. By default the name of a picture's folder, where that
            is a label of the model and no targets are asked for. A wrong prediction is explained against it.
        batch_size: pictures explained at once, or `auto`.
        workers: threads that read pictures ahead and write results behind; None for what the machine has.
        pictures: whether to draw any.
    """

    depth: int | str = 3
    width: int | str = 5
    alpha: float | None = None
    skips: str = "adjacent"
    device: str = "auto"
    dtype: str = "float32"
    batch_size: int | str = "auto"
    save_tensors: bool = False
    label: str | None = None
    drawing: Drawing = field(default_factory=Drawing)
    workers: int | None = None
    pictures: bool = True

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that a result depends on; the others only say how it is come by."""
        return {key: value for key, value in asdict(self).items() if key not in ("device", "batch_size", "workers")}


@dataclass(frozen=True)
class Plan:
    """The pictures of a run, and how it goes on with an earlier one.

    Args:
        indexed: keep an index, and leave pictures alone that are done; not for a picture that is named by itself.
        overwrite: make all results again.
    """

    pictures: tuple[Found, ...]
    shard: Shard | None = None
    indexed: bool = True
    overwrite: bool = False

    @classmethod
    def of(
        cls, inputs: Sequence[str | Path], out: str | Path, *, shard: Shard | None = None, overwrite: bool = False
    ) -> Plan:
        """What files, folders, patterns and lists lead to (see `find_pictures`)."""
        found = tuple(find_pictures(inputs, out=out))
        if len(found) == len(inputs) == 1 and found[0].file == str(inputs[0]) and found[0].error is None:
            return cls(found, indexed=False, overwrite=True)
        return cls(tuple(one for one in found if shard is None or shard.holds(one.name)), shard, overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class Done:
    """One explanation whose files are written.

    Args:
        document: what its path.json says.
        predictions: the best classes of the picture, (label, probability) each.
    """

    marker: ClassVar[str] = DOCUMENT
    picture: Picture
    explanation: Explanation
    document: dict[str, Any]
    folder: Path
    predictions: tuple[tuple[str, float], ...]

    @property
    def files(self) -> list[str]:
        return list(self.document["files"].values())


Made: TypeAlias = "Done | Contrasted | Decomposed"
"""What is yielded once its files are written."""

Result: TypeAlias = "Made | Kept | Failed"


def explain_files(
    model: LoadedModel,
    files: Sequence[str | Path] | Plan,
    out: str | Path,
    *,
    targets: Sequence[str] = (),
    settings: Settings | None = None,
    task: Task | None = None,
    stop: Stop | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Generator[Result]:
    """Explain pictures and write the files of each explanation below `out`, as they come, in the order of the pictures.

    A picture that fails costs one `Failed`; what is wrong with the call or the model is raised. However a run ends, what it
    has begun to write is written, and the next one goes on from there.

    Args:
        files: pictures, folders, patterns and lists of pictures, or a plan that was made of these.
        targets: classes by label or number, or `top:K`; the predicted class by default.
        task: what to make of each picture, if not an explanation.
        stop: when asked, the run ends after what has been computed is written, with KeyboardInterrupt.
        note: is told what a user should know of the run, such as that memory was short.
    """
    settings, task, stop = settings or Settings(), task or EXPLAIN, stop or Stop()
    plan = files if isinstance(files, Plan) else Plan.of(files, out)
    check_width(settings.width)
    check_settings(settings.alpha, settings.skips)
    device = resolve_device(settings.device)
    size = resolve_batch_size(settings.batch_size, device)
    if settings.workers is not None and settings.workers < 0:
        raise PathxError(f"workers {settings.workers} is out of range; use 0 or more", usage=True)
    if settings.dtype not in DTYPES:
        raise PathxError(f"dtype is {' or '.join(DTYPES)}, not {settings.dtype!r}", usage=True)
    if device.type == "mps" and settings.dtype == "float64":
        raise PathxError("mps has no float64; use --dtype float32 or --device cpu", usage=True)
    _check_folder(out)
    index = _index_of(plan, model, targets, settings, task, out) if plan.indexed else None

    def explain(frozen: Frozen, opened: Sequence[Opened]) -> Iterator[list[Work] | Failed]:
        return task.batch(Batch.asked(model, frozen, opened, targets, out, settings))

    computer = Computer(model.module, explain, device=device, dtype=DTYPES[settings.dtype], size=size, note=note)
    reader = Reader(model.preprocessing, out, None if plan.overwrite else index)
    batches = [plan.pictures[start : start + size] for start in range(0, len(plan.pictures), size)]
    behind: deque[Future[list[Result]]] = deque()
    hopeful = iter if index is None else _hopeful
    with working(settings.workers if len(batches) > 1 else 0) as workers:
        for slots, read in workers.ahead(batches, reader.read):
            if stop.asked:
                break
            try:
                with stop.at_once():
                    made = computer.compute(reader.with_companions(slots, read, workers))
            except KeyboardInterrupt:
                stop.ask(stop.asked or SIGINT)
                break
            if index is not None and not index.begun:
                _recorded(index.begin, file=index.file)
            for found, one in zip(slots, read, strict=True):
                behind.append(workers.submit(_finish, found, one, made.get(found.name), index))
            while len(behind) > size:
                yield from hopeful(behind.popleft().result())
        while behind:
            yield from hopeful(behind.popleft().result())
    if index is not None and plan.shard is not None and not index.begun:  # none of the pictures fell to this one
        _recorded(index.begin, file=index.file)
    if index is not None and index.begun:
        index.finish()
    if stop.asked:
        raise KeyboardInterrupt


def _finish(found: Found, read: Opened | Kept | Failed, made: Computed | None, index: Index | None) -> list[Result]:
    """Draw and write what was computed of a picture, and then its line in the index."""
    start = perf_counter()
    if isinstance(read, Kept):
        return [read]
    seconds = 0.0
    works: list[Work] | Failed = read if isinstance(read, Failed) else []
    if isinstance(read, Opened) and made is not None:
        works, share = made
        seconds = read.seconds + share
    results = [works] if isinstance(works, Failed) else list(map(_done, works))
    if index is not None:
        seconds += perf_counter() - start
        errors = [str(result.error) for result in results if isinstance(result, Failed)]
        written = [result for result in results if not isinstance(result, (Failed, Kept))]
        line: dict[str, Any] = {"file": found.file, "name": found.name}
        line["explanations"] = [_explained(one, index.out) for one in written if not isinstance(one, Contrasted)]
        for contrast in (one for one in written if isinstance(one, Contrasted)):
            line["contrast"] = _described(contrast, index.out)
        line["seconds"] = round(seconds, 4)
        _recorded(index.append, line | ({"error": "; ".join(errors)} if errors else {}), file=index.file)
    return list(results)


def _explained(made: Done | Decomposed, out: Path) -> dict[str, Any]:
    """What the index says of the results for one class."""
    target = {key: made.document["target"][key] for key in ("label", "probability")}
    score = made.document["linear_model" if isinstance(made, Done) else "whole"]["score"]
    return {"target": made.document["target"]["index"], **target, "score": score, **_described(made, out)}


def _described(made: Made, out: Path) -> dict[str, Any]:
    """Where results are below the output folder, and the hash of the document that makes them whole."""
    return {
        "folder": str(made.folder.relative_to(out)),
        "files": [*made.files, made.marker],
        "document": made.marker,
        "sha256": sha256_of(made.folder / made.marker),
    }


def _done(work: Work) -> Made | Failed:
    try:
        return work.write()
    except PathxError as error:
        return Failed(work.file, error)
    except Exception as error:
        return Failed(work.file, unexpected(error))


def _recorded(write: Callable[..., None], *arguments: Any, file: Path) -> None:
    try:
        write(*arguments)
    except OSError as error:
        remedy = "mend that, then run the same command again to go on"
        raise PathxError(f"cannot write {file} ({error.strerror or error}): {remedy}") from error


def _hopeful(results: Sequence[Result]) -> Iterator[Result]:
    """The results, unless they show that no further one can be written."""
    for result in results:
        yield result
        cause = result.error.__context__ if isinstance(result, Failed) else None
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            reason = (cause.strerror or str(cause)).lower()
            raise PathxError(
                f"stopped, as nothing more can be written ({reason}): make room, then run it again to go on"
            )


def _index_of(
    plan: Plan, model: LoadedModel, targets: Sequence[str], settings: Settings, task: Task, out: str | Path
) -> Index:
    """The index of a run, whose key is the same for all runs that would write the same of the same pictures."""
    about = {
        "command": task.name,
        "model": {"name": model.name, "weights": model.weights, "sha256": model.sha256},
        "preprocessing": asdict(model.preprocessing),
        "targets": list(targets),
        "settings": {**settings.decisive, **task.settings},
    }
    key = hashlib.sha256(json.dumps([about, model.labels]).encode()).hexdigest()[:16]
    return Index(out, plan.shard, {"run": key, **about}, [found.name for found in plan.pictures])


@dataclass(frozen=True)
class Work:
    """What is left to do once the numbers are there: draw and write the files of one result. Raises PathxError."""

    file: str
    write: Callable[[], Made]


Computed = tuple[list[Work] | Failed, float]
"""What is to be written of a picture, or why nothing is; and the picture's share of the seconds that it took."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures whose network is frozen, and what is asked about each of them.

    Args:
        opened: the pictures, in the order of the frozen batch.
        targets: of each picture, the classes to explain; none where the model's output is not finite.
        truths: of each picture, the true class where it is known.
    """

    model: LoadedModel
    frozen: Frozen
    opened: Sequence[Opened]
    targets: Sequence[Sequence[int]]
    rankings: Sequence[Sequence[int]]
    truths: Sequence[int | None]
    out: str | Path
    settings: Settings

    @staticmethod
    def asked(
        model: LoadedModel,
        frozen: Frozen,
        opened: Sequence[Opened],
        targets: Sequence[str],
        out: str | Path,
        settings: Settings,
    ) -> Batch:
        """The batch with its targets as users name them."""
        logits = class_logits(frozen.logits)
        labels = model.labels_for(frozen.logits.shape[1])
        asked = parse_targets(targets, labels)
        finite = logits.isfinite().all(1).tolist()
        rankings = logits.argsort(dim=1, descending=True, stable=True).tolist()
        by_folder = not targets
        truths = [true_class(settings.label, one.picture.file if by_folder else None, labels) for one in opened]
        chosen = [
            asked.targets_for(ranking, truth) if fine else ()
            for ranking, truth, fine in zip(rankings, truths, finite, strict=True)
        ]
        return Batch(model, frozen, opened, chosen, rankings, truths, out, settings)

    @property
    def labels(self) -> Sequence[str]:
        return self.model.labels_for(self.frozen.logits.shape[1])

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """(picture, class) pairs, as the engine takes them."""
        return [(number, target) for number, several in enumerate(self.targets) for target in several]

    @property
    def how(self) -> dict[str, Any]:
        """The settings that the engine takes."""
        return {key: getattr(self.settings, key) for key in ("depth", "width", "alpha", "skips")}

    def subject(self, number: int) -> Subject:
        """What is needed to write of a picture, free of the frozen network."""
        probabilities = class_logits(self.frozen.logits)[number].cpu().double().softmax(0).tolist()
        best = tuple((self.labels[index], probabilities[index]) for index in self.rankings[number][:5])
        predicted, device = self.rankings[number][0], str(self.frozen.images.device)
        return Subject(
            self.opened[number],
            self.model,
            self.labels,
            predicted,
            self.truths[number],
            best,
            device,
            self.out,
            self.settings,
        )


@dataclass(frozen=True, eq=False)
class Subject:
    """A picture of a batch, and what the files of its results say about it.

    Work waits to be written while the next batch is computed; it must not hold on to a batch, whose network is large.

    Args:
        truth: the true class, where it is known.
        predictions: the best classes, (label, probability) each.
    """

    opened: Opened
    model: LoadedModel
    labels: Sequence[str]
    predicted: int
    truth: int | None
    predictions: tuple[tuple[str, float], ...]
    device: str
    out: str | Path
    settings: Settings

    @property
    def picture(self) -> Picture:
        return self.opened.picture

    @property
    def about(self) -> ModelInfo:
        """What documents say of the model."""
        return ModelInfo(self.model.name, self.model.weights, self.model.sha256, len(self.labels))

    @property
    def region(self) -> tuple[float, float, float, float]:
        """What the network saw of the picture."""
        return self.model.preprocessing.region(self.picture.width, self.picture.height)

    def folder(self, target: int) -> Path:
        """Where the results for one class go."""
        return explanation_folder(self.out, self.opened.name, target_slug(target, self.labels))


def explain_batch(batch: Batch) -> Iterator[list[Work] | Failed]:
    """Explanations of a batch, computed at once: for each picture what is to be written, or why not."""
    explanations = iter(explain_frozen(batch.frozen, batch.wanted, **batch.how) if batch.wanted else ())
    for number, opened in enumerate(batch.opened):
        if not batch.targets[number]:
            yield no_number(opened)
            continue
        of = batch.subject(number)
        own = list(islice(explanations, len(batch.targets[number])))
        works = [Work(opened.picture.file, partial(_save, of, explanation)) for explanation in own]
        yield works + contrast_works(of, own)


def no_number(opened: Opened) -> Failed:
    """For a picture that the model has no finite output for."""
    problem = PathxError("the model's output is NaN or infinite; check its weights, or try --dtype float64")
    return Failed(opened.picture.file, problem)


def contrast_works(of: Subject, explanations: Sequence[Explanation]) -> list[Work]:
    """The contrast of a picture's explanations, where there are several."""
    if len(explanations) < 2:
        return []
    return [Work(of.picture.file, partial(_save_contrast, of, explanations))]


def _save(of: Subject, explanation: Explanation) -> Done:
    folder = of.folder(explanation.target)
    with suppress(OSError):  # what rests on an older explanation of this class; if it cannot go, saving will say so
        remove_all(folder, ("decomposition.json", "sheet.png"))
        remove_all(folder.parent, ("contrast.json", "contrast.png"))
    document = save(
        explanation,
        folder,
        picture=of.picture,
        region=of.region,
        model=of.about,
        label=of.labels[explanation.target],
        device=of.device,
        save_tensors=of.settings.save_tensors,
        drawing=of.settings.drawing,
        draw=of.settings.pictures,
    )
    return Done(of.picture, explanation, document, folder, of.predictions)


def _save_contrast(of: Subject, explanations: Sequence[Explanation]) -> Contrasted:
    labels, reason = of.labels, ""
    if of.truth is not None and of.truth != of.predicted:
        reason = f"The network says {labels[of.predicted]}; the label is {labels[of.truth]}."
    made = Contrast.of(explanations, reason=reason)
    folders = [of.folder(explanation.target) for explanation in explanations]
    document = save_contrast(
        made,
        folders[0].parent,
        picture=of.picture,
        region=of.region,
        model=of.about,
        labels=[labels[explanation.target] for explanation in explanations],
        folders=[folder.name for folder in folders],
        device=of.device,
        drawing=of.settings.drawing,
        draw=of.settings.pictures,
    )
    return Contrasted(of.picture, made, document, folders[0].parent)


@dataclass(frozen=True)
class Task:
    """What a run makes of its pictures.

    Args:
        name: the command's, for the index.
        batch: computes a batch; for each picture it gives what is to be written, or why nothing is.
        settings: what the results depend on beyond `Settings`.
    """

    name: str
    batch: Callable[[Batch], Iterator[list[Work] | Failed]]
    settings: Mapping[str, Any] = field(default_factory=dict)


EXPLAIN = Task("explain", explain_batch)


def resolve_batch_size(size: int | str, device: torch.device) -> int:
    """How many pictures go through the network at once; `auto` is what its devices were seen to gain from."""
    if size == "auto":
        return 8 if device.type == "cpu" else 32
    if isinstance(size, str) or size < 1:
        raise PathxError(f"batch size {size} is out of range; use 1 or more, or auto", usage=True)
    return size


def resolve_device(device: str) -> torch.device:
    """The device that a name means here: `auto` takes a GPU where there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    kind, _, number = device.partition(":")
    if kind not in available or not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device, re.ASCII):
        raise PathxError(f"device {device!r} is unknown; use auto, cpu, cuda, cuda:1 or mps", usage=True)
    if not available[kind]:
        there = ", ".join(name for name, here in available.items() if here)
        raise PathxError(f"device {device!r} is not there; this machine has {there}: use --device auto", usage=True)
    if number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise PathxError(f"device {device!r} is not there; this machine has cuda:0 to cuda:{last}", usage=True)
    return torch.device(device)


def _check_folder(out: str | Path) -> None:
    """Refuse an output folder that cannot be written to, before any work and without making it."""
    there = next((path for path in (Path(out), *Path(out).parents) if os.path.lexists(path)), Path())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return
    reason = "permission denied" if there.is_dir() else f"{there} is not a folder"
    raise PathxError(f"cannot write to the output folder {out} ({reason}): choose another with --out", usage=True)
