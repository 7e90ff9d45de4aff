"""`pathx sweep`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.loading import Methods, ProtocolOption, StepPixels, Steps, TiesOption, prepared, say, several
from pathx.commands.options import Dtype, Format
from pathx.commands.output import errors, notes, print_table, progress_bar

if TYPE_CHECKING:
    from pathx.evaluation.evaluate import Evaluation


class Heat(str, Enum):
    path = "path"
    pixels = "pixels"


def sweep(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    depth: Annotated[
        list[str] | None,
        typer.Option(
            "--depth", metavar="N|all,...", help="Depths, with commas between. [default: a few from 1 to all]"
        ),
    ] = None,
    width: Annotated[
        list[str] | None,
        typer.Option("--width", metavar="K|P%|all,...", help="Widths, with commas between. [default: 1 to 1024]"),
    ] = None,
    methods: Methods = None,
    alpha: options.Alpha = None,
    skips: options.SkipsOption = options.USUAL_SKIPS,
    heat: Annotated[Heat, typer.Option("--heat", help="What is measured: the path map, or the exact pixel map.")] = (
        Heat.path
    ),
    protocol: ProtocolOption = "rise",
    ties: TiesOption = "random",
    steps: Steps = None,
    step_pixels: StepPixels = None,
    picture: Annotated[
        str | None,
        typer.Option("--picture", metavar="IMAGE", help="Image for the sheet. [default: the first of all]"),
    ] = None,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-sweep",
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Measure paths of many depths and widths, and draw them side by side.

    OUT gets sweep.json, pictures.csv, both measures against width (sweep.png, sweep.svg), and the heatmaps of one image
    beside those of other methods (sheet.png, sheet.svg). The network runs once per image for the whole grid.
    """
    with errors("run the same command again to go on"):
        depths = [parsing.depth(text) for text in several(depth)]
        widths = [parsing.width(text) for text in several(width)]
        least, batch = parsing.alpha(alpha), parsing.images_at_once(batch_size)
        number, pixels = parsing.whole_number(steps, "--steps"), parsing.whole_number(step_pixels, "--step-pixels")
        asked = several(methods)

        from pathx.evaluation.choices import METHODS, PATHS
        from pathx.evaluation.evaluate import contender, evaluate, write_csv, write_json
        from pathx.evaluation.protocols import make_protocol
        from pathx.evaluation.records import RecordFile
        from pathx.evaluation.sweep import WIDTHS, document, grid, spread
        from pathx.images.folders import images_in
        from pathx.images.read import open_image
        from pathx.results.files import check_folder, check_own

        check_folder(out)
        names = [name for name in asked or METHODS if name not in PATHS]
        others = [contender(name, protocol) for name in dict.fromkeys(names)]
        files = images_in(images, out)
        if picture:
            open_image(picture)  # so that what is wrong with it is said before any work
        ready = prepared(
            model,
            weights=weights,
            model_args=model_args,
            labels=labels,
            input_size=input_size,
            mean=mean,
            std=std,
            device=device,
            dtype=dtype,
            quiet=quiet,
        )
        _, rows, columns = ready.model.preprocessing.input_size
        measure = make_protocol(protocol, rows, columns, steps=number, step_pixels=pixels, ties=ties)
        method = "path_map" if heat is Heat.path else "pathx"
        path: dict[str, Any] = {"alpha": least, "skips": skips.value}
        cells = grid(method, depths or spread(ready.network), widths or WIDTHS, protocol, **path)
        contenders = [*(one for row in cells.values() for one in row), *others]
        folder = Path(out)
        check_own(folder, ("records.jsonl", "sweep.json", "pictures.csv"))
        with progress_bar("sweeping", len(files) * len(contenders), quiet) as advance:
            result = evaluate(
                ready,
                files,
                contenders,
                measure,
                records=RecordFile(folder / "records.jsonl"),
                batch_size=batch,
                progress=advance,
            )
        found = document(result, cells)
        write_csv(folder / "pictures.csv", result.table)
        named = {one.name: one for one in files}
        (shown, *_) = images_in([picture]) if picture else [named[result.images[0][0]]]
        _draw(result, cells, shown, folder, notes(quiet))
        write_json(folder / "sweep.json", found)
        if format is Format.json:
            print(json.dumps(found))
        elif not quiet:
            _print(found, out)
        say(result, quiet)
        if result.unread or any(one.title in result.not_run for one in others if one.name in asked):
            raise typer.Exit(1)


def _draw(result: Evaluation, cells: Any, image: Any, folder: Path, note: Callable[[str], None]) -> None:
    from pathx.evaluation.evaluate import MEASURES
    from pathx.evaluation.plots import MISSING, plot_sheet, plot_sweep, plots_are_missing
    from pathx.evaluation.sweep import panels, sheet

    if plots_are_missing():
        note(MISSING)
        return
    inside = {one.title for row in cells.values() for one in row}
    others = [one for one in result.ran if one.title not in inside]
    widths = [str(one.settings["width"]) for one in next(iter(cells.values()))]
    both = {f"{measure} {arrow}": panels(result, cells, measure) for measure, arrow in MEASURES.items()}
    plot_sweep(folder / "sweep", both, widths)
    plot_sheet(folder / "sheet", sheet(result.prepared, image, cells, others))


_MEASURE = {"insertion": "insertion", "deletion": "deletion", "difference": "insertion minus deletion"}


def _print(found: dict[str, Any], out: str) -> None:
    from pathx.evaluation.plots import plots_are_missing

    parameters = found["parameters"]
    print(
        f"{found['pictures']} images, {found['model']['name']}, protocol {found['protocol']}: "
        f"{parameters['steps']} steps of {parameters['step_pixels']} pixels"
    )
    print()
    rows = [
        (str(cell.get("depth", "")), str(cell.get("width", "")), *_cells(cell), name)
        for name, cell in [*(("", cell) for cell in found["grid"]), *found["methods"].items()]
    ]
    headings = ("depth", "width", "ins-del ↑", "insertion ↑", "deletion ↓", "tied", "seconds", "method")
    print_table(headings, rows, right=set(range(7)))
    print()
    best = [
        f"{_MEASURE[measure]} is best at depth {cell['depth']}, width {cell['width']}"
        for measure, cell in found["best"].items()
    ]
    print("; ".join(best))
    plots = "" if plots_are_missing() else ", sweep.png, sweep.svg, sheet.png, sheet.svg"
    print(f"{out}: sweep.json, pictures.csv{plots}")


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    means = (f"{figures[measure]['mean']:.3f}" for measure in ("difference", "insertion", "deletion"))
    return *means, f"{figures['tied_pixels']:.0%}", f"{figures['seconds']:.3f}"
