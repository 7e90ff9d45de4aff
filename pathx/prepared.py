"""A model made ready to be examined: on its device, in its precision, with pictures as batches of its input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pathx.errors import PathxError
from pathx.folders import PictureFile
from pathx.models import LoadedModel
from pathx.network import Network
from pathx.pictures import Picture, open_picture
from pathx.replay import Classifier
from pathx.run import DTYPES, resolve_device
from pathx.targets import resolve_target


@dataclass(frozen=True, eq=False)
class Seen:
    """A picture as the network sees it.

    Args:
        input: (C, H, W).
        target: the predicted class.
    """

    source: PictureFile
    picture: Picture
    input: Tensor
    target: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A loaded model on a device."""

    model: LoadedModel
    module: nn.Module
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def classifier(self) -> Classifier:
        size = self.model.preprocessing.input_size
        return Classifier(self.module, torch.zeros(size, dtype=self.dtype, device=self.device))

    @cached_property
    def network(self) -> Network:
        """The network at one picture."""
        size = self.model.preprocessing.input_size
        return self.classifier.replay(torch.zeros(1, *size, dtype=self.dtype, device=self.device)).network

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """One per class."""
        return self.model.labels_for(self.network.outputs)

    @property
    def about(self) -> dict[str, Any]:
        """What result files say of the model."""
        return {
            "name": self.model.name,
            "weights": self.model.weights,
            "sha256": self.model.sha256,
            "classes": len(self.labels),
        }

    def class_of(self, label: str) -> int | None:
        """The class that a folder's name means, if any."""
        try:
            return resolve_target(label, self.labels)
        except PathxError:
            return None

    def see(
        self, pictures: Sequence[PictureFile], batch_size: int, failed: Callable[[PictureFile, PathxError], None]
    ) -> Iterator[list[Seen]]:
        """Pictures in batches, with what the network says of them; those that cannot be used go to `failed`."""
        size = min(batch_size, self.classifier.chunk)
        for start in range(0, len(pictures), size):
            opened = []
            for source in pictures[start : start + size]:
                try:
                    picture = open_picture(source.file)
                    opened.append((source, picture, self.model.preprocessing(picture.image)))
                except PathxError as error:
                    failed(source, error)
            if not opened:
                continue
            with torch.no_grad():
                logits = self.classifier(torch.stack([entry[2] for entry in opened]).to(self.device, self.dtype))
            batch = []
            for (source, picture, tensor), row in zip(opened, logits, strict=True):
                if bool(row.isfinite().all()):
                    batch.append(Seen(source, picture, tensor.to(self.device, self.dtype), int(row.argmax())))
                else:
                    failed(source, PathxError("the model's output is NaN or infinite; check its weights"))
            if batch:
                yield batch


def prepare(model: LoadedModel, *, device: str = "auto", dtype: str = "float32") -> Prepared:
    """A model on the device that a name means. The model that was given stays where it is."""
    where = resolve_device(device)
    if dtype not in DTYPES:
        raise PathxError(f"dtype is {' or '.join(DTYPES)}, not {dtype!r}", usage=True)
    if where.type == "mps" and dtype == "float64":
        raise PathxError("mps has no float64; use --dtype float32 or --device cpu", usage=True)
    module = model.module if where.type == "cpu" else copy.deepcopy(model.module).to(where)
    return Prepared(model, module, where, DTYPES[dtype])
