"""The difference of two linear models: exact, antisymmetric, and drawn in one scale."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import images, network

import pathx
from pathx import Contrast, Drawing, Explanation, PathxError
from pathx.drawing.figure import contrast_scale
from pathx.drawing.render import shared_scale
from pathx.maps import smooth


def explained(seed: int, *targets: int, depth: int = 2) -> list[Explanation]:
    several = images(seed=seed).expand(len(targets), -1, -1, -1)
    return pathx.explain(network(seed), several, target=targets, depth=depth)


@settings(max_examples=20)
@given(st.integers(0, 99), st.integers(1, 3))
def test_a_pair_is_the_first_class_against_the_other(seed: int, depth: int) -> None:
    first, second, third = explained(seed, 0, 1, 2, depth=depth)
    made = Contrast.of([first, second, third])
    for other, pair in zip((second, third), made.pairs, strict=True):
        (expected,) = pathx.explain(network(seed), images(seed=seed), target=0, against=other.target, depth=depth)
        torch.testing.assert_close(pair.attribution, expected.attribution)
        assert pair.score == pytest.approx(expected.score) and pair.bias == pytest.approx(expected.bias)
        assert pair.logit == pytest.approx(float(first.logits[0] - first.logits[other.target]))
        assert pair.share == pytest.approx(pair.score / pair.logit)


@settings(max_examples=20)
@given(st.integers(0, 99), st.integers(1, 3))
def test_without_the_model_a_pair_is_the_difference_of_two_linear_models(seed: int, depth: int) -> None:
    first, second, third = explained(seed, 0, 1, 2, depth=depth)
    made = Contrast.of([replace(one, origin=None) for one in (first, second, third)])
    for other, pair in zip((second, third), made.pairs, strict=True):
        torch.testing.assert_close(pair.attribution, first.attribution - other.attribution)
        total = float(pair.attribution.sum())
        assert total + pair.bias == pytest.approx(pair.score, abs=1e-9)
        assert pair.score == pytest.approx(first.score - other.score)
        assert pair.first[0] - pair.second[0] == pytest.approx(total, abs=1e-9)
        assert min(pair.first[0], pair.second[0]) >= 0
        for one, another in zip(first.path, other.path, strict=True):
            common = {u.index for u in one.units} & {u.index for u in another.units}
            assert pair.shared_units[one.layer] == len(common)  # each layer here is one tensor


@settings(max_examples=10)
@given(st.integers(0, 99))
def test_turned_round_it_is_the_other_way_round(seed: int) -> None:
    first, second = explained(seed, 0, 1)
    (one,), (other,) = (Contrast.of(pair, differences=()).pairs for pair in ([first, second], [second, first]))
    assert (one.first, one.second) == (other.second, other.first)
    assert (one.score, one.bias) == (-other.score, -other.bias)
    assert one.overlap == pytest.approx(other.overlap)


def test_all_that_is_shown_is_in_one_scale() -> None:
    made = Contrast.of(explained(0, 0, 1, 2))
    shown = [*made.explanations, *made.pairs]
    own = [shared_scale([smooth(one.attribution, 0.1)], 95) for one in shown]
    assert contrast_scale(made, Drawing(smoothing=0.1, percentile=95, heat="pixels")) == pytest.approx(max(own))
    between = [pair.difference for pair in made.pairs if pair.difference is not None]
    own = [shared_scale([smooth(one.path_map(), 0.1)], 95) for one in (*made.explanations, *between)]
    assert contrast_scale(made, Drawing(smoothing=0.1, percentile=95)) == pytest.approx(max(own))


def test_a_class_against_itself_is_nothing() -> None:
    made = Contrast.of(explained(0, 1, 1))
    (pair,) = made.pairs
    assert (pair.first, pair.second) == ((0.0, None), (0.0, None))
    assert pair.overlap == pytest.approx(1)
    assert made.figure().width > 400


def test_a_picture_that_says_nothing_can_be_drawn() -> None:
    black = torch.zeros(2, 3, 10, 10, dtype=torch.float64)
    made = Contrast.of(pathx.explain(network(), black, target=[0, 1]))
    assert made.pairs[0].overlap == 0 and math.isfinite(contrast_scale(made, Drawing()))
    data = made._repr_png_()
    assert data is not None and data.startswith(b"\x89PNG")


def test_wrong_calls() -> None:
    (one,) = explained(0, 0)
    with pytest.raises(PathxError, match="for two classes or more"):
        Contrast.of([one])
    small = replace(one, attribution=one.attribution[:, :5])
    with pytest.raises(PathxError, match="of different sizes"):
        Contrast.of([one, small])
