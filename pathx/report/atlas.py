"""The atlas of a network's channels: by layer, what each looks for, how specific it is, and on whose paths it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pathx.report.page import page
from pathx.report.references import References
from pathx.results.files import channel_key, read_names, understood

PICTURED = 24
"""Channels of an activation that have pictures, the strongest; the others are listed."""

Shown = Mapping[str, Sequence[tuple[str, str]]]
"""By channel, file and address of the explanations whose path it is on."""


def atlas_title(file: Path) -> str:
    """What the page is called."""
    return f"What channels look for: {file.parent.name}"


def atlas_page(file: Path, document: dict[str, Any], references: References, shown: Shown | None = None) -> str:
    """The page of a units.json. Raises PathxError.

    Args:
        shown: explanations that a gallery has a page for.
    """
    with understood(file):
        model = document["model"]
        data = {
            "kind": "units",
            "title": atlas_title(file),
            "model": {key: model[key] for key in ("name", "sha256")},
            "images": document["images"],
            "by": document["settings"]["by"],
            "names": read_names([file.parent, *file.resolve().parent.parents], model["sha256"]),
            "layers": [
                {"layer": layer["layer"], "tensors": [_tensor(one, references, model) for one in layer["tensors"]]}
                for layer in document["layers"]
            ],
            "shown": shown or {},
        }
        return page("atlas.js", data["title"], data)


def _tensor(tensor: dict[str, Any], references: References, model: dict[str, Any]) -> dict[str, Any]:
    """An activation, its channels by what they carried in all."""
    used = [one for one in tensor["channels"] if one["references"]]
    used.sort(key=lambda one: -one["paths"]["images"] * one["paths"]["share"])
    pictured = [(tensor["name"], one["channel"]) for one in used[:PICTURED]]
    known = references.of(pictured, model["sha256"], PICTURED)
    channels = []
    for one in used:
        crops = known.get(channel_key(tensor["name"], one["channel"]), {}).get("crops", [])
        about = {key: one[key] for key in ("channel", "words", "paths")}
        channels.append({**about, "specificity": specificity(one), "crops": crops, "files": _files(one)})
    return {"name": tensor["name"], "channels": channels}


def specificity(channel: dict[str, Any]) -> float | None:
    """1 where all references of a channel are of one class, 0 where each is of another; None for a single one."""
    count = len(channel["references"])
    return 1 - float(channel["entropy"]) / math.log2(count) if count > 1 else None


def _files(channel: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(str(one["file"]) for one in channel["references"]))
