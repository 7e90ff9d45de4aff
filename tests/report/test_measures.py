"""Pages of measurements hold the figures of their files: means of curves, bands, small pictures."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from support.reports import data_of
from support.small import picture

from pathx.report.measures import measure_page, measure_title
from pathx.report.references import References

CURVES = {"a.png": ([0.0, 0.5, 1.0], [1.0, 0.25, 0.0]), "b.png": ([0.2, 0.4, 0.6], [0.5, 0.5, 0.5])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluation of two images by one method, one of which is still there, and a record that was cut short."""
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "a.png")
    with (tmp_path / "pictures.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["picture", "label", "predicted", "method", "insertion", "deletion"])
        for name, both in CURVES.items():
            areas = [(sum(curve) - (curve[0] + curve[-1]) / 2) / 2 for curve in both]
            writer.writerow([name, "cat", "", "pathx", *areas])
        writer.writerow(["c.png", "", "dog", "random", "", "none"])
    records = [{"picture": name, "insertion": i, "deletion": d} for name, (i, d) in CURVES.items()]
    lines = [*map(json.dumps, records), '{"picture": "a.png", "inser']
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_curves_are_means_of_the_images_with_a_band(folder: Path) -> None:
    data = data_of(measure_page(folder / "evaluation.json", {"methods": {}}, References([])))
    curve = data["curves"]["pathx"]["insertion"]
    for step, values in enumerate(zip(*(both[0] for both in CURVES.values()), strict=True)):
        mean = sum(values) / 2
        error = 1.96 * math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
        assert curve["mean"][step] == pytest.approx(mean)
        assert curve["low"][step] == pytest.approx(max(0, mean - error))
        assert curve["high"][step] == pytest.approx(min(1, mean + error))
    assert set(data["curves"]) == {"pathx"}


def test_rows_have_numbers_or_nothing_and_pictures_that_are_there(folder: Path) -> None:
    data = data_of(measure_page(folder / "evaluation.json", {}, References([])))
    assert [(row["picture"], row["insertion"] is None) for row in data["rows"]] == [
        ("a.png", False),
        ("b.png", False),
        ("c.png", True),
    ]
    assert list(data["thumbnails"]) == ["a.png"]
    assert measure_title({}, folder / "grid.json") == f"Depths and widths: {folder.name}"


def test_without_the_files_beside_it_there_is_the_document_alone(tmp_path: Path) -> None:
    data = data_of(measure_page(tmp_path / "common.json", {"classes": [], "x": 1}, References([])))
    assert (data["rows"], data["curves"], data["document"]["x"]) == ([], {}, 1)
