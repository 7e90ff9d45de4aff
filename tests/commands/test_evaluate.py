"""`pathx evaluate`: what is wrong with a call, what could not be done, and what is written without plots."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.command_line import Pathx, picture, scripted
from support.measured import FAST, document, network
from torch import Tensor, nn
from typer.main import get_command

import pathx.evaluation.evaluate
import pathx.evaluation.measure
import pathx.evaluation.methods
import pathx.evaluation.plots
from pathx.cli import app
from pathx.drawing.colours import COLOURS, HEATS
from pathx.evaluation.choices import METHODS, PROTOCOLS, TIES

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


@pytest.mark.usefixtures("drawn")
def test_evaluation_json_is_as_agreed(pathx_: Pathx) -> None:
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--depth", "all", "--methods", "all", "--out", "out")
    note = "pathx: note: constant: 6 maps gave no pixel a value of its own; the order was that of ties"
    assert done.status == 0 and done.err.splitlines() == [note]
    found = document("out/evaluation.json")
    assert found["schema"] == "pathx/evaluation@1" and found["protocol"] == "rise" and found["images"] == 6
    assert set(found["parameters"]) >= {"step_pixels", "steps", "insertion_from", "deletion_to", "ranking", "ties"}
    assert list(found["methods"]) == list(METHODS)
    for figures in found["methods"].values():
        assert list(figures) == ["insertion", "deletion", "difference", "tied_pixels", "seconds"]
        for measure in ("insertion", "deletion", "difference"):
            assert list(figures[measure]) == ["mean", "low", "high"]
            assert -1 <= figures[measure]["low"] <= figures[measure]["mean"] <= figures[measure]["high"] <= 1
        difference = figures["insertion"]["mean"] - figures["deletion"]["mean"]
        assert figures["difference"]["mean"] == pytest.approx(difference)
    assert found["methods"]["constant"]["tied_pixels"] == 1 and found["methods"]["random"]["tied_pixels"] == 0
    assert found["compared"] == "path_map" and set(found["comparison"]) == set(METHODS) - {"path_map"}
    table = done.out.splitlines()[2:]
    assert "ins-del" in table[0] and "ahead by" in table[0]
    assert max(map(len, table)) <= 80  # of a terminal
    assert {file.name for file in Path("out").glob("[!.]*")} == {
        *("evaluation.json", "images.csv", "curves.png", "curves.svg", "records.jsonl")
    }
    assert Path("out/curves.svg").read_text().count("Guided GradCAM") == 2  # text that can be read, in both legends


def test_the_figures_are_the_means_of_the_pictures(pathx_: Pathx) -> None:
    pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", FAST, "--protocol", "paper", "--out", "out")
    found = document("out/evaluation.json")
    with open("out/images.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 6 * 4
    for name, figures in found["methods"].items():
        own = [row for row in rows if row["method"] == name]
        for measure in ("insertion", "deletion"):
            assert figures[measure]["mean"] == pytest.approx(sum(float(row[measure]) for row in own) / 6)
    difference = found["comparison"]["random"]["insertion"]["mean"]
    means = found["methods"]["pathx"]["insertion"]["mean"] - found["methods"]["random"]["insertion"]["mean"]
    assert difference == pytest.approx(means)
    right = [row["label"] == row["predicted"] for row in rows if row["method"] == "pathx"]
    assert found["accuracy"] == pytest.approx(sum(right) / 6)
    assert found["settings"]["saliency"] == {"absolute": False}  # as in the paper


def test_a_stopped_run_goes_on(
    pathx_: Pathx, monkeypatch: pytest.MonkeyPatch, method: Callable[[str, Callable[..., Tensor]], None]
) -> None:
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--methods", "random,edges", "--batch-size", 2)
    assert pathx_(*arguments, "--out", "whole").status == 0
    compute, asked = METHODS["random"].compute, []

    def stops(subject: Any) -> Tensor:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(subject.names)
        return compute(subject)

    method("random", stops)
    stopped = pathx_(*arguments, "--out", "out")
    assert (stopped.status, stopped.err) == (130, "pathx: interrupted; run the same command again to continue\n")
    assert len(Path("out/records.jsonl").read_text().splitlines()) == 8
    with open("out/records.jsonl", "a", encoding="utf-8") as stream:
        stream.write('{"key": "cut sho')  # as a power failure leaves it
    method("random", lambda subject: asked.append(subject.names) or compute(subject))
    assert pathx_(*arguments, "--out", "out").status == 0
    assert asked[2:] == [["pictures/dog/3.png", "pictures/dog/5.png"]]
    one, other = document("whole/evaluation.json"), document("out/evaluation.json")
    for name in ("random", "edges"):
        assert one["methods"][name]["insertion"] == other["methods"][name]["insertion"]


def test_other_settings_are_measured_anew(pathx_: Pathx) -> None:
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--methods", "pathx", "--out", "out")
    for settings in ((), ("--width", 2), ("--ties", "rows"), ("--steps", 4)):
        pathx_(*arguments, *settings)
    assert len(Path("out/records.jsonl").read_text().splitlines()) == 6 * 4
    pathx_(*arguments)
    assert len(Path("out/records.jsonl").read_text().splitlines()) == 6 * 4


def test_without_captum_its_methods_are_named_and_the_others_go_on(
    pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pathx.evaluation.measure, "captum_is_missing", lambda: True)
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--out", "out")
    done = pathx_(*arguments)
    assert done.status == 0
    found = document("out/evaluation.json")
    assert set(found["methods"]) == {"path_map", "random"}
    assert "GradCAM was not run: it needs Captum: pip install 'pathx-relu[evaluate]'" in done.err
    assert pathx_(*arguments, "--methods", "saliency,random").status == 1  # what was asked for was not done


def test_maps_that_are_not_finite_are_counted_and_left_out(
    pathx_: Pathx, method: Callable[[str, Callable[..., Tensor]], None]
) -> None:
    compute = METHODS["random"].compute

    def broken(subject: Any) -> Tensor:
        maps = compute(subject)
        maps[[name == "pictures/cat/0.png" for name in subject.names], 0, 0, 0] = float("nan")
        return maps

    arguments = ("evaluate", "pictures", "--model", "model.pt", "--methods", "random,edges")
    pathx_(*arguments, "--out", "whole")
    method("random", broken)
    done = pathx_(*arguments, "--out", "out")
    found = document("out/evaluation.json")
    assert found["counts"]["random"] == {"images": 5, "tied": 0, "not_finite": 1}
    assert "1 maps were NaN or infinite and are left out" in done.err
    with open("whole/images.csv", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["method"] == "random" and "0.png" not in row["image"]]
    rest = [float(row["insertion"]) for row in rows]
    assert found["methods"]["random"]["insertion"]["mean"] == pytest.approx(sum(rest) / 5)
    method("random", lambda subject: torch.full_like(subject.images, float("inf")))
    done = pathx_(*arguments, "--out", "none")
    assert done.status == 1 and "none of its maps was finite" in done.err
    assert set(document("none/evaluation.json")["methods"]) == {"edges"}


def test_ties_by_row_are_the_old_behaviour_under_its_own_name(pathx_: Pathx) -> None:
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--methods", "constant,random")
    for ties in ("random", "rows"):
        done = pathx_(*arguments, "--ties", ties, "--out", ties)
        assert done.status == 0 and "6 maps gave no pixel a value of its own" in done.err
        found = document(f"{ties}/evaluation.json")
        assert found["counts"]["constant"]["tied"] == 6 and ties[:3] in found["parameters"]["ties"]
    one, other = (document(f"{ties}/evaluation.json")["methods"] for ties in ("random", "rows"))
    assert one["random"]["insertion"] == other["random"]["insertion"]  # where nothing ties, nothing changes
    assert one["constant"]["insertion"] != other["constant"]["insertion"]


def test_labels_and_classes_that_tell_little_are_noted(pathx_: Pathx) -> None:
    picture("odd/aardvark/1.png", seed=1)
    done = pathx_("evaluate", "odd", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 0
    assert "no accuracy for folders that are not named after classes of the model: aardvark" in done.err
    assert document("out/evaluation.json")["accuracy"] is None
    for number in range(2):
        picture(f"same/{number}.png", seed=7)
    done = pathx_("evaluate", "same", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert "every image is predicted as" in done.err


def test_a_model_whose_output_is_not_finite_says_so(pathx_: Pathx) -> None:
    module = network()
    with torch.no_grad():
        module[-1].bias.fill_(float("nan"))  # type: ignore[union-attr, operator]
    scripted(module, "nan.pt")
    done = pathx_("evaluate", "pictures", "--model", "nan.pt", "--methods", "random", "--out", "out")
    assert done.status == 1 and "none of the 6 images could be used: the model's output is NaN" in done.err


@pytest.mark.parametrize(
    ("command", "option", "names"),
    [
        ("evaluate", "--methods", METHODS),
        ("evaluate", "--protocol", PROTOCOLS),
        ("evaluate", "--ties", TIES),
        ("redraw", "--colours", COLOURS),
        ("redraw", "--heat", HEATS),
    ],
)
def test_registries_are_the_choices_of_the_command_line(command: str, option: str, names: Iterable[str]) -> None:
    (found,) = [one for one in get_command(app).commands[command].params if option in one.opts]  # type: ignore[attr-defined]
    assert all(name in f"{found.metavar} {found.help}" for name in names)


def text(file: Path) -> str:
    return file.with_name(f"{file.name}.svg").read_text(encoding="utf-8")


@pytest.mark.usefixtures("drawn")
def test_curves_name_each_method_with_its_area(tmp_path: Path) -> None:
    lines = {"a $method$": (torch.tensor([0.0, 1.0]), 0.5), "ours": (torch.tensor([1.0, 0.0]), 0.25)}
    pathx.evaluation.plots.plot_curves(tmp_path / "curves", {"insertion": lines, "deletion": lines}, "ours")
    drawn = text(tmp_path / "curves")
    written = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert written.count("a $method$  0.500") == 2 and drawn.index("ours  0.250") < drawn.index("a $method$")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 2 * picture.height * 0.9  # two panels beside each other
