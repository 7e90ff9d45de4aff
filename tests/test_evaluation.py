"""`evaluate`, `sweep`, `common` and `check` from end to end, on a tiny TorchScript model and tiny pictures."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import pathx.evaluation
import pathx.methods
import pathx.plots
from pathx.cli import run
from pathx.commands import output
from pathx.methods import METHODS, Method

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.usefixtures("one_thread"),
]
SIDECAR = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25], "labels": ["cat", "red fox", "dog"]}
FAST = "pathx,saliency,guided_gradcam,random"


@dataclass(frozen=True)
class Finished:
    status: int
    out: str
    err: str


Pathx = Callable[..., Finished]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and six pictures in two classes."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "PATHX_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    save(network())
    for number in range(6):
        picture(f"pictures/{('cat', 'dog')[number % 2]}/{number}.png", number)
    return tmp_path


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        body = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()
        module = nn.Sequential(*body, nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3)).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(2).sub_(parameter.mean() if parameter.dim() == 1 else 0)
        return module


def save(module: nn.Module, file: str = "model.pt", sidecar: dict[str, Any] = SIDECAR) -> str:
    torch.jit.save(torch.jit.script(module), file)
    Path(file).with_suffix(".json").write_text(json.dumps(sidecar))
    return file


def picture(file: str, seed: int) -> str:
    pixels = torch.randint(0, 256, (8, 8, 3), generator=torch.Generator().manual_seed(seed))
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (8, 8), bytes(pixels.flatten().tolist())).save(file)
    return file


@pytest.fixture
def pathx_(capsys: pytest.CaptureFixture[str]) -> Pathx:
    def call(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        return Finished(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots, which take most of the time, unless a test is marked `drawn`."""
    if "drawn" not in request.fixturenames:
        for name in [name for name in vars(pathx.plots) if name.startswith("plot_")]:
            monkeypatch.setattr(pathx.plots, name, lambda *figures: None)


@pytest.fixture
def drawn() -> None:
    """Plots are drawn."""


def document(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(file).read_text())
    return content


@pytest.fixture
def method() -> Iterator[Callable[[str, Callable[..., Tensor]], None]]:
    """Put another method in the place of one, for a test."""
    before = dict(METHODS)

    def put(name: str, compute: Callable[..., Tensor]) -> None:
        METHODS[name] = Method(name, compute, {}, {}, captum=False)

    yield put
    METHODS.clear()
    METHODS.update(before)


# evaluate


@pytest.mark.usefixtures("drawn")
def test_evaluation_json_is_as_agreed(pathx_: Pathx) -> None:
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--depth", "all", "--out", "out")
    assert done.status == 0 and done.err == ""
    found = document("out/evaluation.json")
    assert found["schema"] == "pathx/evaluation@1" and found["protocol"] == "rise" and found["pictures"] == 6
    assert set(found["parameters"]) >= {"step_pixels", "steps", "insertion_from", "deletion_to", "ranking", "area"}
    assert list(found["methods"]) == list(METHODS)
    for figures in found["methods"].values():
        assert list(figures) == ["insertion", "deletion", "seconds"]
        for measure in ("insertion", "deletion"):
            assert list(figures[measure]) == ["mean", "low", "high"]
            assert 0 <= figures[measure]["low"] <= figures[measure]["mean"] <= figures[measure]["high"] <= 1
    assert set(found["comparison"]) == set(METHODS) - {"pathx"}
    assert "insertion ↑" in done.out and "deletion ↓" in done.out
    assert {file.name for file in Path("out").iterdir()} == {
        *("evaluation.json", "pictures.csv", "curves.png", "curves.svg", "records.jsonl")
    }
    assert Path("out/curves.svg").read_text().count("Guided GradCAM") == 2  # text that can be read, in both legends


def test_the_figures_are_the_means_of_the_pictures(pathx_: Pathx) -> None:
    pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", FAST, "--protocol", "paper", "--out", "out")
    found = document("out/evaluation.json")
    with open("out/pictures.csv", encoding="utf-8") as stream:
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
    assert (stopped.status, stopped.err) == (130, "pathx: interrupted; run the same command again to go on\n")
    assert len(Path("out/records.jsonl").read_text().splitlines()) == 8
    with open("out/records.jsonl", "a", encoding="utf-8") as stream:
        stream.write('{"key": "cut sho')  # as a power failure leaves it
    method("random", lambda subject: asked.append(subject.names) or compute(subject))
    assert pathx_(*arguments, "--out", "out").status == 0
    assert asked[2:] == [["pictures/dog/3.png", "pictures/dog/5.png"]]
    one, other = document("whole/evaluation.json"), document("out/evaluation.json")
    for name in ("random", "edges"):
        assert one["methods"][name]["insertion"] == other["methods"][name]["insertion"]


