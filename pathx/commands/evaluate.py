"""`pathx evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import MEASURE, option, parse_depth, parse_width
from pathx.commands.output import note_printer, print_paragraph, print_problems, print_table, progress_bar, say
from pathx.errors import PathxError


def parse_grid(text: str) -> str | tuple[list[int | str], list[int | str]]:
    """--grid."""
    if text == "auto":
        return text
    depths, slash, widths = text.partition("/")
    if not slash or not depths or not widths:
        raise PathxError(f"--grid takes depths/widths such as 1,3,all/16,64, or auto, not {text!r}", usage=True)
    return list(map(parse_depth, depths.split(","))), list(map(parse_width, widths.split(",")))


@command("run the same command again to continue")
def evaluate(
    *,
    images: list[str] = options.IMAGES,
    measure: options.MeasureOptions,
    grid: str | tuple[list[int | str], list[int | str]] | None = option(
        None,
        "Measure paths of many depths and widths instead, as 1,3,all/16,64; auto chooses them.",
        "DEPTHS/WIDTHS|auto",
        parse=parse_grid,
        panel=MEASURE,
    ),
    removal: bool = option(
        False,
        "Set the path's units to zero in the real network instead, and as many units chosen in other ways.",
        panel=MEASURE,
    ),
    keep: bool = option(
        False, "With --removal: also keep only these units and set the others of their layers to zero.", panel=MEASURE
    ),
    model: options.ModelOptions,
    path: options.PathOptions,
    device: options.DeviceOptions,
    ray: options.RayOptions,
    batch_size: int = options.AT_ONCE,
    out: str = options.out_folder("pathx-evaluation"),
    format: str = options.FORMAT,
    quiet: bool = options.QUIET,
) -> None:
    """Measure explanations by changing pixels or removing units.

    OUT gets evaluation.json, images.csv, the curves as PNG and SVG, and records.jsonl, from which the same command
    continues a stopped run. With --grid: grid.json, insertion and deletion against width (grid.png) and the heatmaps of the
    first image (sheet.png); the network runs once per image for the whole grid. With --protocol grid: mosaics.json. With
    --removal: removal.json.
    """
    mosaics = measure.protocol == "grid"
    asked = [name for name, given in (("--grid", grid), ("--removal", removal), ("--protocol grid", mosaics)) if given]
    if len(asked) > 1:
        raise PathxError(f"{' and '.join(asked)} are different measurements: run them one by one", usage=True)
    if ray.ray is not None and (removal or mosaics):
        raise PathxError(f"{asked[0]} is measured on this machine: leave out --ray", usage=True)
    if keep and not removal:
        raise PathxError("--keep goes with --removal", usage=True)

    from pathx.evaluation.evaluate import evaluate
    from pathx.evaluation.plots import plots_are_missing

    how: dict[str, Any] = {**vars(measure), **vars(path), **vars(device), "batch_size": batch_size}
    how |= {"grid": grid, "removal": removal, "keep": keep}
    if ray.ray is not None:
        from pathx.evaluation.cluster import measure_on_ray

        how |= {"device": "cpu", "measure": partial(measure_on_ray, model.loader(), **ray.where, **vars(device))}
    watch = partial(progress_bar, "evaluating", quiet=quiet)
    document = evaluate(model.load(quiet), images, out=out, **how, note=note_printer(quiet), watch=watch)
    if format == "json":
        say(json.dumps(document))
    elif not quiet:
        show: Callable[[dict[str, Any]], None] = _print_evaluation
        files, drawn = "evaluation.json, images.csv", ", curves.png, curves.svg"
        if grid is not None:
            show, files, drawn = _print_grid, "grid.json, images.csv", ", grid.png, grid.svg, sheet.png, sheet.svg"
        elif removal:
            show, files, drawn = _print_removal, "removal.json", ""
        elif mosaics:
            show, files, drawn = _print_mosaics, "mosaics.json", ""
        show(document)
        say(f"{out}: {files}{'' if plots_are_missing() else drawn}")
    failed = [name for name in document.get("not_run", ()) if name in measure.methods]
    print_problems(document, quiet, failed=bool(failed))


def _print_removal(document: dict[str, Any]) -> None:
    print_paragraph(
        f"{document['images']} images, {document['model']['name']}: probability of the class "
        f"{document['before']['mean']:.3f}; without {document['units']:.0f} of {document['of_active']:.0f} active units, chosen by",
    )
    say()
    measures = ("removed", "kept") if document["keep"] else ("removed",)
    rows = _order_rows("all", document["together"], measures)
    for layer in document["layers"]:
        rows += _order_rows(str(layer["layer"]), layer["orders"], measures)
    headings = {"removed": ("without ↓", "pathx minus it"), "kept": ("only them ↑", "pathx minus it")}
    columns = ("layer", "order", *(heading for measure in measures for heading in headings[measure]))
    print_table(columns, rows, right={0, 2, 4})
    say()


def _order_rows(name: str, orders: dict[str, Any], measures: tuple[str, ...]) -> list[list[str]]:
    rows = []
    for place, (order, figures) in enumerate(orders.items()):
        cells = [name if place == 0 else "", order]
        for measure in measures:
            known = figures.get(measure)
            cells += [
                "" if known is None else f"{known['mean']:.3f}",
                _paired(figures.get(f"pathx minus it, {measure}")),
            ]
        rows.append(cells)
    return rows


def _paired(difference: dict[str, float] | None) -> str:
    if difference is None:
        return ""
    return f"{difference['mean']:+.3f} ({difference['low']:+.2f} to {difference['high']:+.2f})"


def _print_mosaics(document: dict[str, Any]) -> None:
    print_paragraph(
        f"{document['mosaics']} mosaics of {document['images']} images, {document['model']['name']}: "
        "share of positive heat in the quarter of the class (0.25 by chance)",
    )
    say()
    rows = []
    for name, figures in document["methods"].items():
        share = figures["share"]
        between = f"{share['low']:.2f} to {share['high']:.2f}"
        rows.append([name, f"{share['mean']:.3f}", between, _paired(document["comparison"].get(name))])
    print_table(("method", "share ↑", "95%", f"{document['compared'] or 'path'} minus it"), rows, right={1})
    say()


def _print_protocol(document: dict[str, Any]) -> None:
    parameters, accuracy = document["parameters"], document.get("accuracy")
    print_paragraph(
        f"{document['images']} images, {document['model']['name']}, protocol {document['protocol']}: "
        f"{parameters['steps']} steps of {parameters['step_pixels']} pixels"
        + (f"; {accuracy:.1%} predicted as labelled" if accuracy is not None else ""),
    )
    say()


def _print_evaluation(document: dict[str, Any]) -> None:
    _print_protocol(document)
    rows = []
    for name, figures in document["methods"].items():
        versus = document["comparison"].get(name, {}).get("difference")
        first, *others = _cells(figures)
        rows.append([name, first, _paired(versus), *others])
    print_table(("method", "ins-del", "ahead by (95%)", "ins ↑", "del ↓", "tied", "s"), rows, right={1, 3, 4, 5, 6})
    say()
    if document["compared"]:
        say(f"ahead by: ins-del of {document['compared']} minus that of the method, image by image")


def _print_grid(document: dict[str, Any]) -> None:
    _print_protocol(document)
    rows = [
        (str(cell.get("depth", "")), str(cell.get("width", "")), *_cells(cell, 3), name)
        for name, cell in [*(("", cell) for cell in document["grid"]), *document["methods"].items()]
    ]
    headings = ("depth", "width", "ins-del ↑", "insertion ↑", "deletion ↓", "tied", "seconds", "method")
    print_table(headings, rows, right=set(range(7)))
    say()
    words = {"difference": "insertion minus deletion"}
    best = [
        f"{words.get(measure, measure)} is best at depth {cell['depth']}, width {cell['width']}"
        for measure, cell in document["best"].items()
    ]
    say("; ".join(best))


def _cells(figures: dict[str, Any], digits: int = 2) -> tuple[str, ...]:
    means = (f"{figures[measure]['mean']:.3f}" for measure in ("difference", "insertion", "deletion"))
    return *means, f"{figures['tied_pixels']:.0%}", f"{figures['seconds']:.{digits}f}"
