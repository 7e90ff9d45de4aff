"""A network that was loaded, and what belongs to it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from pathx.errors import PathxError, kind_in_words, reason_of
from pathx.images.read import open_image
from pathx.models.labels import resolve_target
from pathx.models.preprocessing import Preprocessing
from pathx.regular import sha256_of

MADE_OF = "made_of"


def made_of(files: Iterable[str | Path] = (), arguments: Mapping[str, Any] | None = None) -> dict[str, str]:
    """For `origin`: a hash of what a network was made of beside its weights; nothing where there is nothing else.

    Args:
        files: code, configuration, data beside a file. Their names do not matter: machines have them in other places.
        arguments: of the function that built it.
    """
    everything = [sorted({sha256_of(file) for file in files}), dict(arguments or {})]
    data = json.dumps(everything, sort_keys=True, default=repr).encode()
    return {MADE_OF: hashlib.sha256(data).hexdigest()} if any(everything) else {}


@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
    """A network ready to be explained, and what belongs to it.

    Args:
        module: in eval mode, on the CPU.
        name: torchvision's name, or the file's.
        weights: `bundled`, torchvision's name such as `IMAGENET1K_V1`, `none`, or the name of the file they are from.
        sha256: of the file; of the weights themselves where a library supplied them or there is no file.
        labels: one per class, or empty for a file that brings none; see `labels_for`.
        origin: where the weights came from: `source`, `name` and, where the source has one, `revision`; `preprocessing`, the
            torchvision weights whose preprocessing is used for those of a file; `made_of`, see the function of that name.
        notes: what was taken for granted, and a user may know better.
    """

    module: nn.Module
    name: str
    weights: str
    sha256: str
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    origin: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = "x".join(map(str, self.preprocessing.input_size))
        labels = f"{len(self.labels)} labels" if self.labels else "no labels"
        return f"<LoadedModel {self.name}: weights {self.weights}, input {size}, {labels}>"

    def class_of(self, label: str) -> int:
        """The number of a class by its label, or by its number as text."""
        if not self.labels:
            raise PathxError(f"{self.name} brings no labels: give the number of the class", usage=True)
        return resolve_target(label, self.labels)

    def read_images(self, images: Any) -> tuple[Tensor, list[tuple[Any, ...]]]:
        """The network's inputs (B, …), and of each image the photo and the region that the network sees of it.

        Args:
            images: an image as Pillow opens it, the path of one, or a list of these.
        """
        several = images if isinstance(images, (list, tuple)) else [images]
        photos = [self._photo(one) for one in several]
        if not photos:
            raise PathxError("there are no images in the list", usage=True)
        inputs = [self.preprocessing(photo) for photo in photos]
        return torch.stack(inputs), [(photo, self.preprocessing.region(*photo.size)) for photo in photos]

    def _photo(self, image: Any) -> Image.Image:
        if isinstance(image, Image.Image):
            return ImageOps.exif_transpose(image)
        if isinstance(image, (str, PathLike)):
            read = open_image(os.fspath(image))
            return read.layer if read.layer is not None and self.preprocessing.input_size[0] == 4 else read.pixels
        raise PathxError(
            f"images must be a tensor (B, …), an image of Pillow, a path, or a list of these, not {kind_in_words(image)}",
            usage=True,
        )

    @property
    def identity(self) -> dict[str, str]:
        """What tells this network from every other one, beside its preprocessing and labels."""
        own = {"name": self.name, "weights": self.weights, "sha256": self.sha256}
        return own | {key: self.origin[key] for key in (MADE_OF,) if key in self.origin}

    def labels_for(self, classes: int) -> tuple[str, ...]:
        """One label per class of a network with that many outputs; one logit means two classes."""
        if not self.labels:
            return ("negative", "positive") if classes == 1 else tuple(f"class {index}" for index in range(classes))
        expected = 2 if classes == 1 else classes
        if len(self.labels) != expected:
            found = f"{len(self.labels)} labels were given, but {self.name} has {expected} classes"
            raise PathxError(f"{found}: give one label per class", usage=True)
        return self.labels

    def on(self, device: torch.device) -> nn.Module:
        """The network on a device: itself on the CPU, elsewhere a copy."""
        if device.type == "cpu":
            return self.module
        twin = _copy_of(self.module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gradients that copies of TorchScript's weights have not got
            return twin.to(device)


def _copy_of(module: nn.Module) -> nn.Module:
    """A copy with tensors of its own, those included that were computed from others, as weight normalisation does."""
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    try:
        return copy.deepcopy(module, {id(one): one.detach().clone() for one in held if one.grad_fn is not None})
    except Exception as error:  # of code that others wrote
        problem = f"the network cannot be copied to another device ({reason_of(error)})"
        raise PathxError(f"{problem}: use `device` cpu, or save it with torch.export.save", usage=True) from error
