"""State dicts out of what trainers save around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pathx.errors import PathxError
from pathx.models.checkpoints import read_state, state_of

STATE: dict[str, Tensor] = {"a.weight": torch.ones(2), "b.bias": torch.zeros(3)}


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{key}": value for key, value in STATE.items()}


@pytest.mark.parametrize(
    "checkpoint",
    [
        STATE,
        {"state_dict": STATE, "epoch": 3},
        {"model": prefixed("module."), "optimizer": {}},
        prefixed("module._orig_mod."),
        {"state_dict": prefixed("model."), "ema": {"x": torch.ones(1)}},
        {"state_dict": {"model": prefixed("net.")}},
    ],
    ids=["bare", "wrapped", "DataParallel", "compiled", "Lightning", "wrapped twice"],
)
def test_the_wrapping_comes_off(checkpoint: Any) -> None:
    found = state_of(checkpoint, "x.pth")
    assert found.keys() == STATE.keys() and all(found[key] is STATE[key] for key in STATE)


@pytest.mark.parametrize("checkpoint", [{}, [], 3, {"a": 1}, {1: torch.ones(1)}, {"state_dict": {"a": "b"}}], ids=str)
def test_what_holds_no_state_dict_is_refused(checkpoint: Any) -> None:
    with pytest.raises(PathxError, match=r"x.pth holds no state dict: save model.state_dict\(\)"):
        state_of(checkpoint, "x.pth")


def test_both_kinds_of_files_give_the_same(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "a.safetensors")
    torch.save({"state_dict": STATE}, tmp_path / "a.pth")
    for name in ("a.safetensors", "a.pth"):
        found = read_state(tmp_path / name)
        assert found.keys() == STATE.keys() and all(torch.equal(found[key], STATE[key]) for key in STATE)
