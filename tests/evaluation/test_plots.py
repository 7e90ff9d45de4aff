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