def test_progress_in_plain_lines(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "EVERY", 0)
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--batch-size", 2)
    progress = [line for line in pathx_(*arguments).err.splitlines() if "evaluating" in line]
    assert [line.split(",")[0] for line in progress] == [f"pathx: evaluating: {done} of 6" for done in (2, 4, 6)]
    assert "evaluating" not in pathx_(*arguments, "--quiet").err


def test_other_settings_are_measured_anew(pathx_: Pathx) -> None:
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--methods", "pathx", "--out", "out")
    for settings in ((), ("--width", 2), ("--protocol", "paper"), ("--steps", 4)):
        pathx_(*arguments, *settings)
    assert len(Path("out/records.jsonl").read_text().splitlines()) == 6 * 4
    pathx_(*arguments)
    assert len(Path("out/records.jsonl").read_text().splitlines()) == 6 * 4


def test_without_captum_its_methods_are_named_and_the_others_go_on(
    pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pathx.evaluation, "captum_is_missing", lambda: True)
    arguments = ("evaluate", "pictures", "--model", "model.pt", "--out", "out")
    done = pathx_(*arguments)
    assert done.status == 0
    found = document("out/evaluation.json")
    assert set(found["methods"]) == {"pathx", "blur_ig", "random", "edges"}
    assert "Saliency was not run: it needs Captum: pip install 'pathx[evaluate]'" in done.err
    assert pathx_(*arguments, "--methods", "saliency,random").status == 1  # what was asked for was not done


def test_without_matplotlib_there_are_no_plots(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathx.plots, "plots_are_missing", lambda: True)
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 0 and "matplotlib is not installed" in done.err
    assert not Path("out/curves.png").exists() and Path("out/evaluation.json").exists()
    assert "curves" not in done.out
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out", "--quiet")
    assert done.err == ""


def test_a_method_that_cannot_run_is_named_and_the_others_go_on(pathx_: Pathx) -> None:
    save(nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), "flat.pt")
    done = pathx_("evaluate", "pictures", "--model", "flat.pt", "--methods", FAST, "--depth", "all", "--out", "out")
    assert done.status == 1
    assert "Guided GradCAM was not run: the model has no convolution" in done.err
    found = document("out/evaluation.json")
    assert set(found["methods"]) == {"pathx", "saliency", "random"} and set(found["not_run"]) == {"guided_gradcam"}


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
    assert found["counts"]["random"] == {"pictures": 5, "tied": 0, "not_finite": 1}
    assert "1 maps were NaN or infinite and are left out" in done.err
    with open("whole/pictures.csv", encoding="utf-8") as stream:
        rest = [
            float(r["insertion"])
            for r in csv.DictReader(stream)
            if r["method"] == "random" and "0.png" not in r["picture"]
        ]
    assert found["methods"]["random"]["insertion"]["mean"] == pytest.approx(sum(rest) / 5)
    method("random", lambda subject: torch.full_like(subject.images, float("inf")))
    done = pathx_(*arguments, "--out", "none")
    assert done.status == 1 and "none of its maps was finite" in done.err
    assert set(document("none/evaluation.json")["methods"]) == {"edges"}


def test_a_constant_map_is_noted(pathx_: Pathx, method: Callable[[str, Callable[..., Tensor]], None]) -> None:
    method("random", lambda subject: torch.ones_like(subject.images))
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 0
    assert "6 maps were the same everywhere; pixels were taken row by row" in done.err
    assert document("out/evaluation.json")["counts"]["random"]["tied"] == 6


