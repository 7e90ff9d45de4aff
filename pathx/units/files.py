"""The files of gathered units: contact sheets, tensors and units.json, written and read."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from pathx.drawing.page import channel_sheet, crop
from pathx.drawing.render import png
from pathx.drawing.words import count_of
from pathx.engine.freeze import freeze
from pathx.engine.units import unit_maps
from pathx.errors import PathxError, shown
from pathx.explanation import LayerTensor
from pathx.images.read import UserImage, open_image
from pathx.pipeline import Note, in_batches, no_notes, once, tensor_of
from pathx.results.files import replace_folder
from pathx.results.schema import (
    UNFIT,
    channel_key,
    created_by,
    document_bytes,
    misfit,
    read_document,
    read_names,
    shape_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pathx.pipeline import Prepared

SCHEMA = "pathx/units@1"


@dataclass(frozen=True)
class Reference:
    """An image in which a channel mattered, and the place there.

    Args:
        file: the image, as the user named it.
        sha256: of the image's file.
        index: the unit, (channel, y, x) in a feature map, (token, channel) in a sequence, (i,) in a vector.
        receptive_field: (left, top, right, bottom) in pixels of the model's input.
        value: its contribution to the predicted class, or its activation.
        label: the predicted class.
        folder: the image's label, from the name of its folder.
    """

    file: str
    sha256: str
    index: tuple[int, ...]
    receptive_field: tuple[int, ...]
    value: float
    label: str
    folder: str | None


@dataclass(frozen=True)
class Channel:
    """What one channel of an activation looks for.

    Args:
        references: by falling value.
        images: the number of images whose path the channel is on.
        share: its mean share of its layer's contributions there, by magnitude; 0 if it is on no path.
        classes: the predicted classes of these images and their counts, the most frequent first.
        mean: its mean activation over all images.
        given: what people call it, from names.json.
    """

    layer: int
    tensor: str
    channel: int
    references: tuple[Reference, ...]
    images: int
    share: float
    classes: tuple[tuple[str, int], ...]
    mean: float
    given: str = ""

    @property
    def name(self) -> str:
        return f"{self.tensor} [{self.channel}]"

    @cached_property
    def counts(self) -> list[tuple[str, int]]:
        """The classes of the references, the most frequent first, then by name."""
        found = Counter(reference.label for reference in self.references)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))

    @property
    def words(self) -> str:
        """`tabby 9, tiger cat 4, lynx 2 of 16`, after the name that people gave it."""
        return f"{self.given}: {self._class_words}" if self.given else self._class_words

    @property
    def _class_words(self) -> str:
        if not self.counts:
            return "no references"
        shown = ", ".join(f"{label} {count}" for label, count in self.counts[:3])
        return f"{shown}{', …' * (len(self.counts) > 3)} of {len(self.references)}"

    @property
    def entropy(self) -> float:
        """The entropy of the references' classes, in bits: 0 if there is one class."""
        total = len(self.references)
        return max(0.0, -sum(count / total * math.log2(count / total) for _, count in self.counts))

    def document(self) -> dict[str, Any]:
        """Its entry in units.json."""
        return {
            "channel": self.channel,
            "words": self._class_words,
            "entropy": self.entropy,
            "mean": self.mean,
            "paths": {"images": self.images, "share": self.share, "classes": [list(pair) for pair in self.classes]},
            "references": [
                {
                    **asdict(reference),
                    "index": list(reference.index),
                    "receptive_field": list(reference.receptive_field),
                }
                for reference in self.references
            ],
        }


@dataclass(frozen=True)
class Units:
    """What the channels of some hidden layers look for, over a folder of images.

    Args:
        about: the `model`, `preprocessing` and `settings`.
        tensors: every activation by name, layers from the output down.
        layers: the hidden layer of each.
        channels: by activation and number.
        images: the number of images.
        failed: images that could not be used, and why.
    """

    about: Mapping[str, Any]
    tensors: Mapping[str, LayerTensor]
    layers: Mapping[str, int]
    channels: Mapping[tuple[str, int], Channel]
    images: int
    failed: Mapping[str, str]

    def of(self, tensor: str, index: Sequence[int]) -> Channel | None:
        """What the channel of a unit looks for, if it was gathered."""
        known = self.tensors.get(tensor)
        return None if known is None or not index else self.channels.get((tensor, int(index[known.channel_dim])))

    def strongest(self, tensor: str) -> list[Channel]:
        """The channels of an activation that are on paths, by their total share."""
        own = [channel for (name, _), channel in self.channels.items() if name == tensor and channel.references]
        return sorted(own, key=lambda channel: (-channel.images * channel.share, channel.channel))

    def named(self, names: Mapping[str, str]) -> Units:
        """The same with names for channels, by `tensor[channel]`."""
        channels = {
            place: replace(channel, given=names.get(channel_key(*place), ""))
            for place, channel in self.channels.items()
        }
        return replace(self, channels=channels)

    def document(self, created_by: Mapping[str, Any]) -> dict[str, Any]:
        """units.json."""
        layers: dict[int, list[dict[str, Any]]] = {}
        for name, tensor in self.tensors.items():
            own = [channel.document() for (place, _), channel in self.channels.items() if place == name]
            layers.setdefault(self.layers[name], []).append({**tensor.document(), "channels": own})
        return {
            "schema": SCHEMA,
            **self.about,
            "images": self.images,
            "failed": dict(self.failed),
            "layers": [{"layer": layer, "tensors": tensors} for layer, tensors in layers.items()],
            "created_by": dict(created_by),
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Units:
        """The same from units.json. Raises KeyError, TypeError or ValueError where it is not such a document."""
        tensors, layers, channels = {}, {}, {}
        for layer in document["layers"]:
            for tensor in layer["tensors"]:
                name = str(tensor["name"])
                tensors[name], layers[name] = LayerTensor.read(tensor), int(layer["layer"])
                for entry in tensor["channels"]:
                    channels[name, int(entry["channel"])] = _channel(int(layer["layer"]), name, entry)
        about = {key: document[key] for key in ("model", "preprocessing", "settings")}
        return cls(about, tensors, layers, channels, int(document["images"]), dict(document["failed"]))


def _channel(layer: int, tensor: str, entry: Mapping[str, Any]) -> Channel:
    references = tuple(
        Reference(
            str(one["file"]),
            str(one["sha256"]),
            tuple(map(int, one["index"])),
            tuple(map(int, one["receptive_field"])),
            float(one["value"]),
            str(one["label"]),
            None if one["folder"] is None else str(one["folder"]),
        )
        for one in entry["references"]
    )
    paths = entry["paths"]
    classes = tuple((str(label), int(count)) for label, count in paths["classes"])
    return Channel(
        *(layer, tensor, int(entry["channel"]), references),
        images=int(paths["images"]),
        share=float(paths["share"]),
        classes=classes,
        mean=float(entry["mean"]),
    )


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
    return f"on {count_of(channel.images, 'path')}, with {channel.share:.0%} of the layer"


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
    if (wrong := misfit(document, shape_of("units"))) is not None:
        raise PathxError(f"{shown(file)} is damaged ({wrong}): gather the units again", usage=True)
    try:
        return Units.read(document).named(read_names([file.parent], document["model"]["sha256"]))
    except UNFIT:
        raise PathxError(f"{shown(file)} is damaged: gather the units again", usage=True) from None


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
