"""`pathx models`: what there is, and the layers and labels of one model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.command_line import Pathx
from torch import nn

from pathx.models.labels import find_labels


def test_one_model_as_text_and_json(pathx_: Pathx) -> None:
    lines = pathx_("models", "squeezenet1_1", "--input-size", "3,64,64").out.splitlines()
    assert lines[0] == "squeezenet1_1: pathx, weights bundled, 1.2 M parameters, 1000 labels"
    assert lines[1].startswith("input 3x64x64") and "mean 0.485,0.456,0.406" in lines[1]
    assert lines[2:4] == ["17 hidden layers, exact in a region", ""]
    assert [line.split() for line in lines[4:7]] == [
        ["depth", "layer", "tensor", "shape", "units", "sees"],
        ["1", "17", "features.12.expand1x1_activation", "256x3x3", "2304", "63x63"],
        ["features.12.expand3x3_activation", "256x3x3", "2304", "63x63"],
    ]
    assert lines[-1].split() == ["17", "1", "features.1", "64x31x31", "61504", "3x3"]

    document = json.loads(pathx_("models", "squeezenet1_1", "--input-size", "3,64,64", "--format", "json").out)
    assert (document["hidden_layers"], document["exact"]) == (17, "region")
    assert document["preprocessing"]["input_size"] == [3, 64, 64]
    assert document["layers"][-1] == {
        "layer": 1,
        "tensors": [{"name": "features.1", "shape": [64, 31, 31], "units": 61504, "receptive_field": [3, 3]}],
        "units": 61504,
    }
    assert document["layers"][0]["units"] == 4608


def test_a_name_is_described_without_its_weights(pathx_: Pathx) -> None:
    first, second, third, *_ = pathx_("models", "resnet18").out.splitlines()
    assert first.startswith("resnet18: torchvision, weights ") and first.endswith("11.7 M parameters, 1000 labels")
    assert (
        second.startswith("input 3x224x224, resized to 256 (bilinear), mean")
        and third == "17 hidden layers, exact in a region"
    )
    wrong = pathx_("models", "resnot18")
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)


def test_layers_of_a_file_need_its_input_size_alone(tmp_path: Path, pathx_: Pathx) -> None:
    file = str(tmp_path / "model.pt")
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    torch.jit.save(torch.jit.script(network), file)
    *_, last = pathx_("models", file, "--input-size", "1,8,8").out.splitlines()
    assert last.split() == ["1", "1", "1", "4x6x6", "144", "3x3"]
    wrong = pathx_("models", file)
    assert wrong.status == 2 and "does not say its input_size" in wrong.err


def test_lists_have_no_empty_tables(pathx_: Pathx) -> None:
    wrong = pathx_("models", "resnot*")
    assert wrong.status == 2 and "torchvision has no model that matches 'resnot*'" in wrong.err
    assert pathx_("models", "--all").out == pathx_("models").out  # torchvision has none that is refused


def test_models_of_timm(pathx_: Pathx) -> None:
    pytest.importorskip("timm")
    listed = pathx_("models", "--from", "timm", "resnet1[08]*").out
    rows = {line.split()[0]: line.split()[1:] for line in listed.splitlines()}
    assert rows["timm:resnet18"] == ["17", "in", "a", "region", "11.7", "M", "3x224x224", "hub"]
    wrong = pathx_("models", "--from", "timm", "resnot*")
    assert wrong.status == 2 and "timm has no model that matches 'resnot*'" in wrong.err
    squeezed = pathx_("models", "squeeze*").out.splitlines()
    assert [line.split()[0] for line in squeezed] == ["model", "squeezenet1_0", "squeezenet1_1"]


# Labels


def test_a_word_is_found_before_a_part_of_one(pathx_: Pathx) -> None:
    done = pathx_("models", "squeezenet1_1", "--labels", "cat")
    assert (done.status, done.err) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.out.splitlines()[1:]]
    words = ["cat" in label.split() for _, label in rows]
    assert words == sorted(words, reverse=True) and any(words) and not all(words)
    found = pathx_("models", "squeezenet1_1", "--labels", "TIGER_CAT", "--format", "json").out
    assert json.loads(found) == [{"index": 282, "label": "tiger cat"}]


def test_all_labels_and_none(pathx_: Pathx) -> None:
    assert len(pathx_("models", "squeezenet1_1", "--labels", "").out.splitlines()) == 1001
    nothing = pathx_("models", "squeezenet1_1", "--labels", "unicorn")
    near = pathx_("models", "squeezenet1_1", "--labels", "tigr").err
    assert "did you mean 'tiger'" in near
    assert nothing.status == 1 and nothing.err.startswith("pathx: none of the 1000 labels has 'unicorn' in it")
    unnamed = pathx_("models", "--labels", "cat")
    assert unnamed.status == 2 and "--labels searches one model" in unnamed.err


def test_a_class_that_is_not_there_suggests_those_that_hold_the_word(pathx_: Pathx, here: Path) -> None:
    Image.new("RGB", (64, 64), "grey").save("photo.png")
    done = pathx_("explain", "photo.png", "--target", "cat")
    assert done.status == 2
    assert done.err.startswith("pathx: no class is called 'cat': did you mean 'tiger cat', 'Persian cat', ")
    assert find_labels("b", ["abc", "b", "a b c"]) == [1, 2, 0]
