"""`pathx redraw`: pictures drawn again from saved tensors, and sheets that compare runs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from pathx.drawing.figure import View, comparison_sheet, contrast_scale, contrast_sheet, decomposition_scale
from pathx.drawing.render import Drawing, png
from pathx.errors import PathxError, shown
from pathx.models.labels import slug
from pathx.results.documents import decomposition_pictures, feature_folders, pictures
from pathx.results.files import (
    CONTRAST,
    CONTRAST_PICTURE,
    DECOMPOSITION,
    FILES,
    PATH,
    SETTINGS,
    SHEET,
    Kind,
    replace_files,
)
from pathx.results.saved import Saved, find_photo, read_contrast, read_decomposition, read_explanation
from pathx.results.schema import document_bytes, read_document, understood
from pathx.results.store import Result, State


def redraw(folder: str | Path, drawing: Drawing | None = None) -> Iterator[Result]:
    """Redraw every picture below a folder of results, from the tensors that were saved; no network is run.

    Of the documents only what they say of the colour scale changes. Where one image and class was explained in several ways
    (say, runs of several depths in folders of their own), a sheet that compares them is added to the folder itself.
    """
    root = Path(folder)
    if not os.path.isdir(root):
        raise PathxError(f"{shown(folder)} is not a folder: give one with results of pathx", usage=True)
    tasks = {DECOMPOSITION: _redraw_decomposition, CONTRAST: _redraw_contrast, PATH: _redraw_explanation}
    files = [file for name in tasks for file in sorted(root.rglob(name))]
    if not files:
        raise PathxError(f"{shown(folder)} holds no results of pathx: no {PATH} anywhere in it", usage=True)
    done = set[Path]()  # folders whose own pictures were made, or could not be
    for file in files:
        if file.parent not in done:
            done.add(file.parent)
            try:
                with understood(file):
                    drawn, names, notes = tasks[file.name](file.parent, drawing or Drawing())
                    replace_files(file.parent, drawn)
                yield Result(str(file.parent), State.done, Kind.sheet, file.parent, files=names, notes=notes)
            except PathxError as error:
                yield Result.failure(str(file.parent), error)
    yield from _compare(root, drawing or Drawing())


def _compare(root: Path, drawing: Drawing) -> Iterator[Result]:
    """A sheet for every image and class that was explained in several ways."""
    ways: dict[tuple[str, str, int], dict[tuple[object, ...], Path]] = defaultdict(dict)
    for file in sorted(root.rglob(PATH)):
        with suppress(PathxError), understood(file):  # which was said when it was drawn
            about = read_document(file)
            if "against" not in about:
                question = about["image"]["sha256"], about["model"]["sha256"], about["target"]["index"]
                ways[question].setdefault(tuple(about[key] for key in SETTINGS), file.parent)
    taken: set[str] = set()
    for (sha256, *_), folders in ways.items():
        if len(folders) < 2:
            continue
        several: list[Saved] = []
        with suppress(PathxError):
            several = [read_explanation(folder) for folder in folders.values()]
        if several:
            view, notes = _view(several[0])
            name = f"compare-{PurePath(several[0].document['image']['file']).name}-{slug(view.label)}"
            name = f"{name}-{sha256[:8]}" if name in taken else name
            taken.add(name)
            drawn = comparison_sheet([saved.explanation for saved in several], view, drawing)
            try:
                replace_files(root, {f"{name}.png": png(drawn)})
                yield Result(str(root), State.done, Kind.sheet, root, files=(f"{name}.png",), notes=notes)
            except PathxError as error:
                yield Result.failure(str(root), error)


_Redrawn = tuple[dict[str, bytes], tuple[str, ...], tuple[str, ...]]
"""The files to write, what to tell people of them, and notes."""


def _redraw_decomposition(folder: Path, drawing: Drawing) -> _Redrawn:
    document = read_document(folder / DECOMPOSITION)
    made, whole = read_decomposition(folder, document)
    view, notes = _view(whole)
    own, drawn = pictures(whole.explanation, view, drawing), decomposition_pictures(made, view, drawing)
    document["colour_scale"] = decomposition_scale(made, drawing)
    for entry in document["features"]:
        keys = (key for key in FILES if f"{entry['folder']}/{FILES[key]}" in drawn or key in entry["files"])
        entry["files"] = {key: FILES[key] for key in keys}
    document["files"] = {"sheet": SHEET, **document["files"]}
    contents = {**own, **drawn, DECOMPOSITION: document_bytes(document)}
    return contents, (SHEET, *own, *feature_folders(document)), notes


def _redraw_contrast(folder: Path, drawing: Drawing) -> _Redrawn:
    document = read_document(folder / CONTRAST)
    made, several = read_contrast(folder, document)
    view, notes = _view(several[0])
    labels, probabilities = zip(*((one["label"], one["probability"]) for one in document["targets"]), strict=True)
    drawn = contrast_sheet(made, view, labels, probabilities, drawing)
    document["colour_scale"] = contrast_scale(made, drawing)
    return {CONTRAST_PICTURE: png(drawn), CONTRAST: document_bytes(document)}, (CONTRAST_PICTURE,), notes


def _redraw_explanation(folder: Path, drawing: Drawing) -> _Redrawn:
    saved = read_explanation(folder)
    view, notes = _view(saved)
    drawn = pictures(saved.explanation, view, drawing)
    return drawn, tuple(drawn), notes


def _view(saved: Saved) -> tuple[View, tuple[str, ...]]:
    """What to draw on: the photo, as long as it is the same; else plain grey, and a note."""
    document, (photo, problem) = saved.document, find_photo(saved.document, saved.folder)
    view = View.of(saved.explanation)
    if photo is not None:
        photo = photo.reduce()
        view = View(photo.pixels, photo.on_pixels(tuple(document["region"])))
    source = f"{PurePath(document['image']['file']).name}, {document['model']['name']}"
    about = {"label": document["target"]["label"], "other": document.get("against", {}).get("label", "")}
    view = replace(view, **about, source=source, probability=document["target"]["probability"])
    return view, (problem,) if problem else ()
