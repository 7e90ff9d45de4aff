"""What commands share towards the terminal: one-line errors with their exit status, results, tables, progress."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGINT
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

from pathx.errors import PathxError, harmless, shown, without_secrets

if TYPE_CHECKING:
    from pathx.explanation import Explanation, Unit
    from pathx.results.store import Result

EVERY = 10.0
"""Seconds between two lines of progress where stderr is no terminal."""


# Errors and notes, on stderr


@contextmanager
def print_errors(interrupted: str = "all that was written is kept") -> Iterator[None]:
    """One line on stderr for what the user can mend, and the exit status that goes with it.

    Args:
        interrupted: what Ctrl-C leaves behind, for people to read.
    """
    try:
        yield
    except PathxError as error:
        print_error(str(error), error)
        raise typer.Exit(2 if error.usage else 1) from None
    except KeyboardInterrupt as error:
        print_error(f"interrupted; {interrupted}")
        raise typer.Exit(128 + (error.args[0] if error.args else SIGINT)) from None
    except (typer.Exit, BrokenPipeError, BrokenOutput):
        raise
    except SystemExit as error:
        print_error(f"the model's own code ended the run (sys.exit with {error.code}): take that out of its forward")
        raise typer.Exit(1) from None
    except Exception as error:
        print_error(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)", error)
        raise typer.Exit(1) from None


class BrokenOutput(OSError):
    """Standard output cannot be written to."""


def print_error(text: str, error: Exception | None = None) -> None:
    """A line on stderr; with PATHX_DEBUG, the traceback of the error before it."""
    with suppress(OSError):  # stderr is broken too; the exit status says enough
        if error is not None and os.environ.get("PATHX_DEBUG"):
            sys.stderr.write(_harmless_lines(without_secrets("".join(traceback.format_exception(error)))))
        print(f"pathx: {harmless(with_options(without_secrets(' '.join(text.split()))))}", file=sys.stderr, flush=True)


def note_printer(quiet: bool) -> Callable[[str], None]:
    """What prints a note on stderr, unless all is to be quiet."""
    return (lambda text: None) if quiet else (lambda text: print_error(f"note: {text}"))


def print_notes(notes: Iterable[str], quiet: bool) -> None:
    """Notes on stderr, unless all is to be quiet."""
    for note in notes:
        note_printer(quiet)(note)


def about(file: str, text: str) -> str:
    """A message with the file it is about in front, as messages show it, unless it names it already."""
    return text if file in text or shown(file) in text else f"{shown(file)}: {text}"


def print_problems(document: dict[str, Any], quiet: bool, failed: bool = False) -> None:
    """What a document says could not be read, and unless all is to be quiet its notes; ends a command that failed."""
    for name, reason in document["unread"].items():
        print_error(about(name, reason))
    print_notes(document.get("notes", ()), quiet)
    if failed or document["unread"]:
        raise typer.Exit(1)


_SAME = "depth device dtype every exact input_size mean model out ray save_tensors shard std step_pixels steps weights width"
ARGUMENTS = {name: f"--{name.replace('_', '-')}" for name in _SAME.split()}
ARGUMENTS |= {"arguments": "--model-args", "by": "--group-by"}
"""Arguments of the library that its messages name, as the options of the command line that set them."""


def with_options(text: str) -> str:
    """A message of the library for someone at the command line: `` `device` `` becomes --device."""
    return re.sub(r"`([a-z_]+)`", lambda name: ARGUMENTS.get(name[1], name[0]), text)


def _harmless_lines(text: str) -> str:
    return "\n".join(map(harmless, text.split("\n")))


# Results, on stdout


class _ResultStream:
    """Standard output on which nothing is written that could act on a terminal, and once a command runs only results.

    What others print goes to stderr: the user's own network from a hook, from a thread, or when it is thrown away, which
    may be at any time.
    """

    results_only = False

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if self.results_only:
            return sys.stderr.write(text)
        self.write_result(_harmless_lines(text))
        return len(text)

    def write_result(self, text: str) -> None:
        with _output():
            self.stream.write(text)

    def flush(self) -> None:
        with _output():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _output() -> Iterator[None]:
    """Tell faults of standard output from those of other files."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BrokenOutput(*error.args) from None


@contextmanager
def harmless_output() -> Iterator[None]:
    """Whatever is printed meanwhile is escaped."""
    before = sys.stdout
    sys.stdout = cast("TextIO", _ResultStream(before))
    try:
        yield
    finally:
        sys.stdout = before


def keep_stdout_for_results() -> None:
    """From now on only `say` writes to stdout."""
    if isinstance(sys.stdout, _ResultStream):
        sys.stdout.results_only = True


def say(text: str = "", *, head: str = "") -> None:
    """A line of results on stdout; on a terminal its head is bold."""
    stream, head, text = sys.stdout, harmless(head), _harmless_lines(text)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or os.name == "nt"  # whose consoles differ
    if head and stream.isatty() and not plain:
        head = f"\x1b[1m{head}\x1b[0m"
    if isinstance(stream, _ResultStream):
        stream.write_result(f"{head}{text}\n")
        stream.flush()
    else:
        print(f"{head}{text}", flush=True)


