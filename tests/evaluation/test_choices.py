"""What can be chosen by name is what there is, and what the command line offers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from typer.main import get_command

from pathx.cli import app
from pathx.defaults import DEPTH, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.colours import COLOURS, HEATS
from pathx.errors import PathxError
from pathx.evaluation import methods
from pathx.evaluation.choices import METHODS, PATHS, PROTOCOLS, TIES, choose, method_names


def test_every_method_has_its_function() -> None:
    for name, method in METHODS.items():
        assert method.compute is getattr(methods, name)
    for name in PATHS:
        assert METHODS[name].settings == {
            "depth": DEPTH,
            "width": WIDTH,
            "alpha": None,
            "skips": SKIPS,
            "importance": IMPORTANCE,
        }
    assert METHODS["random"].settings == {}


def test_four_methods_by_default_and_all_of_them_by_name() -> None:
    assert method_names(()) == ["path_map", "grad_cam", "integrated_gradients", "random"]
    assert method_names(["all"]) == list(METHODS)
    assert method_names(["edges", "random", "edges"]) == ["edges", "random"]


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    assert choose("protocol", "paper", PROTOCOLS) is PROTOCOLS["paper"]
    with pytest.raises(PathxError, match="there is no protocol 'x': choose rise or paper or grid"):
        choose("protocol", "x", PROTOCOLS)


@pytest.mark.parametrize(
    ("command", "option", "names"),
    [
        ("evaluate", "--methods", METHODS),
        ("evaluate", "--protocol", PROTOCOLS),
        ("evaluate", "--ties", TIES),
        ("redraw", "--colours", COLOURS),
        ("redraw", "--heat", HEATS),
    ],
)
def test_registries_are_the_choices_of_the_command_line(command: str, option: str, names: Iterable[str]) -> None:
    (found,) = [one for one in get_command(app).commands[command].params if option in one.opts]  # type: ignore[attr-defined]
    assert all(name in f"{found.metavar} {found.help}" for name in names)
