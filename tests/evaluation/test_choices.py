"""What can be chosen by name is what there is, and what the command line offers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from typer.main import get_command

from pathx.cli import app
from pathx.drawing.colours import COLOURS, HEATS
from pathx.evaluation.choices import METHODS, PROTOCOLS, TIES


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
