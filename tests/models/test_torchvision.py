from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from pathx.models import torchvision as vision


class Importer:
    """Stands in for import_module: raises or returns one outcome after another."""

    def __init__(self, *outcomes: Exception | ModuleType) -> None:
        self.outcomes = list(outcomes)

    def __call__(self, name: str) -> ModuleType:
        assert name == "torchvision"
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets a test import torchvision again without harm to the real one; gives the declarations that it makes."""
    declarations: list[Any] = []
    monkeypatch.setattr(vision, "_declarations", declarations)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return declarations


def missing(operator: str) -> RuntimeError:
    return RuntimeError(f"operator torchvision::{operator} does not exist")


def test_missing_operators_are_declared_and_the_import_repeated(
    outside: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("torchvision")
    sys.modules["torchvision.half"] = ModuleType("torchvision.half")
    sys.modules["torchvision_of_another"] = ModuleType("torchvision_of_another")
    monkeypatch.setattr(vision, "import_module", Importer(missing("nms"), package))
    assert vision._import_torchvision() is package
    assert len(outside) == 1  # kept alive
    assert "torchvision.half" not in sys.modules
    assert "torchvision_of_another" in sys.modules
    for operator in ("nms", "qnms"):
        schema = str(getattr(torch.ops.torchvision, operator).default._schema)
        assert schema == f"torchvision::{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@pytest.mark.parametrize("error", [RuntimeError("another trouble"), ImportError("no torchvision")])
def test_other_troubles_are_not_hidden(outside: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(vision, "import_module", Importer(error))
    with pytest.raises(type(error), match=str(error)):
        vision._import_torchvision()
    assert outside == []


def test_a_fresh_process_gets_the_models_and_declares_only_what_is_missing() -> None:
    script = """
try:
    import torchvision  # the failure of a user's own import must not spoil ours
except RuntimeError:
    pass
from pathx.models import torchvision as vision
import torch, torchvision
assert torchvision is vision.torchvision
assert torchvision.extension._has_ops() != bool(vision._declarations)
torchvision.ops.nms, torch.ops.torchvision.nms, torch.ops.torchvision.qnms
print("resnet18" in torchvision.models.list_models())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
