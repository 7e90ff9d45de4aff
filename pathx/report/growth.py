"""What the network adds to a page: paths of other depths and widths, and what the strongest units saw."""

from __future__ import annotations

from typing import Any

from pathx.drawing.grey import MAP_SIDE, encode_map, encode_pixels, shrink
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen
from pathx.engine.units import unit_maps
from pathx.explanation import Explanation, Unit
from pathx.maps import plane
from pathx.report.explanation import Growth, path_data
from pathx.results.explanation import layer_document

WIDTHS = (1, 5, 20)
"""Widths that a page offers beside the explanation's own."""

DEPTH = 6
"""Layers that a page offers at least, where the network has them."""

MOST_UNITS = 40
"""Units whose own map a page holds."""


def grow(frozen: Frozen, explanation: Explanation, image: int = 0) -> Growth:
    """The grid of paths around an explanation, and the maps of its strongest units. One forward pass serves them all.

    Args:
        frozen: the network at a batch of images, and
        image: which of them the explanation is about.
    """
    how: dict[str, Any] = {key: getattr(explanation, key) for key in ("alpha", "skips", "importance")}
    how["against"] = None if explanation.against is None else [explanation.against]
    deepest = max(explanation.depth, min(DEPTH, explanation.hidden_layers))
    paths = []
    for width in _widths(explanation.width):
        models, pixels = {}, {}
        for depth in range(1, deepest + 1):
            (made,) = explain_frozen(frozen, [(image, explanation.target)], depth=depth, width=width, **how)
            total = float(made.attribution.detach().cpu().double().sum())
            models[str(depth)] = {"score": made.score, "bias": made.bias, "attribution_sum": total}
            pixels[str(depth)] = encode_pixels(plane(made.attribution), MAP_SIDE // 4)
        layers = [layer_document(layer) for layer in made.path]
        path = path_data({"width": width, "layers": layers, "input": list(made.attribution.shape)})
        paths.append({**path, "models": models, "pixels": pixels})
    return {"paths": paths, "unit_maps": _unit_maps(frozen, explanation, image)}


def _widths(own: int | str) -> list[int | str]:
    return [*WIDTHS, own] if isinstance(own, str) else sorted({*WIDTHS, own})


def _unit_maps(frozen: Frozen, explanation: Explanation, image: int) -> dict[str, dict[str, Any]]:
    """By `layer:position`, what a unit's contribution is made of; with the constant parts below it, it sums to that."""
    units = _strongest(explanation)
    maps = unit_maps(frozen, [(image, unit.tensor, unit.index) for unit in units.values()])
    gates = {gate.name: gate for layer in frozen.network.layers for gate in layer}
    made = {}
    for (name, unit), values in zip(units.items(), maps, strict=True):
        given = frozen.slopes(gates[unit.tensor]).given  # None stands for 1, as a kept unit of a ReLU is active
        slope = 1.0 if given is None else float(given[(image, *unit.index)])
        made[name] = encode_map(shrink(plane(unit.weight * slope * values), MAP_SIDE // 2))
    return made


def _strongest(explanation: Explanation) -> dict[str, Unit]:
    """The units that contribute most: of every layer as many, up to a limit in all."""
    each = max(1, MOST_UNITS // max(1, len(explanation.path)))
    found: dict[str, Unit] = {}
    for layer in explanation.path[:MOST_UNITS]:
        order = sorted(range(len(layer.units)), key=lambda at: -abs(layer.units[at].contribution))
        found |= {f"{layer.layer}:{at}": layer.units[at] for at in order[:each]}
    return found
