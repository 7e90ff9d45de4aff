"""Weights from files: safetensors, or what torch.save wrote, read without ever running a pickle."""

from __future__ import annotations

import argparse
import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pathx.compat import safe_globals
from pathx.errors import PathxError
from pathx.models.files import kind_of
from pathx.regular import damage_errors, sha256_of

_WRAPPERS = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema", "ema", "ema_state_dict", "net")
"""Names that trainers give the state dict inside a checkpoint; earlier ones win."""

_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
"""Prefixes of keys from DataParallel, torch.compile, Lightning and other wrappers."""

_SMALL = 1 << 20  # bytes


def read_state(file: Path) -> Mapping[str, Tensor]:
    """A state dict from safetensors, or from a checkpoint of torch.save that holds nothing else."""
    kind = kind_of(file)
    if kind == "safetensors":
        return state_of(_read_safetensors(file), str(file))
    if kind in ("torchscript", "export", "onnx"):
        raise PathxError(f"{file} is a whole model, not a state dict: give it with `model` {file}", usage=True)
    if kind != "pickle":
        raise PathxError(f"{file} is not a state dict: give a .safetensors or .pth file", usage=True)
    try:
        with warnings.catch_warnings(), safe_globals([argparse.Namespace]):
            # Namespace: the arguments of a training script, which many save with the weights; plain data.
            warnings.simplefilter("ignore")  # about old formats, which load all the same
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's restricted unpickler raises anything on a damaged or hostile pickle
        problem = "is damaged or holds more than tensors, and running the pickle is never safe"
        raise PathxError(f"{file} {problem}: save model.state_dict(), best as safetensors", usage=True) from error
    return state_of(checkpoint, str(file))


def _read_safetensors(file: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    with damage_errors(file, "no safetensors file", usage=True):
        return load_file(file)


def state_of(checkpoint: Any, source: str) -> Mapping[str, Tensor]:
    """The state dict in a checkpoint, without the wrapping that trainers put around it."""
    state: Any = checkpoint
    for wrapper in _WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items())
    ):
        raise PathxError(f"{source} holds no state dict: save model.state_dict(), best as safetensors", usage=True)
    for key, value in state.items():
        if _repeats(value):
            problem = f"{key} in {source} claims to be {value.numel()} numbers and holds a few bytes"
            raise PathxError(f"{problem}: save it with contiguous()", usage=True)
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return cast("Mapping[str, Tensor]", state)


def _repeats(tensor: Tensor) -> bool:
    """Whether a tensor repeats the same bytes, so that a copy would take far more memory."""
    claimed = tensor.numel() * tensor.element_size()
    return claimed > _SMALL and tensor.layout == torch.strided and claimed > tensor.untyped_storage().nbytes()


def select_state(state: Mapping[str, Tensor], module: nn.Module) -> Mapping[str, Tensor]:
    """The module's part of a checkpoint, if a trainer saved it among others (Lightning's `self.net`)."""
    wanted = {key for key in module.state_dict() if not key.endswith("num_batches_tracked")}
    if not wanted or wanted <= set(state):
        return state
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        prefix, _, rest = key.partition(".")
        parts.setdefault(prefix, {})[rest] = value
    named = [prefix for prefix, part in parts.items() if wanted <= set(part)]
    if len(named) > 1:
        found = f"the checkpoint holds the network {len(named)} times, as {' and '.join(f'{one}.*' for one in named)}"
        raise PathxError(f"{found}: save the state dict of the one that you mean", usage=True)
    return parts[named[0]] if named else state


def fill(module: nn.Module, state: Mapping[str, Tensor], name: str, source: str) -> None:
    """Load the weights of a checkpoint into a module. Raises PathxError for those that do not fit."""
    weights = OrderedDict((key, _in_single_precision(key, value, source)) for key, value in state.items())
    # Modules with a version read older files differently; a file without versions has the current ones.
    vars(weights)["_metadata"] = getattr(state, "_metadata", None) or vars(module.state_dict())["_metadata"]
    try:
        missing, unexpected = module.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError:  # a shape differs
        missing = [key for key in module.state_dict() if key not in weights]
        unexpected = [key for key in weights if key not in module.state_dict()]
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
        problem = f"the weights in {source} do not fit {name} ({'; '.join(faults)})"
        raise PathxError(f"{problem}: give the network that they are of with `model`", usage=True)


def load_weights(module: nn.Module, weights: str | None, name: str, own: str) -> tuple[str, str]:
    """Load the module's part of a file of weights into it. Returns the name of the weights and their SHA-256.

    Args:
        weights: the file; None or `none` for the weights that the module has.
        own: the name of these.
    """
    if weights is None or weights == "none":
        return weights or own, sha256_of_state(module.state_dict())
    file = Path(weights)
    fill(module, select_state(read_state(file), module), name, str(file))
    return file.name, sha256_of(file)


def _in_single_precision(key: str, value: Tensor, source: str) -> Tensor:
    try:
        return value.to(torch.float32) if value.is_floating_point() else value
    except (RuntimeError, NotImplementedError):
        kind = str(value.dtype).removeprefix("torch.")
        problem = f"{key} in {source} is of type {kind}, which torch cannot convert"
        raise PathxError(f"{problem}: save the weights as float32", usage=True) from None


def _shape(tensor: Tensor) -> str:
    """A tensor's sizes as people write them."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def sha256_of_state(state: Mapping[str, Any]) -> str:
    """The SHA-256 of weights that came from no file."""
    digest = hashlib.sha256()
    for name in sorted(state):
        without_values = is_lazy(state[name]) or getattr(state[name], "is_meta", False)  # the engine refuses these
        if without_values or not isinstance(
            state[name], Tensor
        ):  # from a quantised module or a module's get_extra_state
            digest.update(f"{name} {state[name]!r}\n".encode())
            continue
        tensor = state[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {_shape(tensor)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Draw the same random weights every time, and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
