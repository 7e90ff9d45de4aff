"""What a run computes of a batch of images: explanations or decompositions, with as many images at once as fit into memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pathx.decomposition import Decomposition, decompose_targets
from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.page import Panel
from pathx.drawing.render import Drawing
from pathx.engine.ablate import removals
from pathx.engine.device import ALONE, is_out_of_memory, release_memory, resolve_batch_size
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze, network_of
from pathx.engine.settings import check_exact, check_settings, check_width, class_logits
from pathx.errors import PathxError
from pathx.explanation import Explanation, Unit
from pathx.images.find import ImageFile
from pathx.layers import layer_maps
from pathx.models.labels import parse_targets, resolve_target, true_classes
from pathx.models.load import LoadedModel
from pathx.pipeline import Input, Note, Unreadable, in_batches, no_notes, prepare
from pathx.results.documents import ResultSubject
from pathx.results.files import SETTINGS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pathx.images.read import UserImage
    from pathx.units.guide import Guide


@dataclass(frozen=True)
class Settings:
    """How to explain; the defaults are those of the command line.

    Args:
        truth: the true class of the images, where it is known. By default the name of an image's folder, where that
            is a label of the model and no targets are asked for. A wrong prediction is explained against it.
        batch_size: images explained at once, or `auto`.
        workers: threads that read images ahead and write results behind; None for what the machine has.
        pictures: whether to draw any.
        removal: see what becomes of the class without the path's units (`Explanation.removal`). The command line does so for
            images that are named one by one.
        guide: shows in figures what the strongest units look for elsewhere.
        against: the class, by label or number, that the targets are explained against: why these and not that one.
    """

    depth: int | str = DEPTH
    width: int | str = WIDTH
    alpha: float | None = None
    skips: str = SKIPS
    exact: str = EXACT
    importance: str = IMPORTANCE
    device: str = "auto"
    dtype: str = "float32"
    batch_size: int | str = "auto"
    save_tensors: bool = False
    truth: str | None = None
    drawing: Drawing = field(default_factory=Drawing)
    workers: int | None = None
    pictures: bool = True
    against: str | None = None
    removal: bool = False
    guide: Guide | None = None

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that a result depends on; the others only say how it is computed."""
        plain = asdict(replace(self, guide=None))
        shown = {} if self.guide is None else {"guide": self.guide.key}
        return {key: plain[key] for key in plain if key not in ("device", "batch_size", "workers", "guide")} | shown

    @property
    def of_paths(self) -> dict[str, Any]:
        """Those that the engine takes."""
        return {key: getattr(self, key) for key in SETTINGS}


@dataclass(frozen=True)
class Job:
    """What a run makes of every image.

    Args:
        targets: classes by label or number, or `top:K`.
        decompose: how to split decisions into features (`from_layer` and `features` of `pathx.decompose`); None to explain.
    """

    targets: Sequence[str]
    settings: Settings
    decompose: Mapping[str, Any] | None = None

    @property
    def command(self) -> str:
        return "explain" if self.decompose is None else "decompose"

    def check(self) -> None:
        """Refuse settings that no image could be explained with."""
        settings = self.settings
        check_width(settings.width)
        check_settings(settings.alpha, settings.skips, settings.importance)
        if settings.workers is not None and settings.workers < 0:
            raise PathxError(f"workers {settings.workers} is out of range; use 0 or more", usage=True)
        if self.decompose is not None and settings.against is not None:
            raise PathxError("decompose does not compare classes: use explain", usage=True)
        if self.decompose is not None and settings.drawing.heat == "layers":
            raise PathxError("a map of all layers has no features: decompose with heat path or pixels", usage=True)

    @property
    def document(self) -> dict[str, Any]:
        """All settings that results depend on."""
        own = {} if self.decompose is None else {"from_layer": None, "features": None, **self.decompose}
        return {**self.settings.decisive, **own}


Found = tuple[Explanation | Decomposition, tuple[Panel, ...], tuple[Panel, ...]]
"""What was found for a class, and what its units look for elsewhere: for the figure, and for the sheet of a decomposition."""


@dataclass(frozen=True, eq=False)
class Computed:
    """What was computed of an image, free of the frozen network; or why there is nothing.

    It waits to be written while the next batch is computed, and must not hold on to a batch, whose network is large.

    Args:
        found: of each class in turn.
        differences: where there are several classes, the first one explained against each of the others.
        truth: the true class, where it is known.
        top: the best classes, (number, label, probability) each.
        seconds: the image's share of the time that reading and computing took.
    """

    subject: ResultSubject | None = None
    found: tuple[Found, ...] = ()
    differences: tuple[Explanation, ...] = ()
    truth: int | None = None
    top: tuple[tuple[int, str, float], ...] = ()
    error: PathxError | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Question:
    """What is asked of an image.

    Args:
        ranking: its classes from the likeliest down.
        truth: its true class, where that is known.
        targets: the classes to explain; none where the network's output is no number, or nothing is left to ask.
    """

    ranking: list[int]
    truth: int | None
    targets: tuple[int, ...]


