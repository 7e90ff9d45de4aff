"""Pages of measurements hold the figures of their files: rows, small pictures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.reports import data_of
from support.small import picture

from pathx.report.collect import References
from pathx.report.measures import measure_page, page_title


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluation of two images by one method, one of which is still there."""
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "a.png")
    with (tmp_path / "images.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label", "predicted", "method", "insertion", "deletion"])
        for name in ("a.png", "b.png"):
            writer.writerow([name, "cat", "", "pathx", 0.5, 0.25])
        writer.writerow(["c.png", "", "dog", "random", "", "none"])
    return tmp_path


def test_rows_have_numbers_or_nothing_and_pictures_that_are_there(folder: Path) -> None:
    data = data_of(measure_page(folder / "evaluation.json", {}, References([])))
    assert [(row["image"], row["insertion"] is None) for row in data["rows"]] == [
        ("a.png", False),
        ("b.png", False),
        ("c.png", True),
    ]
    assert list(data["thumbnails"]) == ["a.png"]
    assert page_title(folder / "grid.json") == f"Depths and widths: {folder.name}"
