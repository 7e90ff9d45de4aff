"""Whatever the Python API is given, it answers, or refuses with PathxError: nothing else comes out."""

from __future__ import annotations

import fractions
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import pathx
from pathx import Contrast, Decomposition, Explanation, PathxError

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(2))


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3)
        ).eval()  # fmt: skip


NETWORK = network()

ODD: list[Any] = [
    None, True, False, 0, 1, 2, 3, -1, 10**20, 1.0, 0.5, float("nan"), float("inf"), 1j, "", "all", "cat", "5%", "0%", "nan%",
    "1e400%", "adjacent", b"all", (), (0,), (0, 1), [1, 2], [1, 2, 3], [0.5, 1], ["a", "b"], [None, 1], {}, {0, 1}, range(2),
    slice(2), object(), int, len, torch.tensor(1), torch.tensor([0, 1]), torch.tensor([[0, 1]]), torch.tensor(1.0),
    torch.tensor(True), torch.tensor([]), torch.ones(2, 3, 6, 6), torch.zeros(0, 3, 6, 6), torch.ones(2, 3, 6, 6).int(),
    torch.ones(3, 6, 6), torch.full((2, 3, 6, 6), float("nan")), torch.ones(2, 3, 6, 6).to_sparse(),
    torch.ones(2, 3, 6, 6, device="meta"), torch.ones(1, 1, 1, 1).expand(2, 3, 6, 6), np.int64(1), np.float32(0.25),
    np.array(1), np.array([0, 1]), np.array([0.5, 1]), np.bool_(True), np.ones((2, 3, 6, 6), np.float32), NETWORK,
    nn.Sequential, nn.Identity(), nn.ReLU(), Path("x"), Path(), Path("/"), "\0", "x" * 5000, fractions.Fraction(1, 4),
    Exception("no"), iter([1]), np.array(["a", "b"]), np.array([None, 1]),
]  # fmt: skip

odd = st.sampled_from(ODD)
NO_LABELS = "is a label, and the model brings none: give the number of the class, or a model of pathx.load_model"
ARGUMENTS = ("target", "depth", "width", "alpha", "skips", "against")


def mostly(usual: Any) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(usual), odd)


def choices(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """A few odd arguments, so that the first does not hide the others."""
    return st.lists(st.sampled_from(names), max_size=2, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries(dict.fromkeys(chosen, odd))
    )


fuzzed = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def answer(call: Any, *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = ""
        try:
            return call(*arguments, **options)
        except PathxError as refused:
            said = str(refused)
    assert "\n" not in said and "--" not in said, "one line, in the words of the library"
    return None


@fuzzed
@given(mostly(NETWORK), mostly(IMAGES), choices(*ARGUMENTS))
def test_explain(model: Any, images: Any, options: dict[str, Any]) -> None:
    found = answer(pathx.explain, model, images, **{"depth": 1, **options})
    assert found is None or all(isinstance(one, Explanation) and one.path[0].units for one in found)


@fuzzed
@given(mostly(NETWORK), mostly(IMAGES), choices(*ARGUMENTS[:-1], "from_layer", "features"))
def test_decompose(model: Any, images: Any, options: dict[str, Any]) -> None:
    found = answer(pathx.decompose, model, images, **{"depth": 1, **options})
    assert found is None or all(isinstance(one, Decomposition) for one in found)


EXPLAINED = pathx.explain(NETWORK, IMAGES, depth=1) + pathx.explain(NETWORK, IMAGES[:, :, :6], target=0, depth=2)


@fuzzed
@given(st.one_of(odd, st.lists(st.sampled_from([*EXPLAINED, *ODD[:20]]), max_size=3)))
def test_contrast(explanations: Any) -> None:
    found = answer(Contrast.of, explanations)
    assert found is None or len(found.pairs) == len(explanations) - 1


@settings(max_examples=40)
@given(mostly("squeezenet1_1"), choices("weights", "input_size", "mean", "std", "labels"))
def test_load_model(name: Any, options: dict[str, Any]) -> None:
    if isinstance(name, str) and name != "squeezenet1_1" and not isinstance(options.get("weights"), str):
        options = {**options, "weights": "none"}  # no test downloads
    found = answer(pathx.load_model, name, **options)
    assert found is None or isinstance(found.module, nn.Module)


@pytest.mark.parametrize(
    "one", [1, np.int64(1), np.uint8(1), torch.tensor(1), torch.tensor(1, dtype=torch.int32), np.array(1)]
)
def test_whole_numbers_of_any_library(one: Any) -> None:
    expected = pathx.explain(NETWORK, IMAGES, target=1, depth=1, width=1)
    found = pathx.explain(NETWORK, IMAGES, target=one, depth=one, width=one)
    several = pathx.explain(NETWORK, IMAGES, target=[one, one], depth=1, width=1)
    arrays = pathx.explain(NETWORK, IMAGES, target=np.array([1, 1]), depth=1, width=1)
    tensors = pathx.explain(NETWORK, IMAGES, target=torch.tensor([1, 1]), depth=1, width=1)
    for other in (found, several, arrays, tensors):
        assert [type(entry.target) for entry in other] == [int, int]
        for mine, theirs in zip(other, expected, strict=True):
            assert mine.target == theirs.target == 1
            assert_close(mine.weight, theirs.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 1.0}, "target must be the number of a class, or one number per image, not 1.0"),
        ({"target": "cat"}, f"target cat {NO_LABELS}"),
        ({"target": [0, 0.5]}, "target must hold numbers of classes, not 0.5"),
        ({"target": "c" * 60}, f"target {'c' * 60} {NO_LABELS}"),
        ({"target": "c" * 61}, f"target a str {NO_LABELS}"),
        ({"depth": 3.0}, "depth 3.0 is out of range: the network has 2 hidden layers; use 1 to 2, maps:N, half or all"),
    ],
)
def test_what_a_wrong_argument_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PathxError) as caught:
        pathx.explain(NETWORK, IMAGES, **{"depth": 1, **options})
    assert str(caught.value) == message
