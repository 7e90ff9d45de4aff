"""`pathx.check`, `pathx.common` and `pathx.evaluate`: images in, a document with its plots out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.errors import PathxError
from pathx.evaluation import plots
from pathx.evaluation.check import Checked, check_image, pieces
from pathx.evaluation.choices import PATHS, method_names
from pathx.evaluation.common import (
    Common,
    Place,
    channel,
    common_of_images,
    common_of_results,
    labelled_paths,
    position,
    whole,
)
from pathx.evaluation.evaluate import (
    MEASURES,
    Contender,
    Evaluation,
    contender,
    estimate_seconds,
    in_words,
    measure_images,
    new_evaluation,
    write_csv,
    write_json,
)
from pathx.evaluation.grid import WIDTHS, Grid, grid_document, make_grid, panels, sheet, spread
from pathx.evaluation.mosaics import evaluate_mosaics
from pathx.evaluation.protocols import area, make_protocol
from pathx.evaluation.records import RecordFile
from pathx.evaluation.removal import evaluate_removal
from pathx.evaluation.shortcuts import comparable, suspects
from pathx.images.find import ImageFile
from pathx.images.folders import images_in
from pathx.models.labels import resolve_target
from pathx.models.load import LoadedModel
from pathx.pipeline import Prepared, prepare
from pathx.results.files import check_folder, check_own

Watch = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: given how many pieces of work there are, the context of what is called with how many were just done."""

Note = Callable[[str], None]


WORTH_SAYING = 20
"""Seconds from which it is said beforehand how long an evaluation will take."""

RECORDS = "records.jsonl"


def no_progress(total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda done: None)


def no_notes(text: str) -> None:
    pass


