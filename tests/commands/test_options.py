"""What all commands share: --help in groups, few options, the settings file, and one line for what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from support.command_line import Finished, Pathx, config, network, picture, refused, scripted
from typer.main import get_command

from pathx.cli import app
from pathx.commands.options import PANELS, SELDOM

pytestmark = pytest.mark.usefixtures("here")


COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
FIRST = ["explain", "decompose", "ablate", "units", "common", "check", "evaluate"]
NAMES = [*FIRST, "report", "redraw", "models", "merge"]


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


def test_a_settings_file_is_as_its_options_and_the_command_line_wins(pathx_: Pathx) -> None:
    explain = ("explain", picture(), "--model", scripted(network()), "--format", "json")
    targets = ("--target", "cat", "--target", "dog")
    given = (*targets, "--depth", 2, "--width", 3, "--mean", "0.5,0.4,0.3", "--save-tensors")
    wanted = pathx_(*explain, *given).documents
    filed = config(depth=2, width=3, target=["cat", "dog"], mean=[0.5, 0.4, 0.3], save_tensors=True, heat="pixels")
    assert pathx_(*explain, *filed).documents == wanted and len(wanted) == 2
    (made,) = pathx_(*explain, *filed, "--width", 1, "--target", "cat").documents
    assert (made["depth"], made["width"], made["target"]["label"]) == (2, 1, "cat")


def test_a_settings_file_gives_several_values_as_a_list(pathx_: Pathx) -> None:
    done = pathx_("units", *config(show=["conv", 3]))
    assert done == pathx_("units", "--show", "conv", 3)
    refused(done, "there is no units.json in pathx-units")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht = 5", "sets 'widht', which this command does not have: did you mean width"),
        ("[model]\nname = 'x'", "model takes a number, a text or a list, not {'name': 'x'}"),
        ("save-tensors = 1", "save-tensors takes true or false, not 1"),
        ("width = true", "width takes a number, a text or a list, not True"),
        ("width =", "is not TOML"),
        ("'' = true", "sets '', which this command does not have: it takes target, against, "),
        ("skips = 'none'", "--skips takes adjacent or all, not 'none'"),
        ("workers = 'some'", "workers takes a whole number, not 'some'"),
    ],
)
def test_a_settings_file_that_is_wrong_is_one_line(pathx_: Pathx, text: str, message: str) -> None:
    Path("run.toml").write_text(text)
    done = pathx_("explain", picture(), "--model", scripted(network()), "--config", "run.toml")
    refused(done, message)
    refused(pathx_("explain", "photo.png", "--config", "no.toml"), "no.toml cannot be read (No such file or directory)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--depth", 5), "depth 5 is out of range: the network has 4 hidden layers; use 1 to 4, maps:N, half or all"),
        (("--depth", 0), "depth 0 is out of range: the network has 4 hidden layers; use 1 to 4, maps:N, half or all"),
        (
            ("--depth", "deep"),
            "depth deep is out of range: the network has 4 hidden layers; use 1 to 4, maps:N, half or all",
        ),
        *(
            (("--width", width), f"width {width} is out of range; use a number from 1, a share such as 5%, or all")
            for width in ("0", "--3", "101%", "²")
        ),
        *((("--alpha", alpha), f"alpha {alpha} is out of range; use 0 or more") for alpha in ("-0.1", "1.5", "nan")),
        (("--alpha", "some"), "--alpha takes a number, not 'some'"),
        (("--target", "red fix"), "no class is called 'red fix': did you mean 'red fox'?"),
        (("--target", "bicycle"), "no class is called 'bicycle': give a label or an index from 0 to 2"),
        (("--target", 3), "target 3 is out of range: the classes are 0 to 2"),
        (("--target", -1), "target -1 is out of range: the classes are 0 to 2"),
        (("--target", "top:4"), "target 'top:4' must be top:K with K from 1 to 3"),
        (("--device", "tpu"), "device 'tpu' is unknown; use auto, cpu, cuda, cuda:1 or mps"),
        (("--batch-size", 0), "batch size 0 is out of range; use 1 or more, or auto"),
        (("--batch-size", "many"), "batch size many is out of range; use 1 or more, or auto"),
        (("--input-size", "3,8"), "model.pt: input_size must be three whole numbers above 0 (channels, height, width)"),
        (("--input-size", "3,inf,8"), "--input-size takes channels,height,width such as 3,224,224, not '3,inf,8'"),
        (("--input-size", "3,16,16"), "the model cannot run on an input of shape (1, 3, 16, 16): "),
        (("--mean", "grey"), "--mean takes numbers with commas between, such as 0.5,0.5,0.5, not 'grey'"),
        (("--std", "0,1,1"), "model.pt: std must be 3 numbers above 0, one per channel, not [0.0, 1.0, 1.0]"),
        (("--labels", "none.txt"), "the labels in none.txt cannot be read (No such file or directory): give a text"),
        (("--weights", "DEFAULT"), "model.pt brings its own weights: leave --weights out"),
        (("--format", "xml"), "--format takes text or json, not 'xml'"),
        (("--colour", "red"), "No such option"),  # the rest of the line is that of the typer at hand
        (
            ("--heat", "layers"),
            "heat is set in a file: write it to run.toml, and give --config run.toml; see pathx explain --help",
        ),
        (("--width",), "Option '--width' requires an argument"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_options_that_are_wrong(pathx_: Pathx, options: tuple[object, ...], message: str) -> None:
    model = scripted(network())
    refused(pathx_("explain", picture(), "--model", model, *options), f"pathx: {message}")


def test_commands_that_are_wrong(pathx_: Pathx) -> None:
    refused(pathx_("explain"), "Missing argument 'IMAGE|FOLDER|GLOB|LIST.txt|-'; see pathx explain --help")
    refused(pathx_("explode"), "No such command 'explode'", "see pathx --help")
    refused(pathx_("--frob"), "No such option", "--frob")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_a_device_that_is_not_there(pathx_: Pathx, device: str) -> None:
    done = pathx_("explain", picture(), "--model", scripted(network()), "--device", device)
    refused(done, f"device '{device}' is not there; this machine has cpu", "use --device auto")


@pytest.mark.parametrize("out", ["photo.png", "photo.png/results/here"])
def test_an_output_folder_that_cannot_be_written(pathx_: Pathx, out: str) -> None:
    done = pathx_("explain", picture(), "--model", scripted(network()), "--out", out)
    refused(done, f"cannot write to the output folder {out} (photo.png is not a folder): choose another with --out")


def test_an_output_folder_without_permission(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    done = pathx_("explain", picture(), "--model", scripted(network()))
    refused(done, "cannot write to the output folder pathx-out (permission denied): choose another with --out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("redraw", "nowhere"), "nowhere is not a folder: give one with results of pathx"),
        (("redraw", "."), ". holds no results of pathx: no path.json anywhere in it"),
        (("redraw", ".", "--smoothing", "x"), "--smoothing takes a number, not 'x'"),
        (
            ("redraw", ".", "--smoothing", "nan"),
            "smoothing nan is out of range; use 0 for none, up to 1, such as 0.025",
        ),
        (("redraw", ".", "--percentile", "0"), "percentile 0.0 is out of range; use above 0, up to 100, such as 99"),
        (("redraw", ".", "--colours", "rainbow"), "--colours takes red-blue or orange-purple, not 'rainbow'"),
        (
            ("explain", "a.png", "--out", "foo://bar"),
            "cannot write to the output folder foo://bar (foo:// is no store that "
            "pathx knows): choose another with --out",
        ),
        (("explain", "a.png", "--depth"), "Option '--depth' requires an argument; see pathx explain --help"),
        (("decompose", "a.png", "--features", "many"), "--features takes a whole number, not 'many'"),
        (("decompose", "a.png", "--from-layer", "1.5"), "--from-layer takes a whole number, not '1.5'"),
    ],
)
def test_wrong_calls_about_pictures(pathx_: Pathx, arguments: tuple[str, ...], message: str) -> None:
    assert pathx_(*arguments) == Finished(2, "", f"pathx: {message}\n")
