from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathx.evaluation.statistics import bootstrap, compare, spearman

VALUES = st.lists(st.floats(-5, 5), min_size=1, max_size=20)


@settings(max_examples=30)
@given(VALUES)
def test_an_interval_is_reproducible_and_holds_its_mean(values: list[float]) -> None:
    found = bootstrap(values)
    assert found == bootstrap(values)
    assert found["mean"] == pytest.approx(math.fsum(values) / len(values))
    assert min(values) - 1e-9 <= found["low"] <= found["mean"] + 1e-9
    assert found["mean"] - 1e-9 <= found["high"] <= max(values) + 1e-9


def test_an_interval_is_as_wide_as_theory_says() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    found = bootstrap(values)
    expected = 1.96 * torch.tensor(values).std().item() / 20
    assert found["high"] - found["mean"] == pytest.approx(expected, rel=0.1)
    assert found["mean"] - found["low"] == pytest.approx(expected, rel=0.1)


def test_a_difference_is_paired() -> None:
    """Far smaller than what sets images apart, and still sure, as every image says the same."""
    images = [float(number) for number in range(20)]
    found = compare([value + 0.1 for value in images], images)
    assert found["low"] == pytest.approx(0.1) == found["high"]
    assert found["higher"] == 1 and found["images"] == 20
    assert compare([1.0, 2.0], [1.0, 3.0])["higher"] == 0.25  # a tie counts half


def test_rank_correlation() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 9.0])
    assert spearman(values, values.exp()) == pytest.approx(1)
    assert spearman(values, -values) == pytest.approx(-1)
    assert spearman(values, torch.ones(4)) is None
    # With ties, by the textbook: ranks (1, 2.5, 2.5, 4) against (1, 2, 3, 4).
    assert spearman(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.9486833)
