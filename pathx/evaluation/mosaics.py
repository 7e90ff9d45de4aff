"""The grid game (Böhle et al., 2021): how much of the heat for a class lies in its quarter of a mosaic.

A mosaic is two by two images of four different classes, all predicted with confidence. The score of a map for one of the classes is
the share of its positive heat in the quarter of that class: 1 at best, 0.25 by chance. The game needs no annotations, and changes
no pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathx.engine.replay import Classifier
from pathx.errors import PathxError
from pathx.evaluation.choices import PATHS, PROTOCOLS
from pathx.evaluation.measure import CANNOT_RUN, Contender, reason
from pathx.evaluation.methods import Subject
from pathx.evaluation.records import Record, RecordFile, Unread, record_key
from pathx.evaluation.statistics import bootstrap, compare, generator_of
from pathx.images.find import ImageFile
from pathx.pipeline import Failed, Prepared, SeenImage
from pathx.results.schema import created_by

SCHEMA = "pathx/mosaics@1"
CONFIDENT = 0.5
"""The least probability of the predicted class."""


@dataclass(frozen=True, eq=False)
class Mosaic:
    """Four images of different classes: top left, top right, bottom left, bottom right."""

    images: tuple[SeenImage, ...]

    @property
    def name(self) -> str:
        return " + ".join(seen.source.name for seen in self.images)

    @property
    def targets(self) -> list[int]:
        return [seen.target for seen in self.images]

    def tensor(self, shrink: bool) -> Tensor:
        """(C, 2H, 2W), or (C, H, W) with images at half their size."""
        inputs = [seen.input for seen in self.images]
        if shrink:
            inputs = [torch.nn.functional.avg_pool2d(one[None], 2)[0] for one in inputs]
        return torch.cat([torch.cat(inputs[:2], 2), torch.cat(inputs[2:], 2)], 1)

    def subject(self, classifier: Classifier, shrink: bool) -> Subject:
        """The mosaic once for each of its classes."""
        images = self.tensor(shrink)[None].repeat(4, 1, 1, 1)
        return Subject(classifier, images, self.targets, [f"{self.name}, {number}" for number in range(4)])


def make_mosaics(images: Sequence[SeenImage]) -> list[Mosaic]:
    """As many mosaics as the images suffice for, each image once, in an order drawn from their names."""
    order = torch.randperm(len(images), generator=generator_of(*(seen.source.name for seen in images))).tolist()
    waiting = [images[number] for number in order]
    mosaics: list[Mosaic] = []
    while True:
        four: list[SeenImage] = []
        for seen in waiting:
            if len(four) < 4 and seen.target not in [one.target for one in four]:
                four.append(seen)
        if len(four) < 4:
            return mosaics
        waiting = [seen for seen in waiting if seen not in four]
        mosaics.append(Mosaic(tuple(four)))


def shares(attribution: Tensor) -> list[float]:
    """The share of positive heat of each map (4, C, H, W) in the quarter of its class; 0 without any."""
    heat = attribution.double().sum(1).clamp(min=0)
    height, width = heat.shape[1] // 2, heat.shape[2] // 2
    result = []
    for number, one in enumerate(heat):
        down, across = divmod(number, 2)
        quarter = one[down * height : (down + 1) * height, across * width : (across + 1) * width]
        total = float(one.sum())
        result.append(float(quarter.sum()) / total if total > 0 else 0.0)
    return result


def evaluate_mosaics(
    prepared: Prepared,
    images: Sequence[ImageFile],
    contenders: Sequence[Contender],
    *,
    records: Path | None = None,
    batch_size: int | str = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Play the grid game over many images; what is returned is mosaics.json.

    Args:
        records: a file of known records; new ones are added.
        progress: called with the number of methods just tried on a mosaic.
    """
    unread = Unread()
    seen = list(confident_images(prepared, images, batch_size, unread))
    mosaics = make_mosaics(seen)
    if not mosaics:
        raise PathxError(
            f"a mosaic takes images of four classes that are predicted with at least {CONFIDENT:.0%}; of {len(images)} images "
            f"{len(seen)} are, of {len({one.target for one in seen})} classes: give more images"
        )
    game = play(prepared, mosaics, contenders, records, progress)
    ran = [one for one in contenders if one.title in game.shares]
    means = {one.name: game.means(one) for one in ran}
    own = next((name for name in PATHS if name in means), None)
    return {
        "schema": SCHEMA,
        "protocol": "grid",
        "parameters": {
            "measure": PROTOCOLS["grid"].text,
            "confident": CONFIDENT,
            "input": list(mosaics[0].tensor(game.shrink).shape),
            "images": "at half their size" if game.shrink else "at their own size",
        },
        "mosaics": len(mosaics),
        "images": len(seen),
        "methods": {name: {"share": bootstrap(values)} for name, values in means.items()},
        "compared": own,
        "comparison": {name: compare(means[own], values) for name, values in means.items() if own and name != own},
        "settings": {one.name: one.description for one in ran},
        "not_run": {one.name: game.not_run[one.title] for one in contenders if one.title in game.not_run},
        "unread": unread,
        "model": prepared.about,
        "created_by": created_by(device=str(prepared.device)),
    }


