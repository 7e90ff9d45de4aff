"""`pathx models` and `pathx layers`: tables, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from pathx.cli import run


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    return int(ended.value.code or 0)


def test_layers_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("layers", "--input-size", "3,64,64") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["depth", "layer", "tensor", "shape", "units", "sees"],
        ["1", "18", "classifier.2", "1000x3x3", "9000", "64x64"],
        ["2", "17", "features.12.expand1x1_activation", "256x3x3", "2304", "64x64"],
        ["features.12.expand3x3_activation", "256x3x3", "2304", "64x64"],
    ]
    assert lines[-1].split() == ["18", "1", "features.1", "64x31x31", "61504", "3x3"]

    assert called("layers", "--input-size", "3,64,64", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document[-1] == {
        "layer": 1,
        "tensors": [{"name": "features.1", "shape": [64, 31, 31], "units": 61504, "receptive_field": [3, 3]}],
        "units": 61504,
    }
    assert [layer["units"] for layer in document[:2]] == [9000, 4608]


def test_layers_of_a_file_need_its_input_size_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "model.pt")
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    torch.jit.save(torch.jit.script(network), file)
    assert called("layers", "--model", file, "--input-size", "1,8,8") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "1", "1", "4x6x6", "144", "3x3"]
    assert called("layers", "--model", file) == 2
    assert "does not say its input_size" in capsys.readouterr().err


def test_models_of_timm(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    assert called("models", "--from", "timm", "resnet1[08]*") == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["timm:resnet18"] == ["17", "11.7", "M", "3x224x224", "hub"]
    assert called("models", "--from", "timm", "resnot*") == 2
    assert "timm has no model that matches 'resnot*'" in capsys.readouterr().err
    assert called("models", "squeeze*") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "model",
        "squeezenet1_0",
        "squeezenet1_1",
    ]
