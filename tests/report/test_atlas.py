"""The atlas of channels, and the names that people give them: from a page to names.json, and back everywhere."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from support.browser import OVERFLOWING, opened
from support.command_line import Pathx, network, picture, scripted
from support.reports import data_of, only_document

OPTIONS = ("--model", "model.pt", "--depth", "3", "--width", "4", "--quiet")


@pytest.fixture
def units(here: Path, pathx_: Pathx) -> Path:
    scripted(network())
    photos = [picture(f"photos/{number}.png", seed=number) for number in range(3)]
    assert pathx_("units", *photos, *OPTIONS, "--out", "units", "--no-pictures").status == 0
    return Path("units")


def test_the_atlas_holds_every_channel_that_was_on_a_path(pathx_: Pathx, units: Path) -> None:
    assert pathx_("report", "units").out.strip() == "units/report.html"
    data, document = data_of(Path("units/report.html")), json.loads(Path("units/units.json").read_text())
    assert [one["layer"] for one in data["layers"]] == [one["layer"] for one in document["layers"]]
    for shown, layer in zip(data["layers"], document["layers"], strict=True):
        for one, tensor in zip(shown["tensors"], layer["tensors"], strict=True):
            known = {entry["channel"]: entry for entry in tensor["channels"] if entry["references"]}
            assert {entry["channel"] for entry in one["channels"]} == set(known)
            for entry in one["channels"]:
                own = known[entry["channel"]]
                assert (entry["words"], entry["paths"]) == (own["words"], own["paths"])
                assert set(entry["files"]) == {reference["file"] for reference in own["references"]}
                labels = {reference["label"] for reference in own["references"]}
                if len(own["references"]) > 1:
                    assert (entry["specificity"] == pytest.approx(1)) == (len(labels) == 1)
                else:
                    assert entry["specificity"] is None


def test_a_gallery_leads_to_the_atlas_and_back(pathx_: Pathx, units: Path) -> None:
    assert pathx_("explain", "photos", *OPTIONS, "--out", "out").status == 0
    assert pathx_("report", "out", "units").status == 0
    index = Path("out/report/index.html")
    (link,) = data_of(index)["links"]
    shown = data_of(index.parent / link["page"])["shown"]
    for file in Path("out").rglob("path.json"):
        document = json.loads(file.read_text())
        for unit in (unit for layer in document["layers"] for unit in layer["units"]):
            files = [name for name, _ in shown[f"{unit['tensor']}[{unit['index'][0]}]"]]
            assert document["image"]["file"] in files
    assert all((index.parent / "pages" / address).is_file() for pages in shown.values() for _, address in pages)
    assert pathx_("report", "out").status == 0 and not (index.parent / link["page"]).exists()


def test_a_name_goes_from_the_page_to_everything_else(browser: Any, pathx_: Pathx, units: Path) -> None:
    assert pathx_("explain", "photos/0.png", *OPTIONS, "--out", "out", "--report").status == 0
    _, document = only_document(Path("out"))
    unit = document["layers"][0]["units"][0]
    channel = f"{unit['tensor']}[{unit['index'][0]}]"
    assert pathx_("report", "units", "--quiet").status == 0
    with opened(browser, Path("units/report.html")) as page:
        page.locator(f'[data-channel="{channel}"] input').fill("<b>whiskers</b>")
        page.keyboard.press("Enter")
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save names.json").click()
        shutil.copy(waiting.value.path(), "units/names.json")
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(OVERFLOWING) == []
    names = json.loads(Path("units/names.json").read_text())
    assert names["names"] == {channel: "<b>whiskers</b>"}
    schema = json.loads((files("pathx") / "schemas/names.json").read_text(encoding="utf-8"))
    pytest.importorskip("jsonschema").validate(names, schema)
    assert pathx_("report", "out", "--units", "units", "--quiet").status == 0
    with opened(browser, next(Path("out").rglob("report.html"))) as page:
        assert page.locator(".words", has_text="<b>whiskers").count() == 1
    shown = pathx_("units", "--show", unit["tensor"], unit["index"][0], "--out", "units").out
    assert "<b>whiskers</b>" in shown
    told = pathx_("explain", "photos/0.png", *OPTIONS[:-1], "--out", "new", "--units", "units").out
    assert "<b>whiskers</b>" in told
    shutil.copy("units/names.json", "new/names.json")
    told = pathx_("explain", "photos/0.png", *OPTIONS[:-1], "--out", "new", "--overwrite").out
    assert "<b>whiskers" in told
