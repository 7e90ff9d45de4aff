"""What a folder of results holds: explanations, failures, measurements, what channels look for, and what is not whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from pathx.drawing.page import cut
from pathx.drawing.render import SMOOTHING
from pathx.errors import PathxError, shown
from pathx.explanation import PathLayer
from pathx.images.read import open_image
from pathx.maps import contribution_grids, enlarge
from pathx.models.preprocessing import Preprocessing
from pathx.report.page import encode_small
from pathx.results.files import JsonLines
from pathx.results.schema import PATH_SCHEMA, UNFIT, channel_key, misfit, read_document, read_names, shape_of

MEASURES = ("evaluation.json", "grid.json", "common.json")
_MOST_PIXELS = 1 << 26  # of a network's input
MOST_CHANNELS, _CROPS, _SIDE = 32, 3, 72


@dataclass(frozen=True, eq=False)
class ExplanationFiles:
    """A whole explanation.

    Args:
        document: what its path.json says.
        truth: label of the true class, where it is known.
        top: the best classes of the image, (label, probability) each, where they are known.
    """

    folder: Path
    document: dict[str, Any]
    truth: str | None = None
    top: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Collected:
    """What several folders of results hold.

    Args:
        failures: (file, reason) of images that could not be explained.
        measures: files of evaluations, grids and common units, with what they say.
        checks: what every check.json says.
        units: every units.json, with what it says of the channels of a network.
        problems: what could not be read, and why.
    """

    explanations: list[ExplanationFiles] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    measures: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    units: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @cached_property
    def references(self) -> References:
        """What the units found say of channels."""
        return References([document for _, document in self.units])

    def names(self, folder: Path, sha256: str) -> dict[str, str]:
        """What people call the channels of a model: from beside an explanation, folders above it, and those of units."""
        return read_names([folder, *folder.resolve().parents, *(file.parent for file, _ in self.units)], sha256)


def collect(results: Sequence[str | Path]) -> Collected:
    """Look through folders of results; a path.json or another document may be named itself."""
    made = Collected()
    lines: dict[Path, dict[str, Any]] = {}
    for given in results:
        root = Path(given)
        if not os.path.exists(root):
            raise PathxError(f"{shown(given)}: no such file or folder; give results of pathx", usage=True)
        for file in _documents(root):
            _add(made, file)
        if os.path.isdir(root):
            lines |= _lines(root)
            made.problems.extend(_find_unfinished(root))
    made.problems.extend(_units_of_others(made))
    made.explanations[:] = [_add_index_line(found, lines) for found in made.explanations]
    made.failures.extend((str(line.get("file")), str(line["error"])) for line in lines.values() if "error" in line)
    if not (made.explanations or made.failures or made.measures or made.units):
        lacking = (
            "a check is shown beside explanations, so name these too" if made.checks else "no path.json anywhere in it"
        )
        reason = made.problems[0] if made.problems else lacking
        raise PathxError(f"{shown(results[0])} holds no results that a report shows: {reason}", usage=True)
    return made


def _documents(root: Path) -> Iterator[Path]:
    if os.path.isfile(root):
        yield root
        return
    for name in ("path.json", *MEASURES, "check.json", "units.json"):
        yield from sorted(root.rglob(name))


def _add(made: Collected, file: Path) -> None:
    try:
        document = read_document(file)
        if file.name == "check.json":
            made.checks.append(document)
        elif file.name == "units.json" or file.name in MEASURES:
            (made.units if file.name == "units.json" else made.measures).append((file, document))
        else:
            made.explanations.append(_explanation(file, document))
    except PathxError as error:
        made.problems.append(str(error))


def _explanation(file: Path, document: dict[str, Any]) -> ExplanationFiles:
    if not document["schema"].startswith("pathx/path@"):
        raise PathxError(f"{shown(file)} has no page: name one of path.json, units.json, {', '.join(MEASURES)}")
    wrong = misfit(document, shape_of("path")) or (None if document["layers"] else "it has no layers")
    if wrong is None:
        try:
            path_map(document)
        except (*UNFIT, RuntimeError, MemoryError) as error:
            wrong = f"its units have no place: {type(error).__name__}"
    if wrong is not None:
        raise PathxError(f"{shown(file)} cannot be shown ({wrong}): explain the image again")
    schema = document["schema"]
    notes: tuple[str, ...] = ()
    if schema != PATH_SCHEMA:
        notes = (f"path.json has the schema {schema}, this pathx knows {PATH_SCHEMA}: some of it may be missing",)
    return ExplanationFiles(file.parent, document, notes=notes)


def path_map(document: dict[str, Any]) -> Tensor | None:
    """The path map (H, W) as overlay.png shows it, from path.json; None where no unit has a place."""
    parts = [part for layer in document["layers"] for part in contribution_grids(PathLayer.read(layer))]
    return enlarge(parts, input_size(document), SMOOTHING) if parts else None


def input_size(document: dict[str, Any]) -> tuple[int, int]:
    """(height, width) of the network's input."""
    _, height, width = document["input"]
    if not 0 < height * width <= _MOST_PIXELS:
        raise ValueError("the size of the input is out of range")
    return height, width


