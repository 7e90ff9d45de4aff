"""Classifiers by name: the bundled one, and torchvision's, with any weights that fit.

SqueezeNet 1.1 for ImageNet's 1000 classes comes with pathx. Its architecture is written out here, with torchvision's names of
modules, because importing torchvision takes as long as importing torch.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathx.errors import PathxError, reason_of
from pathx.models.checkpoints import fill, fixed_seed, read_state, sha256_of_state, state_of
from pathx.models.load import DEFAULT_MODEL, LoadedModel, as_name
from pathx.models.preprocessing import Preprocessing, adapt
from pathx.regular import sha256_of

_DATA = Path(__file__).parent / "data"
WEIGHTS = _DATA / f"{DEFAULT_MODEL}.safetensors"
_PREPROCESSING = Preprocessing((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, "bilinear")

# Auxiliary heads serve training only: networks are built without them, and checkpoints may have them.
_AUXILIARY_HEADS = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}

# torchvision's DenseNet files have keys from a time when names of modules could contain dots.
_DENSENET_KEY = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def model_names() -> list[str]:
    """The names of torchvision's classification models."""
    from pathx.models.torchvision import torchvision

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def load_torchvision(
    text: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> LoadedModel:
    """The bundled network, or a torchvision model.

    Args:
        weights: `bundled`, a name of torchvision's, a file, `NAME=FILE` for a file whose images are prepared as for the weights
            of that name, or `none`; None for the bundled weights if there are any, otherwise torchvision's default.
        options: preprocessing and labels from the call, which win over torchvision's.
    """
    name = as_name(text)
    if name == DEFAULT_MODEL and (weights or "bundled").strip().lower() == "bundled":
        return _load_bundled(options)
    from pathx.models.torchvision import torchvision

    _check_name(name)
    available = torchvision.models.get_model_weights(name)
    recipe = available.DEFAULT  # whose preprocessing and categories apply
    choice = (weights or "DEFAULT").strip()
    member = choice.removeprefix(f"{available.__name__}.").upper()
    origin, notes = {"source": "torchvision"}, []
    if choice == "none":
        with fixed_seed():
            module = _build(name, adapt(_preprocessing(recipe), options), transform_input=False)
        shown, sha256 = "none", sha256_of_state(module.state_dict())
    elif member in available.__members__:
        recipe = available[member]
        state = _download(name, recipe)
        shown, sha256 = recipe.name, sha256_of_state(state)
        module = _build_trained(name, recipe, state, f"torchvision's {shown}")
    else:
        file, recipe, sure = _file_and_recipe(choice, available)
        if not os.path.exists(file):
            choices = ", ".join([*available.__members__, *(["bundled"] if name == DEFAULT_MODEL else []), "none"])
            remedy = f"give one of {choices}, or a state dict (.safetensors or .pth)"
            raise PathxError(f"{name} has no weights called {choice!r}, nor is that a file: {remedy}", usage=True)
        module = _build_trained(name, recipe, read_state(file), str(file))
        shown, sha256, origin = file.name, sha256_of(file), {"source": "file", "preprocessing": recipe.name}
        if not sure and not options.keys() & {"input_size", "mean", "std"}:
            notes = _doubt(file, recipe, available)
    classes, categories = _head(module)[1], tuple(recipe.meta["categories"])
    labels = options.get("labels", categories if classes == len(categories) else ())
    origin["name"] = shown if origin["source"] == "file" else f"{name} {shown}"
    preprocessing = adapt(_preprocessing(recipe), options)
    loaded = LoadedModel(module.eval(), name, shown, sha256, preprocessing, labels, origin, tuple(notes))
    return replace(loaded, labels=loaded.labels_for(classes))


def _preprocessing(recipe: Any) -> Preprocessing:
    return Preprocessing.of_preset(recipe.transforms())


def _load_bundled(options: Mapping[str, Any]) -> LoadedModel:
    with no_initialisation():
        module = SqueezeNet()
    fill(module, read_state(WEIGHTS), DEFAULT_MODEL, "bundled")
    labels = options.get("labels", bundled_labels())
    origin = {"source": "pathx", "name": DEFAULT_MODEL}
    preprocessing = adapt(_PREPROCESSING, options)
    loaded = LoadedModel(module.eval(), DEFAULT_MODEL, "bundled", sha256_of(WEIGHTS), preprocessing, labels, origin)
    return replace(loaded, labels=loaded.labels_for(len(bundled_labels())))


def bundled_labels() -> tuple[str, ...]:
    """The labels of ImageNet's 1000 classes, as torchvision words them."""
    return tuple((_DATA / "imagenet.txt").read_text(encoding="utf-8").splitlines())


class Fire(nn.Module):
    """Squeeze to a few channels, then expand them by two convolutions side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        sides = self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))
        return torch.cat(sides, 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1 (Iandola et al.), as torchvision builds it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(inplace=True), _halve()),
            *(Fire(64, 16, 64), Fire(128, 16, 64), _halve()),
            *(Fire(128, 32, 128), Fire(256, 32, 128), _halve()),
            *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        )
        head = nn.Dropout(0.5), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(*head)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


# torchvision


def _file_and_recipe(choice: str, available: Any) -> tuple[Path, Any, bool]:
    """The file that a choice of weights means, the weights whose preprocessing it needs, and whether that is known or assumed.

    It is known only if the user says it or the file still has torchvision's name.
    """
    name, _, rest = choice.partition("=")
    member = name.strip().removeprefix(f"{available.__name__}.").upper()
    if rest and member in available.__members__:
        return Path(rest.strip()), available[member], True
    file = Path(choice)
    own = [one for one in available if one.url.rpartition("/")[2] == file.name]
    return file, (own or [available.DEFAULT])[0], bool(own)


def _doubt(file: Path, recipe: Any, available: Any) -> list[str]:
    """A note on a file whose preprocessing is assumed, if torchvision's weights differ in theirs."""
    used = _preprocessing(recipe)
    others = [one.name for one in available if _preprocessing(one) != used]
    if not others:
        return []
    how = f"resized to {used.resize}, cropped to {used.input_size[1]}"
    return [
        f"images are prepared as for {recipe.name} ({how}), since {file.name} does not say; "
        f"for other weights: `weights` {others[0]}={file}"
    ]


def _check_name(name: str) -> None:
    from pathx.models.torchvision import torchvision

    names = model_names()
    if name in names:
        return
    if name.startswith("quantized_") and (original := name.removeprefix("quantized_")) in names:
        raise PathxError(f"{name} is quantised: explain {original}, the network it was made from", usage=True)
    if name in torchvision.models.list_models():
        kind = torchvision.models.get_model_builder(name).__module__.split(".")[2].replace("_", " ")
        raise PathxError(
            f"{name} is one of torchvision's {kind} models, and pathx explains classifiers of single images: wrap it in a function "
            "of your own that returns one row of class logits per image, `model` file.py:build",
            usage=True,
        )
    near = get_close_matches(name, names, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else "`pathx models` lists the names, or give a file"
    raise PathxError(f"there is no model called {name!r}: {remedy}", usage=True)


def _build(name: str, preprocessing: Preprocessing, *, transform_input: bool, **settings: Any) -> nn.Module:
    from pathx.models.torchvision import torchvision

    if name in _AUXILIARY_HEADS:
        settings |= {"aux_logits": False, "init_weights": False, "transform_input": transform_input}
    if name.startswith("vit_"):  # built for one size alone
        settings["image_size"] = preprocessing.input_size[1]
    module: nn.Module = torchvision.models.get_model(name, weights=None, **settings)
    return module


class no_initialisation(TorchFunctionMode):
    """Skips the random initialisation of weights that a checkpoint will replace.

    torch.device("meta") would skip more, but RegNet computes its widths with tensors.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DRAWN:  # trunc_normal_ repeats its draws until all values are in range
            tensor = args[0] if args else kwargs["tensor"]
            tensor.detach().zero_()
            return tensor
        return func(*args, **(kwargs or {}))


_DRAWN = frozenset([Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_])


def weights_file(name: str) -> str:
    """The name of the file that holds a torchvision model's default weights, in torch's cache."""
    from pathx.models.torchvision import torchvision

    return str(torchvision.models.get_model_weights(name).DEFAULT.url.rpartition("/")[2])


def _build_trained(name: str, recipe: Any, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The model with the weights of a checkpoint, and with as many classes as the checkpoint has.

    torchvision's own weights want `transform_input`, and so do those that were fine-tuned from them.
    """
    weights = OrderedDict(
        (_DENSENET_KEY.sub(r"\1\2", key) if name.startswith("densenet") else key, value)
        for key, value in state.items()
        if not key.startswith(_AUXILIARY_HEADS.get(name, ()))
    )
    vars(weights)["_metadata"] = getattr(state, "_metadata", None)
    with no_initialisation():
        module = _build(name, _preprocessing(recipe), transform_input=True)
        head, classes = _head(module)
        found = weights.get(f"{head}.weight")
        if found is not None and found.ndim and found.shape[0] not in (0, classes):
            module = _build(name, _preprocessing(recipe), transform_input=True, num_classes=found.shape[0])
    fill(module, weights, name, source)
    return module


def _head(module: nn.Module) -> tuple[str, int]:
    """The name of the layer that gives the logits, torchvision's last one with weights, and the number of classes."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    name, layer = layers[-1]
    return name, layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def _download(name: str, weights: Any) -> Mapping[str, Tensor]:
    """torchvision's own weights, from its cache or its server."""
    show = sys.stderr.isatty()
    notes = sys.stderr if show else io.StringIO()  # torch announces a download on stdout
    try:
        with redirect_stdout(notes), redirect_stderr(notes):
            state = weights.get_state_dict(progress=show, check_hash=True, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, HTTPException, UnpicklingError) as error:
        file, folder = weights.url.rpartition("/")[2], Path(torch.hub.get_dir(), "checkpoints")
        found = f"the {weights.name} weights of {name} could not be downloaded ({reason_of(error)})"
        remedy = f"put {file} into {folder}, give `weights` a local state dict or none (untrained)"
        raise PathxError(f"{found}: {remedy}, or use the bundled model {DEFAULT_MODEL}") from error
    return state_of(state, weights.url)
