"""What the network adds to a page: what the strongest units of a path saw."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pathx.drawing.render import SMOOTHING, glow_map
from pathx.engine.ablate import part_removals
from pathx.engine.freeze import Frozen
from pathx.engine.units import unit_maps
from pathx.explanation import Explanation, Unit
from pathx.maps import smooth
from pathx.report.encoding import encode_png

NetworkData = dict[str, Any]
"""As report.json has it.

`unit_maps`: by `layer:position` what a unit's contribution is made of, as a picture to lay on the photo.
`effects`: what parts of the path do, as the frozen network predicts it and as removing them alone from the real one measures it.
"""

MOST_UNITS = 40
"""Units whose own map a page holds."""

_MAP_SIDE = 112


def network_data(frozen: Frozen, explanation: Explanation, image: int = 0) -> NetworkData:
    """What the network adds to the page of an explanation.

    Args:
        frozen: the network at a batch of images.
        image: the image of the batch that the explanation is about.
    """
    units = _strongest(explanation)
    if not units:  # a network that ends in zeros keeps none
        return {"unit_maps": {}, "effects": []}
    maps = unit_maps(frozen, [(image, unit.tensor, unit.index) for unit in units.values()])
    gates = {gate.name: gate for layer in frozen.network.layers for gate in layer}
    encoded = {}
    for (name, unit), values in zip(units.items(), maps, strict=True):
        slopes = frozen.slopes(gates[unit.tensor]).given  # None stands for 1: a kept unit of a ReLU is active
        slope = 1.0 if slopes is None else float(slopes[(image, *unit.index)])
        encoded[name] = encode_png(unit_picture(unit.weight * slope * values))
    return {"unit_maps": encoded, "effects": [asdict(part) for part in part_removals(frozen, explanation, image)]}


def unit_picture(values: Tensor) -> Image.Image:
    """What a unit got from every pixel (C, H, W), smoothed as overlays are, and small."""
    smoothed = smooth(values, SMOOTHING)
    return glow_map(torch.nn.functional.avg_pool2d(smoothed[None], math.ceil(max(smoothed.shape) / _MAP_SIDE))[0])


def _strongest(explanation: Explanation) -> dict[str, Unit]:
    """The units that contribute most: of every layer as many, up to a limit in all."""
    each = max(1, MOST_UNITS // max(1, len(explanation.path)))
    found: dict[str, Unit] = {}
    for layer in explanation.path[:MOST_UNITS]:
        order = sorted(range(len(layer.units)), key=lambda at: -abs(layer.units[at].contribution))
        found |= {f"{layer.layer}:{at}": layer.units[at] for at in order[:each]}
    return found
