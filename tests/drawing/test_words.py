"""What pictures and the screen say in words is plain and true."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pathx
from pathx.drawing.words import count_of, percent, removal_line, units_line
from pathx.explanation import Effect, Removal


def test_numbers_are_written_as_people_read_them() -> None:
    assert (count_of(1, "unit"), count_of(8361, "unit")) == ("1 unit", "8,361 units")
    assert (percent(None), percent(0.3927)) == ("-", "39.3%")


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


@pytest.mark.parametrize(
    ("effect", "counts", "said"),
    [
        (
            (0.393, 0.041, 0.387),
            (192, 18540, 8, 192),
            "Without these 192 of 18,540 active units, cat falls from 39.3% to 4.1% (as many others at random: 38.7%).",
        ),
        (
            (0.393, 0.379, 0.387),
            (192, 18540, 8, 192),
            "Without these 192 of 18,540 active units, cat stays at 37.9% (with them 39.3%; as many others at random: 38.7%): "
            "the class has other support.",
        ),
        (
            (0.39, 0.74, 0.38),
            (1, 30, 8, 1),
            "Without this one of 30 active units, cat rises from 39.0% to 74.0% (as many others at random: 38.0%): "
            "it supports other classes more.",
        ),
        (
            (0.00001, 0.00002, 0.00001),
            (192, 18540, 8, 192),
            "Without these 192 of 18,540 active units, cat stays below 0.1%, as with them (as many others at random: 0.0%).",
        ),
        (
            (0.9, 0.2, 0.5),
            (20, 30, 8, 10),
            "Without these 20 of 30 active units, cat falls from 90.0% to 20.0% (10 others at random: 50.0%).",
        ),
        (
            (0.9, 0.2, None),
            (30, 30, 0, 0),
            "Without these 30 of 30 active units, cat falls from 90.0% to 20.0% (no other active units to compare with).",
        ),
    ],
)
def test_what_removal_does_is_said_as_plainly_where_it_does_nothing(
    effect: tuple[float, float, float | None], counts: tuple[int, int, int, int], said: str
) -> None:
    assert removal_line(Removal(*effect, *counts), "cat") == said


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((0.5, 0.3), (0.1, 0.6), "dog is now ahead of cat, 60.0% to 10.0% (with them cat 50.0% to 30.0%; "),
        ((0.5, 0.3), (0.4, 0.35), "cat is still ahead of dog, 40.0% to 35.0% (with them cat 50.0% to 30.0%; "),
        ((0.2, 0.3), (0.1, 0.4), "dog is still ahead of cat, 40.0% to 10.0% (with them cat 20.0% to 30.0%; "),
    ],
)
def test_of_two_classes_the_one_ahead_is_named(
    before: tuple[float, float], after: tuple[float, float], said: str
) -> None:
    against = Effect(before[1], after[1], 0.25)
    removal = Removal(before[0], after[0], 0.45, 5, 9, 8, 5, against)
    whole = f"Without these 5 of 9 active units, {said}as many others at random: 45.0% to 25.0%)."
    assert removal_line(removal, "cat", "dog") == whole