def _lines(root: Path) -> dict[Path, dict[str, Any]]:
    """What the indexes of runs say of each image, by the folder of its results; later lines count."""
    lines: dict[Path, dict[str, Any]] = {}
    for index in sorted(root.rglob("index*.jsonl")):
        with suppress(OSError):
            found = JsonLines(index).read()
            lines |= {index.parent / str(line["name"]): line for line in found if "name" in line}
    return lines


def _units_of_others(made: Collected) -> Iterator[str]:
    """Units that were gathered of a model that none of the results is of."""
    documents = [*(found.document for found in made.explanations), *(document for _, document in made.measures)]
    known = {str(_model(document).get("sha256")) for document in documents}
    for model in (_model(document) for _, document in made.units):
        if documents and str(model.get("sha256")) not in known:
            yield f"the units are of another model ({shown(str(model.get('name')))}); they are not shown"


def _model(document: dict[str, Any]) -> dict[str, Any]:
    model = document.get("model")
    return model if isinstance(model, dict) else {}


def _find_unfinished(root: Path) -> Iterator[str]:
    """Folders with pictures of an explanation whose path.json is not there."""
    for file in sorted(root.rglob("heatmap.png")):
        if not (file.parent / "path.json").is_file():
            yield f"{shown(file.parent)} is not whole: it has no path.json; run the same command again"


def _add_index_line(found: ExplanationFiles, lines: dict[Path, dict[str, Any]]) -> ExplanationFiles:
    """An explanation with what the index says of its image."""
    line = lines.get(found.folder.parent, {})
    try:
        top = tuple((str(one["label"]), float(one["probability"])) for one in line.get("top", ()))
    except (KeyError, TypeError, ValueError):
        top = ()
    label = line.get("label")
    return replace(found, truth=None if label is None else str(label), top=top)


class References:
    """What is known of the channels of networks; crops are made when a page first asks for them.

    Args:
        units: what every units.json says.
    """

    def __init__(self, units: Sequence[dict[str, Any]]) -> None:
        self._known: dict[tuple[str, str, int], tuple[dict[str, Any], Preprocessing]] = {}
        self._shown: dict[tuple[str, str, int], dict[str, Any]] = {}
        for document in units:
            with suppress(*UNFIT, PathxError):  # not written by a pathx that we know
                self._add(document)

    def _add(self, document: dict[str, Any]) -> None:
        seen, sha256 = Preprocessing(**document["preprocessing"]), document["model"]["sha256"]
        for layer in document["layers"]:
            for tensor in layer["tensors"]:
                for channel in tensor["channels"]:
                    if channel["references"]:
                        self._known.setdefault((sha256, tensor["name"], channel["channel"]), (channel, seen))

    def of(
        self, channels: Iterable[tuple[str, int]], sha256: str, most: int = MOST_CHANNELS
    ) -> dict[str, dict[str, Any]]:
        """By `tensor[channel]`, what is known of the first channels asked for.

        Args:
            sha256: of the model; what was gathered of others is left out.
            most: how many channels at most.
        """
        wanted = [(sha256, *channel) for channel in dict.fromkeys(channels) if (sha256, *channel) in self._known]
        return {channel_key(*place[1:]): self._of(place) for place in wanted[:most]}

    def _of(self, place: tuple[str, str, int]) -> dict[str, Any]:
        if place not in self._shown:
            channel, seen = self._known[place]
            crops = [_crop(one, seen) for one in channel["references"][:_CROPS]]
            self._shown[place] = {"words": channel["words"], "crops": [one for one in crops if one]}
        return self._shown[place]


def _crop(reference: dict[str, Any], preprocessing: Preprocessing) -> dict[str, str] | None:
    """The part of an image that a unit saw; None where the image is gone or has changed, or nothing can be made of it."""
    try:
        image = open_image(reference["file"])
        if image.sha256 != reference["sha256"]:
            return None
        _, height, width = preprocessing.input_size
        region = preprocessing.region(image.width, image.height)
        picture = cut(image.pixels, region, reference["receptive_field"], (width, height), _SIDE)
        about = {"file": str(reference["file"]), "label": str(reference.get("label") or "")}
        return {"src": encode_small(picture, _SIDE), **about}
    except (PathxError, *UNFIT):
        return None
