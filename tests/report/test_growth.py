"""How a path grows: the grid is what explain gives, and what units saw is their gradient times the input."""

from __future__ import annotations

import pytest
import torch
from support.small import images, network

import pathx
from pathx.engine.freeze import freeze
from pathx.maps import plane
from pathx.report.growth import MOST_UNITS, grow, strongest, unit_maps

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 6, 20])
def test_the_grid_is_what_explain_gives(depth: int, width: int) -> None:
    module, batch = network(), images()
    (own,) = pathx.explain(module, batch, depth=2, width=6)
    growth = grow(freeze(module, batch), own)
    (expected,) = pathx.explain(module, batch, depth=depth, width=width)
    assert growth.models[width, depth]["score"] == pytest.approx(expected.score)
    assert growth.models[width, depth]["bias"] == pytest.approx(expected.bias)
    assert torch.allclose(growth.pixels[width, depth], plane(expected.attribution))
    document = next(one for one in growth.documents if one["width"] == width)
    found = [[unit["index"] for unit in layer["units"]] for layer in document["layers"][:depth]]
    assert found == [[list(unit.index) for unit in layer.units] for layer in expected.path]


def test_a_units_map_is_its_gradient_times_the_input() -> None:
    module, batch = network(), images()
    (made,) = pathx.explain(module, batch, depth=3, width=4)
    wanted = [(layer.layer, at) for layer in made.path for at in range(len(layer.units))]
    maps = unit_maps(freeze(module, batch), made, wanted)
    parts = list(module.children())
    before = {1: parts[:1], 2: parts[:3], 3: parts[:6]}  # what makes the pre-activations of each layer
    for layer in made.path:
        for at, unit in enumerate(layer.units):
            x = batch.clone().requires_grad_()
            hidden = torch.nn.Sequential(*before[layer.layer])(x)[0][tuple(unit.index)]
            (gradient,) = torch.autograd.grad(hidden, x)
            expected = plane(unit.weight * gradient[0] * batch[0])
            assert torch.allclose(maps[layer.layer, at], expected, rtol=1e-6, atol=1e-9)


def test_the_strongest_units_come_from_every_layer() -> None:
    (made,) = pathx.explain(network(), images(), depth=3, width="all", alpha=0.0)
    chosen = strongest(made)
    assert len(chosen) <= MOST_UNITS and {layer for layer, _ in chosen} == {1, 2, 3}
    for layer in made.path:
        own = [abs(layer.units[at].contribution) for number, at in chosen if number == layer.layer]
        others = sorted((abs(unit.contribution) for unit in layer.units), reverse=True)
        assert own == others[: len(own)]
