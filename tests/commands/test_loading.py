"""Options of commands that examine a model, as the library takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.command_line import SIDECAR, network, scripted

from pathx.commands.loading import loader, on_device, say, several
from pathx.commands.options import Dtype
from pathx.errors import PathxError

NOTHING: dict[str, Any] = dict.fromkeys(("weights", "model_args", "labels", "input_size", "mean", "std"))


def test_lists_may_have_commas_and_be_repeated() -> None:
    assert several(["a, b", "c,,", ""]) == ["a", "b", "c"] and several(None) == []


@pytest.mark.usefixtures("here")
def test_options_win_over_what_the_file_says() -> None:
    scripted(network())
    plain = loader("model.pt", **NOTHING)()
    changed = loader("model.pt", **{**NOTHING, "mean": "0.25", "input_size": "3,8,8"})()
    assert plain.preprocessing.mean == tuple(SIDECAR["mean"] * 3) and changed.preprocessing.mean == (0.25,) * 3
    with pytest.raises(PathxError, match="--mean"):
        loader("model.pt", **{**NOTHING, "mean": "grey"})  # before anything is loaded


def test_what_a_user_should_know_of_a_model_is_said_once_it_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = SimpleNamespace(notes=("prepared as for others",), module=torch.nn.ReLU())
    for quiet in (False, True):
        assert on_device(lambda: model, "cpu", Dtype.float64, quiet).dtype is torch.float64
        assert ("prepared as for others" in capsys.readouterr().err) is not quiet


def test_failures_are_said_even_when_it_is_to_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = SimpleNamespace(unread={"a.png": "a.png is no image", "b.png": "cut short"}, notes=["one class only"])
    say(found, quiet=True)
    assert capsys.readouterr().err == "pathx: a.png is no image\npathx: b.png: cut short\n"
    say(found, quiet=False)
    assert capsys.readouterr().err.endswith("pathx: note: one class only\n")
