"""Which settings a result depends on."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from pathx.drawing.render import Drawing
from pathx.errors import PathxError
from pathx.runs.settings import Settings, check_workers

OTHER: dict[str, Any] = {
    "depth": 7,
    "width": 9,
    "alpha": 0.3,
    "skips": "adjacent",
    "exact": "region",
    "importance": "effect",
    "dtype": "float64",
    "save_tensors": True,
    "label": "cat",
    "drawing": Drawing(colours="orange-purple"),
    "pictures": False,
    "against": "dog",
    "removal": True,
}
HOW = {"device": "cpu", "batch_size": 3, "workers": 2}


@pytest.mark.parametrize("name", OTHER)
def test_what_changes_a_result_is_decisive(name: str) -> None:
    assert replace(Settings(), **{name: OTHER[name]}).decisive != Settings().decisive


@pytest.mark.parametrize("name", HOW)
def test_how_it_is_computed_is_not(name: str) -> None:
    assert replace(Settings(), **{name: HOW[name]}).decisive == Settings().decisive


def test_every_setting_is_of_one_kind_or_the_other() -> None:
    assert {field.name for field in fields(Settings)} == {*OTHER, *HOW, "guide"}


def test_fewer_than_no_workers_are_refused() -> None:
    check_workers(None)
    check_workers(0)
    with pytest.raises(PathxError, match="workers -1 is out of range; use 0 or more"):
        check_workers(-1)
