"""From picture files to files of explanations: what `pathx explain` does, for Python to call."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathx.engine import check_settings, check_width, class_logits, explain_frozen
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.frozen import Frozen, freeze, network_of
from pathx.inputs import relative_names
from pathx.models import LoadedModel
from pathx.pictures import Picture, open_picture
from pathx.results import ModelInfo, explanation_folder, save
from pathx.targets import parse_targets, target_slug

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """How to explain; the defaults are those of the command line."""

    depth: int | str = 3
    width: int | str = 5
    alpha: float | None = None
    skips: str = "adjacent"
    device: str = "auto"
    dtype: str = "float32"
    batch_size: int = 8
    save_tensors: bool = False


@dataclass(frozen=True, eq=False)
class Done:
    """One explanation whose files are written.

    Args:
        document: what its path.json says.
        predictions: the best classes of the picture, (label, probability) each.
    """

    picture: Picture
    explanation: Explanation
    document: dict[str, Any]
    folder: Path
    predictions: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Failed:
    """A picture that could not be explained, and why."""

    file: str
    error: PathxError


def explain_files(
    model: LoadedModel,
    files: Sequence[str | Path],
    out: str | Path,
    *,
    targets: Sequence[str] = (),
    settings: Settings | None = None,
) -> Iterator[Done | Failed]:
    """Explain pictures and write the files of each explanation below `out`, as they come.

    A picture that fails costs one `Failed`; what is wrong with the call or the model is raised.

    Args:
        targets: classes by label or number, or `top:K`; the predicted class by default.
    """
    settings = settings or Settings()
    check_width(settings.width)
    check_settings(settings.alpha, settings.skips)
    if settings.batch_size < 1:
        raise PathxError(f"batch size {settings.batch_size} is out of range; use 1 or more", usage=True)
    device = resolve_device(settings.device)
    if settings.dtype not in DTYPES:
        raise PathxError(f"dtype is {' or '.join(DTYPES)}, not {settings.dtype!r}", usage=True)
    if device.type == "mps" and settings.dtype == "float64":
        raise PathxError("mps has no float64; use --dtype float32 or --device cpu", usage=True)
    _check_folder(out)
    module = model.module if device.type == "cpu" else copy.deepcopy(model.module).to(device)
    names = relative_names([str(file) for file in files])
    remaining = iter(zip(names, files, strict=True))
    size = settings.batch_size
    while batch := list(islice(remaining, size)):
        opened = [_open(model, name, str(file)) for name, file in batch]
        if size > 1 and not _takes_batch(module, _inputs(opened).to(device)):
            size = 1
        for group in [opened] if size > 1 else [[one] for one in opened]:
            good = [one for one in group if isinstance(one, Opened)]
            made: Iterator[list[Work] | Failed] = iter(())
            if good:
                frozen = freeze(module, _inputs(good).to(device, DTYPES[settings.dtype]))
                made = explain_batch(Batch.asked(model, frozen, good, targets, out, settings))
            for one in group:  # results come in the order of the pictures
                works = next(made) if isinstance(one, Opened) else one
                yield from [works] if isinstance(works, Failed) else map(_done, works)


def _done(work: Work) -> Done | Failed:
    try:
        return work.write()
    except PathxError as error:
        return Failed(work.file, error)


@dataclass(frozen=True, eq=False)
class Opened:
    """A picture that was read, where its results go, and what the network sees of it."""

    picture: Picture
    name: str
    input: Tensor


def _open(model: LoadedModel, name: str, file: str) -> Opened | Failed:
    try:
        picture = open_picture(file)
        return Opened(picture, name, model.preprocessing(picture.image))
    except PathxError as error:
        return Failed(file, error)


def _inputs(batch: Sequence[Opened | Failed]) -> Tensor:
    tensors = [opened.input for opened in batch if isinstance(opened, Opened)]
    return torch.stack(tensors) if tensors else torch.empty(0)


def _takes_batch(module: nn.Module, images: Tensor) -> bool:
    """Whether a network runs on these pictures at once; a file may have been traced or exported for one at a time."""
    try:
        if len(images) > 1:
            network_of(module, images)
    except PathxError:
        return False
    return True


@dataclass(frozen=True)
class Work:
    """What is left to do once the numbers are there: draw and write the files of one result. Raises PathxError."""

    file: str
    write: Callable[[], Done]


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures whose network is frozen, and what is asked about each of them.

    Args:
        opened: the pictures, in the order of the frozen batch.
        targets: of each picture, the classes to explain; none where the model's output is not finite.
    """

    model: LoadedModel
    frozen: Frozen
    opened: Sequence[Opened]
    targets: Sequence[Sequence[int]]
    rankings: Sequence[Sequence[int]]
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
        asked = parse_targets(targets, model.labels_for(frozen.logits.shape[1]))
        finite = logits.isfinite().all(1).tolist()
        rankings = logits.argsort(dim=1, descending=True, stable=True).tolist()
        chosen = [asked.targets_for(ranking) if fine else () for ranking, fine in zip(rankings, finite, strict=True)]
        return Batch(model, frozen, opened, chosen, rankings, out, settings)

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

    def predictions(self, number: int) -> tuple[tuple[str, float], ...]:
        """The best classes of a picture, (label, probability) each."""
        probabilities = class_logits(self.frozen.logits)[number].cpu().double().softmax(0).tolist()
        return tuple((self.labels[index], probabilities[index]) for index in self.rankings[number][:5])


def explain_batch(batch: Batch) -> Iterator[list[Work] | Failed]:
    """Explanations of a batch, computed at once: for each picture what is to be written, or why not."""
    explanations = iter(explain_frozen(batch.frozen, batch.wanted, **batch.how) if batch.wanted else ())
    for number, opened in enumerate(batch.opened):
        if not batch.targets[number]:
            problem = PathxError("the model's output is NaN or infinite; check its weights, or try --dtype float64")
            yield Failed(opened.picture.file, problem)
            continue
        own = islice(explanations, len(batch.targets[number]))
        yield [Work(opened.picture.file, partial(_save, batch, number, explanation)) for explanation in own]


def _save(batch: Batch, number: int, explanation: Explanation) -> Done:
    model, opened, labels = batch.model, batch.opened[number], batch.labels
    picture = opened.picture
    folder = explanation_folder(batch.out, opened.name, target_slug(explanation.target, labels))
    document = save(
        explanation,
        folder,
        picture=picture,
        region=model.preprocessing.region(picture.width, picture.height),
        model=ModelInfo(model.name, model.weights, model.sha256, len(labels)),
        label=labels[explanation.target],
        device=str(batch.frozen.images.device),
        save_tensors=batch.settings.save_tensors,
    )
    return Done(picture, explanation, document, folder, batch.predictions(number))


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
