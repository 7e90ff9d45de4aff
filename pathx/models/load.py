"""`load_model`: a model by name or file, with the preprocessing and the labels that belong to it.

No pickle is ever executed: state dicts come from safetensors or through `weights_only=True`, and torch.export archives
are rebuilt from their tensors and their check_values graph. TorchScript files are programs all the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pathx.errors import PathxError, kind_in_words
from pathx.models.bundled import DEFAULT_MODEL, PREPROCESSING, WEIGHTS, SqueezeNet, bundled_labels
from pathx.models.checkpoints import fill, read_state
from pathx.models.exported import EMBEDDED
from pathx.models.factories import is_factory, load_factory
from pathx.models.files import kind_of, load_network
from pathx.models.labels import read_labels
from pathx.models.loaded import LoadedModel, made_of
from pathx.models.named import adapt_preprocessing, as_name, load_named, model_names, no_initialisation
from pathx.models.sidecar import EXAMPLE, check_values, complete, read_sidecar, sidecar_beside
from pathx.regular import sha256_of

__all__ = ["DEFAULT_MODEL", "LoadedModel", "is_file", "load_model", "model_names"]


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
    text = str(name_or_file)
    if arguments and not (is_factory(text) or text.startswith(_TIMM)):
        raise PathxError(f"{text} takes no arguments: leave `arguments` out", usage=True)
    if text.startswith((_TIMM, _HUGGING_FACE)) or os.path.isdir(text):
        return _load_from_hub(text, chosen, arguments or {}, options)
    if is_factory(text) and not os.path.exists(text):
        return load_factory(text, chosen, arguments or {}, options)
    if not is_file(name_or_file):
        name = as_name(text)
        if name == DEFAULT_MODEL and (chosen or "bundled").strip().lower() == "bundled":
            return _load_bundled(options)
        return load_named(name, chosen, options)
    if weights is not None:
        raise PathxError(f"{name_or_file} brings its own weights: leave `weights` out", usage=True)
    return _load_file(Path(name_or_file), options)


_TIMM, _HUGGING_FACE = "timm:", "hf:"


def _load_from_hub(
    text: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> LoadedModel:
    from pathx.models.hubs import is_pretrained_folder, load_timm, load_transformers

    if text.startswith(_TIMM):
        return load_timm(text.removeprefix(_TIMM), weights, arguments, options)
    name = text.removeprefix(_HUGGING_FACE)
    if not text.startswith(_HUGGING_FACE) and not is_pretrained_folder(name):
        raise PathxError(
            f"{text} cannot be read: Is a directory without the config.json of save_pretrained", usage=True
        )
    return load_transformers(name, weights, options)


def is_file(name_or_file: str | Path) -> bool:
    """Whether no torchvision name is meant: those have no dots, slashes or colons, and win over a file called the same."""
    if isinstance(name_or_file, Path) or re.search(r"[./\\:]", name_or_file):
        return True
    return os.path.exists(name_or_file) and as_name(name_or_file) not in model_names()


def _load_bundled(options: Mapping[str, Any]) -> LoadedModel:
    with no_initialisation():
        module = SqueezeNet()
    fill(module, read_state(WEIGHTS), DEFAULT_MODEL, "bundled")
    labels = options.get("labels", bundled_labels())
    origin = {"source": "pathx", "name": DEFAULT_MODEL}
    sha256, preprocessing = sha256_of(WEIGHTS), adapt_preprocessing(PREPROCESSING, options)
    loaded = LoadedModel(module.eval(), DEFAULT_MODEL, "bundled", sha256, preprocessing, labels, origin)
    loaded.labels_for(len(bundled_labels()))
    return loaded


def _load_file(path: Path, options: Mapping[str, Any]) -> LoadedModel:
    beside = {**sidecar_beside(path), **options}
    origin: dict[str, Any] = {"source": "file", "name": path.name}
    if kind_of(path) == "onnx":
        from pathx.models.onnx import external_files, load_onnx

        module, size = load_onnx(path, beside.get("input_size"))
        origin |= made_of(external_files(path))
        said: dict[str, Any] = {} if size is None else {"input_size": size}
    else:
        module, embedded = load_network(path)
        said = read_sidecar(embedded, f"{EMBEDDED} in {path}")
    description = {**said, **beside}
    remedy = f"give them as options or write {path.with_suffix('.json')} such as {EXAMPLE}"
    preprocessing = complete(description, str(path), remedy)
    labels = description.get("labels", ())
    return LoadedModel(module, path.name, path.name, sha256_of(path), preprocessing, labels, origin)
