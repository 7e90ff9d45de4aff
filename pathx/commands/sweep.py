"""`pathx sweep`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options
from pathx.commands.evaluate import Methods, ProtocolName, ProtocolOption, StepPixels, Steps, say
from pathx.commands.loading import count, prepared, several
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import errors, notes, print_table, progress_bar

if TYPE_CHECKING:
    from pathx.evaluation import Evaluation


def sweep(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
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
    skips: options.SkipsOption = Skips.adjacent,
    protocol: ProtocolOption = ProtocolName.rise,
    steps: Steps = None,
    step_pixels: StepPixels = None,
    picture: Annotated[
        str | None,
        typer.Option("--picture", metavar="IMAGE", help="Picture for the sheet. [default: the first of all]"),
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

    OUT gets sweep.json, pictures.csv, both measures against width (sweep.png, sweep.svg), and the heatmaps of one picture
    beside those of other methods (sheet.png, sheet.svg). The network runs once per picture for the whole grid.
    """
    with errors("run the same command again to go on"):
        depths = [options.depth(text) for text in several(depth)]
        widths = [options.width(text) for text in several(width)]
        least, batch = options.alpha(alpha), options.pictures_at_once(batch_size)
        number, pixels = count(steps, "--steps"), count(step_pixels, "--step-pixels")
        asked = several(methods)

        from pathx.evaluation import contender, evaluate, write_csv, write_json
        from pathx.folders import pictures_in
        from pathx.methods import METHODS
        from pathx.protocols import make_protocol
        from pathx.records import RecordFile
        from pathx.sweep import WIDTHS, document, grid, spread

        names = [name for name in asked or METHODS if name != "pathx"]
        others = [contender(name, protocol.value) for name in dict.fromkeys(names)]
        pictures = pictures_in(images, out)
        (shown, *_) = pictures_in([picture]) if picture else pictures
        ready = prepared(
            model, weights=weights, labels=labels, input_size=input_size, mean=mean, std=std, device=device, dtype=dtype
        )
        _, rows, columns = ready.model.preprocessing.input_size
        measure = make_protocol(protocol.value, rows, columns, steps=number, step_pixels=pixels)
        cells = grid(depths or spread(ready.network), widths or WIDTHS, protocol.value, alpha=least, skips=skips.value)
        contenders = [*(one for row in cells.values() for one in row), *others]
        folder = Path(out)
        with progress_bar("sweeping", len(pictures) * len(contenders), quiet) as advance:
            result = evaluate(
                ready,
                pictures,
                contenders,
                measure,
                records=RecordFile(folder / "records.jsonl"),
                batch_size=batch,
                progress=advance,
            )
        found = document(result, cells)
        write_csv(folder / "pictures.csv", result.table)
        _draw(result, cells, shown, folder, notes(quiet))
        write_json(folder / "sweep.json", found)
        if format is Format.json:
            print(json.dumps(found))
        elif not quiet:
            _print(found, out)
        say(result, quiet)
        if result.unread or any(one.title in result.not_run for one in others if one.name in asked):
            raise typer.Exit(1)


def _draw(result: Evaluation, cells: Any, picture: Any, folder: Path, note: Callable[[str], None]) -> None:
    from pathx.evaluation import MEASURES
    from pathx.plots import MISSING, plot_sheet, plot_sweep, plots_are_missing
    from pathx.sweep import panels, sheet

    if plots_are_missing():
        note(MISSING)
        return
    inside = {one.title for row in cells.values() for one in row}
    others = [one for one in result.ran if one.title not in inside]
    widths = [str(one.settings["width"]) for one in next(iter(cells.values()))]
    both = {f"{measure} {arrow}": panels(result, cells, measure) for measure, arrow in MEASURES.items()}
    plot_sweep(folder / "sweep", both, widths)
    plot_sheet(folder / "sheet", sheet(result.prepared, picture, cells, others))


def _print(found: dict[str, Any], out: str) -> None:
    from pathx.plots import plots_are_missing

    parameters = found["parameters"]
    print(
        f"{found['pictures']} pictures, {found['model']['name']}, protocol {found['protocol']}: "
        f"{parameters['steps']} steps of {parameters['step_pixels']} pixels"
    )
    print()
    rows = [
        (str(cell.get("depth", "")), str(cell.get("width", "")), *_cells(cell), name)
        for name, cell in [*(("", cell) for cell in found["grid"]), *found["methods"].items()]
    ]
    print_table(("depth", "width", "insertion ↑", "deletion ↓", "seconds", "method"), rows, right={0, 1, 2, 3, 4})
    print()
    best = [
        f"{measure} is best at depth {cell['depth']}, width {cell['width']}" for measure, cell in found["best"].items()
    ]
    print("; ".join(best))
    plots = "" if plots_are_missing() else ", sweep.png, sweep.svg, sheet.png, sheet.svg"
    print(f"{out}: sweep.json, pictures.csv{plots}")


def _cells(figures: dict[str, Any]) -> tuple[str, str, str]:
    return f"{figures['insertion']['mean']:.3f}", f"{figures['deletion']['mean']:.3f}", f"{figures['seconds']:.3f}"
