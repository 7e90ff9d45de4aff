"""What `explain` and `decompose` share: a run here or on a Ray cluster, what people see of it, and the report after it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands import options
from pathx.commands.options import ExplainOptions, ResultOptions
from pathx.commands.output import (
    about,
    duration,
    loading,
    note_printer,
    print_contrast,
    print_error,
    print_notes,
    progress_bar,
    say,
    show_progress,
)
from pathx.errors import PathxError
from pathx.runs.index import index_name
from pathx.stores import Address, is_stored

if TYPE_CHECKING:
    from pathx.pipeline import Prepared
    from pathx.report.collect import ExplanationFiles
    from pathx.report.explanation import NetworkData, NetworkDataOf
    from pathx.results.store import Result
    from pathx.runs.run import Plan
    from pathx.runs.stop import Stop
    from pathx.units.guide import Guide


FEW = 10
"""Up to so many images each one is described; of more, only how far the run is."""


def run_images(
    images: Sequence[str],
    targets: Sequence[str],
    how: ExplainOptions,
    *,
    show: Callable[[Guide | None, Result, bool], None],
    verb: str = "explained",
    against: str | None = None,
    decompose: dict[str, Any] | None = None,
) -> None:
    """Do what the options say, print the results, and end the process with the exit status of the run.

    Args:
        show: describes a result for people; with True for the first one of an image.
        verb: what was done with images that are done.
        decompose: how to decompose, if that is to be done.
    """
    results, device, run = how.results, how.device, how.run
    out, quiet, pack = results.out, results.quiet, results.pack
    if results.report and (pack is not None or is_stored(out)):
        raise PathxError("a report needs results in a folder: leave out --report, or --pack and stores", usage=True)
    if how.ray.ray is not None and results.units is not None:
        raise PathxError("--units works without a cluster only: leave out --units or --ray", usage=True)
    load, shard = how.model.loader(), options.choose_shard(run.shard, quiet)

    with loading(f"torch and {how.model.model}", quiet):
        from pathx.runs.run import Plan, Settings, explain_files
        from pathx.runs.stop import Stop

        loaded = load()
    guide = None
    if results.units is not None:
        from pathx.units.guide import Guide

        guide = Guide(results.units, device.prepare(loaded), note_printer(quiet))
    plan, stop = Plan.of(images, out, shard=shard, overwrite=run.overwrite, every=results.every), Stop()
    one_by_one = len(images) <= FEW and [image.source for image in plan.images] == list(images)
    one_by_one = one_by_one or not plan.indexed
    removal = results.removal if results.removal is not None else one_by_one or results.report
    chosen = Settings(
        **vars(how.path),
        **vars(device),
        batch_size=run.batch_size,
        workers=run.workers,
        drawing=how.drawing.drawing,
        save_tensors=results.save_tensors,
        truth=results.truth,
        pictures=not results.no_pictures,
        against=against,
        removal=removal,
        guide=guide,
    )
    print_notes(loaded.notes, quiet)
    on_ray = None
    if how.ray.ray is not None and plan.indexed:  # an image that is named by itself is explained here
        from pathx.runs.cluster import OnRay

        on_ray = OnRay(load, **how.ray.where, documents=results.report or results.format == "json")
    more: dict[str, Any] = {"pack": pack, "note": note_printer(quiet), "stop": stop, "ray": on_ray}
    made = explain_files(loaded, plan, out, targets=targets, settings=chosen, decompose=decompose, **more)
    tally = _follow(made, plan, results, stop, run.fail_fast, partial(show, guide), verb)
    if results.report and tally.folders:  # where some images failed, the others have their pages
        _write_report(tally.folders, device.prepare(loaded), results)
    if tally.failed:
        raise typer.Exit(1)


@dataclass
class Tally:
    """How far a run is, and the folders of its explanations. Results of one image follow each other."""

    total: int
    verb: str = "explained"
    made: int = 0
    kept: int = 0
    failed: set[str] = field(default_factory=set)
    labelled: int = 0
    wrong: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _last: str | None = None

    @property
    def seen(self) -> int:
        return self.made + self.kept + len(self.failed)

    def facts(self) -> str:
        """What is said beside the count of images while a run goes on; images done before do not count as speed."""
        speed = (self.made + len(self.failed)) / max(time.monotonic() - self.started, 1e-9)
        return f"{speed:.1f} per second{f', {len(self.failed)} failed' if self.failed else ''}"

    def add(self, result: Result) -> bool:
        """Count a result; whether it is the first of its image."""
        first, self._last = result.file != self._last, result.file
        if result.failed:
            if not first and result.file not in self.failed:  # it was taken for done by what came before
                self.made -= 1
            self.failed.add(result.file)
        elif first and result.state.name == "kept":
            self.kept += 1
        elif first:
            self.made += 1
        if not result.failed and result.kind.name != "contrast":
            self.folders.append(result.folder)
        if first and result.truth is not None and result.predictions:
            self.labelled += 1
            predicted = result.predictions[0][0]
            if predicted != result.truth:
                self.wrong.append(
                    f"{result.file} is {result.truth}, the network says {predicted}: {result.folder.parent}"
                )
        return first

    def __str__(self) -> str:
        counts = ((self.made, self.verb), (self.kept, "done before"), (len(self.failed), "failed"))
        return ", ".join(f"{count} {what}" for count, what in counts if count or what == self.verb)


def _follow(
    made: Generator[Result],
    plan: Plan,
    results: ResultOptions,
    stop: Stop,
    fail_fast: bool,
    show: Callable[[Result, bool], None],
    verb: str,
) -> Tally:
    """Print the results of a run as they come, and count them."""
    tally, quiet = Tally(len(plan.images), verb), results.quiet
    many = tally.total > FEW
    try:
        progress = show_progress("images", tally.total, quiet or not many, tally.facts)
        with closing(made), stop.on_signals(), progress as show_done:
            for result in made:
                first = tally.add(result)
                if result.error is not None:
                    print_error(about(result.file, str(result.error)), result.error)
                    if fail_fast:
                        break
                print_notes((about(result.file, note) for note in result.notes), quiet or not first)
                if results.format == "json":
                    if result.document and result.kind.name != "contrast":  # contrasts are in their files
                        say(json.dumps(result.document, allow_nan=False))
                elif not many and not quiet and not result.failed:
                    _print(result, first, show)
                show_done(tally.seen)
    except KeyboardInterrupt as error:
        if plan.indexed:
            done = f"{tally.made + tally.kept} of {tally.total} images are done"
            print_error(f"interrupted: {done}; run the same command again to continue")
        else:
            print_error("interrupted; the explanations that have a path.json are whole")
        raise typer.Exit(128 + (stop.asked or (*error.args, 2)[0])) from None
    _summarise(tally, plan, results, stopped=fail_fast and tally.seen < tally.total)
    return tally


def _summarise(tally: Tally, plan: Plan, results: ResultOptions, *, stopped: bool) -> None:
    index = (Address(results.out) if is_stored(results.out) else Path(results.out)) / index_name(plan.shard)
    if isinstance(index, Path) and not index.exists():  # the last shard has merged it
        index = index.with_name(index_name(None))
    if plan.indexed and not results.quiet:
        if tally.total == 0 and plan.shard is not None:
            print_error(f"note: no image falls to shard {plan.shard}")
        if tally.total > FEW or tally.kept:
            print_error(f"{tally} in {duration(time.monotonic() - tally.started)}: {index}")
        if tally.labelled:
            right = tally.labelled - len(tally.wrong)
            share = f"{right} of {tally.labelled} images with a label are predicted as labelled"
            print_error(f"{share} ({right / tally.labelled:.1%})")
            for line in tally.wrong[:FEW]:
                print_error(f"wrong: {line}")
            if more := len(tally.wrong[FEW:]):
                print_error(f'and {more} more: they have "correct": false in {index}')
    if tally.failed and tally.total > 1:
        if stopped:
            print_error("stopped at the first failure; run the same command again to continue")
        else:
            rest = f"; the rest is in {index.parent}" if tally.made + tally.kept else ""
            print_error(f"{len(tally.failed)} of {tally.total} images failed{rest}")


def _print(result: Result, first: bool, show: Callable[[Result, bool], None]) -> None:
    if result.made is not None:
        if result.kind.name == "contrast":
            print_contrast(result)
        else:
            show(result, first)
    elif result.kind.name != "contrast":  # of an earlier run, or of a process on a cluster
        target, before = result.document["target"], "done before: " if result.state.name == "kept" else ""
        say(f"{result.file}: {before}{target['label']} {target['probability']:.1%}, in {result.folder}")


def _write_report(folders: list[Path], ready: Prepared, results: ResultOptions) -> None:
    from pathx.report.build import report

    units, quiet = results.units, results.quiet
    images = {folder.parent for folder in folders}
    where = folders[0] if len(folders) == 1 else images.pop() if len(images) == 1 else Path(results.out)
    few, note = len(folders) <= FEW, note_printer(quiet)
    if not few:
        note(f"pages of more than {FEW} explanations do not show what single units saw")
    network = _network_data_of(ready) if few else (lambda found: None)
    with progress_bar("writing the report", len(folders), quiet) as advance:
        made = report([where, *([] if units is None else [units])], network=network, note=note, advance=advance)
    if not quiet:
        print_error(f"the report is {made}")  # stdout may be JSON


def _network_data_of(ready: Prepared) -> NetworkDataOf:
    """What the network adds to the page of an explanation: it is frozen at the image once more."""
    from pathx.engine.explain import explain_frozen
    from pathx.engine.freeze import freeze
    from pathx.images.read import open_image
    from pathx.pipeline import tensor_of
    from pathx.report.explanation import network_data

    def data_of(found: ExplanationFiles) -> NetworkData | None:
        document = found.document
        try:
            image = open_image(document["image"]["file"])
        except PathxError:
            return None  # the page says that the photo is gone
        inputs = tensor_of(image, ready.model.preprocessing)[None].to(ready.device, ready.dtype)
        frozen = freeze(ready.module, inputs)
        how = {key: document[key] for key in ("depth", "width", "alpha", "skips", "importance")}
        how["against"] = [document["against"]["index"]] if document.get("against") else None
        (explanation,) = explain_frozen(frozen, [(0, document["target"]["index"])], **how)
        return network_data(frozen, explanation)

    return data_of
