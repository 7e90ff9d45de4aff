"""One set of defaults everywhere, whose depth has enough layers of maps and never more layers than there are."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_networks import networks
from support.networks import Network
from torch import nn
from typer.main import get_command

import pathx
from pathx.cli import app
from pathx.commands.options import DrawingOptions, PathOptions
from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.render import Drawing
from pathx.engine.freeze import freeze
from pathx.engine.settings import check_depth
from pathx.runs.compute import Settings


@settings(max_examples=25)
@given(networks(), st.integers(1, 4))
def test_a_depth_has_its_maps_if_the_network_has_them(network: Network, count: int) -> None:
    traced = freeze(network.module(), network.images(1, 0)).network
    depth, placed = check_depth(f"maps:{count}", traced), traced.placed
    assert 1 <= depth <= traced.depth == len(placed)
    if any(placed):
        assert sum(placed[:depth]) == min(count, sum(placed)) and placed[depth - 1]
    assert traced.depth <= 2 * check_depth("half", traced) <= traced.depth + 1


PATH = {"depth": DEPTH, "width": WIDTH, "skips": SKIPS, "alpha": None, "importance": IMPORTANCE}
DEFAULTS = {**PATH, "exact": EXACT}
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def function_of(command: str) -> Callable[..., object]:
    function = getattr(pathx, command)
    return getattr(import_module(pathx._HOME_OF[command]), command) if isinstance(function, ModuleType) else function


@pytest.mark.parametrize(
    "name",
    [name for name in COMMANDS if name in ("explain", "decompose", "ablate", "units", "common", "check", "evaluate")],
)
def test_every_command_and_the_function_of_its_name_have_these_defaults(name: str) -> None:
    options = {one.name: one.default for one in COMMANDS[name].params if one.name in DEFAULTS}
    assert options == {**DEFAULTS, "width": str(WIDTH)} and vars(PathOptions()) == DEFAULTS
    taken = {one.name: one.default for one in signature(function_of(name)).parameters.values() if one.name in DEFAULTS}
    assert taken == ({} if name == "ablate" else DEFAULTS)  # which takes a path that was found


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_and_its_functions_both_take_has_one_default(name: str) -> None:
    functions = [Settings, Drawing] if name == "explain" else [Drawing] if name == "redraw" else []
    given = {one.name: one.default for one in COMMANDS[name].params if one.param_type_name == "option"}
    given |= vars(DrawingOptions())
    for taken in (function_of(name), *functions):
        for one in signature(taken).parameters.values():
            if one.name in given and one.name not in ("model", "out", "removal"):  # which Python names, or asks for
                assert str(given[one.name] or "") == str(one.default or ""), one


def test_vectors_are_run_through() -> None:
    body = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten()]
    head = [nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    model, images = nn.Sequential(*body, *head).eval(), torch.randn(1, 1, 8, 8)
    assert freeze(model, images).network.placed == (False, False, False, True, True)
    (found,) = pathx.explain(model, images, depth=DEPTH, width=64)
    assert found.depth == 5 and found.mapped == (2, 1)
    flat = nn.Sequential(nn.Flatten(), *[nn.Linear(64, 32), *head]).eval()
    assert check_depth(DEPTH, freeze(flat, images).network) == 3
