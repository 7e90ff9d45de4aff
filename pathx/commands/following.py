"""What people see of a run: progress, failures, a summary, and how to go on with one that was cut short."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands.options import Format
from pathx.commands.output import EVERY, about, complain, duration, print_contrast
from pathx.index import index_name

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.progress import Task

    from pathx.run import Plan, Result
    from pathx.workers import Stop

FEW = 10
"""Up to so many pictures each one is described; of more, only how far the run is."""


@dataclass
class Tally:
    """How far a run is. Results of one picture follow each other, so no list of pictures is kept but of those that failed."""

    total: int
    verb: str = "explained"
    made: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    _last: str | None = None

    @property
    def seen(self) -> int:
        return self.made + self.kept + len(self.failed)

    @property
    def speed(self) -> float:
        """Pictures per second, those left out that were done before."""
        return (self.made + len(self.failed)) / max(time.monotonic() - self.started, 1e-9)

    def add(self, result: Result) -> bool:
        """Count a result; whether it is the first of its picture."""
        from pathx.run import Failed, Kept

        file = result.file if isinstance(result, (Failed, Kept)) else result.picture.file
        first, self._last = file != self._last, file
        if isinstance(result, Failed):
            if not first and file not in self.failed:  # it was taken for done by what came before
                self.made -= 1
            self.failed[file] = _reason(file, str(result.error))
        elif isinstance(result, Kept):
            self.kept += 1
        elif first:
            self.made += 1
        return first

    def __str__(self) -> str:
        counts = [f"{self.made} {self.verb}"]
        counts += [f"{self.kept} done before"] if self.kept else []
        if self.failed:
            reasons = Counter(self.failed.values()).most_common()
            counts.append(f"{len(self.failed)} failed ({', '.join(f'{count} {reason}' for reason, count in reasons)})")
        return ", ".join(counts)


def follow(
    results: Generator[Result],
    plan: Plan,
    out: str,
    *,
    stop: Stop,
    format: Format,
    quiet: bool,
    fail_fast: bool,
    show: Callable[[Any, bool], None],
    verb: str = "explained",
) -> None:
    """Print the results of a run as they come, and end the process with its exit status.

    Args:
        show: describes a result for people, at length; with True for the first one of a picture.
        verb: what was done with pictures that are done.
    """
    from pathx.run import Failed, Kept

    tally = Tally(len(plan.pictures), verb)
    many = tally.total > FEW
    try:
        with closing(results), stop.on_signals(), _progress(tally, many and not quiet) as advance:
            for result in results:
                first = tally.add(result)
                if isinstance(result, Failed):
                    complain(about(result.file, str(result.error)), result.error)
                    if fail_fast:
                        break
                elif not isinstance(result, Kept) and first and not quiet:
                    for note in result.picture.notes:
                        complain(f"note: {about(result.picture.file, note)}")
                if format is Format.json:
                    for document in _documents(result):
                        print(json.dumps(document, allow_nan=False), flush=True)
                elif not many and not quiet:
                    _print(result, first, show)
                advance()
    except KeyboardInterrupt:
        if plan.indexed:
            done = f"{tally.made + tally.kept} of {tally.total} pictures are done"
            complain(f"interrupted: {done}; run the same command again to go on")
        else:
            complain("interrupted; the explanations that have a path.json are whole")
        raise typer.Exit(128 + (stop.asked or 2)) from None
    _summarise(tally, plan, out, many=many, quiet=quiet, stopped=fail_fast and tally.seen < tally.total)


def _summarise(tally: Tally, plan: Plan, out: str, *, many: bool, quiet: bool, stopped: bool) -> None:
    if tally.total == 0 and plan.shard is not None and not quiet:
        complain(f"note: no picture falls to shard {plan.shard}")
    if plan.indexed and not quiet and (many or tally.kept):
        seconds = time.monotonic() - tally.started
        complain(f"{tally} in {duration(seconds)}: {Path(out, index_name(plan.shard))}")
    if tally.failed:
        if stopped and tally.total > 1:
            complain("stopped at the first failure; run the same command again to go on")
        elif tally.total > 1:
            rest = f"; the rest is in {out}" if tally.made + tally.kept else ""
            complain(f"{len(tally.failed)} of {tally.total} pictures failed{rest}")
        raise typer.Exit(1)


def _documents(result: Result) -> list[dict[str, Any]]:
    """What --format json prints. Contrasts are for people, and in their files."""
    from pathx.contrasting import Contrasted
    from pathx.run import Failed, Kept

    if isinstance(result, (Failed, Contrasted)):
        return []
    return [document for _, document in result.results] if isinstance(result, Kept) else [result.document]


def _print(result: Result, first: bool, show: Callable[[Any, bool], None]) -> None:
    from pathx.contrasting import Contrasted
    from pathx.run import Failed, Kept

    if isinstance(result, Contrasted):
        print_contrast(result)
    elif isinstance(result, Kept):
        for folder, document in result.results:
            target = document["target"]
            print(f"{result.file}: done before: {target['label']} {target['probability']:.1%}, in {folder}")
    elif not isinstance(result, Failed):
        show(result, first)


def _reason(file: str, text: str) -> str:
    """Why a picture failed, without its name and the remedy, to be counted."""
    from pathx.pictures import shown

    for name in (shown(file), file):
        text = text.replace(name, "") if name else text
    return re.split(r"[:;(]", text.strip(" :;"))[0].strip()


@contextmanager
def _progress(tally: Tally, wanted: bool) -> Iterator[Callable[[], None]]:
    """Something to call after every result: a bar where stderr is a terminal, otherwise a line now and then."""
    if not wanted:
        yield lambda: None
    elif sys.stderr.isatty():
        with _bar(tally) as advance:
            yield advance
    else:
        yield _Lines(tally).advance


class _Lines:
    def __init__(self, tally: Tally) -> None:
        self._tally, self._said = tally, tally.started

    def advance(self) -> None:
        if time.monotonic() - self._said < EVERY:
            return
        self._said, tally = time.monotonic(), self._tally
        left = f", about {duration((tally.total - tally.seen) / tally.speed)} left" if tally.speed else ""
        failed = f", {len(tally.failed)} failed" if tally.failed else ""
        complain(f"{tally.seen} of {tally.total} pictures, {tally.speed:.1f} per second{failed}{left}")


@contextmanager
def _bar(tally: Tally) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TimeRemainingColumn
    from rich.text import Text

    class Facts(ProgressColumn):
        def render(self, task: Task) -> Text:
            failed = f"  {len(tally.failed)} failed" if tally.failed else ""
            return Text.assemble(f"{tally.speed:.1f} per second", (failed, "red"))

    columns = BarColumn(), MofNCompleteColumn(), Facts(), TimeRemainingColumn()
    # What is printed meanwhile goes above the bar; but what goes to a file or a pipe goes there.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=tally.total)
        yield lambda: progress.update(task, completed=tally.seen)
