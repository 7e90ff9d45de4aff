"""The check of a device: same units and numbers pass, ties are told from differences, differences fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

import pathx
from pathx.evaluation import device_check
from pathx.evaluation.device_check import DeviceComparison, _in_common, compare_device
from pathx.explanation import Explanation
from pathx.pipeline import SeenImage, prepare

SETTINGS = {"depth": 2, "width": 3, "alpha": None, "skips": "adjacent"}


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    (made,) = pathx.explain(model.double(), torch.randn(1, 6).double(), depth=2, width=3)
    assert len(made.path[0].units) == 3
    return made


def swapped(explanation: Explanation, importance: float) -> Explanation:
    """With another unit in place of the last of the top layer, of the given importance."""
    top, *rest = explanation.path
    *first, last = top.units
    other = replace(last, index=(99,), importance=importance)
    return replace(explanation, path=(replace(top, units=(*first, other)), *rest))


def test_the_same_units_are_counted_layer_by_layer(explanation: Explanation) -> None:
    assert _in_common(explanation, explanation) == (2, False)
    least = explanation.path[0].units[-1].importance
    assert _in_common(swapped(explanation, least), explanation) == (0, True)
    assert _in_common(swapped(explanation, least * 1.5), explanation) == (0, False)


@pytest.mark.parametrize(
    ("same", "tie", "difference", "passed", "words"),
    [
        (2, False, 1e-6, True, "same units in all 2 layers"),
        (2, False, 0.1, False, "more than rounding"),
        (1, True, None, True, "equal importance in layer 2 of 2"),
        (1, False, None, False, "keeps other units"),
    ],
)
def test_verdicts(same: int, tie: bool, difference: float | None, passed: bool, words: str) -> None:
    found = DeviceComparison(2, same, tie, difference, 1e-3, 0.1, 0.2, "cuda in float32")
    assert found.passed is passed
    assert words in found.verdict and "0.1 s against 0.2 s" in found.verdict


def test_the_cpu_in_float32_is_close_to_itself_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "RUNS", 1)
    model = pathx.load_model()
    ready = prepare(model, device="cpu")
    with Image.open("examples/cat.png") as picture:
        image = model.preprocessing(picture.convert("RGB"))
    found = compare_device(ready, SeenImage(None, None, image, 282), SETTINGS)  # type: ignore[arg-type]
    assert found.passed and found.same == found.layers == 2
    assert found.difference is not None and 0 < found.difference < 1e-4
