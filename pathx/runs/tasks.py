"""What a run computes of a batch: for each image explanations or decompositions, and the differences between classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pathx.decomposition import Decomposition, decompose_wanted
from pathx.drawing.page import Panel
from pathx.engine.ablate import removals
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen
from pathx.engine.settings import check_settings, check_width, class_logits
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.layers import layer_maps
from pathx.models.labels import parse_targets, resolve_target, true_classes
from pathx.models.load import LoadedModel
from pathx.pipeline import Input
from pathx.results.decomposition import ReferencePanels
from pathx.results.result import Result
from pathx.runs.settings import Settings, check_workers
from pathx.runs.writing import BatchImage, Computed

T = TypeVar("T", Explanation, Decomposition)


@dataclass(frozen=True)
class Task:
    """What a run makes of its images.

    Args:
        name: the command's, for the index.
        batch: computes a batch: for each of its images what is to be written, or why nothing is.
        settings: what the results depend on beyond `Settings`.
    """

    name: str
    batch: Callable[[Batch], Iterator[Computed]]
    settings: Mapping[str, Any] = field(default_factory=dict)


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
        check_workers(self.settings.workers)


@dataclass(frozen=True, eq=False)
class Batch:
    """Images whose network is frozen, and what is asked about each of them.

    Args:
        inputs: the images, in the order of the frozen batch.
        targets: of each image, the classes to explain; none where the model's output is not finite.
        truths: of each image, the true class where it is known.
        against: the class that the others are explained against, if there is one.
        shared_labels: labels of images that several classes have, with these.
    """

    model: LoadedModel
    frozen: Frozen
    inputs: Sequence[Input]
    targets: Sequence[Sequence[int]]
    rankings: Sequence[Sequence[int]]
    truths: Sequence[int | None]
    out: str | Path
    settings: Settings
    against: int | None = None
    shared_labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def with_targets(
        model: LoadedModel,
        frozen: Frozen,
        inputs: Sequence[Input],
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
        several = [true_classes(settings.label, one.image.file, labels, one.image.label) for one in inputs]
        # Of classes with one label the likeliest counts: no other can be told from it.
        truths = [min(of, key=ranking.index) if of else None for of, ranking in zip(several, rankings, strict=True)]
        chosen = [
            asked.targets_for(ranking, None if targets and settings.label is None else truth) if fine else ()
            for ranking, truth, fine in zip(rankings, truths, finite, strict=True)
        ]
        against = None if settings.against is None else resolve_target(settings.against, labels)
        if against is not None:  # one class is compared with another that was named; the image's label is not asked
            chosen = [
                asked.targets_for(ranking) if fine else () for ranking, fine in zip(rankings, finite, strict=True)
            ]
            if set(asked.wanted) == {against}:
                raise _itself(labels[against], usage=True)
            chosen = [tuple(target for target in several if target != against) for several in chosen]
        shared = {labels[of[0]]: tuple(of) for of in several if len(of) > 1}
        return Batch(model, frozen, inputs, chosen, rankings, truths, out, settings, against, shared)

    @property
    def labels(self) -> Sequence[str]:
        return self.model.labels_for(self.frozen.logits.shape[1])

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """(image, class) pairs, as the engine takes them."""
        return [(number, target) for number, several in enumerate(self.targets) for target in several]

    @property
    def how(self) -> dict[str, Any]:
        """The settings that the engine takes."""
        return {key: getattr(self.settings, key) for key in ("depth", "width", "alpha", "skips", "importance")}

    def differences(self) -> Iterator[Explanation]:
        """Of each image with several classes, the first explained against each other."""
        pairs = [(number, several[0], other) for number, several in enumerate(self.targets) for other in several[1:]]
        if not pairs or self.against is not None:
            return iter(())
        how = {**self.how, "alpha": None}  # an alpha for all classes means nothing between two
        wanted, others = [(number, first) for number, first, _ in pairs], [other for *_, other in pairs]
        return iter(self.with_proof(wanted, explain_frozen(self.frozen, wanted, against=others, **how)))

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

    def references(self, explanation: Explanation) -> tuple[Panel, ...]:
        """What the strongest units of a path look for elsewhere, where that is known."""
        guide = self.settings.guide
        return tuple(guide.panels(explanation)) if guide is not None and self.settings.pictures else ()

    def decomposition_references(self, made: Decomposition) -> ReferencePanels:
        """The same of a decomposition: of its whole path, and of the strongest unit of each feature that is drawn."""
        guide = self.settings.guide
        if guide is None or not self.settings.pictures:
            return ReferencePanels()
        strongest = [made.units[feature.units[0]] for feature in made.drawn]
        return ReferencePanels(tuple(guide.panels(made.whole)), tuple(guide.panels_of(strongest)))

    def subject(self, number: int) -> BatchImage:
        """What is needed to write of an image, free of the frozen network."""
        probabilities = class_logits(self.frozen.logits)[number].cpu().double().softmax(0).tolist()
        best = tuple((index, self.labels[index], probabilities[index]) for index in self.rankings[number][:5])
        about = (self.model, self.labels, self.truths[number], best, str(self.frozen.images.device))
        return BatchImage(self.inputs[number], *about, self.out, self.settings)


def explain_batch(batch: Batch) -> Iterator[Computed]:
    """Explanations of a batch, computed at once."""
    others = None if batch.against is None else [batch.against] * len(batch.wanted)
    explanations = explain_frozen(batch.frozen, batch.wanted, against=others, **batch.how) if batch.wanted else []
    yield from _by_image(batch, batch.with_proof(batch.wanted, explanations), batch.references)


EXPLAIN = Task("explain", explain_batch)


def decompose_task(*, from_layer: int | None = None, features: int | None = None) -> Task:
    """The task of `explain_files` that splits decisions into features.

    Args:
        from_layer, features: as for `pathx.decompose`.
    """
    how = {"from_layer": from_layer, "features": features}
    return Task("decompose", partial(decompose_batch, **how), how)  # type: ignore[arg-type]


def decompose_batch(batch: Batch, *, from_layer: int | None = None, features: int | None = None) -> Iterator[Computed]:
    """Decompositions of a batch, computed at once."""
    if batch.against is not None:
        raise PathxError("decompose compares no classes: use explain", usage=True)
    if batch.settings.drawing.heat == "layers":
        raise PathxError("a map of all layers has no features: decompose with heat path or pixels", usage=True)
    how = {"from_layer": from_layer, "features": features, **batch.how}
    decompositions = decompose_wanted(batch.frozen, batch.wanted, **how) if batch.wanted else []
    wholes = batch.with_proof(batch.wanted, [one.whole for one in decompositions])
    decompositions = [replace(one, whole=whole) for one, whole in zip(decompositions, wholes, strict=True)]
    yield from _by_image(batch, decompositions, batch.decomposition_references)


def _by_image(batch: Batch, results: Sequence[T], references: Callable[[T], Any]) -> Iterator[Computed]:
    """What was computed of each image of a batch.

    Args:
        results: of every (image, class) pair that was wanted, in their order.
    """
    waiting, differences = iter(results), batch.differences()
    for number, targets in enumerate(batch.targets):
        image = batch.subject(number)
        if not targets:
            yield _no_number(image)
            continue
        found = tuple((one, references(one)) for one in islice(waiting, len(targets)))
        others = 0 if batch.against is not None else len(targets) - 1
        yield Computed(image, found, tuple(islice(differences, others)))


def _no_number(of: BatchImage) -> Computed:
    """For an image that the model has no finite output for, or no class but the one to compare with."""
    problem = PathxError("the model's output is NaN or infinite; check its weights, or try `dtype` float64")
    if math.isfinite(of.top[0][2]):
        problem = _itself(str(of.settings.against))
    return Computed(failure=Result.failure(of.image.file, problem))


def _itself(label: str, *, usage: bool = False) -> PathxError:
    return PathxError(f"{label} is compared with itself: give another class to explain as the target", usage=usage)
