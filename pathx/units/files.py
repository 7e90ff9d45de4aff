"""The files of gathered units: contact sheets, tensors and units.json, written and read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from pathx.drawing.references import channel_sheet, crop
from pathx.drawing.render import png
from pathx.drawing.words import count_of
from pathx.engine.freeze import freeze
from pathx.engine.units import unit_maps
from pathx.errors import PathxError, shown
from pathx.images.read import UserImage, open_image
from pathx.pipeline import Note, in_batches, no_notes, once, tensor_of
from pathx.results.files import UNFIT, created_by, document_bytes, read_document, read_names, replace_folder
from pathx.results.schema import misfit
from pathx.units.references import SCHEMA, Channel, Reference, Units

if TYPE_CHECKING:
    from torch import Tensor

    from pathx.pipeline import Prepared

DOCUMENT, TENSORS = "units.json", "tensors.safetensors"
DRAWN, SHOWN = 24, 8
"""The strongest channels on a sheet, and references of each."""

_PHOTOS, _MAPS = 8, 32  # photos per forward pass, and units per computation of what they saw


def _open_photo(reference: Reference, note: Note) -> UserImage | None:
    """The image of a reference; None, with a note, if it is gone or has changed."""
    try:
        image = open_image(reference.file)
        if image.sha256 == reference.sha256:
            return image
        note(f"{shown(reference.file)} has changed since units were gathered from it")
    except PathxError as error:
        note(str(error))
    return None


def crops(
    prepared: Prepared, references: Sequence[tuple[str, Reference]], note: Note
) -> dict[tuple[str, Reference], Image.Image]:
    """The crop of each reference: the part of its photo in the unit's field, darkened where the unit did not look.

    The network runs once per photo, on several photos at once. References whose photo is gone are left out.
    """
    by_photo: dict[tuple[str, str], list[tuple[str, Reference]]] = {}
    for tensor, reference in dict.fromkeys(references):
        by_photo.setdefault((reference.file, reference.sha256), []).append((tensor, reference))
    made: dict[tuple[str, Reference], Image.Image] = {}
    for batch in in_batches(list(by_photo.values()), min(_PHOTOS, prepared.classifier.chunk)):
        opened = [
            (image.reduce(), tensor_of(image, prepared.model.preprocessing), own)
            for own in batch
            if (image := _open_photo(own[0][1], note)) is not None
        ]
        if opened:
            made |= _cut(opened, prepared)
    return made


def _cut(
    photos: Sequence[tuple[UserImage, Tensor, Sequence[tuple[str, Reference]]]], prepared: Prepared
) -> dict[tuple[str, Reference], Image.Image]:
    """The crops of a few photos, each given with its input and the references to it."""
    inputs = torch.stack([tensor for _, tensor, _ in photos]).to(prepared.device, prepared.dtype)
    region = prepared.model.preprocessing.region
    regions = [image.on_pixels(region(image.width, image.height)) for image, _, _ in photos]
    frozen, (height, width) = freeze(prepared.module, inputs), inputs.shape[-2:]
    wanted = [(number, *one) for number, (_, _, own) in enumerate(photos) for one in own]
    made = {}
    for tensor in dict.fromkeys(
        name for _, name, _ in wanted
    ):  # units of one activation have windows of one size, which is faster
        for part in in_batches([entry for entry in wanted if entry[1] == tensor], _MAPS):
            maps = unit_maps(frozen, [(number, tensor, reference.index) for number, _, reference in part])
            for (number, _, reference), saw in zip(part, maps, strict=True):
                box = reference.receptive_field
                made[tensor, reference] = crop(photos[number][0].pixels, regions[number], box, (width, height), saw)
    return made


def save_units(
    units: Units, folder: Path, prepared: Prepared, *, draw: bool = True, note: Note = no_notes
) -> list[str]:
    """Write all files of gathered units. Returns their names, the document last."""
    device, dtype = str(prepared.device), str(prepared.dtype).removeprefix("torch.")
    names = []
    with replace_folder(folder) as new:
        drawn = _drawn(units) if draw else []
        parts = crops(prepared, drawn, once(note))
        for tensor in units.tensors if parts else ():
            picture = tensor_sheet(units, tensor, parts, prepared.model.preprocessing.input_size)
            if picture is not None:
                names.append(sheet_name(units, tensor))
                new.put(names[-1], png(picture))
        new.put(TENSORS, _tensor_bytes(units))
        new.put(DOCUMENT, document_bytes(units.document(created_by(device=device, dtype=dtype))))
        old = [file.name for file in folder.glob("layer-*.png")]
        new.commit([DOCUMENT, TENSORS, *old])
    return [*names, TENSORS, DOCUMENT]


def sheet_name(units: Units, tensor: str) -> str:
    """`layer-17.png`; if the layer has several activations, with a number."""
    layer = units.layers[tensor]
    alike = [name for name, number in units.layers.items() if number == layer]
    return f"layer-{layer}.png" if len(alike) == 1 else f"layer-{layer}-{alike.index(tensor) + 1}.png"


def _drawn(units: Units) -> list[tuple[str, Reference]]:
    """The references that contact sheets show."""
    return [
        (tensor, reference)
        for tensor in units.tensors
        for channel in units.strongest(tensor)[:DRAWN]
        for reference in channel.references[:SHOWN]
    ]


def tensor_sheet(
    units: Units, tensor: str, parts: Mapping[tuple[str, Reference], Image.Image], size: Sequence[int]
) -> Image.Image | None:
    """The strongest channels of an activation with crops of what they look for; None if it has none.

    Args:
        parts: the crops, from `crops`.
        size: (C, H, W) of the model's input.
    """
    rows = []
    for channel in units.strongest(tensor)[:DRAWN]:
        pictures = [parts[tensor, one] for one in channel.references[:SHOWN] if (tensor, one) in parts]
        if pictures:
            rows.append((channel.name, f"{channel.words}; {on_paths(channel)}", pictures))
    if not rows:
        return None
    settings = units.about["settings"]
    _, height, width = size
    notes = [f"layer {units.layers[tensor]}, {units.images} images, ranked by {settings['by']}"]
    if all(
        _is_whole(reference, (width, height)) for channel in units.strongest(tensor) for reference in channel.references
    ):
        notes.append(
            "Units of this layer can see the whole image; the crops are whole photos, bright where each looked."
        )
    return channel_sheet(tensor, notes, rows)


def _is_whole(reference: Reference, size: tuple[int, int]) -> bool:
    return not reference.receptive_field or reference.receptive_field == (0, 0, *size)


def on_paths(channel: Channel) -> str:
    """How often a channel is on a path, in words."""
    if not channel.images:
        return "on no path"
    return f"on {count_of(channel.images, 'path')}, {channel.share:.0%} of its layer there"


def _tensor_bytes(units: Units) -> bytes:
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for tensor, about in units.tensors.items():
        own = [units.channels.get((tensor, number)) for number in range(about.shape[about.channel_dim])]
        tensors[f"means.{tensor}"] = torch.tensor([0.0 if one is None else one.mean for one in own])
        tensors[f"paths.{tensor}"] = torch.tensor([0 if one is None else one.images for one in own])
        tensors[f"shares.{tensor}"] = torch.tensor([0.0 if one is None else one.share for one in own])
        values = [[reference.value for reference in one.references] if one else [] for one in own]
        longest = max(map(len, values), default=0)
        filled = [row + [float("nan")] * (longest - len(row)) for row in values]
        tensors[f"values.{tensor}"] = torch.tensor(filled, dtype=torch.float64).reshape(len(own), longest)
    return bytes(save(tensors, {"schema": SCHEMA}))


_SHAPE = {
    "model": {"name": str, "weights": str, "sha256": str},
    "preprocessing": dict,
    "settings": {"by": str},
    "images": int,
    "layers": list,
}


def read_units(folder: str | Path) -> Units:
    """The gathered units in a folder, with the names of channels in its names.json."""
    file = Path(folder) / DOCUMENT
    if not os.path.exists(file):
        raise PathxError(
            f"there is no {DOCUMENT} in {shown(folder)}: gather units there first with pathx units", usage=True
        )
    try:
        document = read_document(file)
    except PathxError as error:
        raise PathxError(str(error), usage=True) from None
    if document.get("schema") != SCHEMA:
        raise PathxError(f"{shown(file)} is not of the schema {SCHEMA}: gather the units again", usage=True)
    if (wrong := misfit(document, _SHAPE)) is not None:
        raise PathxError(f"{shown(file)} is damaged ({wrong}): gather the units again", usage=True)
    try:
        return Units.read(document).named(read_names([file.parent], document["model"]["sha256"]))
    except UNFIT as error:
        raise PathxError(
            f"{shown(file)} is damaged ({type(error).__name__}): gather the units again", usage=True
        ) from None


def check_same_model(
    units: Units, folder: str | Path, model: Mapping[str, Any], preprocessing: Mapping[str, Any]
) -> None:
    """Refuse units of another model, or of the same model with other preprocessing."""
    theirs = units.about["model"]
    if any(theirs.get(key) != model.get(key) for key in ("sha256", "made_of")):
        which = f"{theirs['name']}, weights {theirs['weights']}"
        raise PathxError(
            f"the units in {shown(folder)} are of another model ({which}), not of this {model['name']}: gather them again",
            usage=True,
        )
    other = [
        key for key, value in units.about["preprocessing"].items() if _plain(preprocessing.get(key)) != _plain(value)
    ]
    if other:
        raise PathxError(
            f"the units in {shown(folder)} were gathered with other preprocessing ({', '.join(other)}): gather them again",
            usage=True,
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
