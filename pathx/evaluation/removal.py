"""Whether the units of a path carry the decision: set them to zero in the real network, and compare with units chosen otherwise.

Every order removes as many units of each layer as the path keeps there, from all layers of the path at once and from each layer
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathx.engine.ablate import Draws, logits_without, rerun
from pathx.engine.device import engine_precision
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.network import Gate
from pathx.errors import PathxError
from pathx.evaluation.records import Record, RecordFile, Unread, record_key
from pathx.evaluation.statistics import bootstrap, compare
from pathx.explanation import Explanation
from pathx.images.find import ImageFile
from pathx.pipeline import Prepared

SCHEMA = "pathx/removal@1"
OWN, RANDOM, TOGETHER = "pathx", "random", "together"
INTEGRATION_STEPS, STEPS_AT_ONCE = 20, 5


@dataclass(frozen=True, eq=False)
class Decision:
    """The path behind a network's answer at one image.

    Args:
        frozen: the network at this image alone.
    """

    module: torch.nn.Module
    frozen: Frozen
    explanation: Explanation

    @cached_property
    def paths(self) -> dict[int, Tensor]:
        """The units of the path by layer, as numbers in the layer, the most important first; without empty layers."""
        units = {layer.layer: layer.contributions()[0].cpu() for layer in self.explanation.path}
        return {layer: numbers for layer, numbers in units.items() if len(numbers)}

    def gates(self, layer: int) -> tuple[Gate, ...]:
        return self.frozen.network.layers[layer - 1]

    @cached_property
    def ramp(self) -> list[Frozen]:
        """The network at steps from a zero input, excluded, to the image."""
        steps = torch.arange(1, INTEGRATION_STEPS + 1).to(self.frozen.images) / INTEGRATION_STEPS
        images = self.frozen.images * steps.reshape(-1, *[1] * (self.frozen.images.dim() - 1))
        return [one for part in images.split(STEPS_AT_ONCE) for one in _freeze(self.module, part)]

    @cached_property
    def zero(self) -> Frozen:
        (zero,) = _freeze(self.module, torch.zeros_like(self.frozen.images))
        return zero


def _freeze(module: torch.nn.Module, images: Tensor) -> Sequence[Frozen]:
    """The network at some images; one by one if it mixes the images of a batch."""
    frozen = freeze(module, images)
    return frozen.parts or [frozen]


def activations(frozen: Frozen, gates: Sequence[Gate]) -> Tensor:
    """(B, units) the outputs of a layer's activations."""
    return torch.cat([frozen.activation(gate).flatten(1) for gate in gates], 1)


def gradients(frozen: Frozen, gates: Sequence[Gate], target: int) -> Tensor:
    """(B, units) the gradient of a class's logit by the outputs of a layer's activations, in the real network."""
    with engine_precision(frozen.images.device), torch.enable_grad():
        outputs = [frozen.activation(gate).detach().clone().requires_grad_() for gate in gates]
        every = [torch.ones(1, *output.shape, dtype=torch.bool, device=output.device) for output in outputs]
        logits = rerun(frozen, gates, every, outputs)[0]
        single = frozen.network.outputs == 1  # the logits (0, y)
        explained = logits[:, target] - logits[:, 1 - target] if single else logits[:, target]
        found = torch.autograd.grad(explained.sum(), outputs)
    return torch.cat([one.flatten(1) for one in found], 1)


Order = Callable[[Decision, int], Tensor]
"""Gives a value for every unit of a layer, (units,): the highest are removed, of equal ones the lower number."""


def by_activation(decision: Decision, layer: int) -> Tensor:
    return activations(decision.frozen, decision.gates(layer))[0]


def by_gradient(decision: Decision, layer: int) -> Tensor:
    gates = decision.gates(layer)
    return (gradients(decision.frozen, gates, decision.explanation.target) * activations(decision.frozen, gates))[0]


def by_conductance(decision: Decision, layer: int) -> Tensor:
    """Captum's layer conductance: the gradient at the layer times the layer's change, from a zero input to the image."""
    gates = decision.gates(layer)
    values = torch.cat([activations(frozen, gates) for frozen in (decision.zero, *decision.ramp)])
    slopes = torch.cat([gradients(frozen, gates, decision.explanation.target) for frozen in decision.ramp])
    return (slopes * values.diff(dim=0)).sum(0)


ORDERS: dict[str, Order] = {
    "activation": by_activation,
    "gradient_x_activation": by_gradient,
    "layer_conductance": by_conductance,
}
"""The orders that the path is compared with, besides random units."""


def chosen_units(decision: Decision) -> dict[str, list[dict[int, Tensor]]]:
    """By order, the units of each layer to remove: one choice, and several of random units."""
    paths = decision.paths
    chosen: dict[str, list[dict[int, Tensor]]] = {OWN: [paths]}
    for name, order in ORDERS.items():
        values = {layer: order(decision, layer).detach().cpu() for layer in paths}
        ranked = {layer: value.argsort(descending=True, stable=True) for layer, value in values.items()}
        chosen[name] = [{layer: ranked[layer][: len(units)] for layer, units in paths.items()}]
    drawn = Draws.of(decision.frozen, 0, decision.explanation).units
    draws = min(len(runs) for runs in drawn.values()) - 1  # the first is the path itself
    chosen[RANDOM] = [{layer: drawn[layer][1 + draw] for layer in paths} for draw in range(draws)]
    return chosen


