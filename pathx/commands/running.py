"""Where a run goes: this process, or a Ray cluster; and what it is guided by."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from pathx.commands.output import notes
from pathx.errors import PathxError
from pathx.stores import is_stored

if TYPE_CHECKING:
    from pathx.models.load import LoadedModel
    from pathx.results.result import Result
    from pathx.runs.run import Plan
    from pathx.runs.settings import Settings
    from pathx.units.guide import Guide


def started(
    load: Callable[[], LoadedModel],
    loaded: LoadedModel,
    plan: Plan,
    out: str,
    *,
    ray: str | None,
    ray_actors: str | None,
    ray_gpus: str | None,
    pack: str | None,
    targets: Sequence[str],
    settings: Settings,
    quiet: bool,
    documents: bool,
    **how: Any,
) -> Generator[Result]:
    """The results of a run, as they come.

    Args:
        load: gives the model on other machines.
        documents: somebody wants to have them, and not only their files.
        how: `task` and `stop`.
    """
    if ray is not None and settings.guide is not None:
        raise PathxError("references are shown by runs on this machine: leave out --units or --ray", usage=True)
    for note in loaded.notes:
        notes(quiet)(note)
    if ray is None or not plan.indexed:  # an image that is named by itself
        from pathx.runs.run import explain_files

        return explain_files(loaded, plan, out, targets=targets, settings=settings, pack=pack, note=notes(quiet), **how)
    from pathx.cluster import parse_actors
    from pathx.runs.cluster import explain_on_ray

    actors = parse_actors(ray_actors, ray_gpus)
    where: dict[str, Any] = {"pack": pack, "address": ray, "actors": actors, "targets": targets, "settings": settings}
    return explain_on_ray(load, plan, out, **where, note=notes(quiet), documents=documents, **how)


def check_report(wanted: bool, out: str, pack: str | None) -> None:
    """Refuse a report of results that will not be in a folder of this machine."""
    if wanted and (pack is not None or is_stored(out)):
        raise PathxError("a report is made of results in a folder: leave out --report, --pack and stores", usage=True)


def guide(folder: str | None, loaded: LoadedModel, device: str, dtype: str, quiet: bool) -> Guide | None:
    """What `--units` names, made ready for a model."""
    if folder is None:
        return None
    from pathx.pipeline import prepare
    from pathx.units.guide import Guide

    return Guide(folder, prepare(loaded, device=device, dtype=dtype), notes(quiet))
