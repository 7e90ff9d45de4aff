"""The page of an explanation: its numbers, its photo as it is today, what else lies beside it, and what the network adds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.command_line import Pathx, picture, scripted
from support.command_line import network as file_network
from support.reports import data_of, only_document, reported, results
from support.small import images, network

import pathx
from pathx import PathxError
from pathx.report.build import report
from pathx.report.explanation import explanation_report


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
        if data["whole"]["label"] == "cat and not dog":
            assert data["whole"]["logit"] == pytest.approx(contrast["pairs"][0]["logit"])
            assert "--against" in data["command"]
        else:
            assert data["features"]["items"][0]["picture"].startswith("data:image/jpeg")


def test_the_verdict_of_a_check_is_beside_its_explanation(here: Path, pathx_: Pathx) -> None:
    model, photo = scripted(file_network()), picture()
    assert pathx_("explain", photo, "--model", model, "--out", "out").status == 0
    pathx_("check", photo, "--model", model, "--out", "out/check")
    document = json.loads(Path("out/check/check.json").read_text())
    data = data_of(report(["out"]))
    assert data["check"]["passed"] == document["passed"]
    assert [one["verdict"] for one in data["check"]["findings"]] == [
        one["verdict"] for one in document["checks"].values()
    ]


def test_the_page_of_files_is_that_of_the_document(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    page = report([folder])
    data = data_of(page)
    assert page == file.with_name("report.html")
    assert data["target"] == document["target"] and data["image"] == document["image"]
    path = data["path"]
    assert [one["name"] for one in data["maps"]] == ["Path map", "Pixel map"]
    assert path["model"] == {key: document["linear_model"][key] for key in ("score", "bias", "attribution_sum")}
    for shown, layer in zip(path["layers"], document["layers"], strict=True):
        names = [tensor["name"] for tensor in shown["tensors"]]
        for unit, own in zip(shown["units"], layer["units"], strict=True):
            assert {**unit, **own, "tensor": unit["tensor"]} == unit and names[unit["tensor"]] == own["tensor"]
            assert unit["channel"] == own["index"][0]
    assert data["region"] == pytest.approx(document["region"])
    assert data["notes"] == []
    assert data["command"].startswith("pathx explain ") and "--target" in data["command"]


def test_a_path_without_units_has_a_page() -> None:
    module = network()
    torch.nn.init.zeros_(list(module.parameters())[-2])
    (made,) = pathx.explain(module, images(), depth=3)
    assert sum(len(layer.units) for layer in made.path) == 0
    assert data_of(made.report().html)["unit_maps"] == {}


def test_a_gallery_keeps_what_took_the_network(here: Path, pathx_: Pathx) -> None:
    model = scripted(file_network())
    photos = [picture(f"{number}.png", seed=number) for number in range(3)]
    pathx_("explain", *photos, "--model", model, "--out", "out", "--report", "--quiet")
    before = {file.name: data_of(file) for file in Path("out/report/pages").iterdir()}
    assert all(data["unit_maps"] for data in before.values())
    Path(model).unlink()
    assert pathx_("report", "out", "--quiet").status == 0
    assert {file.name: data_of(file) for file in Path("out/report/pages").iterdir()} == before


def test_data_of_something_else_adds_nothing(here: Path, pathx_: Pathx) -> None:
    pathx_("explain", picture(), "--model", scripted(file_network()), "--out", "out", "--report", "--quiet")
    file, _ = only_document(Path("out"))
    data = file.with_name("report.json")
    whole = data.read_text()
    spoilt = [json.dumps({**json.loads(whole), **change}) for change in ({"path": "0"}, {"unit_maps": [1]})]
    spoilt += [whole.replace('"schema": "pathx/', '"schema": "other/'), whole[: len(whole) // 2], ""]
    for text in spoilt:
        data.write_text(text)
        assert data_of(report(["out"]))["unit_maps"] == {}


def test_the_data_goes_with_its_explanation(here: Path, pathx_: Pathx) -> None:
    run = ("explain", picture(), "--model", scripted(file_network()), "--out", "out", "--quiet")
    pathx_(*run, "--report")
    assert list(Path("out").rglob("report.json"))
    assert pathx_(*run, "--depth", "2").status == 0
    assert not list(Path("out").rglob("report.*"))


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    (made,) = pathx.explain(network(), images(), depth=2, width=3)
    shown = made.report(label="<b>cat</b>")._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2  # the frame, and nothing of the page outside of its attribute


def test_a_page_is_saved_as_it_is_and_not_as_a_folder(tmp_path: Path) -> None:
    (made,) = pathx.explain(network(), images(), depth=1)
    report = explanation_report(made, name="my photo")
    file = report.save(tmp_path / "page.html")
    assert file.read_text(encoding="utf-8") == report.html and data_of(file)["image"]["file"] == "my photo"
    with pytest.raises(PathxError, match="is a folder: name a file"):
        report.save(tmp_path)
