"""Ranking by the paper or by effect, at three widths; and the grid game with maps that `pathx evaluate` does not have.

    python -m benchmarks.proof pixels LINES MODEL WEIGHTS STEPS MOST IMAGES…
    python -m benchmarks.proof mosaics LINES MODEL WEIGHTS STEPS MOST IMAGES…

LINES is a file of JSON lines, one per image or mosaic, of which there are MOST at most; what it has is not computed again.
WEIGHTS is `-` where MODEL is a file. Images come in an order that is drawn from their names, so a run that is stopped early has a
random part of them. Prints the means of everything, and paired differences: effect minus paper, and each map minus the default
path map (maps of the margin minus the path map of the margin).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pathx
from pathx.engine.ablate import removals
from pathx.engine.linear import frozen_gradients
from pathx.engine.replay import Classifier
from pathx.evaluation.choices import METHODS
from pathx.evaluation.methods import Subject, explain_subject, grad_cam_cells
from pathx.evaluation.mosaics import Mosaic, classifier_of, confident_images, make_mosaics, shares
from pathx.evaluation.protocols import Protocol, area, make_protocol
from pathx.evaluation.statistics import bootstrap, compare, generator_of
from pathx.images.find import images_in
from pathx.pipeline import Prepared, SeenImage, prepare

WIDTHS, IMPORTANCES = (5, 64, 1024), ("paper", "effect")
CELLS = 64


Figures = dict[str, float]
Task = tuple[str, Callable[[], Figures]]
"""The name of an image or a mosaic, and what measures it."""


def measure_pixels(prepared: Prepared, steps: int, images: list[str]) -> Iterator[Task]:
    """Of each image: the probability without the path's units, and insertion minus deletion of the path map."""
    _, height, width = prepared.model.preprocessing.input_size
    protocol = make_protocol("rise", height, width, steps=steps)
    for (seen,) in prepared.see(in_drawn_order(images), 1, lambda source, error: print(source.name, error)):
        yield seen.source.name, partial(_measure_image, prepared, protocol, seen)


def _measure_image(prepared: Prepared, protocol: Protocol, seen: SeenImage) -> Figures:
    found = {}
    subject = Subject(prepared.classifier, seen.input[None], [seen.target], [seen.source.name])
    for units in WIDTHS:
        for importance in IMPORTANCES:
            explanations = explain_subject(subject, {"width": units, "importance": importance})
            (removal,) = removals(subject.frozen, explanations)
            found["before"] = removal.before
            found[f"removed, {units}, {importance}"] = removal.after
            maps = explanations[0].path_map().to(seen.input)[None, None].expand(1, *seen.input.shape)
            with torch.no_grad():
                (one,) = protocol.curves(prepared.classifier, subject.images, subject.targets, maps, subject.names)
            found[f"ins-del, {units}, {importance}"] = area(one.insertion) - area(one.deletion)
    return found


def measure_mosaics(prepared: Prepared, steps: int, images: list[str]) -> Iterator[Task]:
    """Of each mosaic: the share of positive heat in the class's quarter, by map; the mean of its four classes."""
    seen = list(confident_images(prepared, in_drawn_order(images), 8, lambda source, error: print(source.name, error)))
    mosaics = make_mosaics(seen)
    classifier, shrink = classifier_of(prepared, mosaics[0])
    for mosaic in mosaics:
        yield mosaic.name, partial(_play, prepared, classifier, mosaic, shrink)


def _play(prepared: Prepared, classifier: Classifier, mosaic: Mosaic, shrink: bool) -> Figures:
    image = mosaic.tensor(shrink)[None]
    subject = Subject(classifier, image.repeat(4, 1, 1, 1), mosaic.targets, [mosaic.name] * 4)
    maps = logit_maps(subject)
    for units in WIDTHS:
        for importance in IMPORTANCES:
            maps[f"path, {units}, {importance}"] = METHODS["path_map"].compute(
                subject, width=units, importance=importance
            )
    margins: dict[str, list[Tensor]] = {}
    for target in mosaic.targets:
        margin = Margin(prepared.module, image, target)
        one = Subject(Classifier(margin, image[0]), image, [1], [mosaic.name])
        maps_of_margin = logit_maps(one) | {"path map": METHODS["path_map"].compute(one)}
        for name, values in maps_of_margin.items():
            margins.setdefault(f"margin: {name}", []).append(values)
    everything = maps | {name: torch.cat(values) for name, values in margins.items()}
    return {name: sum(shares(values)) / 4 for name, values in everything.items()}


