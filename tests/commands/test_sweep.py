"""`pathx sweep`: what is printed is what is written, and what is wrong is said before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Pathx
from support.measured import document

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("one_thread", "measured", "undrawn")
SMALL = ("--model", "model.pt", "--methods", "random", "--depth", "1,2", "--width", "1,3", "--steps", 4)


def test_the_document_is_printed_and_the_best_of_the_grid_named(pathx_: Pathx) -> None:
    done = pathx_("sweep", "pictures/cat", *SMALL, "--out", "out", "--format", "json")
    found = document("out/sweep.json")
    assert done.status == 0 and json.loads(done.out) == found
    least = min(found["grid"], key=lambda cell: cell["deletion"]["mean"])
    assert {key: found["best"]["deletion"][key] for key in ("depth", "width")} == {
        key: least[key] for key in ("depth", "width")
    }
    text = pathx_("sweep", "pictures/cat", *SMALL, "--out", "out").out  # from the records: nothing is measured again
    assert f"deletion is best at depth {least['depth']}, width {least['width']}" in text
    assert len([line for line in text.splitlines() if line.strip().endswith("random")]) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("--picture", "nowhere.png"), 1, "nowhere.png: no such file"),
        (("--methods", "magic"), 2, "there is no method 'magic'"),
        (("--width", "1,none"), 2, "width"),
        (("--depth", "9"), 2, "depth 9 is out of range"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    pathx_: Pathx, arguments: tuple[str, str], status: int, text: str
) -> None:
    done = pathx_("sweep", "pictures", *SMALL, *arguments, "--out", "out")
    assert done.status == status and text in done.err and done.err.count("\n") == 1
    assert not Path("out").exists()
