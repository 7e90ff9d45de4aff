"""`--report`: the interactive report of what a run has just made."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pathx.commands.following import FEW
from pathx.commands.output import complain, notes, progress_bar

if TYPE_CHECKING:
    from pathx.models.load import LoadedModel
    from pathx.report.collect import ExplanationFiles
    from pathx.report.network import NetworkData
    from pathx.report.saved import NetworkDataOf
    from pathx.results.result import Result
    from pathx.runs.run import Settings


@contextmanager
def reporting(
    results: Generator[Result],
    wanted: bool,
    model: LoadedModel,
    settings: Settings,
    out: str,
    units: str | None,
    quiet: bool,
) -> Iterator[Generator[Result]]:
    """The results of a run as they come; afterwards, unless it was stopped, the report of them where it is wanted.

    Args:
        units: what `pathx units` wrote, to be shown beside them.
    """
    if not wanted:
        yield results
        return
    folders: list[Path] = []
    try:
        yield _watched(results, folders)
    except typer.Exit as ended:
        if ended.exit_code == 1 and folders:  # some images failed; the others have their pages
            _write(folders, model, settings, out, units, quiet)
        raise
    if folders:
        _write(folders, model, settings, out, units, quiet)


def _watched(results: Generator[Result], folders: list[Path]) -> Generator[Result]:
    with closing(results):
        for result in results:
            if result.error is None and result.kind.name in ("explanation", "decomposition"):
                folders.append(result.folder)
            yield result


def _write(
    folders: list[Path], model: LoadedModel, settings: Settings, out: str, units: str | None, quiet: bool
) -> None:
    from pathx.report.build import report

    images = {folder.parent for folder in folders}
    where = folders[0] if len(folders) == 1 else images.pop() if len(images) == 1 else Path(out)
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
    from pathx.report.network import network_data

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
