"""What commands share towards the terminal: one-line errors with their exit status, tables, how things are written."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager

import typer

from pathx.errors import PathxError


@contextmanager
def errors() -> Iterator[None]:
    """One line on stderr for what the user can mend, and the exit status that goes with it."""
    try:
        yield
    except PathxError as error:
        complain(str(error), error)
        raise typer.Exit(2 if error.usage else 1) from None
    except KeyboardInterrupt:
        complain("interrupted; the explanations that have a path.json are whole")
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
