from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import urllib.error
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ExifTags, Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import pathx.computing
from pathx.cli import run
from pathx.vision import torchvision

ROOT = Path(__file__).resolve().parents[1]
SIDECAR: dict[str, Any] = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25], "labels": ["cat", "red fox", "dog"]}
FILES = {"heatmap.png", "overlay.png", "path.json"}
INDEX = {"index.jsonl", "run.json"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.usefixtures("one_thread"),
]


@dataclass(frozen=True)
class Finished:
    status: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Pathx = Callable[..., Finished]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that pictures and results have short relative names."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "PATHX_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def pathx_(capsys: pytest.CaptureFixture[str]) -> Pathx:
    """The command line in this process: the imports of a new one take seconds."""

    def call(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        return Finished(int(ended.value.code or 0), *capsys.readouterr())

    return call


def process(*arguments: object) -> Finished:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def picture(file: str = "photo.png", size: tuple[int, int] = (24, 16), seed: int = 0, **options: Any) -> str:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", size, bytes(pixels.flatten().tolist())).save(file, **options)
    return file


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.inside(x))  # type: ignore[no-any-return]


def network(channels: int = 3, classes: int = 3) -> nn.Module:
    """Four hidden layers, with a skip connection; input 8 x 8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Residual(4)
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, classes)).eval()


def scripted(module: nn.Module, file: str = "model.pt", sidecar: dict[str, Any] | None = SIDECAR) -> str:
    torch.jit.save(torch.jit.script(module), file)
    if sidecar is not None:
        Path(file).with_suffix(".json").write_text(json.dumps(sidecar))
    return file


def files(folder: str | Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in Path(folder).rglob("*") if not file.is_dir()}


def document(folder: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "path.json").read_text())
    return content


# path.json, strictly: keys in their order and types that are exactly these

UNIT = {
    "tensor": str,
    "index": [int],
    "activation": float,
    "weight": float,
    "contribution": float,
    "importance": float,
    "receptive_field": [int],
}
SCHEMA = {
    "schema": str,
    "image": {"file": str, "sha256": str, "width": int, "height": int},
    "model": {"name": str, "weights": str, "sha256": str, "classes": int, "hidden_layers": int},
    "target": {"index": int, "label": str, "logit": float, "probability": float, "rank": int},
    "depth": int,
    "width": (int, str),
    "alpha": float,
    "skips": str,
    "complete": bool,
    "layers": [
        {"layer": int, "below_alpha": bool, "tensors": [{"name": str, "shape": [int]}], "units": [UNIT]},
    ],
    "linear_model": {"score": float, "bias": float, "attribution_sum": float, "residual": float},
    "files": dict,
    "created_by": {"pathx": str, "torch": str, "torchvision": str, "device": str, "dtype": str},
}


def check_types(value: Any, wanted: Any, place: str) -> None:
    if isinstance(wanted, dict):
        assert list(value) == list(wanted), place
        for key in wanted:
            check_types(value[key], wanted[key], f"{place}.{key}")
    elif isinstance(wanted, list):
        assert type(value) is list, place
        for number, item in enumerate(value):
            check_types(item, wanted[0], f"{place}[{number}]")
    else:
        assert type(value) in (wanted if isinstance(wanted, tuple) else (wanted,)), place


def check_document(made: dict[str, Any], size: tuple[int, int] = (8, 8), tolerance: float = 1e-5) -> None:
    """Everything that every path.json of a picture must be; size is (width, height) of the model's input."""
    check_types(made, SCHEMA, "path.json")
    assert made["schema"] == "pathx/path@1"
    assert len(made["image"]["sha256"]) == len(made["model"]["sha256"]) == 64
    hidden, depth = made["model"]["hidden_layers"], made["depth"]
    assert [layer["layer"] for layer in made["layers"]] == list(range(hidden, hidden - depth, -1))
    assert made["complete"] is (depth == hidden)
    for layer in made["layers"]:
        shapes = {tensor["name"]: tensor["shape"] for tensor in layer["tensors"]}
        units = layer["units"]
        assert 1 <= len(units) <= (made["width"] if isinstance(made["width"], int) else 10**9)
        assert len({(unit["tensor"], *unit["index"]) for unit in units}) == len(units)
        importances = [unit["importance"] for unit in units]
        assert importances == sorted(importances, reverse=True)
        assert layer["below_alpha"] is (importances[0] <= made["alpha"])
        for unit in units:
            shape = shapes[unit["tensor"]]
            assert all(0 <= at < length for at, length in zip(unit["index"], shape, strict=True))
            assert unit["contribution"] == pytest.approx(unit["weight"] * unit["activation"], rel=1e-5)
            left, top, right, bottom = unit["receptive_field"]
            assert 0 <= left < right <= size[0]
            assert 0 <= top < bottom <= size[1]
    model = made["linear_model"]
    scale = max(1.0, abs(model["bias"]), abs(model["attribution_sum"]), abs(model["score"]))
    assert model["residual"] == model["score"] - model["bias"] - model["attribution_sum"]
    assert abs(model["residual"]) <= tolerance * scale
    if made["skips"] == "adjacent":
        total = sum(unit["contribution"] for unit in made["layers"][-1]["units"])
        assert total == pytest.approx(model["score"], rel=tolerance, abs=tolerance * scale)


