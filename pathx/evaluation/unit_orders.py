"""Which units carry a decision: orders of the units of a layer, judged by taking them out of the real network.

Every order is given the same number of units: as many as the path keeps in that layer of that image. Taken out one after
another, the probability of the class should fall quickly; with only them left in their layer, it should be there soon.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.engine.record.operations import Value
from pathx.engine.replay import Classifier, Replay
from pathx.errors import PathxError
from pathx.evaluation.records import KeyedLines, record_key
from pathx.evaluation.statistics import bootstrap, compare
from pathx.explanation import PathLayer
from pathx.images.find import ImageFile
from pathx.pipeline import Prepared

SCHEMA = "pathx/unit-orders@1"
INTEGRATION_STEPS = 20
MEASURES = {"removed": "↓", "kept": "↑"}
"""The area under the probability of the class as units are taken out, and as only they are left; which is better."""


@dataclass(frozen=True, eq=False)
class Decision:
    """A network's decision at one image, of which some layers are examined: what lies below them is run once.

    Args:
        image: (1, C, H, W).
        gates: names of the ReLUs of each layer that is examined.
    """

    classifier: Classifier
    image: Tensor
    target: int
    gates: tuple[tuple[str, ...], ...]
    name: str

    @cached_property
    def _known(self) -> dict[int, ValuesAbove]:
        return {}

    def copies(self, count: int) -> Iterator[ValuesAbove]:
        """What the network computes for the image, so many times over, in as many parts as it takes."""
        for size in _parts(count, self.classifier.chunk):
            if size not in self._known:
                self._known[size] = self._at(self.image.expand(size, *self.image.shape[1:]))
            yield self._known[size]

    @cached_property
    def ramp(self) -> list[ValuesAbove]:
        """What it computes on the way from a zero input, which is not among them, to the image, in even steps."""
        steps = torch.arange(1, INTEGRATION_STEPS + 1, dtype=self.image.dtype, device=self.image.device)
        images = self.image * (steps / INTEGRATION_STEPS).reshape(-1, 1, 1, 1)
        return [self._at(part) for part in images.split(self.classifier.chunk)]

    @cached_property
    def zero(self) -> ValuesAbove:
        """What it computes for a zero input."""
        return self._at(torch.zeros_like(self.image))

    def _at(self, images: Tensor) -> ValuesAbove:
        replay = self.classifier.replay(images)
        entering = [replay.entering(names) for names in self.gates]
        return ValuesAbove(
            replay, replay.recorded(images, set().union(*entering)), dict(zip(self.gates, entering, strict=True))
        )


@dataclass(frozen=True, eq=False)
class ValuesAbove:
    """What a network computed for a batch, as far as the parts above some layers need it.

    Args:
        entering: by the ReLUs of a layer, what enters the part above it.
    """

    replay: Replay
    values: Mapping[Value, Tensor]
    entering: Mapping[tuple[str, ...], set[Value]]

    def activations(self, names: tuple[str, ...]) -> Tensor:
        """(n, units) what the ReLUs of a layer put out."""
        return torch.cat([self.values[value].flatten(1) for value in self._outputs(names)], 1)

    def logits(self, names: tuple[str, ...], activations: Tensor) -> Tensor:
        """(n, C) where the layer puts out these activations, (n, units), instead of its own."""
        values = {value: self.values[value] for value in self.entering[names]}
        outputs = self._outputs(names)
        parts = activations.split([values[output].flatten(1).shape[1] for output in outputs], 1)
        given = {output: part.reshape(values[output].shape) for output, part in zip(outputs, parts, strict=True)}
        return self.replay.resumed(values | given)

    def _outputs(self, names: tuple[str, ...]) -> list[Value]:
        gates = {gate.name: gate for gate in self.replay.network.gates.values()}
        return [gates[name].output for name in names]


@dataclass(frozen=True, eq=False)
class Layer:
    """One hidden layer of a network at one image.

    Args:
        gates: names of its ReLUs.
        path: the layer of the path, which the number of units comes from.
    """

    decision: Decision
    gates: tuple[str, ...]
    path: PathLayer

    @cached_property
    def activations(self) -> Tensor:
        """(units,) what the layer's ReLUs put out."""
        (known,) = self.decision.copies(1)
        return known.activations(self.gates)[0]

    def gradients(self, batches: Iterable[ValuesAbove], activations: Tensor) -> Tensor:
        """(n, units) the gradient of the class's logit where the layer puts out these activations."""
        found, rest = [], activations
        for known in batches:
            size = len(known.activations(self.gates))
            with torch.enable_grad():
                wanted = rest[:size].detach().requires_grad_()
                logits = known.logits(self.gates, wanted)
                found.append(torch.autograd.grad(logits[:, self.decision.target].sum(), wanted)[0])
            rest = rest[size:]
        return torch.cat(found)

    def probabilities(self, masks: Tensor) -> list[float]:
        """The probability of the class with some units at zero: masks (n, units), True where a unit stays."""
        result: list[float] = []
        for known in self.decision.copies(len(masks)):
            own = known.activations(self.gates)
            some, masks = masks.split([len(own), len(masks) - len(own)])
            logits = known.logits(self.gates, own * some)
            result += logits.double().softmax(1)[:, self.decision.target].tolist()
        return result


