"""Plots say the numbers they are given, the same bytes each time, and take no label for mathematics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

pytest.importorskip("matplotlib")
from pathx.evaluation import plots


def text(file: Path) -> str:
    return file.with_name(f"{file.name}.svg").read_text(encoding="utf-8")


def test_curves_name_each_method_with_its_area(tmp_path: Path) -> None:
    lines = {"a $method$": (torch.tensor([0.0, 1.0]), 0.5), "ours": (torch.tensor([1.0, 0.0]), 0.25)}
    plots.plot_curves(tmp_path / "curves", {"insertion": lines, "deletion": lines}, "ours")
    drawn = text(tmp_path / "curves")
    written = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert written.count("a $method$  0.500") == 2 and drawn.index("ours  0.250") < drawn.index("a $method$")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 2 * picture.height * 0.9  # two panels beside each other


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plots.plot_overlap(tmp_path / name, "shared", ["cat", "dog"], [[1.0, 0.25], [0.25, 1.0]])
    for kind in ("png", "svg"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert text(tmp_path / "one").count("0.25") == 2


def test_what_is_not_known_leaves_a_gap(tmp_path: Path) -> None:
    lines = [("top", 0.9), ("middle", None), ("bottom", 0.1)]
    plots.plot_randomisation(tmp_path / "r", [{"module": name, "path_map": value} for name, value in lines])
    assert all(name in text(tmp_path / "r") for name in ("top", "middle", "bottom", "path map"))


def test_grids_and_places_have_a_cell_for_each(tmp_path: Path) -> None:
    plots.plot_grid(
        tmp_path / "grid", {"insertion": ({"1": [0.1, 0.2], "all": [0.3, 0.4]}, {"random": 0.2})}, ["1", "5"]
    )
    assert all(name in text(tmp_path / "grid") for name in ("depth 1", "depth all", "random"))
    plots.plot_places(tmp_path / "places", "by position", {str(number): [[0.0, 1.0]] for number in range(7)})
    assert text(tmp_path / "places").count("<image") >= 7