def ask(
    job: Job, labels: Sequence[str], logits: Tensor, inputs: Sequence[Input], against: int | None, note: Note = no_notes
) -> list[Question]:
    """Which classes of each image to explain: those that were asked for, or the predicted one, and the label where that differs.

    Args:
        against: the class that they are explained against, if any.
    """
    settings, wanted = job.settings, parse_targets(job.targets, labels)
    if against is not None and set(wanted.wanted) == {against}:
        raise _compared_with_itself(labels[against], usage=True)
    # Where a class was named, or one to compare with, the image's label is not asked.
    unasked = (job.targets and settings.truth is None) or against is not None
    questions = []
    rankings: list[list[int]] = logits.argsort(dim=1, descending=True, stable=True).tolist()
    for one, ranking, finite in zip(inputs, rankings, logits.isfinite().all(1).tolist(), strict=True):
        classes = true_classes(settings.truth, one.image.file, labels, one.image.label)
        if len(classes) > 1:  # the likeliest counts: no other can be told from it
            named = f"the label {labels[classes[0]]} is ambiguous, as classes {' and '.join(map(str, classes))} have it"
            note(f"{named}: the likelier one counts")
        truth = min(classes, key=ranking.index) if classes else None
        targets = wanted.targets_for(ranking, None if unasked else truth) if finite else ()
        questions.append(Question(ranking, truth, tuple(target for target in targets if target != against)))
    return questions


def explain_batch(
    model: LoadedModel, frozen: Frozen, inputs: Sequence[Input], job: Job, note: Note = no_notes
) -> list[Computed]:
    """What is to be written of each image of a frozen batch, or why nothing is."""
    settings, logits = job.settings, class_logits(frozen.logits)
    labels = model.labels_for(frozen.logits.shape[1])
    against = None if settings.against is None else resolve_target(settings.against, labels)
    questions = ask(job, labels, logits, inputs, against, note)
    guide = settings.guide if settings.pictures else None
    wanted = [(number, target) for number, question in enumerate(questions) for target in question.targets]
    found: list[Found] = []

    def add(made: Explanation | Decomposition, whole: Explanation, units: Sequence[Unit] = ()) -> None:
        panels = ((), ()) if guide is None else (tuple(guide.panels(whole)), tuple(guide.panels_of(units)))
        found.append((made, *panels))

    if wanted and job.decompose is None:
        rivals = None if against is None else [against] * len(wanted)
        explanations = explain_frozen(frozen, wanted, against=rivals, **settings.of_paths)
        for one in _with_proof(frozen, wanted, explanations, settings):
            add(one, one)
    elif wanted:
        several = decompose_targets(frozen, wanted, **job.decompose or {}, **settings.of_paths)
        wholes = _with_proof(frozen, wanted, [one.whole for one in several], settings)
        for made, whole in zip(several, wholes, strict=True):
            add(replace(made, whole=whole), whole, [made.units[feature.units[0]] for feature in made.drawn])
    differences: list[Explanation] = []
    pairs = [(number, *one.targets[:1], other) for number, one in enumerate(questions) for other in one.targets[1:]]
    if pairs and against is None:  # the first class against each other; an alpha for all classes means nothing there
        how = {**settings.of_paths, "alpha": None, "against": [other for *_, other in pairs]}
        firsts = [(number, first) for number, first, _ in pairs]
        differences = _with_proof(frozen, firsts, explain_frozen(frozen, firsts, **how), settings)

    probabilities = logits.cpu().double().softmax(1).tolist()
    outcomes, rest, between = [], iter(found), iter(differences)
    for read, question, own in zip(inputs, questions, probabilities, strict=True):
        top = tuple((index, labels[index], own[index]) for index in question.ranking[:5])
        if count := len(question.targets):
            parts = tuple(islice(rest, count)), tuple(islice(between, count - 1))
            subject = _subject(model, read.image, labels, frozen.images.device, settings)
            outcomes.append(Computed(subject, *parts, question.truth, top))
        elif math.isfinite(top[0][2]):
            outcomes.append(Computed(error=_compared_with_itself(str(settings.against))))
        else:
            problem = "the model's output is NaN or infinite; check its weights, or try `dtype` float64"
            outcomes.append(Computed(error=PathxError(problem)))
    return outcomes