def _parts(count: int, most: int) -> list[int]:
    """Whole parts of the largest size that is allowed, and what is left."""
    return [most] * (count // most) + ([count % most] if count % most else [])


Order = Callable[[Layer], Tensor]
"""(units,) a value for every unit of the layer, the highest first; among equals the lower number."""

ORDERS: dict[str, Order] = {}
"""Every order by name; filled by @order."""


def order(name: str) -> Callable[[Order], Order]:
    def register(compute: Order) -> Order:
        ORDERS[name] = compute
        return compute

    return register


@order("pathx")
def by_path(layer: Layer) -> Tensor:
    numbers, _ = layer.path.contributions()
    values = torch.full((len(layer.activations),), -math.inf, dtype=torch.float64)
    values[numbers.cpu()] = -torch.arange(len(numbers), dtype=torch.float64)
    return values


@order("activation")
def by_activation(layer: Layer) -> Tensor:
    return layer.activations


@order("gradient_x_activation")
def by_gradient(layer: Layer) -> Tensor:
    gradients = layer.gradients(layer.decision.copies(1), layer.activations[None])
    return gradients[0] * layer.activations


@order("layer_conductance")
def by_conductance(layer: Layer) -> Tensor:
    """Captum's: from a zero input to the image, the gradient at the layer times the layer's own step."""
    ramp = layer.decision.ramp
    activations = torch.cat([known.activations(layer.gates) for known in (layer.decision.zero, *ramp)])
    return (layer.gradients(ramp, activations[1:]) * activations.diff(dim=0)).sum(0)


@order("layer_integrated_gradients")
def by_integrated_gradients(layer: Layer) -> Tensor:
    """Captum's: from the layer's activations at a zero input to those at the image."""
    start, end = layer.decision.zero.activations(layer.gates)[0], layer.activations
    shares = (torch.arange(INTEGRATION_STEPS, dtype=end.dtype, device=end.device) + 0.5) / INTEGRATION_STEPS
    batches = layer.decision.copies(INTEGRATION_STEPS)
    return layer.gradients(batches, start + shares[:, None] * (end - start)).mean(0) * (end - start)


@order("random")
def at_random(layer: Layer) -> Tensor:
    """Among the active units, the same whenever an image of that name comes."""
    name = layer.decision.name
    seed = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big") >> 1
    activations = layer.activations.cpu()
    drawn = torch.rand(len(activations), generator=torch.Generator().manual_seed(seed))
    return torch.where(activations > 0, drawn, -1.0)


@dataclass(frozen=True)
class UnitCurves:
    """What became of one image's class, in one layer and one order.

    Args:
        removed: the probability as units are taken out, from none to all that the path has there.
        kept: the probability as only they are left in their layer.
    """

    image: str
    layer: int
    order: str
    units: int
    removed: tuple[float, ...]
    kept: tuple[float, ...]

    @property
    def areas(self) -> dict[str, float]:
        return {name: _area(getattr(self, name)) for name in MEASURES}


def curves(
    classifier: Classifier,
    images: Tensor,
    targets: Sequence[int],
    names: Sequence[str],
    *,
    steps: int,
    orders: Sequence[str],
    settings: Mapping[str, Any],
) -> list[UnitCurves]:
    """Every order in every layer of the path of every image of a batch."""
    frozen = freeze(classifier.module, images)
    explanations = explain_frozen(frozen, list(enumerate(targets)), **settings)
    found = []
    for number, (explanation, target, name) in enumerate(zip(explanations, targets, names, strict=True)):
        paths = [path for path in explanation.path if len(path.contributions()[0])]
        gates = [tuple(gate.name for gate in frozen.network.layers[path.layer - 1]) for path in paths]
        decision = Decision(classifier, images[number : number + 1], target, tuple(gates), name)
        for path, names in zip(paths, gates, strict=True):
            found += [_curve(Layer(decision, names, path), order, steps) for order in orders]
    return found


def evaluate_orders(
    prepared: Prepared,
    images: Sequence[ImageFile],
    *,
    steps: int,
    orders: Sequence[str],
    settings: Mapping[str, Any],
    records: Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Judge the orders over many images.

    Args:
        steps: from no unit to all that the path has in a layer.
        records: a file of what is known already, which is added to.
        progress: called with the number of images that were done just now.
    """
    known = KeyedLines(records)
    unread: dict[str, str] = {}
    found: list[UnitCurves] = []

    def failed(source: ImageFile, error: PathxError) -> None:
        unread[source.name] = str(error)
        progress(1)

    about = {"model": prepared.about, "settings": dict(settings), "steps": steps, "orders": list(orders)}
    for batch in prepared.see(images, 1, failed):
        (seen,) = batch
        preprocessing = asdict(prepared.model.preprocessing)
        key = record_key(about, preprocessing, str(prepared.dtype), seen.source.name, seen.image.sha256)
        own = _read_curves(known.lines.get(key, {}).get("curves"))
        if own is None:
            target, name = [seen.target], [seen.source.name]
            own = curves(
                prepared.classifier, seen.input[None], target, name, steps=steps, orders=orders, settings=settings
            )
            known.append([{"key": key, "curves": [asdict(one) for one in own]}])
        found += own
        progress(1)
    if not found:
        reason = next(iter(unread.values()), "there are none")
        raise PathxError(f"none of the {len(images)} images could be used: {reason}")
    count = len({one.image for one in found})
    return {"schema": SCHEMA, **about, "images": count, "unread": unread, "layers": summary(found)}


def _read_curves(entries: Any) -> list[UnitCurves] | None:
    """Curves of a record; None where there is none, or one that is damaged."""
    try:
        return [UnitCurves(**entry | {name: tuple(entry[name]) for name in MEASURES}) for entry in entries]
    except (TypeError, KeyError):
        return None


def _curve(layer: Layer, name: str, steps: int) -> UnitCurves:
    values, count = ORDERS[name](layer).detach().cpu(), len(layer.path.contributions()[0])
    best = torch.argsort(values, descending=True, stable=True)[:count]
    amounts = sorted({round(count * step / steps) for step in range(steps + 1)})
    out = torch.ones(len(amounts), len(values), dtype=torch.bool)
    for row, amount in enumerate(amounts):
        out[row, best[:amount]] = False
    with torch.no_grad():
        probabilities = layer.probabilities(torch.cat([out, ~out]).to(layer.activations))
    removed, kept = probabilities[: len(amounts)], probabilities[len(amounts) :]
    return UnitCurves(layer.decision.name, layer.path.layer, name, count, tuple(removed), tuple(kept))


def summary(found: Sequence[UnitCurves]) -> list[dict[str, Any]]:
    """By layer, from the output down: the mean areas of every order, and pathx minus each, image by image."""
    layers = []
    for number in sorted({one.layer for one in found}, reverse=True):
        own = [one for one in found if one.layer == number]
        entry: dict[str, Any] = {"layer": number, "images": len({one.image for one in own}), "orders": {}}
        areas = {
            name: {one.image: one.areas for one in own if one.order == name}
            for name in dict.fromkeys(o.order for o in own)
        }
        for name, by_image in areas.items():
            figures: dict[str, Any] = {}
            for measure in MEASURES:
                values = [area[measure] for area in by_image.values()]
                figures[measure] = vars(bootstrap(values))
                if name != "pathx" and "pathx" in areas:
                    mine = [areas["pathx"][image][measure] for image in by_image]
                    figures[f"pathx minus it, {measure}"] = vars(compare(mine, values).difference)
            entry["orders"][name] = figures
        entry["units"] = sum(one.units for one in own) / len(own)
        layers.append(entry)
    return layers


def _area(values: Sequence[float]) -> float:
    """The area under a curve whose steps are evenly far apart, from 0 to 1."""
    if len(values) == 1:
        return values[0]
    return (sum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)


def chosen_orders(names: Sequence[str]) -> list[str]:
    """Orders by name, pathx's among them; all by default."""
    unknown = [name for name in names if name not in ORDERS]
    if unknown:
        raise PathxError(f"there is no order {unknown[0]!r}: choose from {', '.join(ORDERS)}", usage=True)
    return list(dict.fromkeys(["pathx", *names])) if names else list(ORDERS)
