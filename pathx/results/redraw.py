"""`pathx redraw`: pictures drawn again from saved tensors, and sheets that compare runs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from pathx.drawing.figure import View, comparison_sheet, contrast_scale, contrast_sheet, decomposition_scale
from pathx.drawing.render import Drawing, png
from pathx.errors import PathxError, shown
from pathx.models.labels import slug
from pathx.results.documents import decomposition_pictures, feature_folders, pictures
from pathx.results.files import CONTRAST, CONTRAST_PICTURE, DECOMPOSITION, FILES, PATH, SHEET, Kind, replace_folder
from pathx.results.saved import Saved, find_photo, read_contrast, read_decomposition, read_explanation
from pathx.results.schema import document_bytes, read_document, understood
from pathx.results.store import Result, State


def redraw(folder: str | Path, drawing: Drawing | None = None) -> Iterator[Result]:
    """Redraw every picture below a folder of results, from the tensors that were saved; no network is run.

    Of the documents only what they say of the colour scale changes.

    Where one image and class was explained in several ways (say, runs of several depths in folders of their own), a sheet
    that compares them is added to the folder itself.
    """
    root = Path(folder)
    if not os.path.isdir(root):
        raise PathxError(f"{shown(folder)} is not a folder: give one with results of pathx", usage=True)
    redrawer = _Redrawer(drawing or Drawing())
    found = False
    for task, name in (
        (redrawer.decomposition, DECOMPOSITION),
        (redrawer.contrast, CONTRAST),
        (redrawer.explanation, PATH),
    ):
        for file in sorted(root.rglob(name)):
            if file.parent in redrawer.done and name == PATH:
                continue
            found = True
            try:
                with understood(file):
                    made = task(file.parent)
                yield made
            except PathxError as error:
                redrawer.done.add(file.parent)  # said once
                yield Result.failure(str(file.parent), error)
    if not found:
        raise PathxError(f"{shown(folder)} holds no results of pathx: no {PATH} anywhere in it", usage=True)
    yield from redrawer.comparisons(root)


@dataclass
class _Redrawer:
    """One pass over a folder: what is drawn, and what was met on the way.

    Args:
        done: folders whose own pictures were made, or could not be.
        met: explanations of whole decisions.
    """

    drawing: Drawing
    done: set[Path] = field(default_factory=set)
    met: list[Saved] = field(default_factory=list)

    def decomposition(self, folder: Path) -> Result:
        document = read_document(folder / DECOMPOSITION)
        self.done.add(folder)
        made, whole = read_decomposition(folder, document)
        view, notes = self._view(whole)
        own = pictures(whole.explanation, view, self.drawing)
        document["colour_scale"] = decomposition_scale(made, self.drawing)
        drawn = decomposition_pictures(made, view, self.drawing)
        for entry in document["features"]:
            keys = (key for key in FILES if f"{entry['folder']}/{FILES[key]}" in drawn or key in entry["files"])
            entry["files"] = {key: FILES[key] for key in keys}
        document["files"] = {"sheet": SHEET, **document["files"]}
        self._write(folder, {**own, **drawn, DECOMPOSITION: document_bytes(document)})
        self.met.append(whole)
        return _sheet_result(folder, (SHEET, *own, *feature_folders(document)), notes)

    def contrast(self, folder: Path) -> Result:
        document = read_document(folder / CONTRAST)
        made, several = read_contrast(folder, document)
        view, notes = self._view(several[0])
        labels = [target["label"] for target in document["targets"]]
        probabilities = [target["probability"] for target in document["targets"]]
        drawn = contrast_sheet(made, view, labels, probabilities, self.drawing)
        document["colour_scale"] = contrast_scale(made, self.drawing)
        self._write(folder, {CONTRAST_PICTURE: png(drawn), CONTRAST: document_bytes(document)})
        return _sheet_result(folder, (CONTRAST_PICTURE,), notes)

    def explanation(self, folder: Path) -> Result:
        saved = read_explanation(folder)
        view, notes = self._view(saved)
        drawn = pictures(saved.explanation, view, self.drawing)
        self._write(folder, drawn)
        self.met.append(saved)
        return _sheet_result(folder, tuple(drawn), notes)

    def comparisons(self, root: Path) -> Iterator[Result]:
        """A sheet for every image and class that was met in several ways."""
        alike: dict[tuple[str, str, int], list[Saved]] = defaultdict(list)
        for saved in self.met:
            about = saved.document
            if "against" not in about:
                alike[about["image"]["sha256"], about["model"]["sha256"], about["target"]["index"]].append(saved)
        taken: set[str] = set()
        for (sha256, _, _), several in alike.items():
            ways = {
                (e.depth, e.width, e.alpha, e.skips, e.importance): e for e in (saved.explanation for saved in several)
            }
            if len(ways) < 2:
                continue
            about = several[0].document
            name = f"compare-{PurePath(about['image']['file']).name}-{slug(about['target']['label'])}"
            name = f"{name}-{sha256[:8]}" if name in taken else name
            taken.add(name)
            view, notes = self._view(several[0])
            try:
                with understood(root / name):
                    self._write(root, {f"{name}.png": png(comparison_sheet(list(ways.values()), view, self.drawing))})
                yield _sheet_result(root, (f"{name}.png",), notes)
            except PathxError as error:
                yield Result.failure(str(root), error)

    def _view(self, saved: Saved) -> tuple[View, tuple[str, ...]]:
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

    def _write(self, folder: Path, contents: dict[str, bytes]) -> None:
        with replace_folder(folder) as new:
            for name, data in contents.items():
                new.put(name, data)
            new.commit()


def _sheet_result(folder: Path, files: Sequence[str], notes: tuple[str, ...]) -> Result:
    """Pictures that were redrawn, by their names in a folder."""
    return Result(str(folder), State.done, Kind.sheet, folder, files=tuple(files), notes=notes)