def same(one: Any, other: Any) -> bool:
    """Equal, up to the rounding of floats."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return bool(other == pytest.approx(one, rel=1e-4, abs=1e-6))
    return bool(one == other)


# The process


def test_help_needs_no_torch() -> None:
    heavy = "{'torch', 'torchvision', 'PIL', 'safetensors'}"
    script = f"import sys, pathx.cli; print(sorted({heavy} & set(sys.modules)))"
    script += "\ntry: pathx.cli.run(['explain', '--help'])"
    script += f"\nfinally: print(sorted({heavy} & set(sys.modules)))"
    done = process("-c", script)
    assert (done.status, done.err) == (0, "")
    first, *help_text, last = done.out.splitlines()
    assert first == last == "[]"
    assert "--save-tensors" in "\n".join(help_text)


def test_a_process_of_its_own() -> None:
    model = scripted(network())
    done = process("-m", "pathx", "explain", picture(), "missing.png", "--model", model, "--format", "json")
    assert done.status == 1
    assert [made["image"]["file"] for made in done.documents] == ["photo.png"]
    failure, summary = done.err.splitlines()
    assert failure == "pathx: missing.png: no such file; check the path"
    assert summary == "pathx: 1 of 2 pictures failed; the rest is in pathx-out"
    slug = done.documents[0]["target"]["label"].replace(" ", "-")
    assert files("pathx-out") == {f"photo.png/{slug}/{name}" for name in FILES} | INDEX


def test_a_reader_that_has_seen_enough() -> None:
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pathx", "explain", picture(), "--model", scripted(network())]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment, text=True, timeout=120)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_version_and_help(pathx_: Pathx) -> None:
    assert pathx_("--version") == Finished(0, f"pathx {pathx.__version__}\n", "")
    assert pathx_() == pathx_("--help")
    done = pathx_("-h")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Usage: pathx ")


# What is written and printed


def test_the_default_run(pathx_: Pathx) -> None:
    file = picture(size=(320, 240))
    done = pathx_("explain", file)
    assert (done.status, done.err) == (0, "")
    (folder,) = Path("pathx-out/photo.png").iterdir()
    assert files(folder) == FILES
    made = document(folder)
    check_document(made, (224, 224))
    assert made["model"]["name"] == "squeezenet1_1"
    assert (made["model"]["classes"], made["model"]["hidden_layers"]) == (1000, 18)
    assert (made["depth"], made["width"], made["alpha"], made["skips"]) == (3, 5, 0.001, "adjacent")
    assert (made["image"]["width"], made["image"]["height"], made["target"]["rank"]) == (320, 240, 1)
    assert folder.name == made["target"]["label"].lower().replace(" ", "-")
    assert made["files"] == {"heatmap": "heatmap.png", "overlay": "overlay.png"}
    with Image.open(folder / "heatmap.png") as heatmap, Image.open(folder / "overlay.png") as overlay:
        assert heatmap.size == (224, 224)
        assert overlay.width / overlay.height == pytest.approx(320 / 240, rel=0.01)
    lines = done.out.splitlines()
    assert lines[0] == "photo.png"
    best = f"  {made['target']['label']} {made['target']['probability']:.1%}, "
    assert lines[1].startswith(best)
    assert any(line.startswith(f"{made['target']['label']}: class {made['target']['index']}, ") for line in lines)
    strongest = made["layers"][0]["units"][0]
    row = f"   18 {len(made['layers'][0]['units']):>5}  {strongest['tensor']} {strongest['index']}".replace(", ", ",")
    assert any(line.startswith(row) for line in lines)
    assert f"{folder}/: heatmap.png, overlay.png, path.json" in lines


@pytest.mark.parametrize("width", [60, 80, 200, None])
def test_the_table_fits_the_terminal(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    done = pathx_("explain", picture(), "--input-size", "3,64,64", "--alpha", 0, "--target", "tiger cat")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("pathx-out")) <= (width or 1000)
    start = next(number for number, line in enumerate(lines) if line.startswith("layer "))
    rows = lines[start + 1 : next(number for number, line in enumerate(lines) if line.startswith("pathx-out"))]
    made = document("pathx-out/photo.png/tiger-cat")
    shown = [unit for layer in made["layers"] for unit in layer["units"][:3]]
    assert len(rows) == len(shown)  # no row is broken in two
    for row, unit in zip(rows, shown, strict=True):
        name, index, importance, share = row.split()[-4:]
        assert index == str(unit["index"]).replace(" ", "")
        assert importance == f"{unit['importance']:.4g}"
        assert share.endswith("%")
        assert name == unit["tensor"] or (width == 60 and name[0] == "…" and unit["tensor"].endswith(name[1:]))


def test_json_is_all_there_is_on_stdout(pathx_: Pathx) -> None:
    model = scripted(network())
    arguments = ("explain", picture("a.png"), picture("b.png", seed=1), "--model", model, "--format", "json")
    done = pathx_(*arguments, "--target", "top:2")
    assert (done.status, done.err) == (0, "")
    assert [made["image"]["file"] for made in done.documents] == ["a.png", "a.png", "b.png", "b.png"]
    assert [made["target"]["rank"] for made in done.documents] == [1, 2, 1, 2]
    for made in done.documents:
        check_document(made)
        slug = made["target"]["label"].replace(" ", "-")
        assert document(f"pathx-out/{made['image']['file']}/{slug}") == made
    assert len(pathx_(*arguments, "--quiet").documents) == 2


def test_quiet(pathx_: Pathx) -> None:
    assert pathx_("explain", picture(), "--model", scripted(network()), "-q") == Finished(0, "", "")
    assert len(files("pathx-out")) == 3
    done = pathx_("explain", "no.png", "--model", "model.pt", "-q")
    assert done == Finished(1, "", "pathx: no.png: no such file; check the path\n")


def test_notes_go_to_stderr_once_per_picture(pathx_: Pathx) -> None:
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    frames[0].save("moving.gif", save_all=True, append_images=frames[1:])
    arguments = ("explain", "moving.gif", "--model", scripted(network()), "--target", "top:2")
    done = pathx_(*arguments)
    assert done.status == 0
    assert done.err == "pathx: note: moving.gif: animated: first frame used\n"
    assert "animated" not in done.out
    assert pathx_(*arguments, "--quiet").err == ""


def test_a_run_replaces_an_earlier_one(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--target", "dog")
    pathx_(*arguments, "--save-tensors", "--depth", 1)
    assert files("pathx-out/photo.png/dog") == FILES | {"tensors.safetensors"}
    pathx_(*arguments, "--depth", 2)
    assert files("pathx-out/photo.png/dog") == FILES
    assert document("pathx-out/photo.png/dog")["depth"] == 2


def test_pictures_of_one_name_do_not_share_a_folder(pathx_: Pathx, here: Path) -> None:
    names = [picture("a.png"), picture("x/a.png", seed=1), str(here / picture("y/a.png", seed=2))]
    done = pathx_("explain", *names, "--model", scripted(network()), "--target", "cat", "--out", "o/p")
    assert done.status == 0
    folders = {"a.png", "x/a.png", "y/a.png"}
    assert files("o/p") == {f"{folder}/cat/{name}" for folder in folders for name in FILES} | INDEX
    assert document("o/p/y/a.png/cat")["image"]["file"] == names[2]


# Options


def test_targets(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--format", "json")
    options = itertools.chain(*(("--target", target) for target in ("RED_FOX", "0", "red fox", "dog")))
    done = pathx_(*arguments, *options)
    assert [made["target"]["label"] for made in done.documents] == ["red fox", "cat", "dog"]
    folders = {"red-fox", "cat", "dog"}
    assert {file.name for file in Path("pathx-out/photo.png").iterdir()} == folders | {"contrast.png", "contrast.json"}
    ranked = [made["target"]["index"] for made in pathx_(*arguments, "--target", "top:3").documents]
    logits = {made["target"]["index"]: made["target"]["logit"] for made in done.documents}
    assert ranked == sorted(logits, key=lambda index: -logits[index])
    assert [made["target"]["index"] for made in pathx_(*arguments).documents] == ranked[:1]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (("--depth", "all"), [5, 5, 5, 5]),
        (("--depth", 2, "--width", 1), [1, 1]),
        (("--depth", 4, "--width", "5%"), [1, 4, 4, 13]),
        (("--depth", 4, "--width", "all"), [9, 64, 64, 256]),
    ],
)
def test_depth_and_width(pathx_: Pathx, options: tuple[object, ...], kept: list[int]) -> None:
    (made,) = pathx_("explain", picture(), "--model", scripted(network()), "--format", "json", *options).documents
    check_document(made)
    assert [tensor["shape"] for layer in made["layers"] for tensor in layer["tensors"]] == [
        [9],
        [4, 4, 4],
        [4, 4, 4],
        [4, 8, 8],
    ][: len(kept)]
    counts = [len(layer["units"]) for layer in made["layers"]]
    assert all(0 < count <= most for count, most in zip(counts, kept, strict=True))
    assert counts[-1] == kept[-1] or options[-1] == "all"
    assert made["width"] == (options[-1] if "--width" in options else 5)
    assert made["complete"] is (len(kept) == 4)


def test_alpha(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--format", "json", "--width", "all")
    default, low, high = (
        pathx_(*arguments, *option).documents[0] for option in ((), ("--alpha", 0), ("--alpha", 0.999))
    )
    assert (default["alpha"], low["alpha"], high["alpha"]) == (1 / 3, 0.0, 0.999)
    for made in (default, low, high):
        check_document(made)
    assert [layer["below_alpha"] for layer in high["layers"]] == [True, True, True]
    assert [len(layer["units"]) for layer in high["layers"]] == [1, 1, 1]
    assert len(low["layers"][0]["units"]) > len(default["layers"][0]["units"])
    text = pathx_(*arguments[:4], "--alpha", 0.999).out
    assert "\n    4    1*  " in text
    assert "* no unit was above alpha; the best one was kept\n" in text


def test_all_units_and_all_skips_unwrap_to_input_times_gradient(pathx_: Pathx) -> None:
    everything = ("--depth", "all", "--width", "all", "--alpha", 0, "--skips", "all", "--dtype", "float64")
    (made,) = pathx_("explain", picture(), "--model", scripted(network()), *everything, "--format", "json").documents
    assert (made["skips"], made["created_by"]["dtype"], made["created_by"]["device"]) == ("all", "float64", "cpu")
    check_document(made, tolerance=1e-10)
    module = network().double()
    with Image.open("photo.png") as image:
        inputs = pathx.load_model("model.pt").preprocessing(image)[None].double().requires_grad_()
    (gradient,) = torch.autograd.grad(module(inputs)[0, made["target"]["index"]], inputs)
    assert made["linear_model"]["attribution_sum"] == pytest.approx(
        float((inputs * gradient).detach().sum()), rel=1e-10
    )
    (adjacent,) = pathx_("explain", "photo.png", "--model", "model.pt", *everything[:6], "--format", "json").documents
    assert adjacent["linear_model"]["score"] != pytest.approx(made["linear_model"]["score"], rel=1e-3)


def test_save_tensors(pathx_: Pathx) -> None:
    options = ("--save-tensors", "--depth", 2, "--format", "json")
    (made,) = pathx_("explain", picture(), "--model", scripted(network()), *options, "--target", "cat").documents
    folder = Path("pathx-out/photo.png/cat")
    assert files(folder) == FILES | {"tensors.safetensors"}
    assert made["files"]["tensors"] == "tensors.safetensors"
    with safe_open(folder / "tensors.safetensors", "pt") as tensors:
        assert tensors.get_tensor("attribution").shape == (3, 8, 8)
        total = float(tensors.get_tensor("attribution").double().sum())
        assert total == pytest.approx(made["linear_model"]["attribution_sum"])
        for layer in made["layers"]:
            indices = tensors.get_tensor(f"units.{layer['layer']}").tolist()
            assert indices == [unit["index"] for unit in layer["units"]]


def test_options_describe_a_model_file(pathx_: Pathx) -> None:
    model = scripted(network(), sidecar=None)
    described = ("--input-size", "3,8,8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--format", "json")
    (bare,) = pathx_("explain", picture(), "--model", model, *described).documents
    assert bare["target"]["label"] == f"class {bare['target']['index']}"
    Path("names.txt").write_text("cat\nred fox\ndog\n")
    (named,) = pathx_("explain", "photo.png", "--model", model, *described, "--labels", "names.txt").documents
    Path("model.json").write_text(json.dumps(SIDECAR))
    (sidecar,) = pathx_("explain", "photo.png", "--model", model, "--format", "json").documents
    assert sidecar["target"]["label"] == SIDECAR["labels"][bare["target"]["index"]]
    assert same(named, sidecar)
    (other,) = pathx_("explain", "photo.png", "--model", model, "--mean", "0", "--format", "json").documents
    assert other["target"]["logit"] != pytest.approx(sidecar["target"]["logit"], rel=1e-3)


def test_the_batch_size_changes_nothing(pathx_: Pathx) -> None:
    pictures = [picture(f"{number}.png", seed=number) for number in range(4)]
    arguments = ("explain", *pictures, "--model", scripted(network()), "--target", "top:2", "--format", "json")
    one, three = (pathx_(*arguments, "--out", f"by{size}", "--batch-size", size).documents for size in (1, 3))
    assert len(one) == 8
    assert all(map(same, one, three))
    assert files("by1") == files("by3")


# Models


def test_one_network_in_three_forms_gives_one_path(pathx_: Pathx) -> None:
    module = network()
    torch.jit.save(torch.jit.trace(module, torch.zeros(2, 3, 8, 8)), "traced.bin")
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 8, 8),)), "exported.pt2")
    options = ("--depth", "all", "--format", "json")
    results = []
    for file in (scripted(module), "traced.bin", "exported.pt2"):
        Path(file).with_suffix(".json").write_text(json.dumps(SIDECAR))
        done = pathx_("explain", picture(), "--model", file, *options, "--out", f"out-{file}")
        assert (done.status, done.err) == (0, ""), file
        (made,) = done.documents
        check_document(made)
        assert (made["model"].pop("name"), made["model"].pop("weights")) == (file, file)
        made["model"].pop("sha256")
        for layer in made["layers"]:
            layer.pop("tensors")
            for unit in layer["units"]:
                unit.pop("tensor")
        results.append(made)
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_a_file_made_for_one_picture_at_a_time_takes_several(pathx_: Pathx) -> None:
    torch.export.save(torch.export.export(network(), (torch.zeros(1, 3, 8, 8),)), "model.pt2")
    Path("model.json").write_text(json.dumps(SIDECAR))
    names = [picture("a.png"), "none.png", picture("b.png", seed=1), picture("c.png", seed=2)]
    arguments = ("explain", *names, "--model", "model.pt2", "--format", "json")
    several = pathx_(*arguments)
    assert several.status == 1
    assert several.err.splitlines()[0] == "pathx: none.png: no such file; check the path"
    assert [made["image"]["file"] for made in several.documents] == ["a.png", "b.png", "c.png"]
    assert several == pathx_(*arguments, "--batch-size", 1, "--overwrite")


@pytest.mark.parametrize("file", ["weights.safetensors", "weights.pth"])
def test_a_name_with_a_state_dict_of_its_own(pathx_: Pathx, file: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        state = torchvision.models.get_model("squeezenet1_0", weights=None, num_classes=4).state_dict()
    save_file(state, file) if file.endswith("safetensors") else torch.save(state, file)
    options = ("--model", "squeezenet1_0", "--weights", file, "--input-size", "3,48,48", "--target", 3)
    done = pathx_("explain", picture(), *options, "--format", "json")
    assert (done.status, done.err) == (0, "")
    (made,) = done.documents
    check_document(made, (48, 48))
    assert (made["model"]["name"], made["model"]["weights"]) == ("squeezenet1_0", file)
    assert (made["model"]["classes"], made["target"]["label"]) == (4, "class 3")


def test_a_grey_model_gets_a_grey_picture(pathx_: Pathx) -> None:
    module = network(channels=1)
    model = scripted(module, sidecar={"input_size": [1, 8, 8], "mean": 0.5, "std": 0.25})
    (made,) = pathx_("explain", picture(size=(8, 8)), "--model", model, "--target", 0, "--format", "json").documents
    check_document(made)
    with Image.open("photo.png") as image:
        grey = torch.tensor(list(image.convert("L").tobytes()), dtype=torch.float32).view(1, 1, 8, 8)
    assert made["target"]["logit"] == pytest.approx(float(module((grey / 255 - 0.5) / 0.25)[0, 0].detach()), rel=1e-5)


def test_one_logit_is_two_classes(pathx_: Pathx) -> None:
    sidecar = {key: SIDECAR[key] for key in ("input_size", "mean", "std")}
    arguments = ("explain", picture(), "--model", scripted(network(classes=1), sidecar=sidecar), "--format", "json")
    done = pathx_(*arguments, "--target", "negative", "--target", "positive")
    negative, positive = (made["target"] for made in done.documents)
    assert (negative["index"], positive["index"], negative["logit"]) == (0, 1, 0.0)
    assert positive["probability"] + negative["probability"] == pytest.approx(1)
    assert positive["probability"] == pytest.approx(torch.tensor(positive["logit"]).sigmoid().item(), rel=1e-5)
    for made in done.documents:
        check_types(made, SCHEMA, "path.json")
        assert (made["alpha"], made["model"]["classes"]) == (0.5, 2)
    (predicted,) = pathx_(*arguments).documents
    assert predicted["target"] == (positive if positive["logit"] > 0 else negative)


def test_a_rotated_photo_is_upright(pathx_: Pathx) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    file = picture("photo.jpg", size=(60, 30), exif=exif)
    (made,) = pathx_("explain", file, "--model", scripted(network()), "--target", "cat", "--format", "json").documents
    assert (made["image"]["width"], made["image"]["height"]) == (30, 60)
    with Image.open("pathx-out/photo.jpg/cat/overlay.png") as overlay:
        assert overlay.height == 2 * overlay.width


# Pictures that fail: the others are done


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that says it has this size, with hardly any pixels in it."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big") for name, data in chunks
    )


BAD_PICTURES: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "missing": (lambda whole: None, "bad.png: no such file; check the path"),
    "empty": (lambda whole: b"", "bad.png is empty (zero bytes): fetch it again"),
    "text": (lambda whole: b"not a picture", "bad.png is not a picture that pathx reads: give it as JPEG, PNG, "),
    "truncated": (lambda whole: whole[: len(whole) // 2], "bad.png is damaged or cut short ("),
    "bomb": (lambda whole: png_of_size(60_000, 60_000), "bad.png has more than 89 million pixels, too many to decode"),
}


@pytest.mark.parametrize("kind", BAD_PICTURES)
def test_a_bad_picture(pathx_: Pathx, kind: str) -> None:
    spoil, message = BAD_PICTURES[kind]
    content = spoil(Path(picture("bad.png")).read_bytes())
    Path("bad.png").unlink()
    if content is not None:
        Path("bad.png").write_bytes(content)
    done = pathx_("explain", "bad.png", "--model", scripted(network()))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"pathx: {message}")
    assert done.err.count("\n") == 1
    assert not Path("pathx-out").exists()


def test_one_bad_picture_among_several(pathx_: Pathx) -> None:
    Path("b.png").write_text("no picture")
    names = [picture("a.png"), "b.png", picture("c.png", seed=1), "d.png"]
    for size in (1, 3):
        options = ("--target", "cat", "--batch-size", size, "--overwrite")
        done = pathx_("explain", *names, "--model", scripted(network()), *options)
        assert done.status == 1
        first, second, summary = done.err.splitlines()
        assert first.startswith("pathx: b.png is not a picture")
        assert second == "pathx: d.png: no such file; check the path"
        assert summary == "pathx: 2 of 4 pictures failed; the rest is in pathx-out"
        assert files("pathx-out") == {f"{name}/cat/{file}" for name in ("a.png", "c.png") for file in FILES} | INDEX
    done = pathx_("explain", "b.png", "d.png", "--model", "model.pt")
    assert done.err.splitlines()[-1] == "pathx: 2 of 2 pictures failed"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_no_numbers(pathx_: Pathx, value: float) -> None:
    module = network()
    with torch.no_grad():
        next(reversed(list(module.parameters())))[0] = value
    done = pathx_("explain", picture(), "--model", scripted(module))
    message = "photo.png: the model's output is NaN or infinite; check its weights, or try --dtype float64"
    assert done == Finished(1, "", f"pathx: {message}\n")
    assert not Path("pathx-out").exists()


def test_a_folder_of_results_that_cannot_be_made(pathx_: Pathx) -> None:
    Path("pathx-out").mkdir()
    Path("pathx-out/photo.png").write_text("in the way")
    names = (picture(), picture("b.png"))
    done = pathx_("explain", *names, "--model", scripted(network()), "--target", "cat", "--target", "dog")
    assert done.status == 1
    *failures, summary = done.err.splitlines()
    reasons = [line.partition(" (")[0] for line in failures]
    places = ("photo.png/cat", "photo.png/dog", "photo.png")  # the last for the contrast
    assert reasons == [f"pathx: cannot write results to pathx-out/{place}" for place in places]
    assert all(line.endswith(": choose another folder with --out") for line in failures)
    assert summary == "pathx: 1 of 2 pictures failed; the rest is in pathx-out"
    assert len(files("pathx-out/b.png")) == 8


# Calls that are wrong: nothing is done


def refused(done: Finished, *parts: str, status: int = 2, out: str = "pathx-out") -> None:
    assert (done.status, done.out) == (status, ""), done
    assert done.err.startswith("pathx: ")
    assert done.err.count("\n") == 1, done.err
    for part in parts:
        assert part in done.err
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--depth", 5), "depth 5 is out of range: the network has 4 hidden layers; use 1 to 4 or all"),
        (("--depth", 0), "depth 0 is out of range: the network has 4 hidden layers; use 1 to 4 or all"),
        (("--depth", "deep"), "depth 'deep' is not a number of layers; use 1 or more, or all"),
        *(
            (("--width", width), f"width {width} is out of range; use a number from 1, a share such as 5%, or all")
            for width in ("0", "-3", "--3", "0%", "101%", "nan%", "foo", "²")
        ),
        *((("--alpha", alpha), f"alpha {alpha} is out of range; use 0 or more") for alpha in ("-0.1", "1.5", "nan")),
        (("--alpha", "some"), "alpha 'some' is not a number"),
        (("--target", "red fix"), "no class is called 'red fix': did you mean 'red fox'?"),
        (("--target", "bicycle"), "no class is called 'bicycle': give a label or an index from 0 to 2"),
        (("--target", 3), "target 3 is out of range: the classes are 0 to 2"),
        (("--target", -1), "target -1 is out of range: the classes are 0 to 2"),
        (("--target", "top:4"), "target 'top:4' must be top:K with K from 1 to 3"),
        (("--device", "tpu"), "device 'tpu' is unknown; use auto, cpu, cuda, cuda:1 or mps"),
        (("--batch-size", 0), "batch size 0 is out of range; use 1 or more, or auto"),
        (("--batch-size", "many"), "--batch-size takes a number of pictures or auto, not 'many'"),
        (("--input-size", "3,8"), "model.pt: input_size must be three whole numbers above 0 (channels, height, width)"),
        (("--input-size", "3,inf,8"), "--input-size takes channels,height,width such as 3,224,224, not '3,inf,8'"),
        (("--input-size", "3,16,16"), "the model cannot run on an input of shape (1, 3, 16, 16): "),
        (("--mean", "grey"), "--mean takes numbers with commas between, such as 0.5,0.5,0.5, not 'grey'"),
        (("--std", "0,1,1"), "model.pt: std must be 3 numbers above 0, one per channel, not [0.0, 1.0, 1.0]"),
        (("--labels", "none.txt"), "the labels in none.txt cannot be read (No such file or directory): give a text"),
        (("--weights", "DEFAULT"), "model.pt brings its own weights: leave --weights out"),
        (("--format", "xml"), "Invalid value for '--format': 'xml' is not one of 'text', 'json'; see pathx explain"),
        (("--colour", "red"), "No such option: --colour"),
        (("--width",), "Option '--width' requires an argument"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_options_that_are_wrong(pathx_: Pathx, options: tuple[object, ...], message: str) -> None:
    model = scripted(network())
    refused(pathx_("explain", picture(), "--model", model, *options), f"pathx: {message}")


def test_commands_that_are_wrong(pathx_: Pathx) -> None:
    refused(pathx_("explain"), "Missing argument 'IMAGE|FOLDER|GLOB|LIST.txt|-'; see pathx explain --help")
    refused(pathx_("explode"), "No such command 'explode'", "see pathx --help")
    refused(pathx_("--frob"), "No such option: --frob")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_a_device_that_is_not_there(pathx_: Pathx, device: str) -> None:
    done = pathx_("explain", picture(), "--model", scripted(network()), "--device", device)
    refused(done, f"device '{device}' is not there; this machine has cpu", "use --device auto")


@pytest.mark.parametrize("out", ["photo.png", "photo.png/results/here"])
def test_an_output_folder_that_cannot_be_written(pathx_: Pathx, out: str) -> None:
    done = pathx_("explain", picture(), "--model", scripted(network()), "--out", out)
    refused(done, f"cannot write to the output folder {out} (photo.png is not a folder): choose another with --out")


def test_an_output_folder_without_permission(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    done = pathx_("explain", picture(), "--model", scripted(network()))
    refused(done, "cannot write to the output folder pathx-out (permission denied): choose another with --out")


class Gated(nn.Module):
    """A squeeze-and-excitation block, whose sigmoid is at block.1."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.block(x)  # type: ignore[no-any-return]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), Gated())
        self.classifier = nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["scripted", "traced", "exported"])
