"""One pass over many images: for every channel of some hidden layers, where it mattered most, and for which classes.

Memory does not grow with the number of images: there are tensors of each channel's best places, and counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pathx.engine.freeze import Frozen
from pathx.errors import PathxError
from pathx.explanation import Explanation, LayerTensor

MEASURES = ("contribution", "activation")
NOBODY = -1
"""The number of the image in an empty entry."""


@dataclass(eq=False)
class Channels:
    """What is known so far of the channels of one activation; a unit of a vector is a channel.

    Args:
        values: (channels, top) the best values in falling order, -inf in empty entries.
        images: (channels, top) the number of the image of each; of equal values the lower number comes first.
        units: (channels, top) the unit in the channel, as a flat index.
        classes: (channels, top) the predicted class of that image.
        paths: (channels, classes) the number of images whose path the channel is on, by predicted class.
        shares: (channels,) the sum of the channel's shares of its layer's contributions, by magnitude.
        totals: (channels,) the sum of the mean activations of all images.
    """

    tensor: LayerTensor
    layer: int
    values: Tensor
    images: Tensor
    units: Tensor
    classes: Tensor
    paths: Tensor
    shares: Tensor
    totals: Tensor

    NAMES = ("values", "images", "units", "classes", "paths", "shares", "totals")

    @classmethod
    def empty(cls, tensor: LayerTensor, layer: int, top: int, classes: int) -> Channels:
        channels = tensor.shape[tensor.channel_dim]
        nobody = torch.full((channels, top), NOBODY, dtype=torch.long)
        return cls(
            tensor,
            layer,
            values=torch.full((channels, top), -math.inf, dtype=torch.float64),
            images=nobody,
            units=nobody.clone(),
            classes=nobody.clone(),
            paths=torch.zeros(channels, classes, dtype=torch.int32),
            shares=torch.zeros(channels, dtype=torch.float64),
            totals=torch.zeros(channels, dtype=torch.float64),
        )

    @property
    def top(self) -> int:
        return self.values.shape[1]

    @property
    def size(self) -> int:
        """Units per channel."""
        return prod(self.tensor.shape) // len(self.values)

    def by_channel(self, values: Tensor) -> Tensor:
        """(B, units of the tensor) as (B, channels, units per channel)."""
        if self.tensor.channel_dim == 0:
            return values.reshape(len(values), len(self.values), self.size)
        return values.reshape(len(values), self.size, len(self.values)).mT

    def numbers(self, channel: Tensor, unit: Tensor) -> Tensor:
        """Units of channels as flat indices of the tensor."""
        first = self.tensor.channel_dim == 0
        return channel * self.size + unit if first else unit * len(self.values) + channel

    def index(self, channel: int, unit: int) -> tuple[int, ...]:
        """A unit of a channel as an index of the tensor."""
        flat = self.numbers(torch.tensor(channel), torch.tensor(unit))
        return tuple(int(place) for place in torch.unravel_index(flat, self.tensor.shape))

    def offer(self, values: Tensor, images: Tensor, units: Tensor, classes: Tensor) -> None:
        """Insert new entries, (channels, n) each, among the best."""
        offered = {"values": values, "images": images, "units": units, "classes": classes}
        joined = {
            name: torch.cat([getattr(self, name), new.to(getattr(self, name))], 1) for name, new in offered.items()
        }
        by_number = torch.argsort(joined["images"], dim=1, stable=True)
        ranked = torch.argsort(joined["values"].gather(1, by_number), dim=1, descending=True, stable=True)
        best = by_number.gather(1, ranked)[:, : self.top]
        for name, both in joined.items():
            setattr(self, name, both.gather(1, best))

    def add(self, other: Channels) -> None:
        """Add what is known of the same channels in other images."""
        self.offer(other.values, other.images, other.units, other.classes)
        for name in ("paths", "shares", "totals"):
            getattr(self, name).add_(getattr(other, name))


@dataclass(eq=False)
class Gathered:
    """What a pass over images has gathered so far.

    Args:
        by: a member of MEASURES.
        channels: by the name of the activation, layers from the output down.
        count: how many images were seen.
        position: the number of images in its list that the pass has done, including those that could not be used.
        hashes: of the images that are references, by their numbers in the folder.
        failed: images that could not be used, and why.
    """

    by: str
    channels: dict[str, Channels] = field(default_factory=dict)
    count: int = 0
    position: int = 0
    hashes: dict[int, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, layers: Mapping[int, Sequence[LayerTensor]], *, by: str, top: int, classes: int) -> Gathered:
        """An empty state for the activations of some hidden layers."""
        if by not in MEASURES:
            raise PathxError(f"units are ranked by {' or '.join(MEASURES)}, not {by!r}", usage=True)
        if top < 1:
            raise PathxError(f"{top} references are too few; keep 1 or more", usage=True)
        tensors = [(layer, tensor) for layer in sorted(layers, reverse=True) for tensor in layers[layer]]
        return cls(by, {tensor.name: Channels.empty(tensor, layer, top, classes) for layer, tensor in tensors})

    def see(self, frozen: Frozen, explanations: Sequence[Explanation], images: Mapping[int, str]) -> None:
        """Add a batch.

        Args:
            explanations: of the predicted class of each image.
            images: the hash of each image, by its number in the whole folder.
        """
        number, target = torch.tensor([*images]), torch.tensor([made.target for made in explanations])
        gates = {gate.name: gate for layer in frozen.network.layers for gate in layer}
        for name, own in self.channels.items():
            activation = own.by_channel(frozen.activation(gates[name]).detach().cpu().flatten(1))
            own.totals += activation.mean(2).double().sum(0)
            contribution, shares = _on_paths(explanations, own)
            own.shares += shares.sum(0)
            own.paths.T.index_add_(0, target, (contribution > -math.inf).any(2).int())
            if self.by == "activation":
                best, unit = activation.double().max(2)
                best = best.masked_fill(best <= 0, -math.inf)
            else:
                best, unit = contribution.max(2)
            seen = best > -math.inf
            own.offer(
                best.T,
                torch.where(seen, number[:, None], NOBODY).T,
                torch.where(seen, unit, NOBODY).T,
                torch.where(seen, target[:, None], NOBODY).T,
            )
        self.count += len(images)
        self._keep_hashes(images)

    def add(self, other: Gathered) -> None:
        """Add a pass over other images of the same folder."""
        for name, own in self.channels.items():
            own.add(other.channels[name])
        self.count += other.count
        self.position += other.position
        self.failed |= other.failed
        self._keep_hashes(other.hashes)

    def _keep_hashes(self, more: Mapping[int, str]) -> None:
        used = {number for own in self.channels.values() for number in own.images.unique().tolist()}
        self.hashes = {number: digest for number, digest in {**self.hashes, **more}.items() if number in used}

    def to_bytes(self, key: str) -> bytes:
        """The content of a file for `read`.

        Args:
            key: equal for passes that would gather the same.
        """
        parts = ((name, own, part) for name, own in self.channels.items() for part in own.NAMES)
        tensors = {f"{name}.{part}": getattr(own, part).contiguous() for name, own, part in parts}
        facts = {
            "count": self.count,
            "position": self.position,
            "hashes": [*self.hashes.items()],
            "failed": self.failed,
        }
        return save(tensors, {"key": key, "facts": json.dumps(facts)})

    def read(self, file: Path, key: str) -> Gathered | None:
        """What an equal pass left in a file; None if that is missing, damaged or from another pass."""
        if not file.is_file():
            return None
        try:
            with safe_open(file, "pt") as content:
                about = content.metadata() or {}
                if about.get("key") != key:
                    return None
                channels = {}
                for name, own in self.channels.items():
                    parts = {part: content.get_tensor(f"{name}.{part}") for part in own.NAMES}
                    if any(parts[part].shape != getattr(own, part).shape for part in own.NAMES):
                        return None
                    channels[name] = Channels(own.tensor, own.layer, **parts)
            facts = json.loads(about["facts"])
            hashes = {int(number): str(digest) for number, digest in facts["hashes"]}
            return Gathered(
                self.by, channels, int(facts["count"]), int(facts["position"]), hashes, dict(facts["failed"])
            )
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None


def _on_paths(explanations: Sequence[Explanation], own: Channels) -> tuple[Tensor, Tensor]:
    """(B, channels, units) contributions of kept units, -inf elsewhere; and (B, channels) each channel's share, by magnitude,
    of what its whole layer contributes."""
    size = prod(own.tensor.shape)
    kept = torch.full((len(explanations), size), -math.inf, dtype=torch.float64)
    totals = torch.zeros(len(explanations), 1, dtype=torch.float64)
    for number, explanation in enumerate(explanations):
        for layer in (layer for layer in explanation.path if layer.layer == own.layer):
            units, values = (part.detach().cpu() for part in layer.contributions())
            names = [tensor.name for tensor in layer.tensors]
            first = sum(prod(tensor.shape) for tensor in layer.tensors[: names.index(own.tensor.name)])
            here = (units >= first) & (units < first + size)
            kept[number, units[here] - first] = values[here].double()
            totals[number] = values.double().abs().sum()
    channels = own.by_channel(kept)
    magnitude = channels.abs().masked_fill(channels == -math.inf, 0.0).sum(2)
    return channels, magnitude / totals.clamp(min=1e-300)
