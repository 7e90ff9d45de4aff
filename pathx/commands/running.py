"""What `explain` and `decompose` share: images in, results followed as they come, in this process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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
from pathx.commands.output import loading, notes
from pathx.commands.reporting import reporting
from pathx.errors import PathxError
from pathx.stores import is_stored

if TYPE_CHECKING:
    from pathx.results.result import Result
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
        from pathx.runs.run import Plan, Settings, explain_files
        from pathx.runs.stop import Stop
        from pathx.runs.tasks import decompose_task

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
        label=results.truth,
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
    with reporting(made, results.report, loaded, chosen, out, results.units, quiet) as watched:
        follow(watched, plan, out, stop=stop, **told, show=partial(show, guide), verb=verb)
