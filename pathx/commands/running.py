"""What `explain` and `decompose` share: a run here or on a Ray cluster, what people see of it, and the report after it."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands import options
from pathx.commands.options import (
    DeviceOptions,
    DrawingOptions,
    Format,
    ModelOptions,
    PathOptions,
    RayOptions,
    ResultOptions,
    RunOptions,
)
from pathx.commands.output import (
    about,
    complain,
    duration,
    loading,
    notes,
    print_contrast,
    progress_bar,
    say,
    show_progress,
)
from pathx.errors import PathxError, shown
from pathx.runs.index import index_name
from pathx.stores import Address, is_stored

if TYPE_CHECKING:
    from pathx.models.load import LoadedModel
    from pathx.report.collect import ExplanationFiles
    from pathx.report.explanation import NetworkData
    from pathx.report.saved import NetworkDataOf
    from pathx.results.store import Result
    from pathx.runs.run import Plan, Settings
    from pathx.runs.stop import Stop
    from pathx.units.guide import Guide


FEW = 10
"""Up to so many images each one is described; of more, only how far the run is."""


def run_images(
    images: Sequence[str],
    targets: Sequence[str] | None,
    model: ModelOptions,
    path: PathOptions,
    drawing: DrawingOptions,
    results: ResultOptions,
    device: DeviceOptions,
    run: RunOptions,
    ray: RayOptions,
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
    out, quiet, pack = results.out, results.quiet, results.pack
    if results.report and (pack is not None or is_stored(out)):
        raise PathxError("a report is made of results in a folder: leave out --report, --pack and stores", usage=True)
    if ray.ray is not None and results.units is not None:
        raise PathxError("references are shown by runs on this machine: leave out --units or --ray", usage=True)
    settings, load = path.settings, model.loader()
    settings |= {"batch_size": options.parse_batch_size(run.batch_size), "drawing": drawing.drawing}
    settings["workers"] = options.parse_whole_number(run.workers, "workers")
    every, shard = options.parse_every(results.every), options.choose_shard(run.shard, quiet)

    with loading(f"torch and {model.model}", quiet):
        from pathx.runs.run import Plan, Settings, explain_files
        from pathx.runs.stop import Stop

        loaded = load()
    guide = None
    if results.units is not None:
        from pathx.units.guide import Guide

        guide = Guide(results.units, device.prepare(loaded), notes(quiet))
    plan, stop = Plan.of(images, out, shard=shard, overwrite=run.overwrite, every=every), Stop()
    one_by_one = len(images) <= FEW and [image.source for image in plan.images] == list(images)
    one_by_one = one_by_one or not plan.indexed
    removal = results.removal if results.removal is not None else one_by_one or results.report
    chosen = Settings(
        **settings,
        device=device.device,
        dtype=device.dtype.value,
        save_tensors=results.save_tensors,
        truth=results.truth,
        pictures=not results.no_pictures,
        against=against,
        removal=removal,
        guide=guide,
    )
    for note in loaded.notes:
        notes(quiet)(note)
    how: dict[str, Any] = {
        "targets": targets or (),
        "settings": chosen,
        "decompose": decompose,
        "pack": pack,
        "note": notes(quiet),
        "stop": stop,
    }
    if ray.ray is not None and plan.indexed:  # an image that is named by itself is explained here
        from pathx.runs.cluster import OnRay

        how["ray"] = OnRay(load, **ray.where, documents=results.report or results.format is Format.json)
    made = explain_files(loaded, plan, out, **how)
    told: dict[str, Any] = {"format": results.format, "quiet": quiet, "fail_fast": run.fail_fast}
    tally = follow(made, plan, out, stop=stop, **told, show=partial(show, guide), verb=verb)
    if results.report and tally.folders:  # where some images failed, the others have their pages
        _write_report(tally.folders, loaded, chosen, results)
    if tally.failed:
        raise typer.Exit(1)


@dataclass
class Tally:
    """How far a run is, and the folders of its explanations. Results of one image follow each other."""

    total: int
    verb: str = "explained"
    made: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    labelled: int = 0
    wrong: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
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
        if not result.failed and result.kind.name != "contrast":
            self.folders.append(result.folder)
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
    verb: str,
) -> Tally:
    """Print the results of a run as they come, and count them.

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
    return tally


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
    for name in (shown(file), file):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "", text) if name else text
    return re.split(r"[:;(]", text.strip(" :;"))[0].strip()


def _write_report(folders: list[Path], model: LoadedModel, settings: Settings, results: ResultOptions) -> None:
    from pathx.report.build import report

    units, quiet = results.units, results.quiet
    images = {folder.parent for folder in folders}
    where = folders[0] if len(folders) == 1 else images.pop() if len(images) == 1 else Path(results.out)
    few, note = len(folders) <= FEW, notes(quiet)
    if not few:
        note(f"pages of more than {FEW} explanations do not show what single units saw")
    network = _network_data_of(model, settings) if few else (lambda found: None)
    with progress_bar("writing the report", len(folders), quiet) as advance:
        made = report([where, *([] if units is None else [units])], network=network, note=note, advance=advance)
    if not quiet:
        complain(f"the report is {made}")  # stdout may be JSON


def _network_data_of(model: LoadedModel, settings: Settings) -> NetworkDataOf:
    """What the network adds to the page of an explanation: it is frozen at the image once more."""
    from pathx.engine.device import resolve_device, resolve_dtype
    from pathx.engine.explain import explain_frozen
    from pathx.engine.freeze import freeze
    from pathx.images.read import open_image
    from pathx.pipeline import tensor_of
    from pathx.report.saved import network_data

    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    module = model.on(device)

    def data_of(found: ExplanationFiles) -> NetworkData | None:
        document = found.document
        try:
            image = open_image(document["image"]["file"])
        except PathxError:
            return None  # the page says that the photo is gone
        frozen = freeze(module, tensor_of(image, model.preprocessing)[None].to(device, dtype))
        how = {key: document[key] for key in ("depth", "width", "alpha", "skips", "importance")}
        how["against"] = [document["against"]["index"]] if document.get("against") else None
        (explanation,) = explain_frozen(frozen, [(0, document["target"]["index"])], **how)
        return network_data(frozen, explanation)

    return data_of
