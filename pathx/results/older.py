"""Results that take the place of older ones: what is still true stays, and all that lies side by side belongs together."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pathx.errors import PathxError, shown
from pathx.results.files import (
    CONTRAST,
    CONTRAST_PICTURE,
    DECOMPOSITION,
    FILES,
    PATH,
    REPORT,
    REPORT_DATA,
    SETTINGS,
    SHEET,
    Kind,
    ResultFiles,
    replace_files,
    replace_folder,
)
from pathx.results.schema import read_document

Document = dict[str, Any]


def replace_results(folder: Path, files: ResultFiles) -> None:
    """Write results to a folder: files are replaced whole, documents last, and if that cannot be, what was there stays.

    Of an older explanation in that folder with the same settings, files that are still true stay as well, and are added to
    what the documents list; of any other nothing does, nor what rests on it: a decomposition, a contrast. Raises PathxError.
    """
    with replace_folder(folder) as new:
        gone = [CONTRAST, CONTRAST_PICTURE]
        if (path := files.documents.get(PATH)) is not None:
            gone = _outdated_parts(folder, files, path)
        for name, data in files.all_bytes().items():
            new.put(name, data)
        if path is not None and "against" not in path:
            _drop_contrast(folder.parent, path)
        new.commit(gone)
        _remove_empty_features(folder)


def _outdated_parts(folder: Path, files: ResultFiles, path: Document) -> list[str]:
    """Older files of ours that must go, documents first; those that are still true are listed in the new documents."""
    old = _older(folder / PATH)
    listed = old.get("files") if old is not None and describe_the_same(old, path) else None
    names = {*listed.values()} if isinstance(listed, dict) else set()
    true = {name for name in FILES.values() if name in names and (folder / name).is_file()}
    path["files"] = {key: name for key, name in FILES.items() if name in files.contents or name in true}
    if files.kind is Kind.decomposition:
        files.document["files"] |= path["files"]
    stays = {*true}
    if not true <= files.contents.keys():  # the older path.json says until the end that these are true
        stays.add(PATH)
    features = _feature_files(folder)
    decomposition = _older(folder / DECOMPOSITION) if files.kind is Kind.explanation else None
    if decomposition is not None and describe_the_same(decomposition, path):
        stays |= {DECOMPOSITION, SHEET, *features}
    return [name for name in (*_OURS, *features) if name not in stays]


_OURS = (DECOMPOSITION, PATH, SHEET, *FILES.values(), REPORT, REPORT_DATA)


def remove_others(folder: Path, path: Document) -> str:
    """How results were made that are to go, such as `with depth 3`, as those of a path.json take their place.

    In its own folder those made in another way are replaced when it is written. Those of other questions, which are other
    classes or pairs of classes, stay whatever their settings; they are removed here only if they are of another image, model
    or preprocessing, so that all that lies side by side is about the same thing.
    """
    replaced = ""
    for place in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        old = None if place.is_symlink() else _older(place / PATH)
        if old is None or old["schema"] != path["schema"]:
            continue
        different = (_other_settings(old, path) if place == folder else "") or _other_subject(old, path)
        replaced = replaced or (different and f"{different} in {shown(folder.parent)}")
        if different and place != folder:
            with replace_folder(place) as new:
                new.commit([*_OURS, *_feature_files(place)])
                _remove_empty_features(place)
            with suppress(OSError):  # where somebody else's files are in it
                place.rmdir()
    return replaced


def _other_settings(old: Document, new: Document) -> str:
    """The settings of an older document that are others now."""
    about = [f"{key} {old.get(key)}" for key in SETTINGS if old.get(key) != new[key]]
    before = old["created_by"]["dtype"]
    about += [f"dtype {before}"] if before != new["created_by"]["dtype"] else []
    return f"with {', '.join(about)}" if about else ""


def _other_subject(old: Document, new: Document) -> str:
    """Whether an older document is of another model, of other pixels, or of other preprocessing."""
    if old["model"]["sha256"] != new["model"]["sha256"]:
        return f"with model {old['model']['name']}"
    if old["image"]["sha256"] != new["image"]["sha256"]:
        return "of an earlier version of the image"
    return "" if old.get("preprocessing") == new["preprocessing"] else "with other preprocessing"


def describe_the_same(old: Document, new: Document) -> bool:
    """Whether two documents are about one class of one image, explained by one model in one way.

    Their numbers may differ in the last digits, which depend on what else was computed at the same time.
    """
    try:
        if _other_settings(old, new) or _other_subject(old, new) or old["model"] != new["model"]:
            return False
        if "layers" in old and "layers" in new and _units(old) != _units(new):
            return False
        of = new["target"]
        targets = {target["index"]: target for target in old.get("targets", [old.get("target")])}
        same = targets[of["index"]]
        alike = math.isclose(same["logit"], of["logit"], rel_tol=1e-3, abs_tol=1e-5)
        return bool(same["label"] == of["label"] and alike)
    except (KeyError, TypeError):
        return False


def _units(document: Document) -> list[list[tuple[str, list[int]]]]:
    return [[(unit["tensor"], unit["index"]) for unit in layer["units"]] for layer in document["layers"]]


def _older(file: Path) -> Document | None:
    """The document that is in a place where a new one is to be, if pathx can read it."""
    try:
        return read_document(file)
    except PathxError:
        return None


def _feature_files(folder: Path) -> list[str]:
    return [f"{feature.name}/{name}" for feature in _features(folder) for name in (PATH, *FILES.values())]


def _features(folder: Path) -> list[Path]:
    """The folders of a decomposition's features."""
    found = [one for one in folder.iterdir() if re.fullmatch(r"feature-\d\d+", one.name)]
    return sorted(one for one in found if one.is_dir() and not one.is_symlink())


def _remove_empty_features(folder: Path) -> None:
    for feature in _features(folder):
        if not any(feature.iterdir()):
            feature.rmdir()


def _drop_contrast(folder: Path, path: Document) -> None:
    """Remove the contrast of an image's explanations, unless it is about this one of them."""
    contrast = _older(folder / CONTRAST)
    if contrast is not None and not describe_the_same(contrast, path):
        replace_files(folder, {}, [CONTRAST, CONTRAST_PICTURE])