@dataclass(frozen=True)
class Game:
    """What came out.

    Args:
        shrink: whether images are at half their size.
        shares: of every method that ran, by title: for each mosaic the shares of its four classes.
        not_run: methods that could not run, by title, and why.
    """

    shrink: bool
    shares: Mapping[str, list[list[float]]]
    not_run: Mapping[str, str]

    def means(self, one: Contender) -> list[float]:
        """A method's mean share in each mosaic."""
        return [sum(four) / 4 for four in self.shares[one.title]]


def play(
    prepared: Prepared,
    mosaics: Sequence[Mosaic],
    contenders: Sequence[Contender],
    records: Path | None,
    progress: Callable[[int], None] = lambda done: None,
) -> Game:
    """Measure methods on mosaics. The arguments are those of `evaluate_mosaics`."""
    classifier, shrink = classifier_of(prepared, mosaics[0])
    known = RecordFile(records, {"key": str, "shares": [float]}, lambda line: len(line["shares"]) == 4)
    not_run = {one.title: one.missing for one in contenders if one.missing is not None}
    found: dict[str, list[list[float]]] = {}
    about = {"model": prepared.about, "preprocessing": asdict(prepared.model.preprocessing), "shrink": shrink}
    for mosaic in mosaics:
        files = [(one.source.name, one.image.sha256, one.target) for one in mosaic.images]
        subject = mosaic.subject(classifier, shrink)
        for one in contenders:
            if one.title not in not_run:
                key = record_key(about, str(prepared.dtype), one.name, one.description, files)
                try:
                    record = known.recall(key, partial(_measure, one, mosaic, subject))
                    found.setdefault(one.title, []).append(record["shares"])
                except CANNOT_RUN as error:
                    not_run[one.title] = reason(error)
                    found.pop(one.title, None)
            progress(1)
    return Game(shrink, found, not_run)


def _measure(one: Contender, mosaic: Mosaic, subject: Subject) -> Record:
    """The shares of one method on one mosaic."""
    return {"mosaic": mosaic.name, "method": one.name, "shares": shares(one.attribution(subject))}


def confident_images(
    prepared: Prepared, images: Sequence[ImageFile], batch_size: int | str, failed: Failed
) -> Iterator[SeenImage]:
    """The images that are predicted with confidence."""
    for batch in prepared.see(images, batch_size, failed):
        with torch.no_grad():
            probabilities = prepared.classifier.probabilities(torch.stack([seen.input for seen in batch]))
        for seen, row in zip(batch, probabilities, strict=True):
            if float(row[seen.target]) >= CONFIDENT:
                yield seen


def classifier_of(prepared: Prepared, mosaic: Mosaic) -> tuple[Classifier, bool]:
    """The network for mosaics of whole images, or of shrunk ones if its input size is fixed."""
    try:
        return Classifier(prepared.module, torch.zeros_like(mosaic.tensor(shrink=False))), False
    except PathxError:
        return prepared.classifier, True
