"""From picture files to files of explanations: what `pathx explain` does, for Python to call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from pathx.engine import check_settings, check_width, class_logits, explain_frozen
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.frozen import Frozen, freeze
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
    _make_folder(out)
    module = model.module.to(device, DTYPES[settings.dtype])
    names = relative_names([str(file) for file in files])
    remaining = iter(zip(names, files, strict=True))
    while batch := list(islice(remaining, settings.batch_size)):
        loaded: list[tuple[str, Picture, Tensor]] = []
        for name, file in batch:
            try:
                picture = open_picture(file)
                loaded.append((name, picture, model.preprocessing(picture.image)))
            except PathxError as error:
                yield Failed(str(file), error)
        if loaded:
            images = torch.stack([tensor for _, _, tensor in loaded]).to(device, DTYPES[settings.dtype])
            yield from _explain_batch(
                model, freeze(module, images), [(n, p) for n, p, _ in loaded], out, targets, settings
            )


def _explain_batch(
    model: LoadedModel,
    frozen: Frozen,
    pictures: list[tuple[str, Picture]],
    out: str | Path,
    targets: Sequence[str],
    settings: Settings,
) -> Iterator[Done | Failed]:
    logits = class_logits(frozen.logits)
    labels = model.labels_for(frozen.logits.shape[1])
    asked = parse_targets(targets, labels)
    finite = logits.isfinite().all(1).tolist()
    rankings = logits.argsort(dim=1, descending=True, stable=True).tolist()
    wanted = [(n, target) for n in range(len(pictures)) if finite[n] for target in asked.targets_for(rankings[n])]
    explanations = iter(
        explain_frozen(
            frozen, wanted, depth=settings.depth, width=settings.width, alpha=settings.alpha, skips=settings.skips
        )
        if wanted
        else ()
    )
    info = ModelInfo(model.name, model.weights, model.sha256, logits.shape[1])
    for number, (name, picture) in enumerate(pictures):
        if not finite[number]:
            problem = PathxError("the model's output is NaN or infinite; check its weights, or try --dtype float64")
            yield Failed(picture.file, problem)
            continue
        best = rankings[number][:5]
        probabilities = logits[number].double().softmax(0) if logits.device.type != "mps" else logits[number].softmax(0)
        predictions = tuple((labels[index], float(probabilities[index])) for index in best)
        region = model.preprocessing.region(picture.width, picture.height)
        for explanation in islice(explanations, len(asked.targets_for(rankings[number]))):
            folder = explanation_folder(out, name, target_slug(explanation.target, labels))
            try:
                document = save(
                    explanation,
                    folder,
                    picture=picture,
                    region=region,
                    model=info,
                    label=labels[explanation.target],
                    device=str(frozen.images.device),
                    save_tensors=settings.save_tensors,
                )
            except PathxError as error:
                yield Failed(picture.file, error)
                continue
            yield Done(picture, explanation, document, folder, predictions)


def relative_names(files: Sequence[str]) -> list[str]:
    """Where each picture's results go below the output folder; two pictures never share a place.

    A relative path stays as it was given. Of an absolute one, or one that climbs (`..`), the file's name is taken, with
    as many of its parents as it takes to tell it from others of that name.
    """
    paths = [PurePath(file) for file in files]
    plain = [not (path.anchor or ".." in path.parts) for path in paths]
    names = [path if keep else PurePath(path.name) for path, keep in zip(paths, plain, strict=True)]
    for depth in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        owners: dict[PurePath, set[PurePath]] = {}
        for name, path in zip(names, paths, strict=True):
            owners.setdefault(name, set()).add(path)
        for number, path in enumerate(paths):
            if len(owners[names[number]]) > 1 and not plain[number]:
                parts = [part for part in path.parts if part not in (path.anchor, "..")]
                names[number] = PurePath(*parts[-depth:])
    return [str(name) for name in names]


def resolve_device(device: str) -> torch.device:
    """The device that a name means here: `auto` takes a GPU where there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    kind, _, number = device.partition(":")
    if kind not in available or (number and not number.isdigit()) or (number and kind != "cuda"):
        raise PathxError(f"device {device!r} is unknown; use auto, cpu, cuda, cuda:1 or mps", usage=True)
    if not available[kind]:
        there = ", ".join(name for name, here in available.items() if here)
        raise PathxError(f"device {device!r} is not there; this machine has {there}: use --device auto", usage=True)
    if number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise PathxError(f"device {device!r} is not there; this machine has cuda:0 to cuda:{last}", usage=True)
    return torch.device(device)


def _make_folder(out: str | Path) -> None:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise PathxError(f"cannot write to the output folder {out}: {reason}; choose another with --out", usage=True) from error
