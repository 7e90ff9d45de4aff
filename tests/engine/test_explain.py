"""What `explain` takes for a class, a depth and a width, and what it says of numbers that are none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.branching import fire
from support.small import images, network, seeded
from torch import nn

import pathx
from pathx import PathxError
from pathx.engine.explain import decompose_frozen
from pathx.engine.freeze import freeze


def explain_fire(**options: Any) -> pathx.Explanation:
    """Two layers, of 75 and 125 units."""
    return pathx.explain(fire(), torch.randn(1, 2, 5, 5, generator=seeded(0)).double(), **options)[0]


@pytest.mark.parametrize("logits", [1, 3])
def test_a_target_is_for_all_images_or_one_for_each(logits: int) -> None:
    model, given = network(classes=logits), images(2)
    with torch.no_grad():
        answers = model(given)
    predicted = (answers[:, 0] > 0).long() if logits == 1 else answers.argmax(1)
    found = [[one.target for one in pathx.explain(model, given, target=t, depth=1)] for t in (None, 1, (1, 0))]
    assert found == [predicted.tolist(), [1, 1], [1, 0]]
    for wrong, text in (
        ([1], "target has 1 entries for 2 images"),
        (torch.ones(2, 2), "one number per image"),
        (True, "not True"),
    ):
        with pytest.raises(PathxError, match=text):
            pathx.explain(model, given, target=wrong, depth=1)


def test_a_depth_is_a_number_of_layers() -> None:
    depths = (1, 2, "half", "all", "maps:1", "maps:9")
    assert [explain_fire(depth=depth).depth for depth in depths] == [1, 2, 1, 2, 1, 2]
    assert pathx.explain(network(), images(), depth="half")[0].depth == 2  # of three: the larger half
    for wrong in (0, 3, "maps:0", "maps:", "maps:-1", "maps:1.5", "some", 1.0, None):
        with pytest.raises(PathxError, match="use 1 to 2, maps:N, half or all"):
            explain_fire(depth=wrong)


def test_a_width_is_a_number_a_share_or_all() -> None:
    widths = {7: 7, "5%": 7, "0.1%": 1, 500: None, "all": None, "100%": None}
    kept = {width: len(explain_fire(width=width, alpha=0.0).path[0].units) for width in widths}
    whole = kept["all"]
    assert 7 < whole <= 125 and kept == {width: count or whole for width, count in widths.items()}
    for wrong in (0, "0%", "101%", "x%", "some", 1.5):
        with pytest.raises(PathxError, match="use a number from 1, a share such as 5%, or all"):
            explain_fire(width=wrong)


def test_a_class_that_is_not_there_or_against_itself() -> None:
    model, given = network(), images(1)
    for wrong, text in (
        ({"target": 4}, "target 4 is out of range: the model has classes 0 to 3"),
        ({"target": -1}, "target -1 is out of range: the model has classes 0 to 3"),
        ({"target": [-1]}, "target -1 is out of range: the model has classes 0 to 3"),
        ({"target": 1, "against": 9}, "against 9 is out of range"),
        ({"target": 1, "against": [-1]}, "against -1 is out of range"),
        ({"target": 1, "against": 1}, "class 1 cannot be explained against itself"),
    ):
        with pytest.raises(PathxError, match=text):
            pathx.explain(model, given, **wrong)


def test_layers_of_the_path_can_be_taken_apart() -> None:
    frozen = freeze(fire(), torch.randn(2, 2, 5, 5, generator=seeded(0), dtype=torch.float64))
    for layer, depth in ((2, 1), (2, 2), (1, 2), (None, 2), (torch.tensor(1), 2)):
        parts = decompose_frozen(frozen, [(0, 1)], from_layer=layer, depth=depth, width=3)[0]  # type: ignore[arg-type]
        apart = 2 if layer is None else int(layer)
        assert parts and all(len(part.path[2 - apart].units) == 1 and len(part.path) == depth for part in parts)
    for layer, depth in ((1, 1), (3, 1), (0, 2), (3, 2), (1.0, 2), ("1", 2)):
        with pytest.raises(PathxError, match=f"is not on the path, which has layers {3 - depth} to 2"):
            decompose_frozen(frozen, [(0, 1)], from_layer=layer, depth=depth)  # type: ignore[arg-type]


def test_weights_too_large_for_their_type_are_refused_though_the_answer_is_finite() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model[0].weight.fill_(1e200)
        model[2].weight[1].fill_(1e200)
    tiny = torch.full((1, 1), 1e-300, dtype=torch.float64)
    assert model(tiny).isfinite().all()
    with pytest.raises(PathxError, match="the explanation holds NaN or infinite numbers"):
        pathx.explain(model, tiny, target=1, depth=1)


def test_numbers_that_are_none_are_refused_and_never_explained() -> None:
    given = torch.rand(2, 2, 5, 5, dtype=torch.float64)
    broken = fire()
    with torch.no_grad():
        broken.head.bias.fill_(math.nan)
    with pytest.raises(PathxError, match="output for image 0 is NaN or infinite"):
        pathx.explain(broken, given, depth=1)
    one_image = given.clone()
    one_image[1] = math.inf
    with pytest.raises(PathxError, match="output for image 1 is NaN or infinite"):
        pathx.explain(fire(), one_image, depth=1)
