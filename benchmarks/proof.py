"""Experiments with settings and maps that `pathx evaluate` does not have, compared in pairs.

    python -m benchmarks.proof pixels RECORDS MODEL WEIGHTS STEPS MOST IMAGES…
    python -m benchmarks.proof mosaics RECORDS MODEL WEIGHTS STEPS MOST IMAGES…
    python -m benchmarks.proof rollout RECORDS MODEL WEIGHTS STEPS MOST IMAGES…

`pixels` compares rankings by paper and by effect at three widths, `mosaics` also plays the grid game with more maps, and
`rollout` compares attention rollout on the ViT of `benchmarks.cifar` with other methods. RECORDS is a file of JSON lines from
which the same command goes on. WEIGHTS is `-` where MODEL is a file. At most MOST images or mosaics are measured, in an order
that is drawn from their names. Prints the means, and paired differences.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pathx
from pathx.engine.ablate import removals
from pathx.engine.linear import frozen_gradients
from pathx.errors import PathxError
from pathx.evaluation.measure import DIFFERENCE, Contender, contender, curve_records, measure_images, subject_of
from pathx.evaluation.methods import Subject, explain_subject, grad_cam_cells
from pathx.evaluation.mosaics import confident_images, make_mosaics, play
from pathx.evaluation.protocols import make_protocol
from pathx.evaluation.records import Record, RecordFile, record_key
from pathx.evaluation.statistics import bootstrap, compare, generator_of
from pathx.images.find import ImageFile, images_in
from pathx.pipeline import Prepared, prepare

PATHS: dict[str, dict[str, Any]] = {
    f"path, {width}, {importance}": {"width": width, "importance": importance}
    for width in (5, 64, 1024)
    for importance in ("paper", "effect")
}
COMPARED = {
    "pixels": (),
    "mosaics": ("grad_cam", "saliency", "layer_map"),
    "rollout": ("path_map", "frozen", "input_x_gradient", "integrated_gradients", "random"),
}
CELLS = 64
"""Strongest cells of GradCAM that `cut_cam` keeps."""

Values = dict[str, list[float]]
"""What every map came to, image by image or mosaic by mosaic."""


def top_layer(subject: Subject) -> tuple[Tensor, Tensor]:
    """(B, C, h, w) the activations of the top layer of maps, and the gradient by them."""
    layers = [layer for layer in subject.frozen.network.layers if all(len(gate.shape) == 3 for gate in layer)]
    names = {gate.name for gate in layers[-1]}
    found: list[tuple[Tensor, Tensor]] = []

    def add(gate: Any, cotangent: Tensor) -> None:
        if gate.name in names:
            found.append((subject.frozen.activation(gate), cotangent))

    frozen_gradients(subject.frozen, subject.targets, add)
    activations, gradients = zip(*found, strict=True)
    return torch.cat(activations, 1), torch.cat(gradients, 1)


def layer_cam(subject: Subject) -> Tensor:
    """LayerCAM (Jiang et al., 2021) at the top hidden layer: activation times positive gradient, unit by unit."""
    activation, gradient = top_layer(subject)
    return enlarge((activation * gradient.clamp(min=0)).sum(1), subject)


def cut_cam(subject: Subject) -> Tensor:
    """GradCAM, of which only the strongest cells stay."""
    cells = grad_cam_cells(subject)
    least = cells.flatten(1).topk(min(CELLS, cells[0].numel())).values[:, -1]
    return enlarge(torch.where(cells >= least[:, None, None], cells, 0), subject)


def rollout(subject: Subject) -> Tensor:
    """Attention rollout (Abnar and Zuidema, 2020): products of half attention, half identity, from the class token down."""
    model, images = subject.classifier.module, subject.images
    tokens = model.places.shape[1]
    flow = torch.eye(tokens).expand(len(images), -1, -1)
    seen: list[Tensor] = []
    hooks = [block.attention.qkv.register_forward_hook(lambda *call: seen.append(call[2])) for block in model.blocks]
    with torch.no_grad():
        model(images)
    for block, hook, qkv in zip(model.blocks, hooks, seen, strict=True):
        hook.remove()
        q, k, _ = qkv.reshape(len(images), tokens, 3, block.attention.heads, -1).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).mean(1)
        flow = (attention + torch.eye(tokens)) / 2 @ flow
    side = int((tokens - 1) ** 0.5)
    return enlarge(flow[:, 0, 1:].reshape(-1, side, side), subject)


def enlarge(cells: Tensor, subject: Subject) -> Tensor:
    maps = nn.functional.interpolate(cells[:, None], subject.images.shape[-2:], mode="bilinear")
    return maps.expand_as(subject.images) / subject.images.shape[1]


class Extra(Contender):
    """A map of this file."""

    description = missing = None

    def attribution(self, subject: Subject) -> Tensor:
        return globals()[self.name](subject)


def contenders(what: str) -> list[Contender]:
    extra = {"pixels": (), "mosaics": ("layer_cam", "cut_cam"), "rollout": ("rollout",)}[what]
    paths = {} if what == "rollout" else PATHS
    return [
        *(contender("path_map", "rise", title, **settings) for title, settings in paths.items()),
        *(contender(name, "rise") for name in COMPARED[what]),
        *(Extra(name, name, {}) for name in extra),
    ]


def measure_pixels(what: str, prepared: Prepared, files: list[ImageFile], steps: int, records: Path) -> Values:
    """Insertion minus deletion."""
    _, height, width = prepared.model.preprocessing.input_size
    protocol = make_protocol("rise", height, width, steps=steps)
    made = measure_images(prepared, files, contenders(what), protocol, records=curve_records(records), batch_size=1)
    return {f"ins-del, {one.title}": [*made.areas(one, DIFFERENCE).values()] for one in made.ran}


def measure_removal(prepared: Prepared, files: list[ImageFile], records: Path) -> Values:
    """The probability of the class before the units of each path are removed, and after."""
    known, found = RecordFile(records, {"key": str, "before": float, "after": float}), Values()
    for (seen,) in prepared.see(files, 1, report):
        subject = subject_of(prepared, [seen])

        def remove(subject: Subject, settings: dict[str, Any]) -> Record:
            (removal,) = removals(subject.frozen, explain_subject(subject, settings))
            return {"before": removal.before, "after": removal.after}

        for title, settings in PATHS.items():
            key = record_key(prepared.about, seen.source.name, seen.image.sha256, title)
            record = known.recall(key, partial(remove, subject, settings))
            found.setdefault(f"removed, {title}", []).append(record["after"])
        found.setdefault("before", []).append(record["before"])
    return found


def measure_mosaics(what: str, prepared: Prepared, files: list[ImageFile], most: int, records: Path) -> Values:
    """The share of positive heat in the class's quarter, the mean of the four classes."""
    mosaics = make_mosaics(list(confident_images(prepared, files, 8, report)))[:most]
    game = play(prepared, mosaics, contenders(what), records)
    return {one.title: game.means(one) for one in contenders(what) if one.title in game.shares}