def test_a_file_that_is_no_relu_network(pathx_: Pathx, form: str) -> None:
    module, example = Network().eval(), torch.zeros(1, 3, 8, 8)
    if form == "scripted":
        torch.jit.save(torch.jit.script(module), "model.pt")
    elif form == "traced":
        torch.jit.save(torch.jit.trace(module, example), "model.pt")
    else:
        with open("model.pt", "wb") as stream:
            torch.export.save(torch.export.export(module, (example,)), stream)
    Path("model.json").write_text(json.dumps(SIDECAR))
    refused(pathx_("explain", picture(), "--model", "model.pt"), "sigmoid in features.1.block.1 ")


@pytest.mark.parametrize(
    ("name", "operation", "kind"),
    [("regnet_y_400mf", "sigmoid", nn.Sigmoid), ("mobilenet_v3_small", "hardswish", nn.Hardswish)],
)
def test_a_name_that_is_no_relu_network(pathx_: Pathx, name: str, operation: str, kind: type[nn.Module]) -> None:
    done = pathx_("explain", picture(), "--model", name, "--weights", "none", "--input-size", "3,32,32")
    refused(done, f"the model is not a ReLU network: {operation} in ", "is not linear for a given input")
    place = done.err.partition(f"{operation} in ")[2].split()[0]
    module = torchvision.models.get_model(name, weights=None)
    assert isinstance(module.get_submodule(place), kind)
    assert place == next(path for path, part in module.named_modules() if isinstance(part, kind))


