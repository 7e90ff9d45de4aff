"""What all commands share: --help in groups, few options, and the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx, config, network, picture, refused, scripted
from typer.main import get_command

from pathx.cli import app
from pathx.commands.options import PANELS, SELDOM

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
NAMES = [
    "explain",
    "decompose",
    "ablate",
    "units",
    "common",
    "check",
    "evaluate",
    "report",
    "redraw",
    "models",
    "merge",
]


# --help


def test_the_commands_stand_in_groups_with_one_whole_line_each(pathx_: Pathx) -> None:
    text = pathx_("--help").out
    listed = text[text.index("Explain:") :]
    lines = [line.split(maxsplit=1) for line in listed.splitlines() if line.startswith("  ")]
    assert [name for name, _ in lines] == NAMES == [*COMMANDS]
    assert all(said.endswith(".") and "..." not in said for _, said in lines)
    assert max(map(len, listed.splitlines())) <= 80
    headings = [line for line in listed.splitlines() if line.endswith(":")]
    assert headings == ["Explain:", "Understand:", "Measure:", "Manage:"]


@pytest.mark.parametrize("command", ["explain", "decompose"])
def test_options_stand_in_groups_and_each_once(pathx_: Pathx, command: str) -> None:
    text = pathx_(command, "--help").out
    places = [text.index(f"\n{panel}:\n") for panel in PANELS[1:]]
    assert places == sorted(places)
    for option in ("--target", "--depth", "--model", "--units", "--out", "--device", "--config"):
        assert text.count(f"\n  {option} ") == 1, option
    settings = text[text.index("In the file of --config only:") :]
    assert all(f"\n  {name} " in settings for name in ("heat", "truth", "workers", "fail-fast", "ray-actors"))


def test_explain_has_few_options() -> None:
    options = [one for one in COMMANDS["explain"].params if one.param_type_name == "option"]
    assert 20 < sum(one.rich_help_panel != SELDOM for one in options) <= 30
    assert sum(one.rich_help_panel == SELDOM for one in options) <= 4


def test_an_option_means_one_thing_in_all_commands() -> None:
    meanings: dict[str, set[object]] = {}
    for command in COMMANDS.values():
        for one in command.params:
            for name in one.opts if one.param_type_name == "option" else ():
                meanings.setdefault(name, set()).add(one.metavar)
    several = {name for name, found in meanings.items() if len(found) > 1}
    assert several == {"--labels", "--out", "--weights"}


# The settings file


@pytest.mark.usefixtures("one_thread", "here")
def test_a_settings_file_is_as_its_options_and_the_command_line_wins(pathx_: Pathx) -> None:
    explain = ("explain", picture(), "--model", scripted(network()), "--format", "json")
    given = [
        "--depth",
        "2",
        "--width",
        "3",
        "--target",
        "cat",
        "--target",
        "dog",
        "--mean",
        "0.5,0.4,0.3",
        "--save-tensors",
    ]
    wanted = pathx_(*explain, *given).documents
    filed = config(depth=2, width=3, target=["cat", "dog"], mean=[0.5, 0.4, 0.3], save_tensors=True, heat="pixels")
    assert pathx_(*explain, *filed).documents == wanted and len(wanted) == 2
    (made,) = pathx_(*explain, *filed, "--width", 1, "--target", "cat").documents
    assert (made["depth"], made["width"], made["target"]["label"]) == (2, 1, "cat")


@pytest.mark.usefixtures("one_thread", "here")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht = 5", "sets 'widht', which this command does not have: did you mean width"),
        ("[model]\nname = 'x'", "model cannot be {'name': 'x'}"),
        ("save-tensors = 1", "save-tensors cannot be 1"),
        ("width = true", "width cannot be True"),
        ("width =", "is not TOML"),
        ("skips = 'none'", "--skips takes adjacent or all, not 'none'"),
        ("workers = 'some'", "workers takes a whole number, not 'some'"),
    ],
)
def test_a_settings_file_that_is_wrong_is_one_line(pathx_: Pathx, text: str, message: str) -> None:
    Path("run.toml").write_text(text)
    done = pathx_("explain", picture(), "--model", scripted(network()), "--config", "run.toml")
    refused(done, message)
    refused(pathx_("explain", "photo.png", "--config", "no.toml"), "no.toml cannot be read (No such file or directory)")
