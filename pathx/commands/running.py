"""What `explain` and `decompose` share: images in, results followed as they come, in this process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands import parsing
from pathx.commands.following import FEW, follow
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
from pathx.commands.output import complain, loading, notes, progress_bar
from pathx.errors import PathxError
from pathx.stores import is_stored

if TYPE_CHECKING:
    from pathx.models.load import LoadedModel
    from pathx.report.collect import ExplanationFiles
    from pathx.report.explanation import NetworkData
    from pathx.report.saved import NetworkDataOf
    from pathx.results.store import Result
    from pathx.runs.run import Settings
    from pathx.units.guide import Guide


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
    settings |= {"batch_size": parsing.batch_size(run.batch_size), "drawing": drawing.drawing}
    settings["workers"] = parsing.whole_number(run.workers, "workers")
    every, shard = parsing.every(results.every), parsing.shard(run.shard, quiet)

    with loading(f"torch and {model.model}", quiet):
        from pathx.runs.compute import decompose_task
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
        "pack": pack,
        "note": notes(quiet),
        "stop": stop,
    }
    if decompose is not None:
        how["task"] = decompose_task(**decompose)
    if ray.ray is None or not plan.indexed:  # an image that is named by itself
        made = explain_files(loaded, plan, out, **how)
    else:
        from pathx.runs.cluster import explain_on_ray

        documents = results.report or results.format is Format.json
        made = explain_on_ray(load, plan, out, **ray.where, **how, documents=documents)
    told: dict[str, Any] = {"format": results.format, "quiet": quiet, "fail_fast": run.fail_fast}
    with _report_after(made, loaded, chosen, results) as watched:
        follow(watched, plan, out, stop=stop, **told, show=partial(show, guide), verb=verb)


@contextmanager
def _report_after(
    made: Generator[Result], model: LoadedModel, settings: Settings, results: ResultOptions
) -> Iterator[Generator[Result]]:
    """The results of a run as they come; afterwards, unless it was stopped, the report of them where it is wanted."""
    folders: list[Path] = []
    try:
        yield _note_folders(made, folders) if results.report else made
    except typer.Exit as ended:
        if ended.exit_code == 1 and folders:  # some images failed; the others have their pages
            _write_report(folders, model, settings, results)
        raise
    if folders:
        _write_report(folders, model, settings, results)


def _note_folders(results: Generator[Result], folders: list[Path]) -> Generator[Result]:
    with closing(results):
        for result in results:
            if result.error is None and result.kind.name in ("explanation", "decomposition"):
                folders.append(result.folder)
            yield result


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
    from pathx.errors import PathxError
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
