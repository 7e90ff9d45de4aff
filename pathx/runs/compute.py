"""What a run computes of a batch of images: explanations or decompositions, with as many images at once as fit into memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pathx.decomposition import Decomposition, decompose_targets
from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.render import Drawing
from pathx.engine.ablate import removals
from pathx.engine.device import ALONE, is_out_of_memory, release_memory, resolve_batch_size
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze, network_of
from pathx.engine.settings import check_exact, check_settings, check_width, class_logits
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.layers import layer_maps
from pathx.models.labels import parse_targets, resolve_target, true_classes
from pathx.models.load import LoadedModel
from pathx.pipeline import Input, Unreadable, prepare
from pathx.results.decomposition import ReferencePanels
from pathx.results.explanation import ResultSubject

if TYPE_CHECKING:
    from pathx.drawing.page import Panel
    from pathx.explanation import Unit


class Guide(Protocol):
    """What knows what units look for; `key` is the same where the same would be shown."""

    @property
    def key(self) -> str: ...

    def panels(self, explanation: Explanation) -> Sequence[Panel]: ...

    def panels_of(self, units: Iterable[Unit]) -> Sequence[Panel]: ...


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
        return {key: getattr(self, key) for key in ("depth", "width", "alpha", "skips", "importance")}


@dataclass(frozen=True)
class Task:
    """What a run makes of its images.

    Args:
        name: the command's: `explain` or `decompose`.
        settings: what the results depend on beyond `Settings`.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


EXPLAIN = Task("explain")


def decompose_task(*, from_layer: int | None = None, features: int | None = None) -> Task:
    """The task of `explain_files` that splits decisions into features.

    Args:
        from_layer, features: as for `pathx.decompose`.
    """
    return Task("decompose", {"from_layer": from_layer, "features": features})


@dataclass(frozen=True)
class Job:
    """What a run makes of every image, for which classes (by label or number, or `top:K`), and how."""

    task: Task
    targets: Sequence[str]
    settings: Settings

    def check(self) -> None:
        """Refuse settings that no image could be explained with."""
        check_width(self.settings.width)
        check_settings(self.settings.alpha, self.settings.skips, self.settings.importance)
        if self.settings.workers is not None and self.settings.workers < 0:
            raise PathxError(f"workers {self.settings.workers} is out of range; use 0 or more", usage=True)

    @property
    def document(self) -> dict[str, Any]:
        """All settings that results depend on."""
        return {**self.settings.decisive, **self.task.settings}


@dataclass(frozen=True, eq=False)
class Computed:
    """What was computed of an image, free of the frozen network; or why there is nothing.

    It waits to be written while the next batch is computed, and must not hold on to a batch, whose network is large.

    Args:
        found: of each class in turn the explanation or the decomposition, and what its units look for elsewhere.
        differences: where there are several classes, the first one explained against each of the others.
        truth: the true class, where it is known.
        top: the best classes, (number, label, probability) each.
        seconds: the image's share of the time that reading and computing took.
    """

    subject: ResultSubject | None = None
    found: tuple[tuple[Explanation | Decomposition, Any], ...] = ()
    differences: tuple[Explanation, ...] = ()
    truth: int | None = None
    top: tuple[tuple[int, str, float], ...] = ()
    error: PathxError | None = None
    seconds: float = 0.0