# Files that are no models, and weights


class Trap:
    """A pickle that leaves a mark where it is executed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def test_no_pickle_is_executed(pathx_: Pathx) -> None:
    torch.save({"features.0.weight": Trap()}, "unsafe.pth")
    torch.save(network(), "module.pt")
    for file in ("unsafe.pth", "module.pt"):
        refused(pathx_("explain", picture(), "--model", file), f"{file} is a pickle, a program that pathx never runs: ")
        done = pathx_("explain", picture(), "--model", "resnet18", "--weights", file)
        refused(done, f"{file} is damaged or holds more than tensors", "save model.state_dict(), best as safetensors")
    assert not Path("executed").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert Path("executed").exists()  # the trap would have worked


def test_models_and_weights_that_are_not_there(pathx_: Pathx) -> None:
    file = picture()
    refused(pathx_("explain", file, "--model", "no.pt"), "there is no model file no.pt: check the path")
    refused(pathx_("explain", file, "--model", "resnet19"), "there is no model called 'resnet19': did you mean resnet1")
    refused(pathx_("explain", file, "--model", file), "photo.png is damaged or not a model file: save the model with")
    refused(pathx_("explain", file, "--weights", "V9"), "no weights called 'V9', nor is that a file: give one of")


def test_weights_that_do_not_fit(pathx_: Pathx) -> None:
    save_file({f"layer{number}.weight": torch.zeros(2) for number in range(5)}, "w.safetensors")
    done = pathx_("explain", picture(), "--model", "squeezenet1_0", "--weights", "w.safetensors")
    refused(done, "the weights in w.safetensors do not fit squeezenet1_0: missing features.0.weight, ", " more; ")
    assert "unexpected layer0.weight, layer1.weight, layer2.weight and 2 more" in done.err


def test_a_file_without_a_description(pathx_: Pathx) -> None:
    done = pathx_("explain", picture(), "--model", scripted(network(), sidecar=None))
    refused(done, "model.pt does not say its input_size, mean, std: give them as options or write model.json such as {")


def test_labels_that_are_too_few(pathx_: Pathx) -> None:
    Path("labels.txt").write_text("cat\ndog\n")
    done = pathx_("explain", picture(), "--model", scripted(network()), "--labels", "labels.txt")
    refused(done, "2 labels were given, but model.pt has 3 classes: give one label per class")


def test_weights_that_cannot_be_downloaded(pathx_: Pathx, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*arguments: Any, **options: Any) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(here))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    done = pathx_("explain", picture(), "--model", "resnet18")
    refused(done, "the IMAGENET1K_V1 weights of resnet18 could not be downloaded", "--weights a local", status=1)


# When things go wrong in ways of their own


def test_debugging_shows_the_traceback_and_keeps_the_status(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHX_DEBUG", "1")
    model = scripted(network())
    for status, arguments in [(2, (picture(), "--depth", 9)), (1, ("no.png",)), (2, (picture(), "--frob"))]:
        done = pathx_("explain", *arguments, "--model", model)
        assert done.status == status
        assert done.err.startswith("Traceback (most recent call last)")
        assert done.err.splitlines()[-1].startswith("pathx: ")


def test_a_bug_is_one_line_too(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(pathx.computing, "freeze", bug)
    done = pathx_("explain", picture(), "--model", scripted(network()))
    message = "unexpected ZeroDivisionError: by zero (set PATHX_DEBUG=1 for the traceback)"
    refused(done, f"pathx: {message}\n", status=1)


def test_an_interruption(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pathx.computing, "freeze", interrupt)
    done = pathx_("explain", picture(), "--model", scripted(network()))
    refused(done, "interrupted; the explanations that have a path.json are whole", status=130)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="file names are Unicode there")
def test_a_file_name_that_is_no_text(pathx_: Pathx) -> None:
    os.rename(picture(), os.fsdecode(b"caf\xe9.png"))
    done = pathx_("explain", os.fsdecode(b"caf\xe9.png"), "--model", scripted(network()), "--target", "cat")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("caf\\udce9.png\n")
    assert document(Path(os.fsdecode(b"pathx-out/caf\xe9.png/cat")))["image"]["file"] == "caf\udce9.png"


# Decisions taken apart, classes held against each other, pictures made anew


def test_decompose_prints_the_features_and_where_they_are(pathx_: Pathx) -> None:
    arguments = ("decompose", picture(), "--model", scripted(network()), "--target", "red fox", "--no-group")
    done = pathx_(*arguments, "--depth", 1, "--width", 2, "--alpha", 0.1)
    assert (done.status, done.err) == (0, "")
    assert "taken apart at layer 4: the top layer\n" in done.out
    assert "The features sum to the whole.\n" in done.out
    assert done.out.endswith(
        "pathx-out/photo.png/red-fox/: sheet.png, feature-01/ to feature-02/, decomposition.json\n\n"
    )
    parts = {f"feature-{number:02}/{name}" for number in (1, 2) for name in FILES}
    assert files("pathx-out/photo.png/red-fox") == FILES | {"sheet.png", "decomposition.json"} | parts
    (made,) = pathx_(*arguments, "--features", 1, "--from-layer", 2, "--format", "json").documents
    assert made == json.loads(Path("pathx-out/photo.png/red-fox/decomposition.json").read_text())
    assert (made["schema"], made["layer"], made["reason"]) == ("pathx/decomposition@1", 2, "as asked")
    assert pathx_(*arguments, "--quiet").out == ""


def test_decompose_says_when_there_is_one_feature(pathx_: Pathx) -> None:
    arguments = ("decompose", picture(), "--model", scripted(network()))
    assert "The layer keeps a single unit: there is one feature.\n" in pathx_(*arguments, "--width", 1).out
    unsupported = pathx_(*arguments, "--alpha", 0.99)
    assert unsupported.status == 0
    assert "No unit of this layer is above alpha; the best one stands alone.\n" in unsupported.out


def test_several_targets_are_held_against_each_other(pathx_: Pathx) -> None:
    arguments = (picture(), "--model", scripted(network()), "--target", "cat", "--target", "dog")
    for command in ("explain", "decompose"):
        done = pathx_(command, *arguments, "--out", command)
        assert "cat less dog: logit " in done.out
        assert done.out.endswith(f"{command}/photo.png/: contrast.png, contrast.json\n\n")
        assert json.loads(Path(command, "photo.png/contrast.json").read_text())["schema"] == "pathx/contrast@1"


def test_a_wrong_prediction_is_explained_against_the_label(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--depth", 1)
    (predicted,) = pathx_(*arguments, "--format", "json").documents
    right = predicted["target"]["label"]
    wrong = next(label for label in SIDECAR["labels"] if label != right)
    done = pathx_(*arguments, "--label", wrong)
    assert f"The network says {right}; the label is {wrong}.\n" in done.out
    assert pathx_(*arguments, "--label", wrong, "--target", wrong, "--format", "json").documents[1:] == []
    assert len(pathx_(*arguments, "--label", right, "--format", "json").documents) == 1
    unknown = pathx_(*arguments, "--label", "unicorn")
    assert unknown.status == 2 and unknown.err.startswith("pathx: no class is called 'unicorn'")


def test_sheet_makes_pictures_anew(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--target", "cat", "--save-tensors")
    for depth in (1, 2):
        pathx_(*arguments, "--depth", depth, "--out", f"runs/{depth}")
    before = {file: Path("runs", file).read_bytes() for file in files("runs")}
    done = pathx_("sheet", "runs", "--colors", "orange-purple", "--smoothing", 0)
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "runs/1/photo.png/cat/: heatmap.png, overlay.png",
        "runs/2/photo.png/cat/: heatmap.png, overlay.png",
        "runs/: compare-photo.png-cat.png",
    ]
    changed = {file for file, data in before.items() if Path("runs", file).read_bytes() != data}
    assert changed == {file for file in before if file.endswith(".png")}
    pathx_("sheet", "runs")
    assert {file: Path("runs", file).read_bytes() for file in before} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sheet", "nowhere"), "nowhere is not a folder: give one with results of pathx"),
        (("sheet", "."), ". holds no results of pathx: no path.json anywhere in it"),
        (("sheet", ".", "--smoothing", "x"), "--smoothing takes a number such as 0.025, not 'x'"),
        (("sheet", ".", "--smoothing", "nan"), "smoothing nan is out of range; use 0 for none, up to 1, such as 0.025"),
        (("sheet", ".", "--percentile", "0"), "percentile 0.0 is out of range; use above 0, up to 100, such as 99"),
        (("sheet", ".", "--colours", "rainbow"), "colours are red-blue or orange-purple, not 'rainbow'"),
        (("decompose", "a.png", "--features", "many"), "--features takes a whole number, not 'many'"),
        (("decompose", "a.png", "--from-layer", "1.5"), "--from-layer takes a whole number, not '1.5'"),
    ],
)
def test_wrong_calls_about_pictures(pathx_: Pathx, arguments: tuple[str, ...], message: str) -> None:
    assert pathx_(*arguments) == Finished(2, "", f"pathx: {message}\n")
