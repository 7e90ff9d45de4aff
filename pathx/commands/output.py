"""What commands share towards the terminal: one-line errors with their exit status, tables, how things are written."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from pathx.errors import PathxError

if TYPE_CHECKING:
    from rich.console import Console

    from pathx.contrasting import Contrasted
    from pathx.explanation import Unit

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
    except KeyboardInterrupt:
        complain(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:
        complain(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)", error)
        raise typer.Exit(1) from None


def complain(text: str, error: Exception | None = None) -> None:
    """A line on stderr; with PATHX_DEBUG after the traceback of what it is about."""
    if error is not None and os.environ.get("PATHX_DEBUG"):
        traceback.print_exception(error)
    print(f"pathx: {' '.join(text.split())}", file=sys.stderr)


def notes(quiet: bool) -> Callable[[str], None]:
    """What prints a note on stderr, unless all is to be quiet."""
    return (lambda text: None) if quiet else (lambda text: complain(f"note: {text}"))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | None]], right: Container[int] = ()) -> None:
    """Columns as wide as what is in them; nothing is cut."""
    table = [headings, *([cell or "" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        line = "  ".join(c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(cells))
        print(line.rstrip())


def shape(sizes: Sequence[int]) -> str:
    """Sizes as people write them, 3x224x224."""
    return "x".join(map(str, sizes))


def millions(count: int) -> str:
    """A large number, such as of parameters."""
    return f"{count / 1e6:.1f} M"


def about(file: str, text: str) -> str:
    """A message with the file it is about in front, unless it names it already."""
    return text if file in text else f"{file}: {text}"


def terminal() -> Console:
    """Where text for people goes: as wide as the terminal, and for a file or a pipe so wide that nothing is cut."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000
    return console


def print_picture(console: Console, file: str, predictions: Sequence[tuple[str, float]]) -> None:
    """The picture that results are about, with its best classes."""
    from rich.padding import Padding
    from rich.text import Text

    best = ", ".join(f"{label} {probability:.1%}" for label, probability in predictions)
    console.print(Text(file, "bold"), soft_wrap=True)
    console.print(Padding(Text(best), (0, 0, 0, 2), expand=False))
    console.print()


def class_line(target: dict[str, Any]) -> str:
    """An explained class, after its label."""
    return f"class {target['index']}, {target['probability']:.1%}, logit {target['logit']:.4g}"


def unit_name(unit: Unit, room: int) -> str:
    """A unit's tensor and place; where there is little room, the end of the name, which tells it from others."""
    index = f" [{','.join(map(str, unit.index))}]"
    name, space = unit.tensor, max(room - len(index), 8)
    return ("…" + name[1 - space :] if len(name) > space else name) + index


def print_contrast(result: Contrasted) -> None:
    """What several classes of a picture have in common, and where their files are."""
    from rich.text import Text

    console = terminal()
    document = result.document
    labels = [target["label"] for target in document["targets"]]
    if document["reason"]:
        console.print(Text(document["reason"]))
    for label, pair in zip(labels[1:], document["pairs"], strict=True):
        line = f"{labels[0]} less {label}: logit {pair['logit']:+.4g}, score {pair['score']:+.4g}, overlap {pair['overlap']:.2f}"
        console.print(Text(line))
    files = ", ".join([*document["files"].values(), "contrast.json"])
    console.print(Text(f"{result.folder}{os.sep}: {files}\n"), soft_wrap=True)


@contextmanager
def progress_bar(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """How far it is, on stderr: a bar where someone watches, else a line now and then; call with what was done just now."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not quiet and not console.is_terminal:
        yield _Lines(what, total).advance
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


class _Lines:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._said = time.monotonic()

    def advance(self, done: int) -> None:
        self._done += done
        now = time.monotonic()
        if now - self._said < EVERY or not self._done:
            return
        self._said = now
        left = duration((self._total - self._done) * (now - self._began) / self._done)
        complain(f"{self._what}: {self._done} of {self._total}, about {left} left")


def duration(seconds: float) -> str:
    """A time for people to read."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
