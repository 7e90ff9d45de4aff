"""The command line: which commands there are, and how the process ends. Loads torch only when there is work."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pathx import __version__
from pathx.commands.ablate import ablate
from pathx.commands.check import check
from pathx.commands.command import SETTINGS, GroupedCommand
from pathx.commands.common import common
from pathx.commands.decompose import decompose
from pathx.commands.evaluate import evaluate
from pathx.commands.explain import explain
from pathx.commands.merge import merge
from pathx.commands.models import models
from pathx.commands.output import harmless_output, print_error
from pathx.commands.redraw import redraw
from pathx.commands.report import report
from pathx.commands.units import units

_COMMANDS = {
    "Explain": (explain, decompose),
    "Understand": (ablate, units, common),
    "Measure": (check, evaluate),
    "Manage": (report, redraw, models, merge),
}


class Pathx(TyperGroup):
    """The commands, whose help shows them in groups with one line each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in _COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{one.__name__:9}", str(one.__doc__).partition("\n")[0]) for one in commands])


app = typer.Typer(
    cls=Pathx,
    name="pathx",
    help="Show which hidden units of a network carried a decision, and what they saw in the image.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pathx {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Show which hidden units of a network carried a decision, and what they saw in the image."""


for group in _COMMANDS.values():
    for command in group:
        app.command(cls=GroupedCommand)(command)

_NAMES = {command.__name__ for group in _COMMANDS.values() for command in group}

# What is wrong with a command line; typer has no name of its own for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Ends the process; what is wrong with the command line is one line as well."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, as long as the process lives
    if sys.stdout is None:
        print_error("standard output is closed: redirect it to /dev/null to discard it")
        sys.exit(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        with harmless_output():
            status = app(arguments or ["--help"], prog_name="pathx", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else " ".join(["pathx", *({*arguments[:1]} & _NAMES)])
        problem = error.format_message().replace("Value error, ", "").rstrip(".")  # type: ignore[attr-defined]
        setting = getattr(error, "option_name", "").lstrip("-")
        if context is not None and setting in SETTINGS.get(context.info_name, {}):
            problem = f"{setting} is set in a file: write it to run.toml, and give --config run.toml"
        end = "" if problem.endswith("?") else ";"
        print_error(f"{problem}{end} see {command} --help", error)
        status = 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        status = _give_up_stdout()
    except OSError as error:
        print_error(f"cannot write to standard output ({error.strerror or error}): results are in their files")
        status = _give_up_stdout()
    sys.exit(status)


def no_more_results() -> None:
    """What the user's code prints while the process ends (`atexit`, `__del__`) goes to stderr: results are complete."""
    if sys.stdout is None:
        return
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    sys.stdout = sys.stderr
    with suppress(OSError):  # one of them is closed
        os.dup2(2, 1)


def _give_up_stdout() -> int:
    """Whatever is still to be written there goes nowhere; the exit status that says so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    run()
