"""The notebook runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("one_thread")
def test_the_first_look_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT / "docs/notebooks")
    cells = json.loads(Path("first-look.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "tiger cat" in printed and "image (" in printed and names["seen"]