class Batch:
    """Images whose network is frozen, and what is asked about each of them.

    Args:
        inputs: the images, in the order of the frozen batch.
    """

    def __init__(self, model: LoadedModel, frozen: Frozen, inputs: Sequence[Input], job: Job) -> None:
        self.model, self.frozen, self.inputs, self.job, self.settings = model, frozen, inputs, job, job.settings
        logits, settings = class_logits(frozen.logits), job.settings
        self.guide = settings.guide if settings.pictures else None
        self.labels = labels = model.labels_for(frozen.logits.shape[1])
        self.probabilities = logits.cpu().double().softmax(1).tolist()
        self.rankings = logits.argsort(dim=1, descending=True, stable=True).tolist()
        several = [true_classes(settings.truth, one.image.file, labels, one.image.label) for one in inputs]
        self.shared_labels = {labels[of[0]]: tuple(of) for of in several if len(of) > 1}
        # Of classes with one label the likeliest counts: no other can be told from it.
        self.truths = [
            min(of, key=ranking.index) if of else None for of, ranking in zip(several, self.rankings, strict=True)
        ]
        asked = parse_targets(job.targets, labels)
        self.against = None if settings.against is None else resolve_target(settings.against, labels)
        if self.against is not None and set(asked.wanted) == {self.against}:
            raise _compared_with_itself(labels[self.against], usage=True)
        # Where a class was named, or one to compare with, the image's label is not asked.
        unasked = (job.targets and settings.truth is None) or self.against is not None
        self.targets = [
            tuple(target for target in asked.targets_for(ranking, None if unasked else truth) if target != self.against)
            if finite
            else ()
            for ranking, truth, finite in zip(
                self.rankings, self.truths, logits.isfinite().all(1).tolist(), strict=True
            )
        ]

    @cached_property
    def wanted(self) -> list[tuple[int, int]]:
        """(image, class) pairs, as the engine takes them."""
        return [(number, target) for number, several in enumerate(self.targets) for target in several]

    def explain(
        self, wanted: Sequence[tuple[int, int]], against: Sequence[int] | None, **how: Any
    ) -> list[Explanation]:
        """Explanations of (image, class) pairs."""
        if not wanted:
            return []
        how = {**self.settings.of_paths, **how}
        return self.with_proof(wanted, explain_frozen(self.frozen, wanted, against=against, **how))

    def with_proof(self, wanted: Sequence[tuple[int, int]], explanations: Sequence[Explanation]) -> list[Explanation]:
        """Explanations of (image, class) pairs with their removal and the map of all layers, where these are asked for."""
        made = list(explanations)
        if self.settings.removal:
            found = removals(self.frozen, made, [image for image, _ in wanted])
            made = [replace(one, removal=removal) for one, removal in zip(made, found, strict=True)]
        if self.settings.drawing.heat == "layers" and made:
            maps = layer_maps(self.frozen, wanted, [one.against for one in made])
            made = [replace(one, layer_map=layers) for one, layers in zip(made, maps, strict=True)]
        return made

    def differences(self) -> list[Explanation]:
        """Of each image with several classes, the first explained against each other."""
        pairs = [(number, several[0], other) for number, several in enumerate(self.targets) for other in several[1:]]
        if self.against is not None:
            return []
        # An alpha for all classes means nothing between two.
        return self.explain([pair[:2] for pair in pairs], [other for *_, other in pairs], alpha=None)

    def explanations(self) -> list[tuple[Explanation, Sequence[Panel]]]:
        """The explanation of each pair that is wanted, with what its units look for elsewhere."""
        made = self.explain(self.wanted, None if self.against is None else [self.against] * len(self.wanted))
        return [(one, () if self.guide is None else tuple(self.guide.panels(one))) for one in made]

    def decompositions(
        self, from_layer: int | None, features: int | None
    ) -> list[tuple[Decomposition, ReferencePanels]]:
        """The same of decompositions."""
        if self.against is not None:
            raise PathxError("decompose compares no classes: use explain", usage=True)
        if self.settings.drawing.heat == "layers":
            raise PathxError("a map of all layers has no features: decompose with heat path or pixels", usage=True)
        how = {"from_layer": from_layer, "features": features, **self.settings.of_paths}
        several = decompose_targets(self.frozen, self.wanted, **how) if self.wanted else []
        wholes = self.with_proof(self.wanted, [one.whole for one in several])
        return [(replace(one, whole=whole), self._panels(one)) for one, whole in zip(several, wholes, strict=True)]

    def _panels(self, made: Decomposition) -> ReferencePanels:
        """What is known of the whole path, and of the strongest unit of each feature that is drawn."""
        if self.guide is None:
            return ReferencePanels()
        strongest = [made.units[feature.units[0]] for feature in made.drawn]
        return ReferencePanels(tuple(self.guide.panels(made.whole)), tuple(self.guide.panels_of(strongest)))

    def outcomes(self) -> Iterator[Computed]:
        """What is to be written of each image, or why nothing is."""
        task = self.job.task
        found: Iterator[tuple[Explanation | Decomposition, Any]] = iter(
            self.explanations() if task.name == "explain" else self.decompositions(**task.settings)
        )
        differences = iter(self.differences())
        for number, targets in enumerate(self.targets):
            probabilities, ranking = self.probabilities[number], self.rankings[number]
            top = tuple((index, self.labels[index], probabilities[index]) for index in ranking[:5])
            if not targets and math.isfinite(top[0][2]):
                yield Computed(error=_compared_with_itself(str(self.settings.against)))
            elif not targets:
                problem = "the model's output is NaN or infinite; check its weights, or try `dtype` float64"
                yield Computed(error=PathxError(problem))
            else:
                others = 0 if self.against is not None else len(targets) - 1
                several = tuple(islice(found, len(targets))), tuple(islice(differences, others))
                yield Computed(self._subject(number), *several, self.truths[number], top)

    def _subject(self, number: int) -> ResultSubject:
        model, settings, image = self.model, self.settings, self.inputs[number].image
        numbers = {
            key: value for key, value in settings.decisive.items() if key != "drawing"
        }  # pictures may be redrawn
        return ResultSubject(
            image,
            model.preprocessing.region(image.width, image.height),
            {**model.identity, "classes": len(self.labels), "origin": model.origin},
            self.labels,
            str(self.frozen.images.device),
            settings=numbers,
            preprocessing=json.loads(json.dumps(asdict(model.preprocessing))),
            drawing=settings.drawing,
            draw=settings.pictures,
            save_tensors=settings.save_tensors,
        )


