"""`pathx redraw`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx, files, network, picture, scripted

pytestmark = pytest.mark.usefixtures("here")


def test_redraw_says_once_what_many_folders_lack(pathx_: Pathx) -> None:
    pathx_("explain", picture(), "--model", scripted(network()), "--target", "top:3", "--out", "runs")
    for contrast in Path("runs").rglob("contrast.json"):
        contrast.unlink()
    done = pathx_("redraw", "runs")
    first, second = done.err.splitlines()
    assert done.status == 1 and "has no tensors.safetensors to draw from: run again with --save-tensors" in first
    assert second == "pathx: the same is true of 4 more folders"  # three classes, and the first against two


def test_pictures_are_drawn_again(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--target", "cat", "--save-tensors")
    for depth in (1, 2):
        pathx_(*arguments, "--depth", depth, "--out", f"runs/{depth}")
    before = {file: Path("runs", file).read_bytes() for file in files("runs")}
    done = pathx_("redraw", "runs", "--colors", "orange-purple", "--smoothing", 0)
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "runs/1/photo.png/cat/: figure.png, heatmap.png, overlay.png",
        "runs/2/photo.png/cat/: figure.png, heatmap.png, overlay.png",
        "runs/: compare-photo.png-cat.png",
    ]
    changed = {file for file, data in before.items() if Path("runs", file).read_bytes() != data}
    assert changed == {file for file in before if file.endswith(".png")}
    pathx_("redraw", "runs")
    assert {file: Path("runs", file).read_bytes() for file in before} == before
