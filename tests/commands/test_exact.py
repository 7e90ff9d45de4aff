"""`--exact`: every command says once where its numbers hold, and refuses what does not hold in a region if that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Pathx, network, scripted
from support.gathered import photos
from torch import nn

from pathx.engine.settings import AT_THE_IMAGE

pytestmark = pytest.mark.usefixtures("undrawn")

ABOUT = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25]}
COMMANDS = {
    "explain": ("photos", "--no-pictures"),
    "decompose": ("photos", "--no-pictures"),
    "ablate": ("photos/cat/1.png", "--path"),
    "units": ("photos", "--no-pictures", "--out", "units"),
    "common": ("photos", "--out", "common"),
    "check": ("photos/cat/1.png", "--out", "check"),
    "evaluate": ("photos/cat/1.png", "--methods", "pathx", "--steps", "2", "--out", "evaluation"),
}


@pytest.fixture(autouse=True)
def models(here: Path) -> None:
    photos()
    scripted(network(), "relu.pt", ABOUT)
    gated = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    scripted(gated.eval(), "silu.pt", ABOUT)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_where_its_numbers_hold(pathx_: Pathx, command: str) -> None:
    call = (command, *COMMANDS[command], "--depth", "1")
    done = pathx_(*call, "--model", "silu.pt", "--exact", "region")
    assert done.status == 2 and done.out == ""
    assert "the model is not a ReLU network: silu in 1 holds only at the image; leave out --exact region" in done.err
    assert done.err.count("\n") == 1
    assert AT_THE_IMAGE not in pathx_(*call, "--model", "relu.pt", "--exact", "region").err
    assert pathx_(*call, "--model", "silu.pt").err.count(f"note: {AT_THE_IMAGE}\n") == 1


def test_results_settings_and_the_settings_file_hold_it(pathx_: Pathx) -> None:
    Path("settings.toml").write_text('exact = "region"\n')
    call = ("explain", "photos", "--no-pictures", "--depth", "1", "--config", "settings.toml")
    assert pathx_(*call, "--model", "silu.pt").status == 2
    assert pathx_(*call, "--model", "relu.pt").status == 0
    assert json.loads(Path("pathx-out/run.json").read_text())["settings"]["exact"] == "region"
    assert pathx_(*call, "--model", "silu.pt", "--exact", "image").status == 0
    (document, *_) = (json.loads(file.read_text()) for file in Path("pathx-out").rglob("path.json"))
    assert document["model"]["exact"] == "image"
