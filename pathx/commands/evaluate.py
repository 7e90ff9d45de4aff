"""`pathx evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.loading import (
    Methods,
    ProtocolOption,
    StepPixels,
    Steps,
    TiesOption,
    loader,
    on_device,
    say,
    several,
)
from pathx.commands.options import Dtype, Format
from pathx.commands.output import about, complain, errors, notes, print_paragraph, print_table, progress_bar
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.evaluation.evaluate import Evaluation
    from pathx.images.find import ImageFile
    from pathx.pipeline import Prepared


def evaluate(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    methods: Methods = None,
    detail: options.DetailOption = "clear",
    depth: options.PathDepth = None,
    width: options.PathWidth = None,
    alpha: options.Alpha = None,
    skips: options.PathSkips = None,
    protocol: ProtocolOption = "rise",
    ties: TiesOption = "random",
    units: Annotated[
        bool,
        typer.Option(
            "--units",
            help="Judge the order of units in each layer of the path instead, by taking them out of the real network.",
        ),
    ] = False,
    steps: Steps = None,
    step_pixels: StepPixels = None,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    ray: options.Ray = None,
    ray_actors: options.RayActors = None,
    ray_gpus: options.RayGpus = None,
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
        layers, most, jumps = parsing.path(detail, depth, width, skips)
        path: dict[str, Any] = {"depth": layers, "width": most, "alpha": parsing.alpha(alpha), "skips": jumps}
        batch, asked = parsing.images_at_once(batch_size), several(methods)
        number, pixels = parsing.whole_number(steps, "--steps"), parsing.whole_number(step_pixels, "--step-pixels")
        if ray is not None and units:
            raise PathxError("orders of units are judged on this machine: leave out --units or --ray", usage=True)

        from pathx.evaluation.choices import METHODS, PATHS
        from pathx.evaluation.evaluate import contender, evaluate, write_csv, write_json
        from pathx.evaluation.plots import plots_are_missing
        from pathx.evaluation.protocols import make_protocol
        from pathx.evaluation.records import RecordFile
        from pathx.images.folders import images_in
        from pathx.results.files import check_folder, check_own

        check_folder(out)
        names = [] if units else list(dict.fromkeys(asked or METHODS))
        contenders = [contender(name, protocol, **(path if name in PATHS else {})) for name in names]
        files = images_in(images, out)
        load = loader(
            model,
            weights=weights,
            model_args=model_args,
            labels=labels,
            input_size=input_size,
            mean=mean,
            std=std,
        )
        ready = on_device(load, device if ray is None else "cpu", dtype, quiet)
        if units:
            _evaluate_units(ready, files, asked, number, path, Path(out), format=format, quiet=quiet)
            return
        _, rows, columns = ready.model.preprocessing.input_size
        measure = make_protocol(protocol, rows, columns, steps=number, step_pixels=pixels, ties=ties)
        folder = Path(out)
        check_own(folder, ("records.jsonl", "evaluation.json", "pictures.csv"))
        measured = evaluate
        if ray is not None:
            from pathx.cluster import parse_actors
            from pathx.evaluation.cluster import evaluate_on_ray

            where: dict[str, Any] = {"address": ray, "actors": parse_actors(ray_actors, ray_gpus)}
            measured = partial(evaluate_on_ray, load, **where, device=device, dtype=dtype.value)
        with progress_bar("evaluating", len(files) * len(contenders), quiet) as advance:
            result = measured(
                ready,
                files,
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


def _evaluate_units(
    ready: Prepared,
    images: Sequence[ImageFile],
    orders: Sequence[str],
    steps: int | None,
    settings: dict[str, Any],
    folder: Path,
    *,
    format: Format,
    quiet: bool,
) -> None:
    """What `--units` does: unit-orders.json, and unit-records.jsonl to go on from."""
    from pathx.evaluation.evaluate import write_json
    from pathx.evaluation.unit_orders import chosen_orders, evaluate_orders

    chosen = chosen_orders(orders)
    with progress_bar("taking units out", len(images), quiet) as advance:
        document = evaluate_orders(
            ready,
            images,
            steps=10 if steps is None else steps,
            orders=chosen,
            settings=settings,
            records=folder / "unit-records.jsonl",
            progress=advance,
        )
    write_json(folder / "unit-orders.json", document)
    if format is Format.json:
        print(json.dumps(document))
    elif not quiet:
        _print_orders(document)
        print(f"{folder}: unit-orders.json")
    for name, reason in document["unread"].items():
        complain(about(name, reason))
    if document["unread"]:
        raise typer.Exit(1)


def _print_orders(document: dict[str, Any]) -> None:
    print(f"{document['images']} images, {document['model']['name']}: probability of the class")
    print()
    rows = []
    for layer in document["layers"]:
        for place, (name, figures) in enumerate(layer["orders"].items()):
            cells = [str(layer["layer"]) if place == 0 else "", name]
            for measure in ("removed", "kept"):
                versus = figures.get(f"pathx minus it, {measure}")
                paired = (
                    "" if versus is None else f"{versus['mean']:+.3f} ({versus['low']:+.2f} to {versus['high']:+.2f})"
                )
                cells += [f"{figures[measure]['mean']:.3f}", paired]
            rows.append(cells)
    print_table(("layer", "order", "removed ↓", "pathx minus it", "kept ↑", "pathx minus it"), rows, right={0, 2, 4})
    print()


def write_curves(result: Evaluation, folder: Path, note: Callable[[str], None]) -> None:
    """The mean curves, where matplotlib is there."""
    from pathx.evaluation.evaluate import MEASURES
    from pathx.evaluation.plots import MISSING, plot_curves, plots_are_missing
    from pathx.evaluation.protocols import area

    if plots_are_missing():
        note(MISSING)
        return
    panels: dict[str, dict[str, Any]] = {}
    for measure, arrow in MEASURES.items():
        curves = {one.title: result.curve(one, measure) for one in result.ran}
        panels[f"{measure} {arrow}"] = {title: (curve, area(curve.tolist())) for title, curve in curves.items()}
    plot_curves(folder / "curves", panels, result.own.title if result.own else "")


def print_evaluation(document: dict[str, Any]) -> None:
    parameters = document["parameters"]
    accuracy = document["accuracy"]
    print_paragraph(
        "",
        f"{document['pictures']} images, {document['model']['name']}, protocol {document['protocol']}: "
        f"{parameters['steps']} steps of {parameters['step_pixels']} pixels"
        + (f"; {accuracy:.1%} predicted as labelled" if accuracy is not None else ""),
    )
    print()
    rows = []
    for name, figures in document["methods"].items():
        versus = document["comparison"].get(name, {}).get("difference")
        means = [f"{figures[measure]['mean']:.3f}" for measure in ("difference", "insertion", "deletion")]
        paired = "" if versus is None else f"{versus['mean']:+.3f} ({versus['low']:+.2f} to {versus['high']:+.2f})"
        rows.append([name, means[0], paired, *means[1:], f"{figures['tied_pixels']:.0%}", f"{figures['seconds']:.2f}"])
    print_table(("method", "ins-del", "ahead by (95%)", "ins ↑", "del ↓", "tied", "s"), rows, right={1, 3, 4, 5, 6})
    print()
    if document["compared"]:
        print(f"ahead by: ins-del of {document['compared']} minus that of the method, image by image")
