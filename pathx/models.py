"""Models by name or file, with the preprocessing and the labels that belong to them.

No pickle is ever executed: state dicts come from safetensors or through `weights_only=True`, and torch.export archives
with parts that would be unpickled are refused. TorchScript and torch.export files are programs all the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathx.errors import PathxError
from pathx.preprocessing import Preprocessing
from pathx.targets import parse_labels, read_labels

DEFAULT_MODEL = "squeezenet1_1"
_BUNDLED = Path(__file__).parent / "data" / f"{DEFAULT_MODEL}.safetensors"
_SIDECAR = '{"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "labels": ["cat", "dog"]}'
_SIDECAR_KEYS = ("input_size", "mean", "std", "labels", "resize", "interpolation")
_EMBEDDED = "pathx.json"
# Auxiliary heads serve training only: the networks are built without them and checkpoints may bring them or not.
_AUXILIARY_HEADS = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network ready to be explained, and what belongs to it.

    Args:
        module: in eval mode, on the CPU.
        name: torchvision's name, or the file's.
        weights: `bundled`, torchvision's name such as `IMAGENET1K_V1`, `none`, or the name of the file they are from.
        sha256: of the file; of the weights themselves where torchvision supplied them or there is no file.
        labels: one per class, or empty for a file that brings none; see `labels_for`.
    """

    module: nn.Module
    name: str
    weights: str
    sha256: str
    preprocessing: Preprocessing
    labels: tuple[str, ...]

    def labels_for(self, classes: int) -> tuple[str, ...]:
        """One label per class of a network with that many outputs; one logit means two classes."""
        if not self.labels:
            return ("negative", "positive") if classes == 1 else tuple(f"class {index}" for index in range(classes))
        expected = 2 if classes == 1 else classes
        if len(self.labels) != expected:
            found = f"{len(self.labels)} labels were given, but {self.name} has {expected} classes"
            raise PathxError(f"{found}: give one label per class", usage=True)
        return self.labels


def load_model(
    name_or_file: str | Path = DEFAULT_MODEL,
    *,
    weights: str | Path | None = None,
    input_size: Sequence[int] | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    labels: str | Path | Sequence[str] | None = None,
) -> LoadedModel:
    """Load a torchvision classifier by name, or a TorchScript or torch.export file, whatever its extension.

    Args:
        weights: for names only: torchvision's own (`DEFAULT`, `IMAGENET1K_V1`), a local state dict (safetensors or
            `.pth`), or `none` for an untrained network. By default the bundled weights of squeezenet1_1, and
            torchvision's default for other names.
        input_size: (channels, height, width). This and the options below win over torchvision and the sidecar.
        mean: one value per channel, or one for all.
        labels: the labels themselves, or a file of them: one per line, or JSON.
    """
    given = {"input_size": input_size, "mean": mean, "std": std, "labels": labels}
    given = {key: value for key, value in given.items() if value is not None}
    if isinstance(labels, (str, Path)):
        given["labels"] = read_labels(labels)
    options = _checked(given, "the call")
    if not is_file(name_or_file):
        return _load_named(_as_name(str(name_or_file)), None if weights is None else str(weights), options)
    if weights is not None:
        raise PathxError(f"{name_or_file} brings its own weights: leave --weights out", usage=True)
    return _load_file(Path(name_or_file), options)


def model_names() -> list[str]:
    """The names of torchvision's classification models."""
    from pathx.vision import torchvision

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def _as_name(text: str) -> str:
    return text.strip().lower().replace("-", "_")


def is_file(name_or_file: str | Path) -> bool:
    """Whether a file is meant: torchvision's names have no dots and no slashes, and win over a file called the same."""
    if isinstance(name_or_file, Path) or re.search(r"[./\\]", name_or_file):
        return True
    return Path(name_or_file).is_file() and _as_name(name_or_file) not in model_names()


# torchvision's models, by name


