"""What commands share towards the terminal: one-line errors with their exit status, tables, how things are written."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGINT
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

from pathx.errors import PathxError, harmless, shown, without_secrets

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

    from pathx.explanation import Explanation, Unit
    from pathx.results.store import Result

EVERY = 10.0
"""Seconds between two lines of progress where stderr is no terminal."""


@contextmanager
def errors(interrupted: str = "nothing is lost that was written") -> Iterator[None]:
    """One line on stderr for what the user can mend, and the exit status that goes with it.

    Args:
        interrupted: what Ctrl-C leaves behind, for people to read.
    """
    try:
        yield
    except PathxError as error:
        complain(str(error), error)
        raise typer.Exit(2 if error.usage else 1) from None
    except KeyboardInterrupt as error:
        complain(f"interrupted; {interrupted}")
        raise typer.Exit(128 + (error.args[0] if error.args else SIGINT)) from None
    except (typer.Exit, BrokenPipeError, BrokenOutput):
        raise
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # as rich ends the process where nobody reads on
            raise
        complain(f"the model's own code ended the run (sys.exit with {error.code}): take that out of its forward")
        raise typer.Exit(1) from None
    except Exception as error:
        complain(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)", error)
        raise typer.Exit(1) from None


class BrokenOutput(OSError):
    """Standard output cannot be written to."""


def complain(text: str, error: Exception | None = None) -> None:
    """A line on stderr; with PATHX_DEBUG after the traceback of what it is about."""
    with suppress(OSError):  # nobody can be told that nobody can be told; the exit status says it
        if error is not None and os.environ.get("PATHX_DEBUG"):
            sys.stderr.write(_harmless_lines(without_secrets("".join(traceback.format_exception(error)))))
        print(f"pathx: {harmless(with_options(without_secrets(' '.join(text.split()))))}", file=sys.stderr, flush=True)


ARGUMENTS = {
    "arguments": "--model-args",
    "by": "--group-by",
    "depth": "--depth",
    "device": "--device",
    "dtype": "--dtype",
    "every": "--every",
    "exact": "--exact",
    "input_size": "--input-size",
    "mean": "--mean",
    "model": "--model",
    "out": "--out",
    "ray": "--ray",
    "save_tensors": "--save-tensors",
    "shard": "--shard",
    "std": "--std",
    "step_pixels": "--step-pixels",
    "steps": "--steps",
    "weights": "--weights",
    "width": "--width",
}
"""Arguments of the library that its messages name, as the options of the command line that set them."""


def with_options(text: str) -> str:
    """A message of the library for someone at the command line: `` `device` `` becomes --device."""
    return re.sub(r"`([a-z_]+)`", lambda name: ARGUMENTS.get(name[1], name[0]), text)


def _harmless_lines(text: str) -> str:
    return "\n".join(map(harmless, text.split("\n")))


class _Stream:
    """Standard output, whose faults are told from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with _output():
            return self.stream.write(text)

    def flush(self) -> None:
        with _output():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _ResultStream(_Stream):
    """The same, on which nothing is written that could act on a terminal, and once a command runs nothing but results.

    What others print goes to stderr: the user's own network from a hook, from a thread, or when it is thrown away, which
    may be at any time.
    """

    results_only = False

    def write(self, text: str) -> int:
        return sys.stderr.write(text) if self.results_only else self.write_result(text)

    def write_result(self, text: str) -> int:
        super().write(_harmless_lines(text))
        return len(text)


def say(text: str = "") -> None:
    """A line of results on stdout."""
    stream = sys.stdout
    if isinstance(stream, _ResultStream):
        stream.write_result(f"{text}\n")
        stream.flush()
    else:
        print(text, flush=True)


def keep_stdout_for_results() -> None:
    """From now on only `say` and `terminal` write to stdout."""
    if isinstance(sys.stdout, _ResultStream):
        sys.stdout.results_only = True


@contextmanager
def _output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BrokenOutput(*error.args) from None


@contextmanager
def harmless_output() -> Iterator[None]:
    """Whatever is printed meanwhile is escaped; `terminal` alone may send colours."""
    before = sys.stdout
    sys.stdout = cast("TextIO", _ResultStream(before))
    try:
        yield
    finally:
        sys.stdout = before


