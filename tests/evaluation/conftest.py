"""What tests of `evaluate`, `sweep`, `common` and `check` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.measured import network, picture, save
from torch import Tensor

import pathx.evaluation.evaluate
import pathx.evaluation.methods
import pathx.evaluation.plots


@pytest.fixture
def measured(here: Path) -> Path:
    """A folder with a model and six pictures in two classes."""
    save(network())
    for number in range(6):
        picture(f"pictures/{('cat', 'dog')[number % 2]}/{number}.png", number)
    return here


@pytest.fixture
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots, which take most of the time, unless a test is marked `drawn`."""
    if "drawn" not in request.fixturenames:
        for name in [name for name in vars(pathx.evaluation.plots) if name.startswith("plot_")]:
            monkeypatch.setattr(pathx.evaluation.plots, name, lambda *figures: None)


@pytest.fixture
def drawn() -> None:
    """Plots are drawn."""


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Tensor]], None]:
    """Put another method in the place of one, for a test."""
    return lambda name, compute: monkeypatch.setattr(pathx.evaluation.methods, name, compute)
