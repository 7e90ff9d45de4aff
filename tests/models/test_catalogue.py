"""What models there are, and what their hidden layers are."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pathx.models.catalogue
import pathx.models.named
from pathx.cli import run
from pathx.engine.freeze import network_of
from pathx.models.catalogue import TIMM_TABLE, catalogue, describe_model, hidden_layers, survey, survey_timm
from pathx.models.named import TABLE, model_names
from pathx.models.torchvision import torchvision

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ["alexnet", "squeezenet1_1", "shufflenet_v2_x0_5"]


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of weights."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


# The table


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow) for name in model_names()]
)
def test_the_table_is_true(name: str) -> None:
    assert survey(name) == json.loads(TABLE.read_text())["models"][name]


def test_parameters_and_files_are_torchvisions() -> None:
    for name, facts in json.loads(TABLE.read_text())["models"].items():
        weights = torchvision.models.get_model_weights(name).DEFAULT
        assert weights.url.endswith(f"/{facts['file']}")
        if name != "inception_v3":  # built without its auxiliary head
            assert facts["parameters"] == weights.meta["num_params"], name


def test_names_that_the_table_does_not_know_are_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = {"torchvision": "0.0", "models": {"alexnet": json.loads(TABLE.read_text())["models"]["alexnet"]}}
    (tmp_path / "models.json").write_text(json.dumps(table))
    monkeypatch.setattr(pathx.models.named, "TABLE", tmp_path / "models.json")
    monkeypatch.setattr(pathx.models.catalogue, "model_names", lambda: ["alexnet", "efficientnet_b0", "squeezenet1_0"])
    assert [(entry.name, entry.hidden_layers, entry.exact, entry.refused) for entry in catalogue()] == [
        ("alexnet", 7, "region", None),
        ("efficientnet_b0", 33, "image", None),
        ("squeezenet1_0", 17, "region", None),
    ]


def test_whereabouts_of_weights(cache: Path) -> None:
    (cache / "resnet18-f37072fd.pth").touch()
    found = {entry.name: entry.weights for entry in catalogue()}
    assert {name: found.pop(name) for name in ("squeezenet1_1", "resnet18")} == {
        "squeezenet1_1": "bundled",
        "resnet18": "cached",
    }
    assert set(found.values()) == {"download"}


# pathx models


def test_models_as_text(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("models") == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "model"
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["vgg16"] == ["15", "in", "a", "region", "138.4", "M", "3x224x224", "download"]
    assert rows["squeezenet1_1"] == ["17", "in", "a", "region", "1.2", "M", "3x224x224", "bundled"]
    assert rows["vit_b_16"][:4] == ["12", "at", "the", "image"]
    assert {*rows} == {*model_names()}


def test_models_as_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("models", "--all", "--format", "json") == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["resnet18"] == {
        "name": "resnet18",
        "hidden_layers": 17,
        "exact": "region",
        "refused": None,
        "parameters": 11689512,
        "input_size": [3, 224, 224],
        "weights": "download",
    }
    assert (entries["vit_b_16"]["hidden_layers"], entries["vit_b_16"]["refused"]) == (12, None)


# pathx models NAME


def test_layers_of_a_small_network() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6), nn.ReLU(),
        nn.Linear(6, 2),
    )  # fmt: skip
    network(torch.zeros(1, 3, 15, 11))
    found = hidden_layers(network_of(network, torch.zeros(1, 3, 15, 11)))
    tensors = [
        (layer.layer, *((t.name, t.shape, t.units, t.receptive_field) for t in layer.tensors)) for layer in found
    ]
    assert tensors == [
        (3, ("6", (6,), 6, (11, 15))),
        (2, ("3", (5, 5, 3), 75, (7, 7))),
        (1, ("1", (4, 7, 5), 140, (3, 3))),
    ]


def test_vectors_have_no_receptive_field() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    (layer,) = hidden_layers(network_of(network, torch.zeros(1, 3)))
    assert [(tensor.shape, tensor.receptive_field) for tensor in layer.tensors] == [((4,), ())]


def test_classes_follow_the_weights_that_are_asked_for(tmp_path: Path) -> None:
    state = torchvision.models.squeezenet1_0(weights=None, num_classes=7).state_dict()
    save_file(state, tmp_path / "seven.safetensors")
    found = describe_model("squeezenet1_0", weights=tmp_path / "seven.safetensors", input_size=(3, 64, 64))
    assert len(found.labels) == 7


# timm


def timm_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TIMM_TABLE.read_text())
    return table


def test_the_table_of_timm_and_the_page_of_the_docs_say_the_same() -> None:
    page, known = (ROOT / "docs" / "timm.md").read_text(), timm_table()["models"]
    kinds = Counter(facts["exact"] for facts in known.values())
    assert f"All {len(known)} networks of timm {timm_table()['timm']}," in page
    assert (
        f"{kinds['region']} exact in a region, {kinds['image']} exact at the image. {kinds[None]} are refused." in page
    )


@pytest.mark.slow
def test_the_table_of_timm_is_true() -> None:
    """Of its names, and of thirty small networks."""
    timm = pytest.importorskip("timm")
    if timm.__version__ != timm_table()["timm"]:
        pytest.skip(f"the table is of timm {timm_table()['timm']}")
    known = timm_table()["models"]
    assert {*known} <= {*timm.list_models()}
    small = [name for name, facts in known.items() if facts["parameters"] < 10_000_000 and facts["refused"] is None]
    wrong = {}
    for name in random.Random(0).sample(small, 30):
        found = survey_timm(name)
        if any(found[key] != known[name][key] for key in ("hidden_layers", "exact", "refused", "parameters")):
            wrong[name] = (known[name], found)
    assert wrong == {}


def test_one_line_of_the_table_of_timm_is_true() -> None:
    pytest.importorskip("timm")
    assert survey_timm("test_resnet") == timm_table()["models"]["test_resnet"]
