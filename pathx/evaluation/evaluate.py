"""`pathx.evaluate`: from images to a document and plots; also for paths of many depths and widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.figure import View, map_tile
from pathx.drawing.page import Panel, sheet
from pathx.drawing.render import pixel_map, png
from pathx.engine.network import Network
from pathx.evaluation import plots
from pathx.evaluation.choices import PATHS, method_names
from pathx.evaluation.measure import (
    DIFFERENCE,
    MEASURES,
    Contender,
    Evaluation,
    contender,
    curve_records,
    measure_images,
    new_evaluation,
    subject_of,
)
from pathx.evaluation.mosaics import evaluate_mosaics
from pathx.evaluation.protocols import area, make_protocol
from pathx.evaluation.records import write_csv, write_json
from pathx.evaluation.removal import evaluate_removal
from pathx.images.find import ImageFile, images_in
from pathx.models.load import LoadedModel
from pathx.pipeline import Note, Prepared, Watch, no_notes, no_progress, prepare
from pathx.results.files import check_folder, check_own, replace_own

SCHEMA = "pathx/grid@1"
RECORDS = "records.jsonl"
WIDTHS: tuple[int | str, ...] = (1, 4, 16, 64, 256, 1024)

Grid = dict[str, list[Contender]]
"""By depth, a contender for every width."""


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
    batch_size: int | str = "auto",
    measure: Callable[..., Evaluation] = measure_images,
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> dict[str, Any]:
    """Measure how good explanations are. Returns the document that is written, by default evaluation.json.

    Args:
        out: folder for the document, a table of all images, plots, and the records from which a stopped run continues.
        methods: by default the path map, GradCAM, Integrated Gradients and a random map; `all` for every method.
        protocol: `rise` or `paper` for insertion and deletion, `grid` for the grid game, which returns mosaics.json.
        grid: measure paths of these depths and widths, or of `auto`, by their path maps, or by `pathx` if `methods` has it and
            not `path_map`. Returns grid.json.
        removal: set the path's units to zero in the real network, and as many chosen otherwise. Returns removal.json.
        keep: with `removal`, also remove all other units of these layers instead.
        measure: measures the images, for instance on a cluster.
    """
    path: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    if out is not None:
        check_folder(out)
    folder = None if out is None else Path(out)
    names = [name for name in method_names(methods) if grid is None or name not in PATHS]
    others = [] if removal else [contender(n, protocol, **(path if n in PATHS else {})) for n in names]
    files = images_in(list(map(str, images)), out)
    prepared = prepare(model, device=device, dtype=dtype, exact=exact, note=note)
    if removal or protocol == "grid":
        name = "removal" if removal else "mosaics"
        known = None if folder is None else folder / f"{name}.jsonl"
        with watch(len(files) if removal else len(files) // 4 * len(others)) as progress:
            if removal:
                document = evaluate_removal(prepared, files, keep=keep, settings=path, records=known, progress=progress)
            else:
                document = evaluate_mosaics(
                    prepared, files, others, records=known, batch_size=batch_size, progress=progress
                )
        if folder is not None:
            write_json(folder / f"{name}.json", document)
        return document
    _, rows, columns = model.preprocessing.input_size
    judge = make_protocol(protocol, rows, columns, steps=steps, step_pixels=step_pixels, ties=ties)
    cells: Grid = {}
    if grid is not None:
        depths, widths = (_depths(prepared.network), WIDTHS) if isinstance(grid, str) else grid
        method = "pathx" if "pathx" in methods and "path_map" not in methods else "path_map"
        cells = _make_grid(method, depths, widths, protocol, alpha=alpha, skips=skips, importance=importance)
    contenders = [*(one for row in cells.values() for one in row), *others]
    name = "evaluation" if grid is None else "grid"
    if folder is not None:
        check_own(folder, (RECORDS, f"{name}.json", "images.csv"))
    records = curve_records(None if folder is None else folder / RECORDS)
    new_evaluation(prepared, contenders, judge, batch_size)  # refuses what cannot be measured
    with watch(len(files) * len(contenders)) as progress:
        result = measure(prepared, files, contenders, judge, records=records, batch_size=batch_size, progress=progress)
    document = result.document if grid is None else _grid_document(result, cells, others)
    if folder is not None:
        write_csv(folder / "images.csv", result.table)
        others = [one for one in others if one in result.ran]
        if grid is not None:
            first = next(one for one in files if one.name == result.images[0][0])
            replace_own(folder / "sheet.png", png(_heatmaps(prepared, first, cells, others)))
        if plots.can_plot(note):
            if grid is None:
                _plot_curves(result, folder)
            else:
                _plot_grid(result, cells, others, folder)
        write_json(folder / f"{name}.json", document)
    return document


def _plot_curves(result: Evaluation, folder: Path) -> None:
    """The mean curves."""
    shown: dict[str, dict[str, Any]] = {}
    for measure, arrow in MEASURES.items():
        curves = {one.title: result.curve(one, measure) for one in result.ran}
        shown[f"{measure} {arrow}"] = {title: (curve, area(curve.tolist())) for title, curve in curves.items()}
    plots.plot_curves(folder / "curves", shown, result.own.title if result.own else "")


def _depths(network: Network) -> list[int | str]:
    """A few depths from one layer to all of them."""
    layers = network.depth
    return [*sorted({depth for depth in (1, 3, layers // 3, 2 * layers // 3) if 0 < depth < layers}), "all"]


def _make_grid(
    method: str, depths: Sequence[int | str], widths: Sequence[int | str], protocol: str, **settings: Any
) -> Grid:
    """A contender for every depth and width, with settings that all of them share."""
    return {
        str(depth): [
            contender(method, protocol, f"depth {depth}, width {width}", depth=depth, width=width, **settings)
            for width in dict.fromkeys(widths)
        ]
        for depth in dict.fromkeys(depths)
    }


def _grid_document(result: Evaluation, cells: Grid, others: Sequence[Contender]) -> dict[str, Any]:
    """grid.json: an evaluation with a list of cells instead of one path."""
    evaluated, ran = result.document, result.ran
    found = [dict(one.settings) | result.figures(one) for row in cells.values() for one in row if one in ran]
    best = {
        measure: {key: pick(found, key=lambda cell: cell[measure]["mean"])[key] for key in ("depth", "width")}
        for measure, pick in (("insertion", max), ("deletion", min), (DIFFERENCE, max))
        if found
    }
    methods = {one.name: result.figures(one) for one in others if one in ran}
    kept = ("protocol", "parameters", "images", "accuracy", "not_run", "unread", "notes", "model", "created_by")
    return {"schema": SCHEMA, "grid": found, "best": best, "methods": methods} | {key: evaluated[key] for key in kept}


def _plot_grid(result: Evaluation, cells: Grid, others: Sequence[Contender], folder: Path) -> None:
    """Both measures against width."""

    def mean(one: Contender, measure: str) -> float:
        areas = result.areas(one, measure).values()
        return sum(areas) / len(areas) if areas else float("nan")

    panels = {}
    for measure, arrow in MEASURES.items():
        lines = {depth: [mean(one, measure) for one in row] for depth, row in cells.items()}
        panels[f"{measure} {arrow}"] = lines, {one.title: mean(one, measure) for one in others}
    plots.plot_grid(folder / "grid", panels, [str(one.settings["width"]) for one in next(iter(cells.values()))])


def _heatmaps(prepared: Prepared, image: ImageFile, cells: Grid, others: Sequence[Contender]) -> Image.Image:
    """The heatmaps of one image: a row for every depth, and one for the photo and other methods.

    The network runs once for all paths. Raises what is wrong with the image.
    """
    seen = prepared.see_one(image)
    subject = subject_of(prepared, [seen])
    region = seen.image.on_pixels(prepared.model.preprocessing.region(seen.image.width, seen.image.height))
    photo, label = View(seen.image.pixels, region).tile().photo, prepared.labels[seen.target]

    def panel(one: Contender) -> Panel:
        return Panel(map_tile(pixel_map(one.attribution(subject)[0]), photo), one.title)

    panels = [panel(one) for row in cells.values() for one in row]
    more = [Panel(photo, "photo"), *map(panel, others)]
    return sheet(panels, title=label, more=more, columns=len(next(iter(cells.values()))))