def logit_maps(subject: Subject) -> dict[str, Tensor]:
    """Maps (B, C, H, W) of what the classifier puts out."""
    cam = METHODS["grad_cam"].compute(subject)
    return {
        "GradCAM": cam,
        f"GradCAM, {CELLS} strongest cells": cut_cam(subject),
        "LayerCAM": layer_cam(subject),
        "saliency": METHODS["saliency"].compute(subject),
        "layer_map": METHODS["layer_map"].compute(subject),
    }


def top_layer(subject: Subject) -> Tensor:
    """(B, C, H, W) activations of the top layer of maps, and the gradient by them, stacked."""
    found: list[tuple[Tensor, Tensor]] = []

    def add(gate: Any, cotangent: Tensor) -> None:
        if len(gate.shape) == 3 and gate.shape[1] * gate.shape[2] > 1 and gate.name in names:
            found.append((subject.frozen.activation(gate), cotangent))

    layers = [layer for layer in subject.frozen.network.layers if all(len(gate.shape) == 3 for gate in layer)]
    names = {gate.name for gate in layers[-1]}
    frozen_gradients(subject.frozen, subject.targets, add)
    return torch.stack([torch.cat([pair[number] for pair in found], 1) for number in (0, 1)])


def layer_cam(subject: Subject) -> Tensor:
    """LayerCAM (Jiang et al., 2021) at the top hidden layer: activation times positive gradient, unit by unit."""
    activation, gradient = top_layer(subject)
    return _enlarge((activation * gradient.clamp(min=0)).sum(1), subject)


def cut_cam(subject: Subject) -> Tensor:
    """GradCAM, of which only the strongest cells stay."""
    cells = grad_cam_cells(subject)
    least = cells.flatten(1).topk(min(CELLS, cells[0].numel())).values[:, -1]
    return _enlarge(torch.where(cells >= least[:, None, None], cells, 0), subject)


def _enlarge(cells: Tensor, subject: Subject) -> Tensor:
    maps = nn.functional.interpolate(cells[:, None], subject.images.shape[-2:], mode="bilinear")
    return maps.expand_as(subject.images) / subject.images.shape[1]


class Margin(nn.Module):
    """A model with one logit: a class minus the other classes by their probability at one image.

    SqueezeNet's class layer belongs to the output, so its gates are held as they are at that image.
    """

    def __init__(self, model: nn.Module, image: Tensor, target: int) -> None:
        super().__init__()
        self.model, self.by_class = model, hasattr(model, "classifier") and isinstance(model.classifier[1], nn.Conv2d)
        with torch.no_grad():
            logits = model(image)[0]
            weights = -logits.softmax(0) / (1 - logits.softmax(0)[target])
            weights[target] = 1
            self.register_buffer("weights", weights[:, None])
            if self.by_class:
                self.register_buffer("gates", (model.classifier[1](model.features(image)) > 0).to(image))

    def forward(self, images: Tensor) -> Tensor:
        if not self.by_class:
            return self.model(images) @ self.weights
        logits = (self.model.classifier[1](self.model.features(images)) * self.gates).mean((2, 3))
        return logits @ self.weights


def in_drawn_order(images: list[str]) -> list[Any]:
    found = images_in(images)
    order = torch.randperm(len(found), generator=generator_of(*(one.name for one in found))).tolist()
    return [found[number] for number in order]


def summarise(lines: list[Figures]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in lines[0]:
        values = [line[name] for line in lines]
        first = name.replace("effect", "paper") if "effect" in name else "path, 64, paper"
        first = "margin: path map" if name.startswith("margin") else first
        other = [line[first] for line in lines] if first in lines[0] and first != name else None
        rows[name] = bootstrap(values) | ({f"minus {first}": compare(values, other)} if other else {})
    return {"count": len(lines), "rows": rows}


def main(what: str, file: Path, model: str, weights: str, steps: int, most: int, images: list[str]) -> None:
    prepared = prepare(pathx.load_model(model, weights=None if weights == "-" else weights), device="cpu")
    known = {}
    if file.exists():
        known = {line["name"]: line["figures"] for line in map(json.loads, file.read_text().splitlines())}
    measure = {"pixels": measure_pixels, "mosaics": measure_mosaics}[what]
    with file.open("a") as stream:
        for name, compute in islice(measure(prepared, steps, images), most):
            if name in known:
                continue
            figures = known[name] = compute()
            stream.write(json.dumps({"name": name, "figures": figures}) + "\n")
            stream.flush()
    print(json.dumps(summarise(list(known.values())), indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), sys.argv[7:])