def report(source: ImageFile, error: PathxError) -> None:
    print(source.name, error, file=sys.stderr)


def summarise(what: str, values: Values) -> dict[str, Any]:
    """Means, and each row minus another: effect minus paper, others minus the default path map, or minus rollout."""
    usual = {"pixels": "", "mosaics": "path, 64, paper", "rollout": "ins-del, rollout"}[what]
    rows: dict[str, Any] = {}
    for name, own in values.items():
        first = name.replace("effect", "paper") if "effect" in name else usual
        compared = {f"minus {first}": compare(own, values[first])} if first in values and first != name else {}
        rows[name] = bootstrap(own) | compared
    return {"count": max(map(len, values.values())), "rows": rows}


def main(what: str, records: Path, model: str, weights: str, steps: int, most: int, images: list[str]) -> None:
    prepared = prepare(pathx.load_model(model, weights=None if weights == "-" else weights), device="cpu")
    found = images_in(images)
    order = torch.randperm(len(found), generator=generator_of(*(one.name for one in found))).tolist()
    files = [found[number] for number in order]
    if what == "mosaics":
        values = measure_mosaics(what, prepared, files, most, records)
    else:
        values = measure_pixels(what, prepared, files[:most], steps, records)
        values |= measure_removal(prepared, files[:most], records) if what == "pixels" else {}
    print(json.dumps(summarise(what, values), indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), sys.argv[7:])
