"""Channels that go with errors: the test against enumeration, the correction, and what is not to be found."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathx.evaluation.common import ImagePath, fisher, split_by_class, suspects

COUNTS = st.integers(0, 4)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_fisher_by_enumeration(a: int, b: int, c: int, d: int) -> None:
    """Of all ways to deal out which images have the channel, the share with at least as many among the wrong ones."""
    wrong, total, having = a + b, a + b + c + d, a + c
    ways = [sum(place < wrong for place in chosen) for chosen in itertools.combinations(range(total), having)]
    assert fisher(a, b, c, d) == pytest.approx(sum(count >= a for count in ways) / len(ways))


def path(image: str, predicted: str, folder: str, channels: set[int]) -> ImagePath:
    units = frozenset(("relu", (channel, 0, 0)) for channel in channels)
    return ImagePath(image, {"prediction": predicted, "folder": folder}, {}, {3: units})


def paths(wrong_rate: float, right_rate: float, seed: int = 0, count: int = 60) -> list[ImagePath]:
    """One class with a channel that is on wrong and right paths at two rates, and many that are there at random."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        right = number % 2 == 0
        channels = {channel for channel in range(1, 40) if draw.random() < 0.4}
        if draw.random() < (right_rate if right else wrong_rate):
            channels.add(0)
        made.append(path(f"{number}.png", "cat", "cat" if right else "dog", channels))
    return made


def test_a_planted_channel_comes_first_and_no_other_is_found() -> None:
    (found,) = suspects(paths(0.9, 0.1))
    assert (found["layer"], found["tensor"], found["channel"], found["predicted"]) == (3, "relu", 0, "cat")
    assert found["interval"][0] > 1
    assert found["wrong"][0] > found["right"][0] and (found["wrong"][1], found["right"][1]) == (30, 30)
    assert found["chance"] <= found["corrected"] <= 0.05
    assert len(found["images"]) == found["wrong"][0]
    assert all(int(name.split(".")[0]) % 2 for name in found["images"])


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_found_where_there_is_nothing(seed: int) -> None:
    assert suspects(paths(0.4, 0.4, seed)) == []


def test_a_channel_of_right_predictions_is_no_suspect() -> None:
    assert suspects(paths(0.1, 0.9)) == []


def test_classes_are_compared_with_themselves_only() -> None:
    """A channel that belongs to one class, which errs more often, is not the reason why it errs."""
    cats = [path(f"c{n}", "cat", "cat" if n < 5 else "dog", {7}) for n in range(40)]
    dogs = [path(f"d{n}", "dog", "dog" if n < 38 else "cat", set()) for n in range(40)]
    assert suspects([*cats, *dogs]) == []
    assert set(split_by_class([*cats, *dogs])) == {"cat", "dog"} and not split_by_class(dogs[:38])
