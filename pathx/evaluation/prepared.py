"""A model made ready to be examined: on its device, in its precision, with images as batches of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pathx.engine.device import in_parts, resolve_device, resolve_dtype
from pathx.engine.network import Network
from pathx.engine.replay import Classifier
from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.images.read import UserImage
from pathx.models.inputs import Input, read_input
from pathx.models.labels import resolve_target
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class SeenImage:
    """An image as the network sees it.

    Args:
        input: (C, H, W).
        target: the predicted class.
    """

    source: ImageFile
    image: UserImage
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
        """The network at one image."""
        size = self.model.preprocessing.input_size
        return self.classifier.replay(torch.zeros(1, *size, dtype=self.dtype, device=self.device)).network

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """One per class."""
        return self.model.labels_for(self.network.outputs)

    @property
    def about(self) -> dict[str, Any]:
        """What result files say of the model."""
        return {**self.model.identity, "classes": len(self.labels)}

    def class_of(self, label: str) -> int | None:
        """The class that a folder's name means, if any."""
        try:
            return resolve_target(label, self.labels)
        except PathxError:
            return None

    def see(
        self, images: Sequence[ImageFile], batch_size: int, failed: Callable[[ImageFile, PathxError], None]
    ) -> Iterator[list[SeenImage]]:
        """Images in batches, with what the network says of them; those that cannot be used go to `failed`."""
        for batch in self.batches(images, batch_size):
            if seen := self.seen(read_images(batch, self.model.preprocessing), failed):
                yield seen

    def batches(self, images: Sequence[ImageFile], batch_size: int) -> list[Sequence[ImageFile]]:
        """Images, as many at once as is asked for and the network takes."""
        size = min(batch_size, self.classifier.chunk)
        return [images[start : start + size] for start in range(0, len(images), size)]

    def seen(self, batch: Sequence[Opened], failed: Callable[[ImageFile, PathxError], None]) -> list[SeenImage]:
        """What the network says of a batch; those of it that cannot be used go to `failed`."""
        opened = []
        for source, read in batch:
            if isinstance(read, PathxError):
                failed(source, read)
            else:
                opened.append((source, read))
        if not opened:
            return []

        def logits(part: Sequence[tuple[ImageFile, Input]]) -> Tensor:
            with torch.no_grad():
                return self.classifier(torch.stack([read.tensor for _, read in part]).to(self.device, self.dtype))

        found = []
        for (source, read), row in zip(opened, torch.cat(list(in_parts(opened, logits))), strict=True):
            if bool(row.isfinite().all()):
                found.append(SeenImage(source, read.image, read.tensor.to(self.device, self.dtype), int(row.argmax())))
            else:
                failed(source, PathxError("the model's output is NaN or infinite; check its weights"))
        return found


Opened = tuple[ImageFile, Input | PathxError]
"""An image with what the network is to see of it, or why there is nothing."""


def read_images(batch: Sequence[ImageFile], preprocessing: Preprocessing) -> list[Opened]:
    """Read the images of a batch."""

    def read(source: ImageFile) -> Input | PathxError:
        try:
            return source.error or read_input(source.source, preprocessing)
        except PathxError as error:
            return error

    return [(source, read(source)) for source in batch]


def prepare(model: LoadedModel, *, device: str = "auto", dtype: str = "float32") -> Prepared:
    """A model on the device that a name means. The model that was given stays where it is."""
    where = resolve_device(device)
    return Prepared(model, model.on(where), where, resolve_dtype(dtype, where))
