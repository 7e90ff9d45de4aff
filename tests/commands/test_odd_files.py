"""Whatever is given in the place of a file, a command ends at once, with one line and the status of a call that was wrong."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.command_line import Pathx, network, picture, scripted

pytestmark = [
    pytest.mark.usefixtures("undrawn"),
    pytest.mark.skipif(os.name == "nt", reason="pipes and sockets are those of POSIX"),
]

ODD = {
    "nothing": "",
    "too long": "x" * 300,
    "a path too long": "x/" * 3000,
    "not there": "none.bin",
    "below a file": "photo.png/x",
    "lines": "a\nb",
    "null": "a\0b",
    "no text": "\udcff",
    "escapes": "\x1b]0;x\x07.pt",
    "pipe": "pipe",
    "socket": "socket",
    "device": "/dev/zero",
    "memory": "/proc/self/mem",
    "circle": "circle",
    "folder": "folder",
    "empty": "empty",
}
MODEL = ("--model", "model.pt")
CALLS: dict[str, tuple[str, ...]] = {
    "image": ("explain", "ODD", *MODEL),
    "model": ("explain", "photo.png", "--model", "ODD"),
    "weights": ("explain", "photo.png", "--weights", "ODD"),
    "labels": ("explain", "photo.png", *MODEL, "--labels", "ODD"),
    "units": ("explain", "photo.png", *MODEL, "--units", "ODD"),
    "factory": ("explain", "photo.png", "--model", "ODD.py:build"),
    "timm": ("explain", "photo.png", "--model", "timm:ODD"),
    "layers": ("models", "ODD", "--input-size", "3,8,8"),
    "evaluate": ("evaluate", "ODD", *MODEL, "--methods", "saliency", "--out", "e"),
    "common": ("common", "ODD", *MODEL, "--out", "c"),
    "gather": ("units", "ODD", *MODEL, "--out", "u"),
    "ablate": ("ablate", "ODD", *MODEL, "--path"),
    "report": ("report", "ODD"),
    "redraw": ("redraw", "ODD"),
    "merge": ("merge", "ODD"),
    "unpack": ("merge", "ODD", "--unpack", "into"),
    "show": ("units", "--show", "1", "0", "--out", "ODD"),
    "config": ("explain", "photo.png", *MODEL, "--config", "ODD"),
}
OUT = ("too long", "below a file", "null", "pipe", "device", "circle", "empty")


@pytest.fixture
def odd(here: Path) -> None:
    picture()
    scripted(network())
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    os.symlink("circle", "circle")
    Path("folder").mkdir()
    Path("empty").touch()


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize("call", CALLS)
def test_odd_things_in_the_place_of_files(pathx_: Pathx, call: str) -> None:
    if call == "timm":
        pytest.importorskip("timm")
    for what, name in ODD.items():
        if call == "weights" and not name:  # as if it were not given
            continue
        if call == "config" and what in ("memory", "empty"):  # no settings
            continue
        if not name.startswith("/") or Path(name).exists():
            done = pathx_(*(word.replace("ODD", name) for word in CALLS[call]))
            assert done.status in (1, 2) and "unexpected" not in done.err, (what, done)
            assert 1 <= done.err.count("\n") <= 2 and "\x1b" not in done.err, (what, done)


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize("command", ["explain", "decompose", "evaluate", "common", "units", "check"])
def test_odd_things_in_the_place_of_output_folders(pathx_: Pathx, command: str) -> None:
    options = ("--steps", "2") if command == "evaluate" else ()
    for what in OUT:
        done = pathx_(command, "photo.png", *MODEL, *options, "--out", ODD[what])
        assert done.status in (1, 2) and "unexpected" not in done.err, (what, done)
        assert done.err.count("\n") == 1, (what, done)
