"""Nothing from outside reaches the terminal unescaped: file names, labels, names of layers, sidecars, messages."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import pytest
import torch
from support.attacks import GRAPH, exported, packed, records_of
from support.command_line import Pathx, picture
from torch import nn

from pathx.commands.output import harmless_output, keep_stdout_for_results, print_table, say
from pathx.errors import harmless
from pathx.evaluation.records import write_csv

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\u2066\r\x08"


def dangerous(text: str) -> set[str]:
    return {character for character in text.replace("\n", "") if harmless(character) != character}


@pytest.fixture
def hostile(here: Path) -> str:
    """A model whose layers and labels have hostile names, and a photo that has one."""
    records = records_of(exported())
    graph = json.loads(records[GRAPH])
    for node in graph["graph_module"]["graph"]["nodes"]:
        name = f"{EVIL}layer"
        node["metadata"]["nn_module_stack"] = f"L__self__{name},{name},torch.nn.modules.activation.ReLU"
    sidecar = {
        "input_size": [3, 8, 8],
        "mean": 0,
        "std": 1,
        "labels": [f"{EVIL}a", f"=1+1{EVIL}", f"$\\frac{{$ {EVIL}"],
    }
    records |= {GRAPH: json.dumps(graph).encode(), "extra/pathx.json": json.dumps(sidecar).encode()}
    Path("model.pt2").write_bytes(packed(records))
    return picture(f"{EVIL}.png")


@pytest.mark.parametrize(
    "call",
    [
        ("explain", "IMAGE", "--model", "model.pt2", "--depth", "1", "--target", "top:2"),
        ("explain", "IMAGE", "IMAGE", "--model", "model.pt2", "--depth", "1", "--format", "json"),
        ("decompose", "IMAGE", "--model", "model.pt2", "--depth", "1"),
        ("models", "model.pt2"),
        ("check", "IMAGE", "--model", "model.pt2", "--depth", "1"),
        ("evaluate", ".", "--model", "model.pt2", "--depth", "1", "--method", "saliency"),
        ("common", ".", "--model", "model.pt2", "--depth", "1"),
        ("explain", "IMAGE", "--model", "model.pt2", "--target", EVIL),
        ("explain", "IMAGE", "--model", EVIL + ".pt"),
        ("explain", EVIL, "--model", "model.pt2"),
        ("explain", "IMAGE", "--labels", EVIL),
        ("explain", "IMAGE", "--weights", EVIL),
        ("explain", "IMAGE", f"--{EVIL}"),
        ("explain", "IMAGE", "--depth", EVIL),
        (EVIL,),
    ],
    ids=lambda call: "-".join(call[:4:3]).encode("ascii", "ignore").decode() or "no-command",
)
def test_what_is_printed(hostile: str, pathx_: Pathx, call: tuple[str, ...]) -> None:
    done = pathx_(*(hostile if part == "IMAGE" else part for part in call))
    assert dangerous(done.out) == dangerous(done.err) == set()
    assert done.out or done.err
    assert "unexpected" not in done.err


def test_a_second_run_and_the_debugger(hostile: str, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ("explain", ".", "--model", "model.pt2", "--depth", "1")
    first, second = pathx_(*call), pathx_(*call)
    monkeypatch.setenv("PATHX_DEBUG", "1")
    third = pathx_("explain", hostile, "--model", EVIL)
    assert "Traceback" in third.err
    for done in (first, second, third):
        assert dangerous(done.out + done.err) == set()


def test_colours_are_left_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with contextlib.redirect_stdout(stream), harmless_output():
        say(head=f"name{EVIL}")
        print_table([EVIL], [])
    assert "\x1b[1m" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    with contextlib.redirect_stdout(plain), harmless_output():
        say(head="name")
        print_table(["heading"], [("cell",)])
    assert "name" in plain.getvalue() and "\x1b" not in plain.getvalue()
    assert dangerous(stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")) == set()


def test_cells_of_a_spreadsheet_are_text(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [["=cmd|' /C calc'!A0", "+1", "-x", "@a", "a=b", -1.5, 3]])
    with open(tmp_path / "a.csv", newline="") as stream:
        assert next(csv.reader(stream)) == ["'=cmd|' /C calc'!A0", "'+1", "'-x", "'@a", "a=b", "-1.5", "3"]


def test_dollars_are_not_mathematics(here: Path, pathx_: Pathx) -> None:
    """matplotlib would take the text between two for a formula, and fail where it is none."""
    pytest.importorskip("matplotlib")
    picture("photos/a.png")
    picture("photos/b.png", seed=1)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    with torch.no_grad():
        torch.jit.save(torch.jit.script(module), "model.pt")
    sidecar = {"input_size": [3, 8, 8], "mean": 0, "std": 1, "labels": ["$\\frac{$", "$x^$ $\\notacommand$"]}
    Path("model.json").write_text(json.dumps(sidecar))
    done = pathx_("common", "photos", "--model", "model.pt", "--depth", "1", "--out", "common")
    assert done.status == 0, done.err
    assert list(Path("common").glob("*.png"))


def test_only_results_go_to_stdout_once_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with harmless_output():
        print("help")
        keep_stdout_for_results()
        print("of the network")
        say("a result")
    assert capsys.readouterr() == ("help\na result\n", "of the network\n")