def check(
    model: LoadedModel,
    image: str | Path,
    *,
    out: str | Path | None = None,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
    device: str = "auto",
    dtype: str = "float32",
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> Checked:
    """Check whether explanations of a model can be trusted, on one image.

    Args:
        out: folder for check.json and the plot of the randomisation test; None to write nothing.
    """
    if out is not None:
        check_folder(out)
    (file, *_) = images_in([str(image)])
    prepared = prepare(model, device=device, dtype=dtype)
    prepared.check_exact(exact, note)
    path: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    with watch(pieces(prepared.network)) as progress:
        found = check_image(prepared, file, **path, progress=progress)
    if out is not None:
        lines = found.findings["randomisation"].figures.get("layers")
        if lines and _can_plot(note):
            kinds = [kind for kind in lines[0] if kind != "module"]
            values = {kind.replace("_", " "): [line[kind] for line in lines] for kind in kinds}
            plots.plot_randomisation(Path(out) / "randomisation", [line["module"] for line in lines], values)
        write_json(Path(out) / "check.json", found.document)
    return found


def _can_plot(note: Note) -> bool:
    if plots.plots_are_missing():
        note(plots.MISSING)
        return False
    return True


def common(
    model: LoadedModel | None,
    folders: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    by: str = "prediction",
    threshold: float = 0.5,
    layers: Sequence[int] = (),
    classes: Sequence[str] = (),
    wrong: bool = False,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int = 8,
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> dict[str, Any]:
    """Find what the paths of a class have in common; what is returned is common.json.

    Args:
        model: None for folders that `pathx explain` wrote: what is in them says all, the path's settings too.
        out: folder for common.json and plots; None to write nothing.
        by: what an image's class is: `prediction`, or its `folder`.
        threshold: the share of images that makes a unit common.
        layers, classes: to plot; the path's first and last layers, and the ten classes with most images by default.
        wrong: also find the channels that go with wrong predictions.
    """
    if not 0 < threshold <= 1:
        raise PathxError(f"threshold {threshold:g} is out of range; use more than 0, at most 1", usage=True)
    if out is not None:
        check_folder(out)
        check_own(Path(out), ["common.json"])
    if model is None:
        found = common_of_results(folders, by=by)
    else:
        images = images_in(list(map(str, folders)), out)
        path: dict[str, Any] = {
            "depth": depth,
            "width": width,
            "alpha": alpha,
            "skips": skips,
            "importance": importance,
        }
        prepared = prepare(model, device=device, dtype=dtype)
        prepared.check_exact(exact, note)
        with watch(len(images)) as progress:
            found = common_of_images(prepared, images, by=by, **path, batch_size=batch_size, progress=progress)
    shown = _shown_layers(found, layers), _shown_classes(found, classes)
    document = found.document(threshold)
    if wrong:
        document["wrong"] = _suspects(found)
    if out is not None:
        if _can_plot(note):
            _plot_common(found, *shown, Path(out))
        write_json(Path(out) / "common.json", document)
    return document


def _shown_layers(found: Common, asked: Sequence[int]) -> list[int]:
    for layer in asked:
        if layer not in found.layers:
            numbers = ", ".join(map(str, found.layers))
            raise PathxError(f"layer {layer} is not on the paths, which have {numbers}", usage=True)
    ends = list(found.layers)
    return list(asked) or sorted({ends[0], ends[-1]}, reverse=True)


def _shown_classes(found: Common, asked: Sequence[str]) -> list[str]:
    labels = list(found.trails)
    return [labels[resolve_target(text, labels)] for text in asked] or labels[:10]


def _suspects(found: Common) -> list[dict[str, Any]]:
    """Channels that are on the paths of wrong predictions far more often than on those of right ones."""
    paths = labelled_paths(found)
    if not comparable(paths):
        raise PathxError(
            "no class has both right and wrong predictions: this needs folders named after the classes of the model, "
            "with images that are predicted rightly and wrongly",
            usage=True,
        )
    listed = []
    for one in suspects(paths):
        facts = asdict(one)
        layer, tensor, number = facts.pop("channel")
        interval = [facts.pop("low"), facts.pop("high")]
        listed.append({"layer": layer, "tensor": tensor, "channel": number, "interval": interval, **facts})
    return listed


def _plot_common(found: Common, layers: list[int], classes: list[str], folder: Path) -> None:
    for layer in layers:
        shares = {label: found.shares(label, layer) for label in classes}
        tensors = found.layers[layer]
        if all(len(tensor.shape) == 1 for tensor in tensors):
            units: list[Place] = [(tensor.name, (index,)) for tensor in tensors for index in range(tensor.shape[0])]
            about = f"unit of layer {layer}"
        else:
            units = sorted({unit for some in shares.values() for unit in some})
            about = f"the {len(units)} units of layer {layer} that are on any path, in order"
        lines = {label: [some.get(unit, 0.0) for unit in units] for label, some in shares.items()}
        title = f"layer {layer}: how often each unit is on the path"
        plots.plot_frequencies(folder / f"units-{layer}", title, lines, about)
        for tensor in tensors:
            if len(tensor.shape) < 3:
                continue
            name, (channels, height, width) = f"layer {layer}, {tensor.name}", tensor.shape
            by_channel = {label: found.shares(label, layer, channel) for label in classes}
            bars = {
                label: [some.get((tensor.name, (c,)), 0.0) for c in range(channels)]
                for label, some in by_channel.items()
            }
            plots.plot_frequencies(folder / f"channels-{layer}-{tensor.name}", f"{name}: by channel", bars, "channel")
            by_position = {label: found.shares(label, layer, position) for label in classes}
            maps = {
                label: [[some.get((tensor.name, (y, x)), 0.0) for x in range(width)] for y in range(height)]
                for label, some in by_position.items()
            }
            plots.plot_places(folder / f"positions-{layer}-{tensor.name}", f"{name}: by position", maps)
    if len(labels := found.large_classes) > 1:
        for name, part in (("units", whole), ("channels", channel)):
            matrix = found.overlaps(list(found.layers), part, labels)
            plots.plot_overlap(folder / f"overlap-{name}", f"{name} that classes share", labels, matrix)


def evaluate(
    model: LoadedModel,
    images: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    methods: Sequence[str] = (),
    grid: str | tuple[Sequence[int | str], Sequence[int | str]] | None = None,
    removal: bool = False,
    keep: bool = False,
    protocol: str = "rise",
    ties: str = "random",
    steps: int | None = None,
    step_pixels: int | None = None,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int = 8,
    measure: Callable[..., Evaluation] = measure_images,
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> dict[str, Any]:
    """Measure how good explanations are by insertion and deletion; what is returned is evaluation.json.

    Args:
        out: folder for the document, a table of all images, plots, and the records that a stopped run goes on from.
        methods: by default the path map, GradCAM, Integrated Gradients and a random map; `all` for every method.
        protocol: `rise` or `paper` for insertion and deletion, `grid` for the grid game; then mosaics.json is returned.
        grid: depths and widths to measure paths of instead, or `auto`. The path map is measured, or `pathx` where `methods`
            has that and not `path_map`. What is returned is grid.json.
        removal: set the path's units to zero in the real network instead, and as many chosen otherwise. What is returned is
            removal.json.
        keep: with `removal`, also see what is left with only these units in their layers.
        measure: measures the images, such as on a cluster.
    """
    path: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder)
    names = [name for name in method_names(methods) if grid is None or name not in PATHS]
    others = [] if removal else [contender(n, protocol, **(path if n in PATHS else {})) for n in names]
    files = images_in(list(map(str, images)), out)
    prepared = prepare(model, device=device, dtype=dtype)
    prepared.check_exact(exact, note)
    if removal:
        known = None if folder is None else folder / "removal.jsonl"
        with watch(len(files)) as progress:
            document = evaluate_removal(prepared, files, keep=keep, settings=path, records=known, progress=progress)
        if folder is not None:
            write_json(folder / "removal.json", document)
        return document
    if protocol == "grid":
        known = None if folder is None else folder / "mosaics.jsonl"
        with watch(len(files) // 4 * len(others)) as progress:
            document = evaluate_mosaics(
                prepared, files, others, records=known, batch_size=batch_size, progress=progress
            )
        if folder is not None:
            write_json(folder / "mosaics.json", document)
        return document
    _, rows, columns = model.preprocessing.input_size
    judge = make_protocol(protocol, rows, columns, steps=steps, step_pixels=step_pixels, ties=ties)
    cells: Grid = {}
    if grid is not None:
        depths, widths = (spread(prepared.network), WIDTHS) if isinstance(grid, str) else grid
        method = "pathx" if "pathx" in methods and "path_map" not in methods else "path_map"
        cells = make_grid(method, depths, widths, protocol, alpha=alpha, skips=skips, importance=importance)
    contenders = [*(one for row in cells.values() for one in row), *others]
    name = "evaluation" if grid is None else "grid"
    if folder is not None:
        check_own(folder, (RECORDS, f"{name}.json", "images.csv"))
    records = RecordFile(None if folder is None else folder / RECORDS)
    new_evaluation(prepared, contenders, judge, batch_size)  # refuses what cannot be measured
    seconds = estimate_seconds(prepared, contenders, judge, len(files))
    if seconds >= WORTH_SAYING:
        note(f"this takes about {in_words(seconds)} here, less what {RECORDS} has already")
    with watch(len(files) * len(contenders)) as progress:
        result = measure(prepared, files, contenders, judge, records=records, batch_size=batch_size, progress=progress)
    document = result.document if grid is None else grid_document(result, cells)
    if folder is not None:
        write_csv(folder / "images.csv", result.table)
        if _can_plot(note) and grid is None:
            _plot_curves(result, folder)
        elif not plots.plots_are_missing():
            _plot_grid(result, cells, prepared, files, folder)
        write_json(folder / f"{name}.json", document)
    return document


def _plot_curves(result: Evaluation, folder: Path) -> None:
    """The mean curves."""
    shown: dict[str, dict[str, Any]] = {}
    for measure, arrow in MEASURES.items():
        curves = {one.title: result.curve(one, measure) for one in result.ran}
        shown[f"{measure} {arrow}"] = {title: (curve, area(curve.tolist())) for title, curve in curves.items()}
    plots.plot_curves(folder / "curves", shown, result.own.title if result.own else "")


def _plot_grid(result: Evaluation, cells: Grid, prepared: Prepared, files: Sequence[ImageFile], folder: Path) -> None:
    """Both measures against width, and the heatmaps of the first image."""
    inside = {one.title for row in cells.values() for one in row}
    others: list[Contender] = [one for one in result.ran if one.title not in inside]
    widths = [str(one.settings["width"]) for one in next(iter(cells.values()))]
    both = {f"{measure} {arrow}": panels(result, cells, measure) for measure, arrow in MEASURES.items()}
    plots.plot_grid(folder / "grid", both, widths)
    first = next(one for one in files if one.name == result.images[0][0])
    plots.plot_sheet(folder / "sheet", sheet(prepared, first, cells, others))
