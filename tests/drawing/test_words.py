"""What pictures and the screen say in words is plain and true."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pathx
from pathx.drawing.words import carried, counted, percent, ranges, units_line


def test_numbers_are_written_as_ranges() -> None:
    assert ranges([3, 1, 2, 6]) == "1-3, 6"
    assert ranges([4]) == "4"
    assert ranges([]) == ""


def test_numbers_are_written_as_people_read_them() -> None:
    assert (counted(1, "unit"), counted(8361, "unit")) == ("1 unit", "8,361 units")
    assert (percent(None), percent(0.3927)) == ("-", "39.3%")


@pytest.mark.parametrize(
    ("score", "logit", "said"),
    [
        (0.1742, 28.1, "carry 0.6% of the logit (0.174 of 28.1)"),
        (28.1, 28.1, "carry 100.0% of the logit (28.1 of 28.1)"),
        (33.66, 28.1, "carry 120% of the logit (33.7 of 28.1); the rest of the network counts against the class"),
        (-1.5, 28.1, "count against the class: -1.5, where the logit is 28.1"),
        (0.5, -2.0, "send +0.5 to the class, whose logit is -2"),
        (0.5, 0.0, "send +0.5 to the class, whose logit is 0"),
    ],
)
def test_what_a_path_carries_is_said_as_a_share_where_that_means_something(
    score: float, logit: float, said: str
) -> None:
    assert carried(score, logit) == said


def test_where_the_units_are_is_said_by_counted_layers() -> None:
    torch.manual_seed(0)  # with which units are active
    deep = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.ReLU())], nn.Linear(4, 2)).eval()
    flat, image = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.ones(1, 4)

    def said(model: nn.Module, depth: int) -> str:
        (found,) = pathx.explain(model, image, depth=depth, width=1)
        return units_line(found)

    assert said(flat, 1) == "1 unit in the only layer"
    assert [said(deep, depth).partition(" in ")[2] for depth in (1, 2, 3)] == [
        "the layer nearest the output",
        "the 2 layers nearest the output",
        "all 3 layers",
    ]
