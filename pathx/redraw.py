"""`pathx sheet`: pictures made anew from saved tensors, and sheets that compare runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from PIL import Image

from pathx import contrasting, decomposing
from pathx.decomposing import Scales
from pathx.errors import PathxError
from pathx.pictures import open_picture, shown
from pathx.png import png
from pathx.render import Drawing
from pathx.results import DOCUMENT, FILES, document_bytes, pictures, replace_file, unwritable
from pathx.run import Failed
from pathx.saved import Saved, read_contrast, read_decomposition, read_document, read_explanation
from pathx.sheets import View, comparison_sheet, contrast_sheet, decomposition_sheet, magnified
from pathx.targets import slug


@dataclass(frozen=True)
class Redrawn:
    """Pictures that were made anew.

    Args:
        folder: where they are.
        files: their names there.
        notes: what a user should know of it.
    """

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def redraw(folder: str | Path, drawing: Drawing | None = None) -> Iterator[Redrawn | Failed]:
    """Make anew every picture below a folder of results, from the tensors that were saved; no network is run.

    Of the documents only what they say of the colour scale changes.

    Where one picture and class was explained in several ways (say, runs of several depths in folders of their own), a sheet
    that compares them is added to the folder itself.
    """
    root = Path(folder)
    if not root.is_dir():
        raise PathxError(f"{shown(folder)} is not a folder: give one with results of pathx", usage=True)
    redrawing = _Redrawing(drawing or Drawing())
    found = False
    for task, name in (
        (redrawing.decomposition, decomposing.DOCUMENT),
        (redrawing.contrast, contrasting.DOCUMENT),
        (redrawing.explanation, DOCUMENT),
    ):
        for file in sorted(root.rglob(name)):
            if file.parent in redrawing.done and name == DOCUMENT:
                continue
            found = True
            try:
                yield task(file.parent)
            except PathxError as error:
                redrawing.done.add(file.parent)  # said once
                yield Failed(str(file.parent), error)
    if not found:
        raise PathxError(f"{shown(folder)} holds no results of pathx: no {DOCUMENT} anywhere in it", usage=True)
    yield from redrawing.comparisons(root)


@dataclass
class _Redrawing:
    """One pass over a folder: what is drawn, and what was met on the way.

    Args:
        done: folders whose own pictures were made, or could not be.
        met: explanations of whole decisions.
    """

    drawing: Drawing
    done: set[Path] = field(default_factory=set)
    met: list[Saved] = field(default_factory=list)
    photos: dict[str, tuple[Image.Image | None, str]] = field(default_factory=dict)

    def decomposition(self, folder: Path) -> Redrawn:
        document = read_document(folder / decomposing.DOCUMENT)
        self.done |= {folder, *(folder / entry["folder"] for entry in document["features"])}
        made, whole, parts = read_decomposition(folder, document)
        view, notes = self._view(whole)
        scales = Scales.of(made, self.drawing)
        self._write(folder, pictures(whole.explanation, view, self.drawing, scales.over(1)))
        for part, entry in zip(parts, document["features"], strict=True):
            entry["magnified"] = magnified(part.explanation.attribution, scales.smoothed, self.drawing)
            drawn = pictures(part.explanation, view, self.drawing, scales.over(entry["magnified"]))
            self._write(folder / entry["folder"], drawn)
        for group, entry in zip(made.groups, document["groups"], strict=True):
            entry["magnified"] = magnified(group.attribution, scales.smoothed, self.drawing)
        document["colour_scale"] = scales.smoothed
        sheet = png(decomposition_sheet(made, view, self.drawing))
        self._write(folder, {decomposing.SHEET: sheet, decomposing.DOCUMENT: document_bytes(document)})
        self.met.append(whole)
        names = (decomposing.SHEET, FILES["heatmap"], FILES["overlay"], *decomposing.feature_folders(document))
        return Redrawn(folder, names, notes)

    def contrast(self, folder: Path) -> Redrawn:
        document = read_document(folder / contrasting.DOCUMENT)
        made, several = read_contrast(folder, document)
        view, notes = self._view(several[0])
        labels = [target["label"] for target in document["targets"]]
        probabilities = [target["probability"] for target in document["targets"]]
        drawn = contrast_sheet(made, view, labels, probabilities, self.drawing)
        document["colour_scale"] = made.scale(self.drawing)
        self._write(folder, {contrasting.PICTURE: png(drawn), contrasting.DOCUMENT: document_bytes(document)})
        return Redrawn(folder, (contrasting.PICTURE,), notes)

    def explanation(self, folder: Path) -> Redrawn:
        saved = read_explanation(folder)
        view, notes = self._view(saved)
        drawn = pictures(saved.explanation, view, self.drawing)
        self._write(folder, drawn)
        self.met.append(saved)
        return Redrawn(folder, tuple(drawn), notes)

    def comparisons(self, root: Path) -> Iterator[Redrawn]:
        """A sheet for every picture and class that was met in several ways."""
        alike: dict[tuple[str, str, int], list[Saved]] = defaultdict(list)
        for saved in self.met:
            about = saved.document
            alike[about["image"]["sha256"], about["model"]["sha256"], about["target"]["index"]].append(saved)
        taken: set[str] = set()
        for (sha256, _, _), several in alike.items():
            ways = {(e.depth, e.width, e.alpha, e.skips): e for e in (saved.explanation for saved in several)}
            if len(ways) < 2:
                continue
            about = several[0].document
            name = f"compare-{PurePath(about['image']['file']).name}-{slug(about['target']['label'])}"
            name = f"{name}-{sha256[:8]}" if name in taken else name
            taken.add(name)
            view, notes = self._view(several[0])
            self._write(root, {f"{name}.png": png(comparison_sheet(list(ways.values()), view, self.drawing))})
            yield Redrawn(root, (f"{name}.png",), notes)

    def _view(self, saved: Saved) -> tuple[View, tuple[str, ...]]:
        """What to draw on: the photo, as long as it is where it was and the same; else plain grey."""
        image, label = saved.document["image"], saved.document["target"]["label"]
        if image["sha256"] not in self.photos:
            try:
                picture = open_picture(image["file"])
                same = picture.sha256 == image["sha256"]
                note = "" if same else f"{shown(image['file'])} has changed since; drawn without it"
                self.photos[image["sha256"]] = (picture.image if same else None, note)
            except PathxError:
                note = f"{shown(image['file'])} is not there any more; drawn without it"
                self.photos[image["sha256"]] = (None, note)
        photo, note = self.photos[image["sha256"]]
        if photo is not None:
            return View(photo, saved.region, label), ()
        return View.of(saved.explanation, label=label), (note,)

    def _write(self, folder: Path, contents: dict[str, bytes]) -> None:
        try:
            for name, data in contents.items():
                replace_file(folder / name, data)
        except OSError as error:
            raise unwritable(folder, error) from None
