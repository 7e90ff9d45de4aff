"""`pathx evaluate`: what is wrong with a call, what could not be done, and what is written without plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Pathx, scripted
from support.measured import FAST, document
from torch import nn

import pathx.evaluation.methods
import pathx.evaluation.plots

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("measured", "undrawn")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("empty",), "empty holds no images"),
        (("nowhere",), "nowhere: no such file or folder"),
        (("pictures", "--methods", "magic"), "there is no method 'magic': choose path_map or pathx or frozen"),
        (("pictures", "--protocol", "road"), "--protocol takes rise or paper or grid, not 'road'"),
        (("pictures", "--ties", "columns"), "--ties takes random or rows, not 'columns'"),
        (("pictures", "--depth", "9"), "depth 9 is out of range: the network has 3 hidden layers"),
        (("pictures", "--steps", "few"), "--steps takes a whole number, not 'few'"),
        (("pictures", "--steps", "3", "--step-pixels", "3"), "say the same thing"),
        (("pictures", "--batch-size", "0"), "batch size 0 is out of range"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(pathx_: Pathx, arguments: tuple[str, ...], text: str) -> None:
    Path("empty").mkdir()
    done = pathx_("evaluate", *arguments, "--model", "model.pt", "--out", "out")
    assert done.status == 2 and text in done.err and len(done.err.splitlines()) == 1
    assert not Path("out").exists()


def test_a_folder_that_cannot_be_written_to_is_no_fault_of_a_method(pathx_: Pathx) -> None:
    Path("out").write_text("a file")
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 2
    assert "out is not a folder): choose another with --out" in done.err and "not run" not in done.err


def test_a_method_that_cannot_run_is_named_and_the_others_go_on(pathx_: Pathx) -> None:
    scripted(nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), "flat.pt")
    done = pathx_("evaluate", "pictures", "--model", "flat.pt", "--methods", FAST, "--depth", "all", "--out", "out")
    assert done.status == 1
    assert "Guided GradCAM was not run: the model has no convolution" in done.err
    found = document("out/evaluation.json")
    assert set(found["methods"]) == {"pathx", "saliency", "random"} and set(found["not_run"]) == {"guided_gradcam"}


def test_without_matplotlib_there_are_no_plots(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathx.evaluation.plots, "plots_are_missing", lambda: True)
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 0 and "matplotlib is not installed" in done.err
    assert not Path("out/curves.png").exists() and Path("out/evaluation.json").exists()
    assert "curves" not in done.out
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out", "--quiet")
    assert done.err == ""


# Many depths and widths


SMALL = ("--model", "model.pt", "--methods", "random", "--steps", 4, "--out", "out")


def test_the_best_of_a_grid_is_named(pathx_: Pathx) -> None:
    arguments = ("evaluate", "pictures/cat", *SMALL, "--grid", "1,2/1,3")
    done = pathx_(*arguments, "--format", "json")
    found = document("out/grid.json")
    assert done.status == 0 and json.loads(done.out) == found
    least = min(found["grid"], key=lambda cell: cell["deletion"]["mean"])
    assert found["best"]["deletion"] == {key: least[key] for key in ("depth", "width")}
    text = pathx_(*arguments).out  # from the records: nothing is measured again
    assert f"deletion is best at depth {least['depth']}, width {least['width']}" in text
    assert len([line for line in text.splitlines() if line.startswith("random ")]) == 1


@pytest.mark.usefixtures("drawn")
def test_a_grid_is_evaluations_with_one_frozen_pass(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    freeze = pathx.evaluation.methods.freeze
    monkeypatch.setattr(pathx.evaluation.methods, "freeze", lambda *call: passes.append(1) or freeze(*call))
    arguments = ("--model", "model.pt", "--methods", "saliency,random,pathx", "--grid", "1,all/1,10%,4")
    done = pathx_("evaluate", "pictures", *arguments, "--out", "out")
    assert done.status == 0
    assert len(passes) == 2  # six pictures at once, and one for the sheet
    found = document("out/grid.json")
    assert [(cell["depth"], cell["width"]) for cell in found["grid"]] == [
        (depth, width) for depth in (1, "all") for width in (1, "10%", 4)
    ]
    assert set(found["methods"]) == {"saliency", "random"}
    one = ("--methods", "pathx", "--depth", 1, "--width", 4, "--out", "one")
    pathx_("evaluate", "pictures", "--model", "model.pt", *one)
    assert found["grid"][2]["deletion"] == document("one/evaluation.json")["methods"]["pathx"]["deletion"]
    assert {"grid.png", "grid.svg", "sheet.png"} <= {file.name for file in Path("out").iterdir()}
    assert "insertion is best at depth" in done.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--methods", "magic", "--grid", "auto"), "there is no method 'magic'"),
        (("--grid", "1/1,none"), "width"),
        (("--grid", "9/1"), "depth 9 is out of range"),
        (("--grid", "1,2"), "--grid takes depths/widths such as 1,3,all/16,64, or auto, not '1,2'"),
        (("--grid", "auto", "--removal"), "run them one by one"),
        (("--protocol", "grid", "--removal"), "run them one by one"),
        (("--keep",), "--keep goes with --removal"),
    ],
)
def test_what_is_wrong_with_a_grid_is_said_before_any_work(
    pathx_: Pathx, arguments: tuple[str, ...], text: str
) -> None:
    done = pathx_("evaluate", "pictures", *SMALL, *arguments)
    assert done.status == 2 and text in done.err and done.err.count("\n") == 1
    assert not Path("out").exists()
