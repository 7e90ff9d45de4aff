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
        torch.testing.assert_close(pair.difference.attribution, expected.attribution)
        assert pair.difference.score == pytest.approx(expected.score)
        assert pair.logit == pytest.approx(float(first.logits[0] - first.logits[other.target]))
        assert pair.share == pytest.approx(expected.score / pair.logit)
        assert pair.first[0] - pair.second[0] == pytest.approx(float(expected.attribution.sum()), abs=1e-9)
        assert min(pair.first[0], pair.second[0]) >= 0
        for one, another in zip(first.path, other.path, strict=True):
            common = {u.index for u in one.units} & {u.index for u in another.units}
            assert pair.shared_units[one.layer] == len(common)  # each layer here is one tensor


@settings(max_examples=10)
@given(st.integers(0, 99))
def test_turned_round_it_is_the_other_way_round(seed: int) -> None:
    first, second = explained(seed, 0, 1)
    (one,), (other,) = (Contrast.of(pair).pairs for pair in ([first, second], [second, first]))
    assert one.shared_units == other.shared_units and one.logit == -other.logit
    assert one.overlap == pytest.approx(other.overlap)


def test_all_that_is_shown_is_in_one_scale() -> None:
    made = Contrast.of(explained(0, 0, 1, 2))
    shown = [*made.explanations, *(pair.difference for pair in made.pairs)]
    own = [shared_scale([smooth(one.attribution, 0.1)], 95) for one in shown]
    assert contrast_scale(made, Drawing(smoothing=0.1, percentile=95, heat="pixels")) == pytest.approx(max(own))
    own = [shared_scale([smooth(one.path_map(), 0.1)], 95) for one in shown]
    assert contrast_scale(made, Drawing(smoothing=0.1, percentile=95)) == pytest.approx(max(own))


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
    with pytest.raises(PathxError, match="keep no model to contrast them with"):
        Contrast.of([replace(one, origin=None), one])
    small = replace(one, attribution=one.attribution[:, :5])
    with pytest.raises(PathxError, match="of different sizes"):
        Contrast.of([one, small])