def _with_proof(
    frozen: Frozen, wanted: Sequence[tuple[int, int]], explanations: Sequence[Explanation], settings: Settings
) -> list[Explanation]:
    """Explanations of (image, class) pairs with their removal and the map of all layers, where these are asked for."""
    made = list(explanations)
    if settings.removal:
        found = removals(frozen, made, [image for image, _ in wanted])
        made = [replace(one, removal=removal) for one, removal in zip(made, found, strict=True)]
    if settings.drawing.heat == "layers":
        maps = layer_maps(frozen, wanted, [one.against for one in made])
        made = [replace(one, layer_map=layers) for one, layers in zip(made, maps, strict=True)]
    return made


def _subject(
    model: LoadedModel, image: UserImage, labels: Sequence[str], device: torch.device, settings: Settings
) -> ResultSubject:
    return ResultSubject(
        image,
        model.preprocessing.region(image.width, image.height),
        {**model.identity, "classes": len(labels), "origin": model.origin},
        labels,
        str(device),
        settings={key: settings.decisive[key] for key in settings.decisive if key != "drawing"},  # may be redrawn
        preprocessing=json.loads(json.dumps(asdict(model.preprocessing))),
        drawing=settings.drawing,
        draw=settings.pictures,
        save_tensors=settings.save_tensors,
    )


def _compared_with_itself(label: str, *, usage: bool = False) -> PathxError:
    return PathxError(f"{label} is compared with itself: give another class to explain as the target", usage=usage)


Item = tuple[ImageFile, bool]
"""An image, and whether it is to be done. Others are computed along."""

Read = tuple[Input | Unreadable, bool]
"""The same once it was read."""


def unfinished_batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """The batches of a run in which something is to be done."""
    return [batch for batch in in_batches(items, size) if any(wanted for _, wanted in batch)]


class Computer:
    """Makes of batches of images what is to be written of them, as many at once as the network takes and memory allows.

    Args:
        note: is told when memory is short, and where the numbers hold at the image alone.
    """

    def __init__(self, model: LoadedModel, job: Job, note: Note) -> None:
        self._prepared = prepare(model, device=job.settings.device, dtype=job.settings.dtype)
        self._job, self._note = job, note
        self.size = self._at_once = resolve_batch_size(job.settings.batch_size, self._prepared.device)
        self._checked = self.size == 1

    def compute(self, batch: Sequence[Read]) -> dict[str, Computed]:
        """By name: what is to be written of each image, or why nothing is."""
        made = {one.source.name: Computed(error=one.error) for one, _ in batch if isinstance(one, Unreadable)}
        needed = any(wanted and isinstance(one, Input) for one, wanted in batch)
        inputs = [one for one, _ in batch if needed and isinstance(one, Input)]
        if not self._checked and len(inputs) > 1:
            self._checked = True
            if not self._takes_several(inputs):
                self._at_once = 1
        while inputs:
            start, part = perf_counter(), inputs[: self._at_once]
            outcomes: list[Computed] | None = None
            try:
                outcomes = self._explain(part)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            if outcomes is None:  # outside of the handler, which holds on to the tensors
                release_memory()
                if len(part) > 1:
                    self._at_once = len(part) // 2
                    self._note(f"memory is short: going on with {self._at_once} at once instead of {len(part)}")
                    continue
                outcomes = [Computed(error=PathxError(ALONE))]
            share = (perf_counter() - start) / len(part)
            for one, outcome in zip(part, outcomes, strict=True):
                made[one.source.name] = replace(outcome, seconds=one.seconds + share)
            inputs = inputs[len(part) :]
        return made

    def logits(self, one: Input) -> list[float]:
        """What the network says of an image, for every class."""
        found: list[float] = class_logits(freeze(self._prepared.module, self._prepared.stack([one])).logits)[0].tolist()
        return found

    def _explain(self, inputs: Sequence[Input]) -> list[Computed]:
        """What is to be written of a batch; an image whose numbers cannot be explained costs itself alone."""
        frozen = freeze(self._prepared.module, self._prepared.stack(inputs))
        check_exact(frozen.network, self._job.settings.exact, self._note)
        try:
            return explain_batch(self._prepared.model, frozen, inputs, self._job, self._note)
        except PathxError as error:
            if error.usage or is_out_of_memory(error):
                raise
            if len(inputs) == 1:
                return [Computed(error=error)]
        return [outcome for one in inputs for outcome in self._explain([one])]

    def _takes_several(self, batch: Sequence[Input]) -> bool:
        """Whether a network runs on several images at once; a file may have been traced or exported for one."""
        try:
            network_of(self._prepared.module, self._prepared.stack(batch))
        except PathxError as error:
            return is_out_of_memory(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return True