def notes(quiet: bool) -> Callable[[str], None]:
    """What prints a note on stderr, unless all is to be quiet."""
    return (lambda text: None) if quiet else (lambda text: complain(f"note: {text}"))


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


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | None]], right: Container[int] = ()) -> None:
    """Columns as wide as what is in them; nothing is cut."""
    table = [headings, *([cell or "" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        line = "  ".join(c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(cells))
        say(line.rstrip())


def print_paragraph(head: str, text: str) -> None:
    """Text beside a heading, wrapped to the terminal with the lines that follow below the first; in a file, one line."""
    width = terminal().width
    say(
        textwrap.fill(
            text,
            max(width, len(head) + 40),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def shape(sizes: Sequence[int]) -> str:
    """Sizes as people write them, 3x224x224."""
    return "x".join(map(str, sizes))


def millions(count: int) -> str:
    """A large number, such as of parameters."""
    return f"{count / 1e6:.1f} M"


def about(file: str, text: str) -> str:
    """A message with the file it is about in front, as messages show it, unless it names it already."""
    return text if file in text or shown(file) in text else f"{shown(file)}: {text}"


def print_problems(document: dict[str, Any], quiet: bool, failed: bool = False) -> None:
    """What a document says could not be read, and unless all is to be quiet its notes; ends a command that failed."""
    for name, reason in document["unread"].items():
        complain(about(name, reason))
    for note in () if quiet else document.get("notes", ()):
        complain(f"note: {note}")
    if failed or document["unread"]:
        raise typer.Exit(1)


def terminal() -> Console:
    """Where text for people goes: as wide as the terminal, and for a file or a pipe so wide that nothing is cut."""
    from rich.console import Console, RenderHook
    from rich.segment import Segment

    class Harmless:
        """Anything that is printed, with its text escaped and its colours left as they are."""

        def __init__(self, content: ConsoleRenderable) -> None:
            self.content = content

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for segment in console.render(self.content, options):
                yield segment if segment.control else Segment(_harmless_lines(segment.text), segment.style)

    class Escaping(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [Harmless(renderable) for renderable in renderables]

    stream = sys.stdout
    plain = cast("TextIO", _Stream(stream.stream)) if isinstance(stream, _ResultStream) else stream
    # NO_COLOR stands for text without any escapes: rich alone would keep bold.
    console = Console(file=plain, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    console.push_render_hook(Escaping())
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000
    return console


def print_image(console: Console, file: str, predictions: Sequence[tuple[str, float]]) -> None:
    """The image that results are about, with its best classes."""
    from rich.padding import Padding
    from rich.text import Text

    best = ", ".join(f"{label} {probability:.1%}" for label, probability in predictions)
    console.print(Text(file, "bold"), soft_wrap=True)
    console.print(Padding(Text(best), (0, 0, 0, 2), expand=False))
    console.print()


def print_target(console: Console, document: dict[str, Any], explanation: Explanation) -> None:
    """The explained class, or the two that are compared, and what becomes of it without the path."""
    from rich.text import Text

    from pathx.drawing.words import path_line

    target, other = document["target"], document.get("against")
    number = [] if target["label"] == f"class {target['index']}" else [f"class {target['index']}"]
    facts = [f"{target['probability']:.1%}", *number, f"logit {target['logit']:.4g}"]
    if other is not None:
        facts = [f"logits {target['logit']:.4g} and {other['logit']:.4g}"]
    name = target["label"] if other is None else f"why {target['label']} and not {other['label']}"
    console.print(Text.assemble((name, "bold"), f": {', '.join(facts)}"))
    console.print(Text(path_line(explanation, target["label"], "" if other is None else other["label"])))


def relative(importance: float, classes: int | None) -> str:
    """An importance as times that of a unit that makes no difference, 1/classes: `1.472x`. An effect as it is."""
    if classes is None:
        return f"{importance:+.3f}"
    times = importance * classes
    return f"{times:.3f}x" if times < 100 else f"{times:.0f}x"


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
    from rich.text import Text

    from pathx.drawing.words import path_line

    console = terminal()
    document = result.document
    labels = [target["label"] for target in document["targets"]]
    if document["reason"]:
        console.print(Text(document["reason"]))
    for label, pair in zip(labels[1:], result.contrast.pairs, strict=True):
        if pair.difference is not None:
            console.print(Text(f"why {labels[0]} and not {label}: {path_line(pair.difference, labels[0], label)}"))
    between = [f"{pair['folder']}{os.sep}" for pair in document["pairs"] if pair["folder"]]
    files = ", ".join([*between, *document["files"].values(), "contrast.json"])
    console.print(Text(f"{result.folder}{os.sep}: {files}\n"), soft_wrap=True)


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
                complain(", ".join(parts))

        yield line


def duration(seconds: float) -> str:
    """A time for people to read."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
