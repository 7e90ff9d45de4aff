"""`pathx sweep` is evaluations of many settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx
from support.measured import document

import pathx.evaluation.evaluate
import pathx.evaluation.methods
import pathx.evaluation.plots

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("one_thread", "measured", "undrawn")


@pytest.mark.usefixtures("drawn")
def test_a_sweep_is_evaluations_with_one_frozen_pass(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    freeze = pathx.evaluation.methods.freeze
    monkeypatch.setattr(pathx.evaluation.methods, "freeze", lambda *call: passes.append(1) or freeze(*call))
    arguments = ("--model", "model.pt", "--methods", "saliency,random")
    done = pathx_("sweep", "pictures", *arguments, "--depth", "1,all", "--width", "1,10%,4", "--out", "out")
    assert done.status == 0
    assert len(passes) == 2  # six pictures at once, and one for the sheet
    found = document("out/sweep.json")
    assert [(cell["depth"], cell["width"]) for cell in found["grid"]] == [
        (depth, width) for depth in (1, "all") for width in (1, "10%", 4)
    ]
    assert set(found["methods"]) == {"saliency", "random"}
    pathx_(
        "evaluate", "pictures", "--model", "model.pt", "--methods", "pathx", "--depth", 1, "--width", 4, "--out", "one"
    )
    assert found["grid"][2]["deletion"] == document("one/evaluation.json")["methods"]["pathx"]["deletion"]
    assert {"sweep.png", "sweep.svg", "sheet.png", "sheet.svg"} <= {file.name for file in Path("out").iterdir()}
    assert "insertion is best at depth" in done.out