def _load_named(name: str, weights: str | None, options: Mapping[str, Any]) -> LoadedModel:
    from pathx.vision import torchvision

    _check_name(name)
    available = torchvision.models.get_model_weights(name)
    recipe = available.DEFAULT  # whose preprocessing and categories apply
    choice = (weights or ("bundled" if name == DEFAULT_MODEL else "DEFAULT")).strip()
    member = choice.removeprefix(f"{available.__name__}.").upper()
    if choice.lower() == "none":
        shown, module = "none", _untrained(name)
        sha256 = _sha256_of_state(module.state_dict())
    elif member in available.__members__:
        recipe = available[member]
        state = _download(name, recipe)
        shown, sha256 = recipe.name, _sha256_of_state(state)
        module = _trained(name, state, f"torchvision's {shown}")
    elif choice.lower() == "bundled" and name == DEFAULT_MODEL:
        shown, sha256, module = "bundled", _sha256_of_file(_BUNDLED), _trained(name, _read_state(_BUNDLED), "bundled")
    else:
        file = Path(choice)
        if not file.exists():
            choices = ", ".join([*available.__members__, *(["bundled"] if name == DEFAULT_MODEL else []), "none"])
            remedy = f"give one of {choices}, or a state dict (.safetensors or .pth)"
            raise PathxError(f"{name} has no weights called {choice!r}, nor is that a file: {remedy}", usage=True)
        state = _read_state(file)
        shown, sha256, module = file.name, _sha256_of_file(file), _trained(name, state, str(file))
    classes, categories = _head(module)[1], tuple(recipe.meta["categories"])
    preprocessing = Preprocessing.of_preset(recipe.transforms())
    changes = _preprocessing_fields(options, channels=preprocessing.input_size[0])
    if changes.get("input_size", preprocessing.input_size) != preprocessing.input_size:
        changes["resize"] = None  # torchvision's belongs to its own input size
    labels = options.get("labels", categories if classes == len(categories) else ())
    loaded = LoadedModel(module.eval(), name, shown, sha256, replace(preprocessing, **changes), labels)
    return replace(loaded, labels=loaded.labels_for(classes))


