"""Gathered units for people: the references of every channel, their classes, and units.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from pathx.explanation import LayerTensor
from pathx.results.files import channel_key

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
