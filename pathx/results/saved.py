"""Explanations read back from their files, to be redrawn without the network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from pathx.contrast import Contrast
from pathx.decomposition import Decomposition, Feature
from pathx.errors import PathxError, parse_json, shown
from pathx.explanation import Effect, Explanation, PathLayer, Removal, Unit
from pathx.images.read import UserImage, open_image
from pathx.maps import Place
from pathx.results.files import DECOMPOSITION, FILES, PATH, SETTINGS
from pathx.results.schema import read_document, understood


@dataclass(frozen=True, eq=False)
class Saved:
    """An explanation from its files.

    Args:
        explanation: of its logits only those of the classes that it is about are known; the others are NaN.
        document: what path.json says.
    """

    folder: Path
    explanation: Explanation
    document: dict[str, Any]


Photo = tuple[UserImage | None, str]
"""A photo as it is today, or None and why it cannot be shown."""


def find_photo(document: dict[str, Any], folder: Path) -> Photo:
    """The photo that a document in a folder names, as it is named or from a folder above."""
    about = document["image"]
    problem = f"the photo {shown(about['file'])} is not where it was and is left out"
    for place in (Path(), *folder.resolve().parents):
        try:
            opened = open_image(place / about["file"])
        except (PathxError, ValueError):
            continue
        if opened.sha256 == about["sha256"]:
            return opened, ""
        problem = f"the photo {shown(about['file'])} has changed since and is left out"
    return None, problem


def read_explanation(folder: Path) -> Saved:
    """The explanation in a folder, from path.json and tensors.safetensors."""
    document = read_document(folder / PATH)
    file = folder / FILES["tensors"]
    if not file.is_file():
        raise PathxError(f"{shown(folder)} has no {file.name} to draw from: run again with `save_tensors`")
    try:
        with safe_open(file, "pt") as tensors:
            about = parse_json((tensors.metadata() or {})["pathx"])
            attribution, weight = tensors.get_tensor("attribution"), tensors.get_tensor("weight")
            bias = float(tensors.get_tensor("bias"))
            layer_map = tensors.get_tensor("layer_map") if "layer_map" in tensors.keys() else None  # noqa: SIM118
        same = all(about[key] == document[key] for key in ("image", "region", "model", "target", *SETTINGS))
        target = document["target"]
        logits = torch.full((document["model"]["classes"],), torch.nan)
        other = document.get("against")
        for known in (target, *(() if other is None else (other,))):
            logits[known["index"]] = known["logit"]
        explanation = Explanation(
            target=target["index"],
            path=tuple(map(PathLayer.read, document["layers"])),
            attribution=attribution,
            weight=weight,
            bias=bias,
            score=document["linear_model"]["score"],
            logits=logits,
            hidden_layers=document["model"]["hidden_layers"],
            exact=document["model"]["exact"],
            against=None if other is None else other["index"],
            removal=read_removal(document.get("removal")),
            layer_map=layer_map,
            **{key: document[key] for key in SETTINGS},
        )
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise PathxError(f"{shown(file)} cannot be read ({type(error).__name__}): make it again") from None
    if not same:
        raise PathxError(f"{shown(file)} is of another explanation than {PATH} beside it: make it again")
    return Saved(folder, explanation, document)


def read_decomposition(folder: Path, document: dict[str, Any]) -> tuple[Decomposition, Saved]:
    """The decomposition in a folder, and its whole. Features that were not drawn come back without their maps.

    Args:
        document: what decomposition.json says.
    """
    whole = read_explanation(folder)
    if any(whole.document[key] != document[key] for key in ("image", "model", "target", *SETTINGS)):
        raise PathxError(f"{shown(folder)} holds parts of different runs: run pathx decompose again")
    with understood(folder / DECOMPOSITION):
        made = Decomposition(
            whole=whole.explanation,
            layer=document["layer"],
            units=tuple(map(Unit.read, document["units"])),
            paths=(),
            features=tuple(_feature(folder, entry, whole.explanation) for entry in document["features"]),
            most=sum(entry["folder"] is not None for entry in document["features"]),
        )
        tensors = {layer.layer: {tensor.name for tensor in layer.tensors} for layer in whole.explanation.path}
        if any(unit.tensor not in tensors[made.layer] for unit in made.units):
            raise LookupError("a unit of another layer")
        if any(not one.units or not {*one.units} <= {*range(len(made.units))} for one in made.features):
            raise LookupError("a feature of other units")
    return made, whole


def _feature(folder: Path, entry: dict[str, Any], whole: Explanation) -> Feature:
    tensors = {"attribution": torch.empty(0)}
    if entry["folder"] is not None:
        file = folder / check_feature(entry["folder"]) / FILES["tensors"]
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise PathxError(f"{shown(file)} cannot be read ({type(error).__name__}): make it again") from None
        if tensors["attribution"].shape != whole.attribution.shape:
            raise PathxError(f"{shown(file)} is of another explanation than {PATH}: make it again")
    units = tuple(number - 1 for number in entry["units"])
    place = None if entry["box"] is None else Place(tuple(entry["centre"]), tuple(entry["box"]))
    maps = (tensors["attribution"], tensors.get("path_map"))
    return Feature(entry["feature"], units, entry["contribution"], entry["share"], *maps, place)


def check_feature(name: str) -> str:
    """The name of a feature's folder, which a document may not have anywhere else. Raises PathxError."""
    if not re.fullmatch(r"feature-\d\d+", name):
        raise PathxError(f"{shown(name)} is no folder of a feature: run pathx decompose again")
    return name


def read_contrast(folder: Path, document: dict[str, Any]) -> tuple[Contrast, list[Saved]]:
    """The contrast in a folder, and its explanations.

    Args:
        document: what contrast.json says.
    """
    several = [read_explanation(folder / target["folder"]) for target in document["targets"]]
    for saved, target in zip(several, document["targets"], strict=True):
        same = all(saved.document[key] == document[key] for key in ("image", "model", *SETTINGS))
        if not same or saved.explanation.score != target["score"]:
            raise PathxError(f"{shown(folder)} holds explanations of different runs: run pathx explain again")
    differences = [read_explanation(folder / pair["folder"]).explanation for pair in document["pairs"]]
    explanations = [saved.explanation for saved in several]
    return Contrast.of(explanations, differences=differences, reason=document["reason"] or ""), several


def read_removal(entry: dict[str, Any] | None) -> Removal | None:
    """What a document says of the network without the path's units."""
    if entry is None:
        return None
    against = entry.get("against")
    return Removal(**{**entry, "against": None if against is None else Effect(**against)})
