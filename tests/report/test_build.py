"""Reports of finished results: which pages there are, and what is said of results that are old, new, damaged or half there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx, network, picture, scripted
from support.reports import results
from support.small import files

from pathx.report.build import report
from pathx.report.page import page
from pathx.results.files import NoRoomError, Replacement

pytestmark = pytest.mark.usefixtures("one_thread")


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
    before = pathx_("common", "out", "--out", "before")
    assert before.status == 0, before.err
    assert pathx_("report", "out").status == 0 and list(here.glob("out/report/thumbnails/*.jpg"))
    after = pathx_("common", "out", "--out", "after")
    assert after.err == before.err
    assert Path("after/common.json").read_text() == Path("before/common.json").read_text()
    assert "no image" in pathx_("explain", "out", "--model", "model.pt").err