def terminal_width() -> int:
    """Columns of the terminal; for a file or a pipe so many that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 1000


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | None]], right: Container[int] = ()) -> None:
    """Columns as wide as what is in them; nothing is cut."""
    table = [headings, *([cell or "" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        line = "  ".join(c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(cells))
        say(line.rstrip())


def print_paragraph(text: str, head: str = "") -> None:
    """Text beside a heading, wrapped to the terminal with the lines that follow below the first; in a file, one line."""
    width, indent = max(terminal_width(), len(head) + 40), " " * len(head)
    for number, line in enumerate(
        textwrap.wrap(text, width - len(head), break_long_words=False, break_on_hyphens=False) or [""]
    ):
        say(f"{indent if number else head}{line}")


# What `explain` and `decompose` print


def print_image(file: str, predictions: Sequence[tuple[str, float]]) -> None:
    """The image that results are about, with its best classes."""
    say(head=file)
    print_paragraph(", ".join(f"{label} {probability:.1%}" for label, probability in predictions), "  ")
    say()


def print_target(document: dict[str, Any], explanation: Explanation) -> None:
    """The explained class, or the two that are compared, and what becomes of it without the path."""
    from pathx.drawing.words import path_line

    target, other = document["target"], document.get("against")
    if other is None:
        number = [] if target["label"] == f"class {target['index']}" else [f"class {target['index']}"]
        facts = [f"{target['probability']:.1%}", *number, f"logit {target['logit']:.4g}"]
        say(f": {', '.join(facts)}", head=target["label"])
    else:
        logits = f": logits {target['logit']:.4g} and {other['logit']:.4g}"
        say(logits, head=f"why {target['label']} and not {other['label']}")
    print_paragraph(path_line(explanation, target["label"], "" if other is None else other["label"]))


def unit_name(unit: Unit, room: int) -> str:
    """A unit's tensor and place, as `place_name` shortens it."""
    return place_name(unit.tensor, f" [{','.join(map(str, unit.index))}]", room)


def place_name(name: str, index: str, room: int) -> str:
    """A tensor and what follows; where there is little room, without the modules around it, and then as much as fits."""
    space = max(room - len(index), 8)
    while len(name) > space and "." in name.lstrip("…."):
        name = "…." + name.lstrip("….").partition(".")[2]
    return ("…" + name[1 - space :] if len(name) > space else name) + index


def print_contrast(result: Result) -> None:
    """What several classes of an image have in common, and where their files are."""
    from pathx.drawing.words import path_line

    document = result.document
    labels = [target["label"] for target in document["targets"]]
    if document["reason"]:
        print_paragraph(document["reason"])
    for label, pair in zip(labels[1:], result.made.pairs, strict=True):
        print_paragraph(f"why {labels[0]} and not {label}: {path_line(pair.difference, labels[0], label)}")
    between = [f"{pair['folder']}{os.sep}" for pair in document["pairs"]]
    print_files(result, [*between, *document["files"].values(), "contrast.json"])


def print_files(result: Result, names: Iterable[str]) -> None:
    """Where the files of a result are, and an empty line."""
    say(f"{result.folder}{os.sep}: {', '.join(names)}\n")


# Progress, on stderr


@contextmanager
def loading(what: str, quiet: bool = False) -> Iterator[None]:
    """Say at once what is being loaded, where someone watches: torch alone takes seconds to come."""
    watched = not quiet and sys.stderr.isatty()
    line = f"pathx: loading {what} …"
    if watched:
        print(line, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if watched:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """How far it is, on stderr; call what this gives with what was done just now.

    Where that is called, nothing is half done: Ctrl-C and SIGTERM end it there.
    """
    from pathx.runs.stop import Stop

    stop, done = Stop(), 0
    with stop.on_signals(), show_progress(what, total, quiet) as show:

        def advance(now: int) -> None:
            nonlocal done
            done += now
            show(done)
            stop.check()

        yield advance


@contextmanager
def show_progress(
    what: str, total: int, quiet: bool, facts: Callable[[], str] = lambda: ""
) -> Iterator[Callable[[int], None]]:
    """A bar where someone watches, else a line now and then; call what this gives with how many are done.

    Args:
        facts: what else there is to say at the moment.
    """
    if quiet:
        yield lambda done: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        facts_column = TextColumn("{task.fields[facts]}", markup=False)
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), facts_column, TimeRemainingColumn())
        # What is printed meanwhile goes above the bar; but what goes to a file or a pipe goes there.
        above = sys.stdout.isatty()
        with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=above) as bar:
            task = bar.add_task("", total=total, facts="")
            yield lambda done: bar.update(task, completed=done, facts=facts())
    else:
        said, before = time.monotonic(), 0

        def line(done: int) -> None:
            nonlocal said, before
            now = time.monotonic()
            if now - said >= EVERY and done > before:
                left = duration((total - done) * (now - said) / (done - before))  # as fast as since the last line
                parts = [f"{what}: {done} of {total}", *filter(None, [facts()]), f"about {left} left"]
                said, before = now, done
                print_error(", ".join(parts))

        yield line


def duration(seconds: float) -> str:
    """A time for people to read."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
