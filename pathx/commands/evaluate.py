"""`pathx evaluate`."""

from __future__ import annotations

from functools import partial
from typing import Any

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.output import print_paragraph, print_problems, print_table, say
from pathx.errors import PathxError


@command("run the same command again to continue")
def evaluate(
    *,
    images: list[str] = options.IMAGES,
    measure: options.MeasureOptions,
    how: options.DocumentOptions,
    ray: options.RayOptions,
    batch_size: int | str = options.BATCH_SIZE,
    out: str = options.out_folder("pathx-evaluation"),
) -> None:
    """Measure explanations by changing pixels or removing units.

    OUT gets evaluation.json, images.csv, the curves as PNG and SVG, and records.jsonl, from which the same command
    continues a stopped run. With --grid: grid.json, insertion and deletion against width (grid.png) and the heatmaps of the
    first image (sheet.png); the network runs once per image for the whole grid. With --protocol grid: mosaics.json. With
    --removal: removal.json.
    """
    asked = {"--grid": measure.grid, "--removal": measure.removal, "--protocol grid": measure.protocol == "grid"}
    one, *others = [name for name, given in asked.items() if given] or [""]
    if others:
        raise PathxError(f"{' and '.join((one, *others))} are different measurements: run them one by one", usage=True)
    if ray.ray is not None and one not in ("", "--grid"):
        raise PathxError(f"{one} is measured on this machine: leave out --ray", usage=True)
    if measure.keep and not measure.removal:
        raise PathxError("--keep goes with --removal", usage=True)

    from pathx.evaluation.evaluate import evaluate

    settings: dict[str, Any] = {**vars(measure), "batch_size": batch_size, **how.settings("evaluating")}
    if ray.ray is not None:
        from pathx.evaluation.measure import measure_on_ray

        measure_there = partial(measure_on_ray, how.model.loader(), **ray.where, **vars(how.device))
        settings |= {"device": "cpu", "measure": measure_there}
    document = evaluate(how.load(), images, out=out, **settings)
    how.screen.show(document, lambda: _print(document, out))
    failed = [name for name in document.get("not_run", ()) if name in measure.methods]
    print_problems(document, how.screen.quiet, failed=bool(failed))


def _print(document: dict[str, Any], out: str) -> None:
    from pathx.evaluation.plots import plots_are_missing

    name = document["schema"].partition("/")[2].partition("@")[0]
    show, files, drawn = _SHOWN[name]
    show(document)
    say(f"{out}: {name}.json{files}{'' if plots_are_missing() else drawn}")


def _print_removal(document: dict[str, Any]) -> None:
    print_paragraph(
        f"{document['images']} images, {document['model']['name']}: the class has a probability of "
        f"{document['before']['mean']:.3f}. The table shows it without {document['units']:,.0f} of {document['of_active']:,.0f} "
        "active units, for several orders of choosing them.",
    )
    say()
    measures = {"removed": "without ↓", "kept": "only them ↑"} if document["keep"] else {"removed": "without ↓"}
    rows = []
    layers = {"all": document["together"]} | {str(one["layer"]): one["orders"] for one in document["layers"]}
    for layer, orders in layers.items():
        for place, (order, figures) in enumerate(orders.items()):
            cells = [layer if place == 0 else "", order]
            for measure in measures:
                mean = f"{figures[measure]['mean']:.3f}" if measure in figures else ""
                cells += [mean, _difference_text(figures.get(f"pathx minus it, {measure}"))]
            rows.append(cells)
    headings = [heading for first in measures.values() for heading in (first, "pathx minus it")]
    print_table(("layer", "order", *headings), rows, right={0, 2, 4})
    say()


def _difference_text(difference: dict[str, float] | None) -> str:
    if difference is None:
        return ""
    return f"{difference['mean']:+.3f} ({difference['low']:+.3f}…{difference['high']:+.3f})"


def _print_mosaics(document: dict[str, Any]) -> None:
    print_paragraph(
        f"{document['mosaics']} mosaics of {document['images']} images, {document['model']['name']}: "
        "share of positive heat in the quarter of the class (0.25 by chance)",
    )
    say()
    shares = {name: figures["share"] for name, figures in document["methods"].items()}
    rows = [
        (
            name,
            f"{one['mean']:.3f}",
            f"{one['low']:.3f} to {one['high']:.3f}",
            _difference_text(document["comparison"].get(name)),
        )
        for name, one in shares.items()
    ]
    print_table(("method", "share ↑", "95%", f"{document['compared'] or 'path'} minus it"), rows, right={1})
    say()


def _print_evaluation(document: dict[str, Any]) -> None:
    """The methods, and with --grid the paths of every depth and width before them."""
    parameters, accuracy = document["parameters"], document.get("accuracy")
    print_paragraph(
        f"{document['images']} images, {document['model']['name']}, protocol {document['protocol']}: "
        f"{parameters['steps']} steps of {parameters['step_pixels']} pixels"
        + (f"; {accuracy:.1%} predicted as labelled" if accuracy is not None else ""),
    )
    say()
    cells = {f"depth {cell['depth']}, width {cell['width']}": cell for cell in document.get("grid", ())}
    compared = document.get("compared")
    rows = []
    for name, figures in (cells | document["methods"]).items():
        means = [f"{figures[measure]['mean']:.3f}" for measure in ("difference", "insertion", "deletion")]
        seconds = figures["seconds"]
        rest = f"{figures['tied_pixels']:.0%}", f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"
        versus = [_difference_text(document["comparison"].get(name, {}).get("difference"))] if compared else []
        rows.append([name, *means, *rest, *versus])
    headings = ("method", "ins-del", "ins ↑", "del ↓", "tied", "s", *(["ahead by (95%)"] if compared else []))
    print_table(headings, rows, right={1, 2, 3, 4, 5})
    say()
    if compared:
        say(f"ahead by: ins-del of {document['compared']} minus that of the method, image by image")
    words = {"difference": "insertion minus deletion"}
    for measure, cell in document.get("best", {}).items():
        say(f"{words.get(measure, measure)} is best at depth {cell['depth']}, width {cell['width']}")


_SHOWN = {
    "evaluation": (_print_evaluation, ", images.csv", ", curves.png, curves.svg"),
    "grid": (_print_evaluation, ", images.csv, sheet.png", ", grid.png, grid.svg"),
    "removal": (_print_removal, "", ""),
    "mosaics": (_print_mosaics, "", ""),
}
"""By document: what prints it, and the files and plots beside it."""
