"""Reports of finished results: which pages and rows there are, and whose files they replace."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from support.command_line import Pathx, files, network, picture, scripted
from support.reports import data_of, results

from pathx.report.build import report
from pathx.report.collect import References
from pathx.report.measures import measure_page, page_title
from pathx.report.page import page
from pathx.results.files import NoRoomError, Replacement


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results(tmp_path, ["a.png", "b.png"])
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    put = Replacement.put
    for last in range(5):  # two pages, two small pictures, the index
        count = iter(range(100))

        def full(self: Replacement, name: str, data: bytes, count: Any = count, last: int = last) -> None:
            if next(count) == last:
                raise OSError(28, "No space left on device")
            put(self, name, data)

        monkeypatch.setattr(Replacement, "put", full)
        with pytest.raises(NoRoomError):
            report([folder])
        assert {name: (folder / name).read_bytes() for name in files(folder)} == before
    monkeypatch.setattr(Replacement, "put", put)
    assert report([folder]) == folder / "report/index.html"


def test_a_page_goes_when_its_explanation_is_replaced(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file = report([folder])
    assert file.is_file()
    results(tmp_path, width=3)
    assert not file.exists()


def test_sizes_are_small(tmp_path: Path) -> None:
    assert len(page("explanation.js", "x", {})) < 100_000
    assert report([results(tmp_path)]).stat().st_size < 300_000


def test_small_pictures_of_a_report_are_no_photos(here: Path, pathx_: Pathx) -> None:
    for number in range(3):
        picture(f"photos/{number}.png", seed=number)
    assert pathx_("explain", "photos", "--model", scripted(network()), "--out", "out").status == 0
    assert pathx_("report", "out").status == 0 and list(here.glob("out/report/thumbnails/*.jpg"))
    assert "no image" in pathx_("explain", "out", "--model", "model.pt").err


@pytest.mark.parametrize("name", ["index.html", "pages/{page}", "thumbnails/{small}"])
def test_a_gallery_replaces_no_files_of_others(here: Path, pathx_: Pathx, name: str) -> None:
    images = [picture(f"photos/{number}.png", seed=number) for number in range(2)]
    run = ("explain", *images, "--model", scripted(network()), "--no-pictures", "--quiet")
    assert pathx_(*run).status == 0 and pathx_("report", "pathx-out").status == 0
    first = Path("pathx-out/report")
    page, small = min((first / "pages").glob("*.html")).name, min((first / "thumbnails").glob("*.jpg")).name
    others = Path("site", name.format(page=page, small=small))
    others.parent.mkdir(parents=True)
    others.write_text("mine")
    done = pathx_("report", "pathx-out", "--out", "site")
    assert done.status == 2 and f"{others} was not written by pathx and is left alone" in done.err
    assert files(Path("site")) == {str(others.relative_to("site"))} and others.read_text() == "mine"


def test_a_smaller_gallery_removes_its_own_pages_alone(here: Path, pathx_: Pathx) -> None:
    images = [picture(f"photos/{number}.png", seed=number) for number in range(3)]
    run = ("explain", *images, "--model", scripted(network()), "--no-pictures", "--quiet")
    assert pathx_(*run).status == 0 and pathx_("report", "pathx-out", "--out", "site").status == 0
    before = files(Path("site"))
    for name in ("pages/7-a-1-b.html", "thumbnails/7.jpg"):
        Path("site", name).write_text("mine")
    shutil.rmtree("pathx-out/photos/2.png")
    assert pathx_("report", "pathx-out", "--out", "site").status == 0
    gone = before - files(Path("site"))
    assert len(gone) == 2 and {Path(name).suffix for name in gone} == {".html", ".jpg"}
    assert Path("site/pages/7-a-1-b.html").read_text() == Path("site/thumbnails/7.jpg").read_text() == "mine"


def test_a_page_replaces_no_file_of_others(here: Path, pathx_: Pathx) -> None:
    assert pathx_("explain", picture(), "--model", scripted(network()), "--no-pictures", "--quiet").status == 0
    Path("mine.html").write_text("mine")
    done = pathx_("report", "pathx-out", "--out", "mine.html")
    assert done.status == 2 and Path("mine.html").read_text() == "mine"
    for _ in range(2):
        assert pathx_("report", "pathx-out", "--out", "page.html").status == 0


def test_the_gallery_knows_labels_predictions_and_failures(here: Path, pathx_: Pathx) -> None:
    model = scripted(network())
    for number, folder in enumerate(("cat", "red fox", "dog", "cat")):
        picture(f"photos/{folder}/{number}.png", seed=number)
    Path("photos/dog/broken.png").write_text("no picture")
    ran = pathx_("explain", "photos", "--model", model, "--out", "out", "--report")
    assert ran.status == 1 and "out/report/index.html" in ran.err
    data = data_of(Path("out/report/index.html"))
    lines = {line["file"]: line for line in map(json.loads, Path("out/index.jsonl").read_text().splitlines())}
    assert {row["file"] for row in data["rows"]} == set(lines)
    for row in data["rows"]:
        line = lines[row["file"]]
        if "error" in line:
            assert row["error"] == line["error"]
            continue
        top = line["top"]
        assert (row["truth"], row["predicted"]) == (line["label"], top[0]["label"])
        assert row["margin"] == pytest.approx(top[0]["probability"] - top[1]["probability"])
        assert row["wrong"] is (not line["correct"])
        assert _differs(Path("out/report") / row["thumbnail"], row["file"])
        around = data_of(Path("out/report") / row["page"])["around"]
        assert Path("out/report/pages", around["index"]).resolve() == Path("out/report/index.html").resolve()
    shown = [row for row in data["rows"] if "error" not in row]
    assert [row["wrong"] for row in shown] == sorted((row["wrong"] for row in shown), reverse=True)  # wrong ones first
    chain = [data_of(Path("out/report") / row["page"])["around"] for row in shown]
    assert [one["next"] for one in chain[:-1]] == [os.path.basename(row["page"]) for row in shown[1:]]
    assert chain[0]["previous"] is None and chain[-1]["next"] is None


def _differs(small: Path, photo: str) -> bool:
    """Whether something is drawn on the small picture of a photo."""
    with Image.open(small) as drawn, Image.open(photo) as plain:
        difference = ImageChops.difference(drawn.convert("RGB"), plain.convert("RGB").resize(drawn.size))
    return max(high for _, high in difference.getextrema()) > 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluation of two images by one method, one of which is still there."""
    monkeypatch.chdir(tmp_path)
    picture("a.png")
    elsewhere = picture(
        str(tmp_path / "elsewhere.png")
    )  # a table names images without their hashes: only those from here
    with (tmp_path / "images.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label", "predicted", "method", "insertion", "deletion"])
        for name in ("a.png", "b.png"):
            writer.writerow([name, "cat", "", "pathx", 0.5, 0.25])
        writer.writerow(["c.png", "", "dog", "random", "", "none"])
        writer.writerow([elsewhere, "cat", "", "pathx", 0.5, 0.25])
    return tmp_path


def test_rows_have_numbers_or_nothing_and_pictures_that_are_there(folder: Path) -> None:
    data = data_of(measure_page(folder / "evaluation.json", {}, References([])))
    assert [(row["image"], row["insertion"] is None) for row in data["rows"]] == [
        ("a.png", False),
        ("b.png", False),
        ("c.png", True),
        (str(folder / "elsewhere.png"), False),
    ]
    assert list(data["thumbnails"]) == ["a.png"]
    assert page_title(folder / "grid.json") == f"Depths and widths: {folder.name}"
