"""The files of a decomposition: an explanation per feature, the sheet, and last decomposition.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pathx.decomposition import SPOT, Decomposition, Feature, Group, decompose_wanted
from pathx.pictures import Picture
from pathx.places import no_place
from pathx.png import png
from pathx.render import Drawing, shared_scale
from pathx.results import (
    DOCUMENT as PATH_DOCUMENT,
)
from pathx.results import (
    FILES,
    ModelInfo,
    check_finite,
    created_by,
    document_bytes,
    remove_all,
    replace_all,
    save,
    subject,
    target_document,
    unit_document,
    unwritable,
)
from pathx.run import Batch, Failed, Subject, Task, Work, contrast_works, no_number
from pathx.sheets import View, decomposition_scale, decomposition_sheet, magnified

SCHEMA = "pathx/decomposition@1"
DOCUMENT = "decomposition.json"
SHEET = "sheet.png"


@dataclass(frozen=True, eq=False)
class Decomposed:
    """A decomposition whose files are written.

    Args:
        document: what its decomposition.json says.
        predictions: the best classes of the picture, (label, probability) each.
    """

    marker: ClassVar[str] = DOCUMENT
    picture: Picture
    decomposition: Decomposition
    document: dict[str, Any]
    folder: Path
    predictions: tuple[tuple[str, float], ...]

    @property
    def files(self) -> list[str]:
        """Below the folder, those of the features included."""
        own = self.document["files"]
        each = [name for key, name in own.items() if key != "sheet"]
        return [*own.values(), *(f"{part['folder']}/{name}" for part in self.document["features"] for name in each)]


def decompose_task(*, from_layer: int | None = None, features: int | None = None, group: bool = True) -> Task:
    """The task of `explain_files` that takes decisions apart.

    Args:
        from_layer, features, group: as for `pathx.decompose`.
    """
    how = {"from_layer": from_layer, "features": features, "group": group}
    return Task("decompose", partial(decompose_batch, **how), how)  # type: ignore[arg-type]


def decompose_batch(
    batch: Batch, *, from_layer: int | None = None, features: int | None = None, group: bool = True
) -> Iterator[list[Work] | Failed]:
    """Decompositions of a batch, computed at once: for each picture what is to be written, or why not."""
    how = {"from_layer": from_layer, "features": features, "group": group, **batch.how}
    made = iter(decompose_wanted(batch.frozen, batch.wanted, **how) if batch.wanted else ())
    for number, opened in enumerate(batch.opened):
        if not batch.targets[number]:
            yield no_number(opened)
            continue
        of = batch.subject(number)
        own = list(islice(made, len(batch.targets[number])))
        works = [Work(opened.picture.file, partial(_save, of, one)) for one in own]
        yield works + contrast_works(of, [one.whole for one in own])


def _save(of: Subject, made: Decomposition) -> Decomposed:
    folder = of.folder(made.whole.target)
    document = save_decomposition(
        made,
        folder,
        picture=of.picture,
        region=of.region,
        model=of.about,
        label=of.labels[made.whole.target],
        device=of.device,
        save_tensors=of.settings.save_tensors,
        drawing=of.settings.drawing,
        draw=of.settings.pictures,
    )
    return Decomposed(of.picture, made, document, folder, of.predictions)


@dataclass(frozen=True)
class Scales:
    """What the strongest colours of a decomposition's heatmaps and overlays stand for.

    Where a part is magnified, that is by so many times less.
    """

    exact: float
    smoothed: float

    @staticmethod
    def of(made: Decomposition, drawing: Drawing) -> Scales:
        parts = [made.whole.attribution, *(feature.explanation.attribution for feature in made.features)]
        return Scales(shared_scale(parts, 0, drawing.percentile), decomposition_scale(made, drawing))

    def over(self, factor: int) -> tuple[float, float]:
        """The two scales for a part that is magnified."""
        return self.exact / factor, self.smoothed / factor


def save_decomposition(
    made: Decomposition,
    folder: Path,
    *,
    picture: Picture,
    region: tuple[float, float, float, float],
    model: ModelInfo,
    label: str,
    device: str,
    save_tensors: bool = False,
    drawing: Drawing | None = None,
    draw: bool = True,
) -> dict[str, Any]:
    """Write the files of one decomposition and return what decomposition.json says.

    In `folder` the files of the whole explanation, in `feature-01`, … below it those of each feature. An older
    decomposition.json goes first and the new one comes last; features of an older one are removed.

    Args:
        draw: whether to make pictures.
    """
    drawing = drawing or Drawing()
    about: dict[str, Any] = {"picture": picture, "region": region, "model": model, "label": label, "device": device}
    about |= {"save_tensors": save_tensors, "drawing": drawing, "draw": draw}
    scales = Scales.of(made, drawing)
    view = View(picture.image, region, label)
    document = _document(made, scales, picture, model, label, device, drawing)
    document["region"] = list(region)
    check_finite(document, picture)
    contents = {}
    if draw:
        contents[SHEET] = png(decomposition_sheet(made, view, drawing))
    else:
        document["files"] = {"path": PATH_DOCUMENT}
    if save_tensors:
        document["files"]["tensors"] = FILES["tensors"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_all(folder, (DOCUMENT, SHEET))
        _remove_features(folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    save(made.whole, folder, scales=scales.over(1), **about)
    for feature, entry in zip(made.features, document["features"], strict=True):
        save(feature.explanation, folder / entry["folder"], scales=scales.over(entry["magnified"]), **about)
    replace_all(folder, {**contents, DOCUMENT: document_bytes(document)}, (DOCUMENT, SHEET))
    return document


def feature_folders(document: dict[str, Any]) -> list[str]:
    """Where the features are, for people to read."""
    names = [f"{entry['folder']}/" for entry in document["features"]]
    return [f"{names[0]} to {names[-1]}"] if len(names) > 1 else names


def _remove_features(folder: Path) -> None:
    """Features of an earlier run: its files, and the folders that are empty then."""
    for old in folder.iterdir():
        if re.fullmatch(r"feature-\d\d+", old.name) and old.is_dir() and not old.is_symlink():
            remove_all(old, (PATH_DOCUMENT, *FILES.values()))
            if not any(old.iterdir()):
                old.rmdir()


def _document(
    made: Decomposition,
    scales: Scales,
    picture: Picture,
    model: ModelInfo,
    label: str,
    device: str,
    drawing: Drawing,
) -> dict[str, Any]:
    """What decomposition.json says: schema `pathx/decomposition@1`."""
    whole = made.whole
    group_of = {position: number for number, one in enumerate(made.groups, 1) for position in one.features}
    return {
        "schema": SCHEMA,
        **subject(whole, picture, model),
        "target": target_document(whole, label),
        "depth": whole.depth,
        "width": whole.width,
        "alpha": whole.alpha,
        "skips": whole.skips,
        "layer": made.layer,
        "reason": made.reason,
        "below_alpha": made.below_alpha,
        "whole": {
            "score": whole.score,
            "bias": whole.bias,
            "attribution_sum": float(whole.attribution.detach().cpu().double().sum()),
        },
        "features": [
            {
                "feature": position + 1,
                "folder": f"feature-{position + 1:02}",
                "group": group_of[position],
                **_feature_document(feature),
                "magnified": magnified(feature.explanation.attribution, scales.smoothed, drawing),
            }
            for position, feature in enumerate(made.features)
        ],
        "overlap": [list(row) for row in made.overlap],
        "grouping": None if made.alike is None else {"alike": made.alike, "linkage": "complete", "smoothing": SPOT},
        "groups": [
            {
                "group": number,
                "features": [position + 1 for position in one.features],
                **_group_document(one),
                "magnified": magnified(one.attribution, scales.smoothed, drawing),
            }
            for number, one in enumerate(made.groups, start=1)
        ],
        "others": asdict(made.others),
        "difference": asdict(made.difference),
        "colour_scale": scales.smoothed,
        "files": {"sheet": SHEET, "path": PATH_DOCUMENT, "heatmap": FILES["heatmap"], "overlay": FILES["overlay"]},
        "created_by": created_by(whole, device),
    }


def _feature_document(feature: Feature) -> dict[str, Any]:
    return {
        "unit": unit_document(feature.unit),
        "importance": feature.unit.importance,
        "score": feature.score,
        "bias": feature.explanation.bias,
        "share": feature.share,
        **(feature.place.document() if feature.place else no_place()),
    }


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "score": group.score,
        "share": group.share,
        **(group.place.document() if group.place else no_place()),
    }
