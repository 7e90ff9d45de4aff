"""`pathx evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options
from pathx.commands.loading import count, prepared, several
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import complain, errors, notes, print_table, progress_bar

if TYPE_CHECKING:
    from pathx.evaluation import Evaluation


class ProtocolName(str, Enum):
    rise = "rise"
    paper = "paper"


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--methods",
        metavar="NAME,...",
        help="Of pathx, saliency, input_x_gradient, integrated_gradients, guided_backprop, guided_gradcam, blur_ig, "
        "random, edges, with commas between. [default: all]",
    ),
]
ProtocolOption = Annotated[
    ProtocolName,
    typer.Option("--protocol", help="The usual one (Petsiuk et al.), or the paper's: each channel ranked."),
]
Steps = Annotated[str | None, typer.Option("--steps", metavar="N", help="Steps from one end to the other.")]
StepPixels = Annotated[
    str | None, typer.Option("--step-pixels", metavar="N", help="Pixels per step. [default: one row of the picture]")
]


def evaluate(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    methods: Methods = None,
    depth: options.Depth = "3",
    width: options.Width = "5",
    alpha: options.Alpha = None,
    skips: options.SkipsOption = Skips.adjacent,
    protocol: ProtocolOption = ProtocolName.rise,
    steps: Steps = None,
    step_pixels: StepPixels = None,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-evaluation",
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Measure how good explanations are, pathx's and those of other methods: insertion and deletion.

    OUT gets evaluation.json, pictures.csv, the curves as PNG and SVG, and records.jsonl, from which a run that was stopped
    goes on.
    """
    with errors("run the same command again to go on"):
        path: dict[str, Any] = {
            "depth": options.depth(depth),
            "width": options.width(width),
            "alpha": options.alpha(alpha),
            "skips": skips.value,
        }
        batch, asked = options.pictures_at_once(batch_size), several(methods)
        number, pixels = count(steps, "--steps"), count(step_pixels, "--step-pixels")

        from pathx.evaluation import contender, evaluate, write_csv, write_json
        from pathx.folders import pictures_in
        from pathx.methods import METHODS
        from pathx.plots import plots_are_missing
        from pathx.protocols import make_protocol
        from pathx.records import RecordFile

        names = list(dict.fromkeys(asked or METHODS))
        contenders = [contender(name, protocol.value, **(path if name == "pathx" else {})) for name in names]
        pictures = pictures_in(images, out)
        ready = prepared(
            model, weights=weights, labels=labels, input_size=input_size, mean=mean, std=std, device=device, dtype=dtype
        )
        _, rows, columns = ready.model.preprocessing.input_size
        measure = make_protocol(protocol.value, rows, columns, steps=number, step_pixels=pixels)
        folder = Path(out)
        with progress_bar("evaluating", len(pictures) * len(contenders), quiet) as advance:
            result = evaluate(
                ready,
                pictures,
                contenders,
                measure,
                records=RecordFile(folder / "records.jsonl"),
                batch_size=batch,
                progress=advance,
            )
        document = result.document
        write_csv(folder / "pictures.csv", result.table)
        write_curves(result, folder, notes(quiet))
        write_json(folder / "evaluation.json", document)
        if format is Format.json:
            print(json.dumps(document))
        elif not quiet:
            print_evaluation(document)
            print(f"{out}: evaluation.json, pictures.csv{'' if plots_are_missing() else ', curves.png, curves.svg'}")
        say(result, quiet)
        if result.unread or any(one.title in result.not_run for one in contenders if one.name in asked):
            raise typer.Exit(1)


def write_curves(result: Evaluation, folder: Path, note: Callable[[str], None]) -> None:
    """The mean curves, where matplotlib is there."""
    from pathx.evaluation import MEASURES
    from pathx.methods import METHODS
    from pathx.plots import MISSING, plot_curves, plots_are_missing
    from pathx.protocols import area

    if plots_are_missing():
        note(MISSING)
        return
    panels: dict[str, dict[str, Any]] = {}
    for measure, arrow in MEASURES.items():
        curves = {one.title: result.curve(one, measure) for one in result.ran}
        panels[f"{measure} {arrow}"] = {title: (curve, area(curve.tolist())) for title, curve in curves.items()}
    plot_curves(folder / "curves", panels, METHODS["pathx"].title)


def say(result: Evaluation, quiet: bool) -> None:
    """Failures, and unless it is to be quiet what else a reader must know."""
    for name, reason in result.unread.items():
        complain(reason if name in reason else f"{name}: {reason}")
    for note in () if quiet else result.notes:
        complain(f"note: {note}")


def print_evaluation(document: dict[str, Any]) -> None:
    parameters = document["parameters"]
    accuracy = document["accuracy"]
    print(
        f"{document['pictures']} pictures, {document['model']['name']}, protocol {document['protocol']}: "
        f"{parameters['steps']} steps of {parameters['step_pixels']} pixels"
        + (f"; {accuracy:.1%} predicted as labelled" if accuracy is not None else "")
    )
    print()
    rows = []
    for name, figures in document["methods"].items():
        against = document["comparison"].get(name, {})
        cells = [name]
        for measure in ("insertion", "deletion"):
            found, versus = figures[measure], against.get(measure)
            cells.append(f"{found['mean']:.3f}")
            cells.append(f"{found['low']:.3f} to {found['high']:.3f}")
            cells.append(
                "" if versus is None else f"{versus['mean']:+.3f} ({versus['low']:+.3f} to {versus['high']:+.3f})"
            )
        rows.append([*cells, f"{figures['seconds']:.3f}"])
    headings = ("method", "insertion ↑", "95%", "pathx less it", "deletion ↓", "95%", "pathx less it", "seconds")
    print_table(headings, rows, right={1, 4, 7})
    print()
