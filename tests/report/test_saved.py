"""The page of an explanation from its files: its photo as it is today, its pixels, features, contrasts and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Pathx, network, picture, scripted
from support.reports import data_of, only_document, reported, results

from pathx.report.build import report

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("how", ["gone", "changed", "no picture"])
def test_a_photo_that_is_not_there_any_more_is_said(tmp_path: Path, how: str) -> None:
    folder, photo = results(tmp_path), tmp_path / "photo.png"
    photo.unlink()
    if how == "changed":
        picture(str(photo), seed=9)
    elif how == "no picture":
        photo.write_text("no picture")
    data, notes = reported(folder)
    assert data["photo"] is None and len(notes) == 1 and str(photo) in notes[0]
    assert len(data["maps"]) == 2  # what was drawn is still there


def test_a_photo_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    document["image"]["file"] = "photo.png"  # as it was named in the folder of the run
    file.write_text(json.dumps(document))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    picture("photo.png", seed=5)  # another one of that name
    data, notes = reported(folder)
    assert data["photo"] is not None and notes == []


def test_without_pictures_the_page_has_all_but_the_pixel_map(tmp_path: Path) -> None:
    plain, bare = (
        reported(results(tmp_path / name, pictures=pictures))[0]
        for name, pictures in (("with", True), ("without", False))
    )
    assert plain["path"] == bare["path"]
    assert [{**one, "src": ""} for one in bare["maps"]] == [{**plain["maps"][0], "src": ""}]


def test_features_and_contrasts_are_shown(tmp_path: Path) -> None:
    index = report([results(tmp_path, targets=("cat", "dog"), decompose=True)])
    pages = sorted(index.parent.glob("pages/*.html"))
    assert len(pages) == 3  # two classes, and one against the other
    for file in pages:
        data = data_of(file)
        assert {label for label, _ in data["others"]} | {data["whole"]["label"]} == {"cat", "dog", "cat and not dog"}
        assert all((file.parent / address).is_file() for _, address in data["others"])
        (contrast,) = data["contrasts"]
        assert contrast["labels"] == ["cat", "dog"] and contrast["pairs"][0]["label"] == "cat minus dog"
        if data["against"]:
            assert data["whole"]["logit"] == data["target"]["logit"] - data["against"]["logit"]
            assert "--against" in data["command"]
        else:
            assert data["features"]["items"][0]["picture"].startswith("data:image/jpeg")


def test_the_verdict_of_a_check_is_beside_its_explanation(here: Path, pathx_: Pathx) -> None:
    model, photo = scripted(network()), picture()
    assert pathx_("explain", photo, "--model", model, "--out", "out").status == 0
    pathx_("check", photo, "--model", model, "--out", "out/check")
    document = json.loads(Path("out/check/check.json").read_text())
    data = data_of(report(["out"]))
    assert data["check"]["passed"] == document["passed"]
    assert [one["verdict"] for one in data["check"]["findings"]] == [
        one["verdict"] for one in document["checks"].values()
    ]
