"""What models there are, and what their hidden layers are."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from support.command_line import Pathx
from support.tables import survey

from pathx.models.catalogue import TABLES, describe_model, models
from pathx.models.named import model_names
from pathx.models.torchvision import torchvision

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ["squeezenet1_1", "shufflenet_v2_x0_5"]


def known(source: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLES[source].read_text())
    return table


# The tables


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow) for name in model_names()]
)
def test_the_table_is_true(name: str) -> None:
    assert survey("torchvision", name) == known("torchvision")["models"][name]


def test_parameters_and_files_are_torchvisions() -> None:
    for name, facts in known("torchvision")["models"].items():
        weights = torchvision.models.get_model_weights(name).DEFAULT
        assert weights.url.endswith(f"/{facts['file']}")
        if name != "inception_v3":  # built without its auxiliary head
            assert facts["parameters"] == weights.meta["num_params"], name


def test_the_table_of_timm_and_the_page_of_the_docs_say_the_same() -> None:
    page, table = (ROOT / "docs" / "timm.md").read_text(), known("timm")
    kinds = Counter(facts["exact"] for facts in table["models"].values())
    assert f"All {len(table['models'])} networks of timm {table['timm']}," in page
    said = f"{kinds['region']} exact in a region, {kinds['image']} exact at the image. {kinds[None]} are refused."
    assert said in page
    assert len(models(source="timm")) == kinds["region"] + kinds["image"]
    assert len(models(source="timm", refused=True)) == len(table["models"])


@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_the_table_of_timm_is_true(count: int) -> None:
    """Of its names, and of some small networks."""
    timm, table = pytest.importorskip("timm"), known("timm")
    if timm.__version__ != table["timm"]:
        pytest.skip(f"the table is of timm {table['timm']}")
    assert {*table["models"]} <= {*timm.list_models()}
    small = [name for name, facts in table["models"].items() if facts["parameters"] < 10**7 and not facts["refused"]]
    for name in ["test_resnet", *random.Random(0).sample(small, count - 1)]:
        config = timm.get_pretrained_cfg(name)
        if config and config.num_classes == 0:
            continue  # timm builds it without a classifier; for the table it was given one
        found = survey("timm", name)
        assert found == {key: table["models"][name][key] for key in found}, name


# pathx models


def test_models_and_where_their_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pathx_: Pathx) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    (cache / "resnet34-b627a593.pth").touch()
    heading, *lines = pathx_("models").out.splitlines()
    assert heading.split("  ")[0] == "model"
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert {*rows} == {*model_names()}
    assert rows["vgg16"] == ["15", "in", "a", "region", "138.4", "M", "3x224x224", "download"]
    assert rows["squeezenet1_1"] == ["17", "in", "a", "region", "1.2", "M", "3x224x224", "bundled"]
    assert rows["vit_b_16"][:4] == ["12", "at", "the", "image"]
    assert rows["resnet34"][-1] == "cached"
    entries = {entry["name"]: entry for entry in json.loads(pathx_("models", "--all", "--format", "json").out)}
    assert entries["resnet18"] == {
        "name": "resnet18",
        "hidden_layers": 17,
        "exact": "region",
        "refused": None,
        "parameters": 11689512,
        "input_size": [3, 224, 224],
        "weights": "download",
    }


def test_classes_follow_the_weights_that_are_asked_for(tmp_path: Path) -> None:
    state = torchvision.models.squeezenet1_0(weights=None, num_classes=7).state_dict()
    save_file(state, tmp_path / "seven.safetensors")
    found = describe_model("squeezenet1_0", weights=tmp_path / "seven.safetensors", input_size=(3, 64, 64))
    assert len(found.labels) == 7