def test_labels_and_classes_that_tell_little_are_noted(pathx_: Pathx) -> None:
    picture("odd/aardvark/1.png", 1)
    done = pathx_("evaluate", "odd", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 0 and "1 folders are not named after classes of the model (aardvark)" in done.err
    assert document("out/evaluation.json")["accuracy"] is None
    for number in range(2):
        picture(f"same/{number}.png", 7)
    done = pathx_("evaluate", "same", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert "every picture is predicted as" in done.err


def test_pictures_that_cannot_be_read_are_listed(pathx_: Pathx) -> None:
    Path("pictures/cat/broken.png").write_bytes(b"nothing")
    done = pathx_("evaluate", "pictures", "--model", "model.pt", "--methods", "random", "--out", "out")
    assert done.status == 1 and "broken.png is not a picture" in done.err
    found = document("out/evaluation.json")
    assert found["pictures"] == 6 and list(found["unread"]) == ["pictures/cat/broken.png"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("empty",), "empty holds no pictures"),
        (("nowhere",), "nowhere: no such file or folder"),
        (("pictures", "--methods", "magic"), "there is no method 'magic': choose from pathx, saliency"),
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
    assert done.status == 1 and "choose another folder with --out" in done.err and "not run" not in done.err


def test_a_model_whose_output_is_not_finite_says_so(pathx_: Pathx) -> None:
    module = network()
    with torch.no_grad():
        module[-1].bias.fill_(float("nan"))  # type: ignore[union-attr, operator]
    save(module, "nan.pt")
    done = pathx_("evaluate", "pictures", "--model", "nan.pt", "--methods", "random", "--out", "out")
    assert done.status == 1 and "none of the 6 pictures could be used: the model's output is NaN" in done.err


# The paper's table, insertion and deletion: the paper's figures are of the whole test set; ours of its first 500 pictures,
# whose insertion lies low by chance (docs/evaluation.md compares them with the rest of the test set).
PAPER = {
    "pathx": (0.833, 0.239),
    "saliency": (0.518, 0.198),
    "input_x_gradient": (0.742, 0.142),
    "integrated_gradients": (0.790, 0.148),
    "guided_backprop": (0.677, 0.386),
    "guided_gradcam": (0.683, 0.396),
    "blur_ig": (0.772, 0.163),
}
FIRST_500 = {
    "pathx": (0.827, 0.238),
    "saliency": (0.489, 0.194),
    "input_x_gradient": (0.722, 0.142),
    "integrated_gradients": (0.763, 0.147),
    "guided_backprop": (0.665, 0.379),
    "guided_gradcam": (0.671, 0.395),
    "blur_ig": (0.755, 0.169),
}


@pytest.mark.slow
def test_the_papers_table_comes_out(pathx_: Pathx, shared_data: Path) -> None:
    model = shared_data / "models" / "cifar10-toycnn.pt"
    arguments = ("--protocol", "paper", "--depth", "all", "--width", 1024, "--methods", ",".join(PAPER))
    assert pathx_("evaluate", shared_data / "cifar10", "--model", model, *arguments, "--out", "out").status == 0
    found = document("out/evaluation.json")["methods"]
    for name, paper in PAPER.items():
        for measure, of_all, of_these in zip(("insertion", "deletion"), paper, FIRST_500[name], strict=True):
            figure = found[name][measure]
            assert figure["mean"] == pytest.approx(of_these, abs=0.002), (name, measure)
            error = (figure["high"] - figure["low"]) / (2 * 1.96)
            assert abs(figure["mean"] - of_all) < 3 * error, (name, measure)


# sweep


@pytest.mark.usefixtures("drawn")
def test_a_sweep_is_evaluations_with_one_frozen_pass(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    freeze = pathx.methods.freeze
    monkeypatch.setattr(pathx.methods, "freeze", lambda *call: passes.append(1) or freeze(*call))
    arguments = ("--model", "model.pt", "--methods", "saliency,random")
    done = pathx_("sweep", "pictures", *arguments, "--depth", "1,all", "--width", "1,10%,4", "--out", "out")
    assert done.status == 0
    assert len(passes) == 2  # six pictures at once, and one for the sheet
    found = document("out/sweep.json")
    assert [(cell["depth"], cell["width"]) for cell in found["grid"]] == [
        (depth, width) for depth in (1, "all") for width in (1, "10%", 4)
    ]
    assert set(found["methods"]) == {"saliency", "random"}
    pathx_(
        "evaluate", "pictures", "--model", "model.pt", "--methods", "pathx", "--depth", 1, "--width", 4, "--out", "one"
    )
    assert found["grid"][2]["deletion"] == document("one/evaluation.json")["methods"]["pathx"]["deletion"]
    assert {"sweep.png", "sweep.svg", "sheet.png", "sheet.svg"} <= {file.name for file in Path("out").iterdir()}
    assert "insertion is best at depth" in done.out


# common


@pytest.mark.usefixtures("drawn")
def test_common_paths_from_pictures_and_from_results_are_the_same(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", "all", "--width", 3)
    done = pathx_("common", "pictures", *settings, "--by", "folder", "--layers", "1,3", "--out", "one")
    assert done.status == 0
    drawn = {file.name for file in Path("one").glob("*.png")}
    kinds = {"units-3.png", "units-1.png", "channels-1-1.png", "positions-1-1.png"}
    assert drawn == kinds | {"overlap-units.png", "overlap-channels.png"}
    files = sorted(map(str, Path("pictures").rglob("*.png")))
    pathx_("explain", *files, *settings, "--out", "explained", "--quiet")
    Path("model.pt").unlink()  # the network is not needed any more
    assert pathx_("common", "explained", "--by", "folder", "--layers", "3", "--out", "other").status == 0
    one, other = document("one/common.json"), document("other/common.json")
    assert one["schema"] == "pathx/common@1"
    assert one["classes"] == other["classes"] and one["overlap"] == other["overlap"]
    assert one["settings"] == other["settings"]


def test_features_of_a_decomposition_are_not_counted_beside_the_whole(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", 2, "--width", 3)
    assert pathx_("decompose", "pictures/cat/0.png", *settings, "--out", "parts", "--quiet").status == 0
    assert len(list(Path("parts").rglob("path.json"))) > 1
    assert pathx_("common", "parts", "--out", "out").status == 0
    assert document("out/common.json")["pictures"] == 1


def test_results_among_pictures_are_not_taken_for_all_there_is(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", 2)
    assert pathx_("explain", "pictures/cat", *settings, "--out", "pictures/explained").status == 0
    assert pathx_("common", "pictures", *settings, "--out", "out").status == 0
    assert document("out/common.json")["pictures"] == 6
    done = pathx_("common", "pictures/explained", "pictures/explained/pictures", "--out", "twice")
    assert "note: 3 explanations are there twice and count once" in done.err
    assert document("twice/common.json")["pictures"] == 3


@pytest.mark.usefixtures("drawn")
def test_each_tensor_of_a_layer_has_its_plots(pathx_: Pathx) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()) for _ in range(2))
            self.last = nn.Linear(144, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([self.left(x), self.right(x)], 1).flatten(1))

    save(Branches().eval())
    assert pathx_("common", "pictures", "--model", "model.pt", "--depth", 1, "--out", "out").status == 0
    plots = {file.name for file in Path("out").glob("positions-1-*.png")}
    tensors = document("out/common.json")["layers"][0]["tensors"]
    assert len(tensors) == 2 and plots == {f"positions-1-{tensor['name']}.png" for tensor in tensors}


def test_names_that_are_not_text(pathx_: Pathx) -> None:
    odd = os.fsdecode(b"odd/a b\n\xff.png")
    try:
        picture(odd, 1)
    except OSError:
        pytest.skip("this file system takes text only")
    arguments = ("odd", "--model", "model.pt", "--depth", 2)
    assert pathx_("evaluate", *arguments, "--methods", "pathx,random", "--out", "out").status == 0
    with Path("out/pictures.csv").open(newline="") as stream:
        assert [row[0] for row in csv.reader(stream)][1:] == ["odd/a b\n\\udcff.png"] * 2
    Path(odd).write_bytes(b"no picture")
    picture("odd/b.png", 2)
    assert pathx_("evaluate", *arguments, "--methods", "pathx", "--out", "out").status == 1
    assert list(document("out/evaluation.json")["unread"]) == [odd]
    assert pathx_("common", *arguments, "--out", "shared").status == 1
    assert list(document("shared/common.json")["unread"]) == [odd]


def test_shares_are_counted_over_the_paths(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", "all", "--width", 3)
    files = sorted(map(str, Path("pictures/cat").glob("*.png")))
    pathx_("explain", *files, *settings, "--out", "explained", "--quiet")
    pathx_("common", "explained", "--by", "folder", "--threshold", "0.6", "--out", "out")
    paths = [json.loads(file.read_text()) for file in Path("explained").rglob("path.json")]
    paths = [path for path in paths if path["target"]["rank"] == 1]  # explain may add classes that came close
    (group,) = document("out/common.json")["classes"]
    assert group["label"] == "cat" and group["pictures"] == 3
    for layer in group["layers"]:
        own = [next(n for n in path["layers"] if n["layer"] == layer["layer"])["units"] for path in paths]
        for kind, part in (("units", slice(None)), ("channels", slice(1)), ("positions", slice(1, None))):
            for entry in layer[kind]:
                holds = [
                    any(u["tensor"] == entry["tensor"] and u["index"][part] == entry["index"] for u in p) for p in own
                ]
                assert entry["share"] == pytest.approx(sum(holds) / 3)
        often = [{"tensor": u["tensor"], "index": u["index"]} for u in layer["units"] if u["share"] >= 0.6]
        assert layer["common_path"] == often
        assert bool(layer["positions"]) == (len(own[0][0]["index"]) == 3)


def test_one_class_is_the_same_as_itself(pathx_: Pathx) -> None:
    done = pathx_("common", "pictures/cat", "--model", "model.pt", "--depth", 2, "--by", "prediction", "--out", "out")
    found = document("out/common.json")
    for matrix in (found["overlap"]["units"], found["overlap"]["channels"]):
        for number, row in enumerate(matrix):
            assert row[number] == 1 and all(0 <= value <= 1 for value in row)
    assert done.status == 0
    done = pathx_("common", "pictures", "--model", "model.pt", "--depth", 2, "--by", "folder", "--out", "two")
    assert document("two/common.json")["overlap"]["classes"] == ["cat", "dog"]
    picture("single/cat/1.png", 3)
    done = pathx_("common", "single", "--model", "model.pt", "--depth", 2, "--by", "folder", "--out", "single-out")
    assert done.status == 0 and "there is one class only, cat" in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pictures/cat", "--by", "folder"), "none of the pictures lie in folders named after classes"),
        (("pictures", "--threshold", "2"), "threshold 2 is out of range"),
        (("pictures", "--layers", "9"), "layer 9 is not on the paths, which have 3, 2, 1"),
        (("pictures", "--classes", "cow"), "no class is called 'cow'"),
    ],
)
def test_what_is_wrong_with_common_is_said(pathx_: Pathx, arguments: tuple[str, ...], text: str) -> None:
    done = pathx_("common", *arguments, "--model", "model.pt", "--out", "out")
    assert done.status == 2 and text in done.err


def test_explanations_of_several_kinds_are_not_mixed(pathx_: Pathx) -> None:
    for depth in (1, 2):
        pathx_(
            "explain",
            "pictures/cat/0.png",
            "--model",
            "model.pt",
            "--depth",
            depth,
            "--out",
            f"mixed/{depth}",
            "--quiet",
        )
    done = pathx_("common", "mixed", "--out", "out")
    assert done.status == 2 and "not of one kind (model.pt, depth 1" in done.err
    done = pathx_("common", "mixed/1", "--depth", 3, "--out", "out")
    assert done.status == 2 and "these are finished explanations" in done.err
    pathx_(
        "explain",
        "pictures/cat/0.png",
        "--model",
        "model.pt",
        "--depth",
        1,
        "--target",
        "top:3",
        "--out",
        "top",
        "--quiet",
    )
    done = pathx_("common", "top", "--out", "out")
    assert done.status == 0 and "2 explanations of classes that were not predicted are left out" in done.err


# check


@pytest.mark.usefixtures("drawn")
def test_a_sound_model_passes_with_a_verdict_in_words(pathx_: Pathx) -> None:
    done = pathx_(
        "check", "pictures/cat/0.png", "--model", "model.pt", "--depth", "all", "--dtype", "float64", "--out", "out"
    )
    found = document("out/check.json")
    assert found["schema"] == "pathx/check@1"
    checks = found["checks"]
    assert list(checks) == ["completeness", "unwrapping", "randomisation", "stability"]
    assert checks["completeness"]["passed"] and checks["completeness"]["figures"]["share"] < 1e-10
    assert checks["unwrapping"]["passed"] and checks["unwrapping"]["figures"]["share"] < 1e-10
    layers = checks["randomisation"]["figures"]["layers"]
    assert [line["module"] for line in layers] == ["7", "5", "2", "0"]  # from the output down
    assert "which is rounding" in done.out and "rank correlation" in done.out
    assert Path("out/randomisation.png").exists() and Path("out/randomisation.svg").exists()
    assert done.status == (0 if found["passed"] else 1)


def test_the_model_is_not_randomised_itself(pathx_: Pathx) -> None:
    before = Path("model.pt").read_bytes()
    first = pathx_("check", "pictures/cat/0.png", "--model", "model.pt", "--format", "json", "--out", "out")
    again = pathx_("check", "pictures/cat/0.png", "--model", "model.pt", "--format", "json", "--out", "out")
    assert json.loads(first.out) == json.loads(again.out)
    assert Path("model.pt").read_bytes() == before
