"""What units look for, beside explanations, decompositions and reports; and statistics that do not belong to them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.command_line import SIDECAR, Pathx, document, network, picture, scripted
from support.reports import data_of

pytestmark = pytest.mark.usefixtures("here")
OPTIONS = ("--model", "model.pt", "--depth", "3", "--width", "4")


@pytest.fixture
def units(pathx_: Pathx) -> str:
    """What the channels of a network look for in five photos."""
    scripted(network())
    for number in range(5):
        picture(f"photos/{number}.png", seed=number)
    picture("photo.png")
    assert pathx_("units", "photos", *OPTIONS, "--out", "units", "--quiet", "--no-pictures").status == 0
    return "units"


def channels(folder: str) -> dict[tuple[str, int], dict[str, Any]]:
    made = json.loads(Path(folder, "units.json").read_text())
    return {
        (tensor["name"], entry["channel"]): entry
        for layer in made["layers"]
        for tensor in layer["tensors"]
        for entry in tensor["channels"]
    }


def the(pattern: str) -> Path:
    (found,) = Path().glob(pattern)
    return found


def height(file: Path) -> int:
    with Image.open(file) as image:
        return image.height


def test_explanations_have_a_strip_and_words(pathx_: Pathx, units: str) -> None:
    assert pathx_("explain", "photo.png", *OPTIONS, "--out", "without").status == 0
    done = pathx_("explain", "photo.png", *OPTIONS, "--units", units, "--report", "--out", "with")
    told = [line for line in done.out.splitlines() if " looks for " in line]
    known = channels(units)
    shares = []
    for layer in document(the("with/photo.png/*"))["layers"]:
        total = sum(abs(unit["contribution"]) for unit in layer["units"])
        shares += [(abs(unit["contribution"]) / total, unit["tensor"], unit["index"]) for unit in layer["units"]]
    _, tensor, index = max(shares)
    assert len(told) == 3
    place = ",".join(map(str, index))
    assert f"{tensor} [{place}] looks for {known[tensor, index[0]]['words']}" in told
    assert height(the("with/photo.png/*/figure.png")) > height(the("without/photo.png/*/figure.png"))
    shown = data_of(the("with/photo.png/*/report.html"))["references"]
    assert shown[f"{tensor}[{index[0]}]"]["words"] == known[tensor, index[0]]["words"]
    assert shown[f"{tensor}[{index[0]}]"]["crops"]


def test_features_have_strips_and_words(pathx_: Pathx, units: str) -> None:
    assert pathx_("decompose", "photo.png", *OPTIONS, "--out", "without").status == 0
    done = pathx_("decompose", "photo.png", *OPTIONS, "--units", units, "--report", "--out", "with")
    made = json.loads(the("with/photo.png/*/decomposition.json").read_text())
    known = channels(units)
    unit = made["units"][made["features"][0]["units"][0] - 1]
    words = known[unit["tensor"], unit["index"][0]]["words"]
    place = ",".join(map(str, unit["index"]))
    assert f"feature 1: {unit['tensor']} [{place}] looks for {words}" in done.out
    for name in ("sheet.png", "figure.png"):
        assert height(the(f"with/photo.png/*/{name}")) > height(the(f"without/photo.png/*/{name}"))
    page = data_of(the("with/photo.png/*/report.html"))
    assert page["features"]["items"]
    assert page["references"][f"{unit['tensor']}[{unit['index'][0]}]"]["words"] == words


def test_a_report_of_finished_results_shows_them(pathx_: Pathx, units: str) -> None:
    pathx_("explain", "photos", *OPTIONS, "--out", "out", "--quiet")
    assert pathx_("report", "out", "--units", units, "--quiet").status == 0
    pages = list(Path("out/report/pages").glob("[0-9]*.html"))
    assert len(pages) == 5
    known = channels(units)
    for page in pages:
        shown = data_of(page)["references"]
        assert shown
        for place, entry in shown.items():
            tensor, channel = place.removesuffix("]").rsplit("[", 1)
            assert entry["words"] == known[tensor, int(channel)]["words"]


def other_weights() -> None:
    model = network()
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    scripted(model)


def other_preprocessing() -> None:
    scripted(network(), sidecar={**SIDECAR, "mean": [0.4]})


def damaged(key: str) -> None:
    file = Path("units/units.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: "x"}))


def test_units_of_something_else_are_refused(pathx_: Pathx, units: str) -> None:
    file = Path(units, "units.json")
    whole = file.read_text()
    for change, message in (
        *((partial(damaged, key), "is damaged") for key in ("model", "layers")),
        (other_weights, "the units in units are of another model (model.pt, weights "),
        (other_preprocessing, "the units in units were gathered with other preprocessing (mean)"),
        (lambda: file.write_text('{"schema": "pathx/units@2"}'), "not of the schema pathx/units@1"),
        (lambda: file.write_text('{"schema": "pathx/units@1"}'), "is damaged"),
        (lambda: file.write_text("no JSON"), "units.json"),
        (file.unlink, "gather units there first with pathx units"),
    ):
        scripted(network())
        file.write_text(whole)
        change()
        done = pathx_("explain", "photo.png", *OPTIONS, "--units", units, "--out", "out")
        assert done.status == 2 and message in done.err and done.err.count("\n") == 1
        assert not Path("out").exists()


def test_a_report_says_that_units_are_of_another_model(pathx_: Pathx, units: str) -> None:
    other_weights()
    pathx_("explain", "photo.png", *OPTIONS, "--out", "out", "--quiet")
    done = pathx_("report", "out", "--units", units)
    assert done.status == 0
    assert "the units are of another model (model.pt); they are not shown" in done.err
    assert data_of(the("out/photo.png/*/report.html"))["references"] == {}


def test_references_whose_images_are_gone_or_changed_are_said_and_left_out(pathx_: Pathx, units: str) -> None:
    for number in (1, 2):
        Path(f"photos/{number}.png").unlink()
    picture("photos/3.png", seed=99)
    picture("photos/4.png", seed=98)
    done = pathx_("explain", "photo.png", *OPTIONS, "--units", units, "--out", "out")
    assert done.status == 0
    assert any(f"photos/{number}.png: " in done.err for number in (1, 2))
    assert "has changed since units were gathered from it" in done.err
    assert len(done.err.splitlines()) == len(set(done.err.splitlines()))


def test_channels_that_are_on_no_path_say_so(pathx_: Pathx) -> None:
    scripted(network())
    picture("photos/0.png")
    pathx_("units", "photos", "--model", "model.pt", "--width", "1", "--depth", "2", "--out", "units", "--quiet")
    lonely = next(place for place, entry in channels("units").items() if not entry["paths"]["images"])
    done = pathx_("units", "--show", *map(str, lonely), "--out", "units")
    assert done.status == 0
    assert "no references; on no path" in done.out


def test_a_folder_that_says_nothing_of_these_units_says_so(pathx_: Pathx, units: str) -> None:
    file = Path(units, "units.json")
    made = json.loads(file.read_text())
    for layer in made["layers"]:
        for tensor in layer["tensors"]:
            tensor["channels"] = [{**entry, "references": []} for entry in tensor["channels"]]
    file.write_text(json.dumps(made))
    for command in ("explain", "decompose"):
        done = pathx_(command, "photo.png", *OPTIONS, "--units", units, "--out", "out", "--no-pictures")
        assert done.status == 0
        assert "units has no references of these units: gather units over images of this class" in done.out