def _check_name(name: str) -> None:
    from pathx.vision import torchvision

    names = model_names()
    if name in names:
        return
    if name in torchvision.models.list_models():
        kind = torchvision.models.get_model_builder(name).__module__.split(".")[2].replace("_", " ")
        raise PathxError(f"{name} is one of torchvision's {kind} models: pathx explains plain classifiers", usage=True)
    near = get_close_matches(name, names, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else "`pathx models` lists the names, or give a file"
    raise PathxError(f"there is no model called {name!r}: {remedy}", usage=True)


def _build(name: str, *, trained: bool, **settings: Any) -> nn.Module:
    from pathx.vision import torchvision

    if name in _AUXILIARY_HEADS:
        # torchvision's own weights want transform_input, and so do those that were fine-tuned from them.
        settings |= {"aux_logits": False, "init_weights": False, "transform_input": trained}
    module: nn.Module = torchvision.models.get_model(name, weights=None, **settings)
    return module


class _NoInitialisation(TorchFunctionMode):
    """Skips the random initialisation of weights that a checkpoint will replace. (torch.device("meta") would skip more,
    but RegNet computes its widths with tensors.)"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_:  # trunc_normal_ draws again and again until it likes the values
            return args[0].zero_()
        return args[0] if func is Tensor.uniform_ else func(*args, **(kwargs or {}))


def architecture(name: str, input_size: Sequence[int] | None = None) -> tuple[nn.Module, tuple[int, int, int]]:
    """A torchvision model for its structure alone, its weights left to chance, and its input size or the one given."""
    from pathx.vision import torchvision

    name = _as_name(name)
    _check_name(name)
    recipe = Preprocessing.of_preset(torchvision.models.get_model_weights(name).DEFAULT.transforms())
    if input_size is not None:
        recipe = replace(recipe, input_size=cast("tuple[int, int, int]", tuple(input_size)), resize=None)
    settings = {"image_size": recipe.input_size[1]} if name.startswith("vit_") else {}  # built for one size alone
    with _NoInitialisation():
        return _build(name, trained=True, **settings).eval(), recipe.input_size


def weights_file(name: str) -> str:
    """The name of the file that holds a torchvision model's default weights, in torch's cache."""
    from pathx.vision import torchvision

    return str(torchvision.models.get_model_weights(name).DEFAULT.url.rpartition("/")[2])


def _untrained(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _build(name, trained=False)


def _trained(name: str, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The model with the weights of a checkpoint, and with as many classes as the checkpoint has."""
    unused = _AUXILIARY_HEADS.get(name, ())
    weights: OrderedDict[str, Tensor] = OrderedDict()
    for key, value in state.items():
        if unused and key.startswith(unused):
            continue
        # torchvision's own DenseNet files still have the keys of a time when module names could hold dots.
        key = re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", key) if "densenet" in name else key
        weights[key] = value.to(torch.float32) if value.is_floating_point() else value
    with _NoInitialisation():
        module = _build(name, trained=True)
        head, classes = _head(module)
        found = weights.get(f"{head}.weight")
        if found is not None and found.ndim and found.shape[0] not in (0, classes):
            module = _build(name, trained=True, num_classes=found.shape[0])
    # Versions of the modules, for those that read older files. A file that does not say has today's.
    vars(weights)["_metadata"] = getattr(state, "_metadata", None) or vars(module.state_dict())["_metadata"]
    try:
        missing, unexpected = module.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError:  # a shape differs
        missing, unexpected = _difference(module.state_dict(), weights), _difference(weights, module.state_dict())
    expected = module.state_dict()
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    shapes = [
        f"{key} {_shape(weights[key])} instead of {_shape(expected[key])}"
        for key in expected
        if key in weights and weights[key].shape != expected[key].shape
    ]
    faults = [
        f"{what} {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if keys
    ]
    if faults:
        raise PathxError(f"the weights in {source} do not fit {name}: {'; '.join(faults)}", usage=True)
    return module


def _difference(keys: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> list[str]:
    return [key for key in keys if key not in others]


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _head(module: nn.Module) -> tuple[str, int]:
    """The layer that gives the logits (in torchvision's models the last one with weights) and the number of classes."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    name, layer = layers[-1]
    return name, layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def _download(name: str, weights: Any) -> Mapping[str, Tensor]:
    """torchvision's own weights, from its cache or its server."""
    show = sys.stderr.isatty()
    notes = sys.stderr if show else io.StringIO()  # torch announces a download on stdout, even without progress
    try:
        with redirect_stdout(notes), redirect_stderr(notes):
            state = weights.get_state_dict(progress=show, check_hash=True, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, HTTPException, UnpicklingError) as error:
        file, folder = weights.url.rpartition("/")[2], Path(torch.hub.get_dir(), "checkpoints")
        found = f"the {weights.name} weights of {name} could not be downloaded ({_reason(error)})"
        remedy = f"put {file} into {folder}, give --weights a local state dict or none (untrained)"
        raise PathxError(f"{found}: {remedy}, or use the bundled model {DEFAULT_MODEL}") from error
    return _state_of(state, weights.url)


# State dicts


def _read_state(file: Path) -> Mapping[str, Tensor]:
    """A state dict from safetensors, or from a checkpoint of torch.save that holds nothing else."""
    kind = _kind(file)
    if kind == "safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return _state_of(load_file(file), str(file))
        except SafetensorError as error:
            raise PathxError(f"{file} is damaged ({_reason(error)}): fetch it again", usage=True) from error
    if kind in ("torchscript", "export"):
        raise PathxError(f"{file} is a whole model, not a state dict: give it with --model {file}", usage=True)
    if kind != "pickle":
        raise PathxError(f"{file} is not a state dict: give a .safetensors or .pth file", usage=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats, which load all the same
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile pickle makes of torch's restricted unpickler
        problem = "is damaged or holds more than tensors, and running the pickle is never safe"
        raise PathxError(f"{file} {problem}: save model.state_dict(), best as safetensors", usage=True) from error
    return _state_of(checkpoint, str(file))


def _state_of(checkpoint: Any, source: str) -> Mapping[str, Tensor]:
    """The state dict in a checkpoint, without the wrapping that trainers put around it."""
    state: Any = checkpoint
    for wrapper in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise PathxError(f"{source} holds no state dict: save model.state_dict(), best as safetensors", usage=True)
    for prefix in ("module.", "_orig_mod.", "model."):
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return cast("Mapping[str, Tensor]", state)


def _sha256_of_file(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sha256_of_state(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {_shape(tensor)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Model files


def _load_file(path: Path, options: Mapping[str, Any]) -> LoadedModel:
    kind = _kind(path)
    if kind == "torchscript":
        module, embedded = _load_torchscript(path)
    elif kind == "export":
        module, embedded = _load_export(path)
    elif kind == "pickle":
        remedy = f"export the model with torch.export.save, or for a state dict use --model NAME --weights {path}"
        raise PathxError(f"{path} is a pickle, a program that pathx never runs: {remedy}", usage=True)
    elif kind == "safetensors":
        raise PathxError(f"{path} holds weights only: use --model NAME --weights {path}", usage=True)
    else:
        remedy = "save the model with torch.jit.save or torch.export.save"
        raise PathxError(f"{path} is damaged or not a model file: {remedy}", usage=True)
    description = {**_read_sidecar(embedded, f"{_EMBEDDED} in {path}"), **_sidecar_beside(path), **options}
    if lacking := [key for key in ("input_size", "mean", "std") if key not in description]:
        found = f"{path} does not say its {', '.join(lacking)}"
        sidecar = path.with_suffix(".json")
        raise PathxError(f"{found}: give them as options or write {sidecar} such as {_SIDECAR}", usage=True)
    try:
        preprocessing = Preprocessing(**_preprocessing_fields(description))
    except PathxError as error:
        raise PathxError(f"{path}: {error}", usage=True) from error
    labels = description.get("labels", ())
    return LoadedModel(module, path.name, path.name, _sha256_of_file(path), preprocessing, labels)


def _kind(path: Path) -> str:
    """What a file is, by its content: torchscript, export, pickle, safetensors or unknown."""
    try:
        with open(path, "rb") as stream:
            start = stream.read(9)
            names = zipfile.ZipFile(stream).namelist() if start.startswith(b"PK") else []
    except zipfile.BadZipFile:
        return "unknown"
    except FileNotFoundError:
        raise PathxError(
            f"there is no model file {path}: check the path, or give a torchvision name", usage=True
        ) from None
    except OSError as error:
        raise PathxError(f"{path} cannot be read: {error.strerror}", usage=True) from error
    inside = {name.partition("/")[2] for name in names}  # all records are in one folder
    if "archive_format" in inside:
        return "export"
    if "constants.pkl" in inside and any(name.startswith("code/") for name in inside):
        return "torchscript"
    if "data.pkl" in inside or start.startswith(b"\x80"):
        return "pickle"
    return "safetensors" if start[8:] == b"{" else "unknown"


def _load_torchscript(path: Path) -> tuple[nn.Module, str]:
    extra: dict[str, Any] = {_EMBEDDED: ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but the file is what the user has
            module: nn.Module = torch.jit.load(path, map_location="cpu", _extra_files=extra)
    except RuntimeError as error:
        raise _unreadable(path, error) from error
    return module.eval(), _text(extra[_EMBEDDED])


def _load_export(path: Path) -> tuple[nn.Module, str]:
    extra: dict[str, Any] = {_EMBEDDED: ""}
    try:
        _check_no_pickles(path)
        with open(path, "rb") as stream, _silent("torch.export"):  # by name it would insist on the extension .pt2
            module = torch.export.load(stream, extra_files=extra).module()
    except PathxError:
        raise
    except Exception as error:  # the deserialiser has no error type of its own
        raise _unreadable(path, error) from error
    for part in module.modules():
        part.training = False  # an exported module refuses eval(): its graph is what it was at export
    return module.cpu(), _text(extra[_EMBEDDED])


def _check_no_pickles(path: Path) -> None:
    """Refuse what torch.export.load would hand to pickle or to the dynamic loader."""
    from torch.export.pt2_archive import PT2ArchiveReader  # the loader's own reader: both see the same records
    from torch.export.pt2_archive.constants import TENSOR_CONSTANT_FILENAME_PREFIX as TENSOR

    with open(path, "rb") as stream:
        reader = PT2ArchiveReader(stream)
        for name in reader.get_file_names():
            if name.startswith("data/aotinductor/"):
                raise PathxError(f"{path} is compiled: save it with torch.export.save instead", usage=True)
            safe = True
            if name.startswith("data/") and name.endswith(".pt"):
                safe = _is_plain(reader.read_bytes(name))
            elif name.startswith(("data/weights/", "data/constants/")) and name.endswith(".json"):
                for entry in json.loads(reader.read_string(name))["config"].values():
                    is_tensor = "weights" in name or entry["path_name"].startswith(TENSOR)
                    safe = safe and is_tensor and not entry["use_pickle"]
            if not safe:
                remedy = "export a model whose weights and inputs are plain tensors"
                raise PathxError(f"{path} holds a pickle ({name}), which pathx never runs: {remedy}", usage=True)


def _is_plain(record: bytes) -> bool:
    try:
        torch.load(io.BytesIO(record), map_location="cpu", weights_only=True)
    except Exception:  # whatever a hostile pickle makes of the restricted unpickler
        return not record
    return True


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    log = logging.getLogger(logger)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _unreadable(path: Path, error: Exception) -> PathxError:
    found = f"{path} cannot be loaded by torch {torch.__version__} ({_reason(error)})"
    return PathxError(f"{found}: save it again with this version", usage=True)


def _reason(error: Exception) -> str:
    """The first line of an error, of a length that fits into one of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def _text(content: str | bytes) -> str:
    return content.decode(errors="replace") if isinstance(content, bytes) else content


# The sidecar: what a model file cannot say itself


def _sidecar_beside(path: Path) -> dict[str, Any]:
    """The sidecar of model.pt: model.pt.json, or else model.json."""
    for sidecar in (path.with_name(path.name + ".json"), path.with_suffix(".json")):
        if sidecar.is_file() and sidecar != path:
            try:
                return _read_sidecar(sidecar.read_bytes().decode("utf-8-sig"), str(sidecar))
            except (OSError, UnicodeDecodeError) as error:
                raise PathxError(
                    f"{sidecar} cannot be read ({_reason(error)}): write it as {_SIDECAR}", usage=True
                ) from error
    return {}


def _read_sidecar(text: str, source: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise PathxError(f"{source} is not valid JSON ({error}): write it as {_SIDECAR}", usage=True) from error
    if not isinstance(content, dict):
        raise PathxError(f"{source} must hold an object such as {_SIDECAR}", usage=True)
    for key in content:
        if key not in _SIDECAR_KEYS and (near := get_close_matches(key, _SIDECAR_KEYS, n=1, cutoff=0.8)):
            raise PathxError(f"{source} has the unknown key {key!r}: did you mean {near[0]!r}?", usage=True)
    return _checked({key: content[key] for key in _SIDECAR_KEYS if key in content}, source)


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The values of a sidecar or of the call, with lists as tuples, after a look at their types."""
    checked = dict(values)
    for key in ("input_size", "mean", "std"):
        value = checked.get(key)
        if key != "input_size" and isinstance(value, (int, float)):
            checked[key] = (value,)
        elif isinstance(value, Sequence) and value and all(isinstance(item, (int, float)) for item in value):
            checked[key] = tuple(value)
        elif key in checked:
            example = json.loads(_SIDECAR)[key]
            raise PathxError(
                f"{key} in {source} must be a list of numbers such as {example}, not {value!r}", usage=True
            )
    if "labels" in checked:
        checked["labels"] = parse_labels(checked["labels"], source)
    return checked


def _preprocessing_fields(description: Mapping[str, Any], channels: int | None = None) -> dict[str, Any]:
    """What a description says about preprocessing; one mean or std stands for all channels."""
    fields = {key: value for key, value in description.items() if key != "labels"}
    channels = channels or fields["input_size"][0]
    for key in ("mean", "std"):
        if len(fields.get(key, ())) == 1:
            fields[key] = fields[key] * channels
    return fields
