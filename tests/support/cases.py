"""Random cases for property tests, and how explanations are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from support import reference
from support.drawn_networks import SEEDS, networks
from support.networks import Network
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import Explanation

CLOSE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}


@dataclass(frozen=True)
class Case:
    """A network, a few images (`network.images(…, seed)`), and how to explain them."""

    network: Network
    seed: int
    images: Tensor = field(repr=False)
    options: dict[str, Any]

    def explain(self, model: nn.Module | None = None) -> list[Explanation]:
        return pathx.explain(self.network.module() if model is None else model, self.images, **self.options)

    def of_image(self, number: int) -> dict[str, Any]:
        """The options for one image."""
        own = {name: self.options[name] for name in ("target", "against") if isinstance(self.options[name], list)}
        return {**self.options, **{name: several[number] for name, several in own.items()}}

    def reference(self) -> list[reference.Reference]:
        """The reference for each image; cases with a decision within rounding (structural ties) are passed over."""
        results = [reference.explain(self.network, one, **self.of_image(n)) for n, one in enumerate(self.images)]
        assume(all(result.gap > 1e-9 for result in results))
        return results


@st.composite
def cases(draw: st.DrawFn, drawn: st.SearchStrategy[Network] | None = None, images: int = 2) -> Case:
    """One in four explains a class against another."""
    network = draw(networks() if drawn is None else drawn)
    layers = len(reference.hidden_layers(network))
    one_target = st.integers(0, network.classes - 1)
    target = draw(st.none() | one_target | st.lists(one_target, min_size=images, max_size=images))
    against = None
    if draw(st.sampled_from([False, False, False, True])):
        pairs = [draw(st.permutations(range(network.classes)))[:2] for _ in range(images)]
        target, against = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    options = {
        "target": target,
        "against": against,
        "depth": draw(st.integers(1, layers) | st.just("all")),
        "width": draw(st.integers(1, 6) | st.just("all")),
        "alpha": draw(st.none() | st.just(0.0) | st.floats(0.05, 0.9)),
        "skips": draw(st.sampled_from(["adjacent", "all"])),
        "importance": draw(st.sampled_from(["paper", "effect"])),
    }
    seed = draw(SEEDS)
    return Case(network, seed, network.images(images, seed), options)


# --- Comparing --------------------------------------------------------------------------------------------------------

Kept = dict[tuple[int, tuple[int, ...]], tuple[float, float, float, float]]


def kept_units(layer: pathx.PathLayer) -> Kept:
    """(tensor's place in the layer, index): activation, weight, contribution, importance; whatever the names are."""
    names = [tensor.name for tensor in layer.tensors]
    assert len(set(names)) == len(names)
    return {
        (names.index(unit.tensor), unit.index): (unit.activation, unit.weight, unit.contribution, unit.importance)
        for unit in layer.units
    }


def assert_same_units(found: Kept, expected: Kept, **tolerance: Any) -> None:
    assert set(found) == set(expected)
    for unit, numbers in expected.items():
        assert_close(found[unit], numbers, **tolerance)


def assert_same(found: Explanation, expected: Explanation, **tolerance: Any) -> None:
    """Two explanations with the same path and, up to rounding, the same numbers; tensors may have other names."""
    tolerance = tolerance or CLOSE
    assert (found.target, found.against) == (expected.target, expected.against)
    assert found.hidden_layers == expected.hidden_layers
    assert len(found.path) == len(expected.path)
    for mine, theirs in zip(found.path, expected.path, strict=True):
        assert (mine.layer, mine.below_alpha) == (theirs.layer, theirs.below_alpha)
        assert [tensor.shape for tensor in mine.tensors] == [tensor.shape for tensor in theirs.tensors]
        assert_same_units(kept_units(mine), kept_units(theirs), **tolerance)
    for number in ("weight", "attribution", "bias", "score", "logits"):
        assert_close(getattr(found, number), getattr(expected, number), **tolerance)


def assert_equals_reference(found: Explanation, expected: reference.Reference) -> None:
    nodes = expected.frozen.network.nodes
    assert found.target == expected.target
    assert [layer.layer for layer in found.path] == [layer.layer for layer in expected.path]
    for mine, theirs in zip(found.path, expected.path, strict=True):
        assert [tuple(tensor.shape) for tensor in mine.tensors] == [nodes[node].shape for node in theirs.nodes]
        assert mine.below_alpha == theirs.below_alpha
        kept: Kept = {
            (unit.relu, unit.index): (unit.activation, unit.weight, unit.contribution, unit.importance)
            for unit in theirs.units
        }
        assert_same_units(kept_units(mine), kept, **CLOSE)
        importances = [unit.importance for unit in mine.units]
        assert importances == sorted(importances, reverse=True)
    for number in ("weight", "attribution", "bias", "score"):
        assert_close(getattr(found, number), getattr(expected, number), **CLOSE)
