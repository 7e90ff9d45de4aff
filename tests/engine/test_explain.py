"""What `explain` takes for a class, a depth and a width, and what it says of numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from support.branching import fire, frozen_fire
from support.cases import kept_units
from support.small import images, network
from torch import nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.explain import decompose_frozen, explain_frozen, open_model
from pathx.engine.freeze import freeze
from pathx.engine.settings import (
    check_depth,
    check_settings,
    check_width,
    class_logits,
    in_one_line,
    layer_width,
    predictions,
    targets_of,
)


def test_one_logit_is_two_classes() -> None:
    logits = torch.tensor([[-2.0], [3.0]])
    assert class_logits(logits).tolist() == [[0.0, -2.0], [0.0, 3.0]]
    assert predictions(logits) == [0, 1]
    assert predictions(torch.tensor([[1.0, 5.0, 2.0]])) == [1]


def test_a_target_is_for_all_images_or_one_for_each() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert targets_of(logits, None) == [0, 2]
    assert targets_of(logits, 1) == targets_of(logits, torch.tensor(1)) == [1, 1]
    assert targets_of(logits, (2, 1)) == targets_of(logits, torch.tensor([2, 1])) == [2, 1]
    for wrong, text in (
        ([1], "target has 1 entries for 2 images"),
        ("1", "not 1"),
        ([1, 0.5], "not 0.5"),
        (torch.ones(2, 2), "one number per image"),
        (True, "not True"),
    ):
        with pytest.raises(PathxError, match=text):
            targets_of(logits, wrong)  # type: ignore[arg-type]


def test_a_depth_is_a_number_of_layers() -> None:
    known = frozen_fire()[1].network
    assert [check_depth(depth, known) for depth in (1, 2, "half", "all", "maps:1", "maps:9")] == [1, 2, 1, 2, 1, 2]
    for wrong in (0, 3, "maps:0", "some", 1.0):
        with pytest.raises(PathxError, match="use 1 to 2, half or all"):
            check_depth(wrong, known)  # type: ignore[arg-type]


def test_a_width_is_a_number_a_share_or_all() -> None:
    known = frozen_fire()[1].network  # layers of 75 and 125 units
    assert [check_width(width) for width in (7, "5%", "all")] == [7, 0.05, None]
    assert [layer_width(width, known, 2) for width in (7, 500, "5%", "0.1%", "all")] == [7, 125, 7, 1, 125]
    assert layer_width("100%", known, 1) == 75
    for wrong in (0, "0%", "101%", "x%", "some", 1.5):
        with pytest.raises(PathxError, match="use a number from 1, a share such as 5%, or all"):
            check_width(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alpha", "skips"),
    [
        (1.0, "all"),
        (-0.1, "all"),
        (math.nan, "all"),
        ("0.1", "all"),
        (None, "none"),
        (True, "all"),
        (False, "all"),
        (None, None),
    ],
)
def test_settings_that_no_network_could_honour(alpha: float | None, skips: str) -> None:
    with pytest.raises(PathxError, match=r"out of range|'adjacent' or 'all'"):
        check_settings(alpha, skips)


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


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 60, "x" * 60),
        ("x" * 61, "a str"),
        ("", "''"),
        (1.5, "1.5"),
        ([1], "[1]"),
        (Unspeakable(), "''"),
        ("a\nb", r"'a\nb'"),
        (list(range(50)), "a list"),
    ],
)
def test_what_somebody_gave_in_few_words(value: object, text: str) -> None:
    assert in_one_line(value) == text


def test_the_last_class_and_the_first_are_there() -> None:
    for target, against in ((0, None), (3, None), (0, 3), (3, 0)):
        (found,) = pathx.explain(network(), images(1), target=target, against=against, depth=1)
        assert (found.target, found.against) == (target, against)


def test_layers_of_the_path_can_be_taken_apart() -> None:
    _, frozen = frozen_fire()
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


@pytest.mark.parametrize(
    ("alpha", "skips"), [(0, "all"), (0.5, "adjacent"), (0.999, "all"), (None, "adjacent"), (Fraction(1, 3), "all")]
)
def test_settings_that_can_be_honoured(alpha: float | None, skips: str) -> None:
    (found,) = pathx.explain(network(), images(1), alpha=alpha, skips=skips, depth=1)
    assert (found.alpha, found.skips) == (0.25 if alpha is None else float(alpha), skips)


def test_half_of_the_layers_is_the_larger_half() -> None:
    assert check_depth("half", freeze(network(), images(1)).network) == 2  # of three


def test_pairs_may_be_asked_for_in_any_order() -> None:
    _, frozen = frozen_fire()
    wanted = [(1, 2), (0, None), (1, 0)]
    together = explain_frozen(frozen, wanted, depth=2, width=3)
    for pair, found in zip(wanted, together, strict=True):
        (alone,) = explain_frozen(frozen, [pair], depth=2, width=3)
        assert (found.target, found.score) == (alone.target, pytest.approx(alone.score))
        assert_close(found.attribution, alone.attribution)
        assert [kept_units(layer).keys() for layer in found.path] == [kept_units(layer).keys() for layer in alone.path]
    assert together[1].target == int(frozen.logits[0].argmax())


def spoiled(spoil: Callable[[nn.Module], None]) -> nn.Module:
    model = fire()
    with torch.no_grad():
        spoil(model)
    return model


def test_numbers_that_are_none_are_refused_and_never_explained() -> None:
    given = torch.rand(2, 2, 5, 5, dtype=torch.float64)
    broken = spoiled(lambda model: model.head.bias.fill_(math.nan))  # type: ignore[union-attr, operator]
    with pytest.raises(PathxError, match="output for image 0 is NaN or infinite"):
        pathx.explain(broken, given, depth=1)
    one_image = given.clone()
    one_image[1] = math.inf
    with pytest.raises(PathxError, match="output for image 1 is NaN or infinite"):
        pathx.explain(fire(), one_image, depth=1)


def test_what_comes_with_labels_is_opened() -> None:
    class Loaded:
        module, labels = nn.ReLU(), ["cat", "dog"]

    assert open_model(Loaded()) == (Loaded.module, ("cat", "dog"))
    assert open_model(Loaded.module) == (Loaded.module, ())
    with pytest.raises(PathxError, match="not a dict"):
        open_model({})  # type: ignore[arg-type]
