"""The linear model of a path is what autograd says of its deepest units, however the cotangents are held."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.branching import branches, frozen_fire
from support.windows import corners, windows
from torch.testing import assert_close

from pathx.engine.linear import _sum_maps, linear_model, pull_to_input
from pathx.engine.path import PathSettings, find_paths
from pathx.engine.window import Window

pytestmark = pytest.mark.usefixtures("one_thread")


@given(st.integers(0, 40), st.integers(1, 30), st.booleans(), st.sampled_from([1, 2]))
def test_weight_bias_and_score_are_those_of_the_deepest_units(seed: int, width: int, compact: bool, depth: int) -> None:
    """Few units stay boxes, many become whole maps; with `compact` a box around them all."""
    model, frozen = frozen_fire(seed=seed)
    frozen.compact = compact
    asked = branches([1, 3, 0], images=[1, 0, 1])
    paths = find_paths(frozen, asked, PathSettings(depth, {1: width, 2: width}, 0.0, "adjacent"))
    found, deepest = linear_model(frozen, paths), paths.layers[-1]
    for branch, image in enumerate(asked.image.tolist()):
        x = frozen.images[image : image + 1].clone().requires_grad_()
        h = model.first(x) if depth == 2 else model.second(torch.relu(model.first(x)))
        active = torch.relu(h).flatten()[deepest.units[branch]]
        score = (active * deepest.weight[branch]).sum()
        (gradient,) = torch.autograd.grad(score, x)
        assert_close(found.weight[branch], gradient[0])
        assert_close(found.score[branch], score.detach())
        assert_close(found.bias[branch], (score - (gradient * x).sum()).detach())


def test_what_never_reaches_the_input_weighs_nothing() -> None:
    _, frozen = frozen_fire()
    asked = branches([0, 1])
    weight, bias = pull_to_input(frozen, asked, [])
    assert weight.shape == frozen.images.shape and not weight.any() and not bias.any()


def test_cotangents_of_one_value_add_up_whatever_their_boxes() -> None:
    _, frozen = frozen_fire()
    asked, gate = branches([0, 1]), frozen.network.layers[1][1]
    row = torch.arange(2)
    boxes = [
        Window.one_hot(torch.tensor([1.0, 2.0]).double(), torch.tensor([place, 30]), gate.shape, row, row)
        for place in (0, 24, 74)
    ]
    weight, bias = pull_to_input(frozen, asked, [(gate.source, box) for box in boxes])
    parts = [pull_to_input(frozen, asked, [(gate.source, box.dense())]) for box in boxes]
    assert_close(weight, sum(part for part, _ in parts))
    assert_close(bias, sum(part for _, part in parts))


SHAPE = (3, 5, 4)
SOME = [name for name in windows(SHAPE) if name != "whole maps"]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    "other", ["an element each", "a box each", "sticking out", "whole maps", "a box for all, in a corner"]
)
def test_a_sum_of_windows_is_the_sum_of_their_maps(name: str, other: str) -> None:
    rows = torch.tensor([1, 0, 1, 0])
    several = [replace(windows(SHAPE)[one], row=rows, ordered=False) for one in (name, other, name)]
    asked = branches([0, 1])
    expected = torch.zeros(2, *SHAPE, dtype=torch.float64)
    for window in several:
        expected.index_add_(0, window.row, window.dense().data)
    whole = _sum_maps(several, asked)
    assert whole.is_full and torch.equal(whole.row, torch.arange(2)) and torch.equal(whole.image, asked.image)
    assert_close(whole.data, expected)


def test_whole_maps_of_all_rows_are_added_as_they_are() -> None:
    asked, row = branches([0, 1]), torch.arange(2)
    one, two = (Window.full(torch.randn(2, *SHAPE), row, row) for _ in range(2))
    assert_close(_sum_maps([one, two, one], asked).data, 2 * one.data + two.data)
    box = Window.one_hot(torch.ones(2), torch.tensor([0, 7]), SHAPE, row, row)
    before = one.data.clone()
    assert_close(_sum_maps([one, box], asked).data, one.data + box.dense().data)
    assert torch.equal(one.data, before)  # somebody else may hold it


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["a box for all, in a corner", "a box each", "sticking out", "an element each"])
def test_boxes_in_the_order_of_the_branches_are_laid_where_they_are(name: str, memory: torch.memory_format) -> None:
    """Alone, twice, beside single elements, and on whole maps that may lie in memory in another order."""
    asked, row = branches([0, 1, 1, 0]), torch.arange(4)
    box = windows(SHAPE)[name]
    maps = torch.randn(4, *SHAPE, dtype=torch.float64).contiguous(memory_format=memory)
    whole, one = Window.full(maps, row, box.image), windows(SHAPE)["an element each"]
    for several in ([box], [box, box], [box, one], [one, box], [whole, box], [whole, one, box]):
        assert_close(_sum_maps(several, asked).data, sum(window.dense().data for window in several))


def test_boxes_that_all_lie_beside_the_map_add_nothing() -> None:
    row = torch.arange(2)
    for start in (-2, 5):
        beside = Window(torch.ones(2, 3, 2, 4), (0, corners([start, start]), 0), SHAPE, row, row, clean=False)
        assert not _sum_maps([beside], branches([0, 1])).data.any()
