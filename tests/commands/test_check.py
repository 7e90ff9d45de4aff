"""`pathx check` says in words what can be trusted, and draws it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx
from support.measured import document

from pathx.commands import output

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("measured", "undrawn")


@pytest.mark.usefixtures("drawn")
def test_a_sound_model_passes_with_a_verdict_in_words(pathx_: Pathx) -> None:
    done = pathx_(
        "check", "pictures/cat/0.png", "--model", "model.pt", "--depth", "all", "--dtype", "float64", "--out", "out"
    )
    found = document("out/check.json")
    assert found["schema"] == "pathx/check@1"
    checks = found["checks"]
    assert list(checks) == ["completeness", "unwrapping", "randomisation", "stability", "removal", "device"]
    assert checks["completeness"]["passed"] and checks["completeness"]["figures"]["share"] < 1e-10
    assert checks["unwrapping"]["passed"] and checks["unwrapping"]["figures"]["share"] < 1e-10
    layers = checks["randomisation"]["figures"]["layers"]
    assert [line["module"] for line in layers] == ["7", "5", "2", "0"]  # from the output down
    assert "which is rounding" in done.out and "rank correlation" in done.out
    assert Path("out/randomisation.png").exists() and Path("out/randomisation.svg").exists()
    assert done.status == (0 if found["passed"] else 1)


def test_progress_counts_every_run(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "EVERY", 0)
    done = pathx_("check", "pictures/cat/0.png", "--model", "model.pt", "--out", "out")
    lines = [line.split(",")[0] for line in done.err.splitlines() if "checking" in line]
    total = 3 * 4 + 3  # three runs down four modules, and three more checks
    assert lines == [f"pathx: checking: {count} of {total}" for count in range(1, total + 1)]


def test_a_folder_of_several_images_is_not_checked_in_part(pathx_: Pathx) -> None:
    done = pathx_("check", "pictures", "--model", "model.pt", "--out", "out")
    assert (done.status, done.err) == (2, "pathx: pictures has 6 images, and a check takes one: name it\n")