def _compared_with_itself(label: str, *, usage: bool = False) -> PathxError:
    return PathxError(f"{label} is compared with itself: give another class to explain as the target", usage=usage)


class Computer:
    """Makes of batches of images what is to be written of them, as many at once as the network takes and memory allows.

    Args:
        note: is told when memory is short, and once where the numbers hold at the image alone.
    """

    def __init__(self, model: LoadedModel, job: Job, note: Callable[[str], None]) -> None:
        self._prepared = prepare(model, device=job.settings.device, dtype=job.settings.dtype)
        self._job, self._note = job, note
        self.size = self._at_once = resolve_batch_size(job.settings.batch_size, self._prepared.device)
        self._checked = self.size == 1
        self._exactness_checked = False
        self._ambiguous: set[str] = set()

    def compute(self, read: Sequence[Input | Unreadable]) -> dict[str, Computed]:
        """By name: what is to be written of each image, or why nothing is."""
        made = {one.source.name: Computed(error=one.error) for one in read if isinstance(one, Unreadable)}
        inputs = [one for one in read if isinstance(one, Input)]
        if not self._checked and len(inputs) > 1:
            self._checked = True
            if not self._takes_several(inputs):
                self._at_once = 1
        while inputs:
            start = perf_counter()
            batch = inputs[: self._at_once]
            outcomes = self._outcomes(batch)
            if outcomes is None:  # out of memory; outside of the handler, which holds on to the tensors
                self._at_once = len(batch) // 2
                release_memory()
                self._note(f"memory is short: going on with {self._at_once} at once instead of {len(batch)}")
                continue
            share = (perf_counter() - start) / len(batch)
            for one, outcome in zip(batch, outcomes, strict=True):
                made[one.source.name] = replace(outcome, seconds=one.seconds + share)
            inputs = inputs[len(batch) :]
        return made

    def logits(self, one: Input) -> list[float]:
        """What the network says of an image, for every class."""
        found: list[float] = class_logits(self._freeze([one]).logits)[0].tolist()
        return found

    def _outcomes(self, batch: Sequence[Input]) -> list[Computed] | None:
        """What is to be written of a batch; None where memory is short for it."""
        try:
            return self._explain(self._freeze(batch), batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) > 1:
                return None
        release_memory()
        return [Computed(error=PathxError(ALONE))]

    def _explain(self, frozen: Frozen, inputs: Sequence[Input]) -> list[Computed]:
        """What is to be written of a batch; an image whose numbers cannot be explained costs itself alone."""
        try:
            batch = Batch(self._prepared.model, frozen, inputs, self._job)
            for label in batch.shared_labels.keys() - self._ambiguous:
                classes = " and ".join(map(str, batch.shared_labels[label]))
                self._note(f"the label {label} is ambiguous, as classes {classes} have it: the likelier one counts")
                self._ambiguous.add(label)
            return list(batch.outcomes())
        except PathxError as error:
            if error.usage or is_out_of_memory(error):
                raise
            if len(inputs) == 1:
                return [Computed(error=error)]
        return [outcome for one in inputs for outcome in self._explain(self._freeze([one]), [one])]

    def _freeze(self, batch: Sequence[Input]) -> Frozen:
        frozen = freeze(self._prepared.module, self._prepared.stack(batch))
        if not self._exactness_checked:
            check_exact(frozen.network, self._job.settings.exact, self._note)
            self._exactness_checked = True
        return frozen

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
