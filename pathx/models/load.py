"""`load_model`: a model by name or file, with its preprocessing and labels.

No pickle is ever run: state dicts come from safetensors or through `weights_only=True`, and torch.export archives are
rebuilt from their tensors and their checked graph. TorchScript files are programs. Each source has a module, which is
imported when a model comes from there.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from pathx.errors import PathxError, kind_in_words, reason_of
from pathx.images.read import open_image
from pathx.models.labels import read_labels, resolve_target
from pathx.models.preprocessing import EXAMPLE, Preprocessing, check_values, complete, read_sidecar, sidecar_beside
from pathx.regular import sha256_of

DEFAULT_MODEL = "squeezenet1_1"


@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
    """A network ready to be explained, and what belongs to it.

    Args:
        module: in eval mode, on the CPU.
        name: torchvision's name, or the file's.
        weights: `bundled`, torchvision's name such as `IMAGENET1K_V1`, `none`, or the name of the file they are from.
        sha256: of the file, or of the weights if a library supplied them or there is no file.
        labels: one per class, or empty if the model has none; see `labels_for`.
        origin: where the weights came from: `source`, `name` and, where the source has one, `revision`; `preprocessing`, the
            torchvision weights whose preprocessing is used for those of a file; `made_of`, see the function of that name.
        notes: assumptions that the user may want to correct.
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
        """The network's inputs (B, …), and for each image the photo and the region of it that the network sees.

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
            return open_image(os.fspath(image)).for_channels(self.preprocessing.input_size[0])
        raise PathxError(
            f"images must be a tensor (B, …), an image of Pillow, a path, or a list of these, not {kind_in_words(image)}",
            usage=True,
        )

    @property
    def identity(self) -> dict[str, str]:
        """What identifies the network, apart from preprocessing and labels."""
        about = {"name": self.name, "weights": self.weights, "sha256": self.sha256}
        return about | {key: value for key, value in self.origin.items() if key == "made_of"}

    def labels_for(self, classes: int) -> tuple[str, ...]:
        """The labels of a network with that many outputs; one logit means two classes."""
        if not self.labels:
            return ("negative", "positive") if classes == 1 else tuple(f"class {index}" for index in range(classes))
        expected = 2 if classes == 1 else classes
        if len(self.labels) != expected:
            found = f"{len(self.labels)} labels were given, but {self.name} has {expected} classes"
            raise PathxError(f"{found}: give one label per class", usage=True)
        return self.labels

    def on(self, device: torch.device) -> nn.Module:
        """The network on a device: itself on the CPU, otherwise a copy."""
        if device.type == "cpu":
            return self.module
        twin = _copy_of(self.module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about gradients of TorchScript's weights
            return twin.to(device)


def _copy_of(module: nn.Module) -> nn.Module:
    """A deep copy, which also copies tensors that were computed from others, as by weight normalisation."""
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    try:
        return copy.deepcopy(module, {id(one): one.detach().clone() for one in held if one.grad_fn is not None})
    except Exception as error:  # of code that others wrote
        problem = f"the network cannot be copied to another device ({reason_of(error)})"
        raise PathxError(f"{problem}: use `device` cpu, or save it with torch.export.save", usage=True) from error


def load_model(
    name_or_file: str | Path = DEFAULT_MODEL,
    *,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    input_size: Sequence[int] | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    labels: str | Path | Sequence[str] | None = None,
) -> LoadedModel:
    """Load a classifier from wherever it is.

    Args:
        name_or_file: a torchvision name; a TorchScript, torch.export or ONNX file, whatever its extension; `timm:NAME`;
            `hf:NAME` or a folder of `save_pretrained`; `file.py:build` or `package.module:build`, which is run.
        weights: for all but files: a state dict or a trainer's checkpoint (safetensors or `.pth`), torchvision's own
            names (`DEFAULT`, `IMAGENET1K_V1`), `IMAGENET1K_V1=FILE` for a file whose images are prepared as for those, or
            `none` for an untrained network. By default the bundled weights of
            squeezenet1_1, and for other names those that torchvision, timm or the hub have for them.
        arguments: for the function that builds the network: `build`'s, or those of `timm.create_model`.
        input_size: (channels, height, width). This and the options below win over the model's own and the sidecar.
        mean: one value per channel, or one for all.
        labels: the labels themselves, or a file of them: one per line, or JSON.
    """
    for name, value in (("the model", name_or_file), ("weights", weights)):
        if not isinstance(value, (str, Path)) and not (value is None and name == "weights"):
            raise PathxError(f"{name} must be a name or a file, not {kind_in_words(value)}", usage=True)
    given = {"input_size": input_size, "mean": mean, "std": std, "labels": labels}
    given = {key: value for key, value in given.items() if value is not None}
    if isinstance(labels, (str, Path)):
        given["labels"] = read_labels(labels)
    options = check_values(given, "the call")
    chosen = None if weights is None else str(weights)
    chosen = "none" if chosen is not None and chosen.strip().lower() == "none" else chosen
    text, source = str(name_or_file), source_of(name_or_file)
    if arguments and source not in ("timm", "python"):
        raise PathxError(f"{text} takes no arguments: leave `arguments` out", usage=True)
    load: Loader = getattr(import_module(f"pathx.models.{SOURCES[source]}"), f"load_{source}")
    return load(text, chosen, arguments or {}, options)


Loader = Callable[[str, str | None, Mapping[str, Any], Mapping[str, Any]], LoadedModel]
"""Takes a name, the weights, arguments for the function that builds the network, and the options of the call."""

SOURCES = {"timm": "hubs", "transformers": "hubs", "python": "factories", "torchvision": "named", "file": "load"}
"""The sources of models, and the modules with their loaders: `load_timm` and so on."""


def source_of(name_or_file: str | Path) -> str:
    """The source that a name means. Names of torchvision win over files of the same name."""
    text = str(name_or_file)
    if text.startswith("timm:"):
        return "timm"
    if text.startswith("hf:") or os.path.isdir(text):
        return "transformers"
    if re.fullmatch(r"(.+\.py|[A-Za-z_][\w.]+):[A-Za-z_][\w.]*", text) and not os.path.exists(text):
        return "python"
    if isinstance(name_or_file, Path) or re.search(r"[./\\:]", text):
        return "file"
    if os.path.exists(text):
        from pathx.models.named import model_names

        return "torchvision" if as_name(text) in model_names() else "file"
    return "torchvision"


def as_name(text: str) -> str:
    """A name as torchvision spells it, from one that a user wrote."""
    return text.strip().lower().replace("-", "_")


def load_file(name: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """A TorchScript, torch.export or ONNX file."""
    from pathx.models.files import EMBEDDED, kind_of, load_network

    if weights is not None:
        raise PathxError(f"{name} brings its own weights: leave `weights` out", usage=True)
    path = Path(name)
    beside = {**sidecar_beside(path), **options}
    origin: dict[str, Any] = {"source": "file", "name": path.name}
    if kind_of(path) == "onnx":
        from pathx.models.onnx import load_onnx

        module, size, more = load_onnx(path, beside.get("input_size"))
        origin |= made_of(more)
        said: dict[str, Any] = {} if size is None else {"input_size": size}
    else:
        module, embedded = load_network(path)
        said = read_sidecar(embedded, f"{EMBEDDED} in {path}")
    description = {**said, **beside}
    remedy = f"give them as options or write {path.with_suffix('.json')} such as {EXAMPLE}"
    preprocessing = complete(description, str(path), remedy)
    labels = description.get("labels", ())
    return LoadedModel(module, path.name, path.name, sha256_of(path), preprocessing, labels, origin)


def made_of(files: Iterable[str | Path] = (), arguments: Mapping[str, Any] | None = None) -> dict[str, str]:
    """A hash of what a network was made from besides its weights, for `origin`; empty if there is nothing.

    Args:
        files: code, configuration, external data. Their names do not count, since machines have them in different places.
        arguments: of the function that built the network.
    """
    everything = [sorted({sha256_of(file) for file in files}), dict(arguments or {})]
    data = json.dumps(everything, sort_keys=True, default=repr).encode()
    return {"made_of": hashlib.sha256(data).hexdigest()} if any(everything) else {}