Figures = dict[str, dict[str, list[float]]]
"""By `together` or the number of a layer, then by order: the probability without the units and, if asked for, with only them."""


def remove(decision: Decision, *, keep: bool) -> Figures:
    """The probability of the class without the units of every order.

    Args:
        keep: also with only these units left in their layers.
    """
    chosen = chosen_units(decision)
    runs: list[tuple[str, str, Mapping[int, Tensor]]] = []
    for name, choices in chosen.items():
        for choice in choices:
            runs.append((TOGETHER, name, choice))
            runs += [(str(layer), name, {layer: choice[layer]}) for layer in decision.paths]
    probabilities = [
        _probabilities(decision, [units for *_, units in runs], kept) for kept in (False, True)[: 1 + keep]
    ]
    found: dict[str, dict[str, list[list[float]]]] = {}
    for number, (scope, name, _) in enumerate(runs):
        found.setdefault(scope, {}).setdefault(name, []).append([values[number] for values in probabilities])
    return {
        scope: {name: torch.tensor(rows, dtype=torch.float64).mean(0).tolist() for name, rows in orders.items()}
        for scope, orders in found.items()
    }


def _probabilities(decision: Decision, runs: Sequence[Mapping[int, Tensor]], keep: bool) -> list[float]:
    """The probability of the class in each run: without its units, or with only them in their layers."""
    masks: dict[str, Tensor] = {}
    for layer in decision.paths:
        gates = decision.gates(layer)
        sizes = [gate.units for gate in gates]
        mask = torch.zeros(len(runs), 1, sum(sizes), dtype=torch.bool)
        for number, units in enumerate(runs):
            if layer in units:
                mask[number, 0, units[layer]] = True
                mask[number] ^= keep
        for gate, part in zip(gates, mask.to(decision.frozen.images.device).split(sizes, 2), strict=True):
            masks[gate.name] = part.reshape(len(runs), 1, *gate.shape)
    logits = logits_without(decision.frozen, masks)[:, 0].double()
    return logits.softmax(1)[:, decision.explanation.target].tolist()


def measure_image(
    module: torch.nn.Module, image: Tensor, target: int, name: str, *, keep: bool, settings: Mapping[str, Any]
) -> Record:
    """Remove units by every order from the decision for one image (1, …).

    The record has the probability `before`, the number of `units` in each layer of the path, the number of `active` units in these
    layers, and the `figures`.
    """
    (frozen,) = _freeze(module, image)
    (explanation,) = explain_frozen(frozen, [(0, target)], **settings)
    decision = Decision(module, frozen, explanation)
    if not decision.paths:
        raise PathxError("the path has no units")
    return {
        "image": name,
        "before": explanation.probability,
        "units": {str(layer): len(numbers) for layer, numbers in decision.paths.items()},
        "active": Draws.of(frozen, 0, explanation).active,
        "figures": remove(decision, keep=keep),
    }


_SHAPE = {"key": str, "image": str, "before": (int, float), "units": dict, "active": int, "figures": dict}


def evaluate_removal(
    prepared: Prepared,
    images: Sequence[ImageFile],
    *,
    keep: bool,
    settings: Mapping[str, Any],
    records: Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Measure removal over many images; what is returned is removal.json.

    Args:
        records: a file of known records; new ones are added.
        progress: called with the number of images just done.
    """
    known, unread, found = RecordFile(records, _SHAPE), Unread(progress), list[Record]()
    about = {"model": prepared.about, "settings": dict(settings), "keep": keep}
    for (seen,) in prepared.see(images, 1, unread):
        name, preprocessing = seen.source.name, asdict(prepared.model.preprocessing)
        key = record_key(about, preprocessing, str(prepared.dtype), name, seen.image.sha256)
        measure = partial(measure_image, prepared.module, seen.input[None], seen.target, name)
        try:
            found.append(known.recall(key, partial(measure, keep=keep, settings=settings)))
            progress(1)
        except PathxError as error:
            unread(seen.source, error)
    unread.check_any(found, len(images))
    return {"schema": SCHEMA, **about, "images": len(found), "unread": unread, **summary(found)}


MEASURES = {"removed": "↓", "kept": "↑"}
"""The probability without the units, and with only them in their layers; whether more or less is better."""


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """Means over images with intervals, and the path minus every other order in pairs."""
    layers = sorted({int(layer) for one in found for layer in one["units"]}, reverse=True)
    alone = {n: [one["figures"][str(n)] for one in found if str(n) in one["figures"]] for n in layers}
    return {
        "before": bootstrap([one["before"] for one in found]),
        "units": sum(sum(one["units"].values()) for one in found) / len(found),
        "of_active": sum(one["active"] for one in found) / len(found),
        TOGETHER: _orders([one["figures"][TOGETHER] for one in found]),
        "layers": [{"layer": n, "images": len(own), "orders": _orders(own)} for n, own in alone.items()],
    }


def _orders(figures: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Any]]:
    names = [name for name in figures[0] if all(name in one for one in figures)]
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        rows[name] = {}
        for place, measure in enumerate(MEASURES):
            values = [one[name][place] for one in figures if place < len(one[name])]
            if not values or not all(map(math.isfinite, values)):
                continue
            rows[name][measure] = bootstrap(values)
            if name != OWN:
                mine = [one[OWN][place] for one in figures]
                rows[name][f"{OWN} minus it, {measure}"] = compare(mine, values)
    return rows
