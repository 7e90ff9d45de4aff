"""What people see of a run: progress, failures, a summary, and how to go on with one that was cut short."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands.options import Format
from pathx.commands.output import about, complain, duration, print_contrast, say, show_progress
from pathx.runs.index import index_name
from pathx.stores import Address, is_stored

if TYPE_CHECKING:
    from collections.abc import Generator

    from pathx.results.store import Result
    from pathx.runs.run import Plan
    from pathx.runs.stop import Stop

FEW = 10
"""Up to so many images each one is described; of more, only how far the run is."""


@dataclass
class Tally:
    """How far a run is. Results of one image follow each other, so no list of images is kept but of those that failed."""

    total: int
    verb: str = "explained"
    made: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    labelled: int = 0
    wrong: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _last: str | None = None

    @property
    def seen(self) -> int:
        return self.made + self.kept + len(self.failed)

    @property
    def speed(self) -> float:
        """Images per second, those left out that were done before."""
        return (self.made + len(self.failed)) / max(time.monotonic() - self.started, 1e-9)

    def facts(self) -> str:
        """What is said beside the count of images while a run goes on."""
        return f"{self.speed:.1f} per second{f', {len(self.failed)} failed' if self.failed else ''}"

    def add(self, result: Result) -> bool:
        """Count a result; whether it is the first of its image."""
        first, self._last = result.file != self._last, result.file
        if result.failed:
            if not first and result.file not in self.failed:  # it was taken for done by what came before
                self.made -= 1
            self.failed[result.file] = _reason(result.file, str(result.error))
        elif first and result.state.name == "kept":
            self.kept += 1
        elif first:
            self.made += 1
        if first and result.truth is not None and result.predictions:
            self.labelled += 1
            says = result.predictions[0][0]
            if says != result.truth:
                self.wrong.append(f"{result.file} is {result.truth}, the network says {says}: {result.folder.parent}")
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
        show: describes a result for people, at length; with True for the first one of an image.
        verb: what was done with images that are done.
    """
    tally = Tally(len(plan.images), verb)
    many = tally.total > FEW
    progress = (tally.total, quiet or not many, tally.facts)
    try:
        with closing(results), stop.on_signals(), show_progress("images", *progress) as show_done:
            for result in results:
                first = tally.add(result)
                if result.error is not None:
                    complain(about(result.file, str(result.error)), result.error)
                    if fail_fast:
                        break
                for note in result.notes if first and not quiet else ():
                    complain(f"note: {about(result.file, note)}")
                if format is Format.json:
                    _print_document(result)
                elif not many and not quiet:
                    _print(result, first, show)
                show_done(tally.seen)
    except KeyboardInterrupt as error:
        if plan.indexed:
            done = f"{tally.made + tally.kept} of {tally.total} images are done"
            complain(f"interrupted: {done}; run the same command again to go on")
        else:
            complain("interrupted; the explanations that have a path.json are whole")
        raise typer.Exit(128 + (stop.asked or (*error.args, 2)[0])) from None
    _summarise(tally, plan, out, many=many, quiet=quiet, stopped=fail_fast and tally.seen < tally.total)


def _summarise(tally: Tally, plan: Plan, out: str, *, many: bool, quiet: bool, stopped: bool) -> None:
    index = (Address(out) if is_stored(out) else Path(out)) / index_name(plan.shard)
    if isinstance(index, Path) and not index.exists():  # the last shard has merged it
        index = index.with_name(index_name(None))
    if tally.total == 0 and plan.shard is not None and not quiet:
        complain(f"note: no image falls to shard {plan.shard}")
    if plan.indexed and not quiet and (many or tally.kept):
        seconds = time.monotonic() - tally.started
        complain(f"{tally} in {duration(seconds)}: {index}")
    if plan.indexed and not quiet and tally.labelled:
        right = tally.labelled - len(tally.wrong)
        complain(
            f"{right} of {tally.labelled} images with a label are predicted as labelled ({right / tally.labelled:.1%})"
        )
        for line in tally.wrong[:FEW]:
            complain(f"wrong: {line}")
        if more := len(tally.wrong[FEW:]):
            complain(f'and {more} more: they have "correct": false in {index}')
    if tally.failed:
        if stopped and tally.total > 1:
            complain("stopped at the first failure; run the same command again to go on")
        elif tally.total > 1:
            rest = f"; the rest is in {index.parent}" if tally.made + tally.kept else ""
            complain(f"{len(tally.failed)} of {tally.total} images failed{rest}")
        raise typer.Exit(1)


def _print_document(result: Result) -> None:
    """What --format json prints. Contrasts are for people, and in their files."""
    if result.document and result.kind.name != "contrast":
        say(json.dumps(result.document, allow_nan=False))


def _print(result: Result, first: bool, show: Callable[[Any, bool], None]) -> None:
    if result.failed:
        return
    if result.kind.name == "contrast" and result.made is not None:
        print_contrast(result)
    elif result.made is None and result.kind.name != "contrast":  # of an earlier run, or of a process on a cluster
        target, before = result.document["target"], "done before: " if result.state.name == "kept" else ""
        say(f"{result.file}: {before}{target['label']} {target['probability']:.1%}, in {result.folder}")
    elif result.made is not None:
        show(result, first)


def _reason(file: str, text: str) -> str:
    """Why an image failed, without its name and the remedy, to be counted."""
    from pathx.errors import shown

    for name in (shown(file), file):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "", text) if name else text
    return re.split(r"[:;(]", text.strip(" :;"))[0].strip()
