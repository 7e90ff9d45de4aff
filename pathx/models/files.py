"""Model files: what a file is by its content, and TorchScript and torch.export files as networks.

No pickle is ever executed, and no file is seen by two readers that could disagree about it. What a TorchScript file
computes is up to the file, but it reaches for no other.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from pathx import regular
from pathx.errors import PathxError, reason_of
from pathx.models.exported import EMBEDDED, Archive, load_export
from pathx.models.operations import Unsafe
from pathx.models.programs import check_graphs, check_text


def open_regular(path: Path) -> IO[bytes]:
    """A model file opened for reading; a folder, a pipe or a device is refused, and never waited for."""
    try:
        return regular.open_regular(path)
    except FileNotFoundError:
        raise PathxError(
            f"there is no model file {path}: check the path, or give a torchvision name", usage=True
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise PathxError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", usage=True) from error


def kind_of(path: Path) -> str:
    """What a file is, by its content: torchscript, export, pickle, safetensors, onnx or unknown."""
    with open_regular(path) as stream:
        try:
            found = _kind(stream)
        except OSError as error:  # of a disk that fails, or of what only claims to be a file
            raise PathxError(f"{path} cannot be read: {error.strerror or error}", usage=True) from error
        except Unsafe as error:
            raise PathxError(f"{path} {error}: save the model again with torch, uncompressed", usage=True) from error
    return "onnx" if found == "unknown" and path.suffix.lower() == ".onnx" else found


def _kind(stream: IO[bytes]) -> str:
    start = stream.read(64)
    if start.startswith(b"PK"):
        try:
            archive = Archive(stream)
            archive.check_sizes()
        except Unsafe:
            raise
        except Exception:  # RuntimeError mostly; OSError where damage sends the reader beyond the file; and others
            return "unknown"
        return _kind_of_archive(archive.names)
    if start.startswith(b"\x80"):
        return "pickle"
    if start[8:9] == b"{":
        return "safetensors"
    # Protocol buffers have no magic number. An ONNX file starts with its version (field 1) and, as all exporters of
    # frameworks write it, its producer (field 2, a short text). Others are known by their name.
    if len(start) > 4 and start[0] == 0x08 and start[1] < 0x20 and start[2] == 0x12 and start[3] < 0x40:
        return "onnx"
    return "unknown"


def _kind_of_archive(names: tuple[str, ...]) -> str:
    if "archive_format" in names:
        return "export"
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "torchscript"
    return "pickle" if "data.pkl" in names else "unknown"


def load_network(path: Path) -> tuple[nn.Module, str]:
    """The network in a file, in eval mode and on the CPU, and the text of the sidecar inside the file."""
    kind = kind_of(path)
    if kind == "torchscript":
        return _load_torchscript(path)
    if kind == "export":
        return _load_export(path)
    if kind == "pickle":
        remedy = f"export the model with torch.export.save, or for a state dict use `model` NAME `weights` {path}"
        raise PathxError(f"{path} is a pickle, a program that pathx never runs: {remedy}", usage=True)
    if kind == "safetensors":
        raise PathxError(f"{path} holds weights only: use `model` NAME `weights` {path}", usage=True)
    if path.suffix == ".py":
        raise PathxError(
            f"{path} is Python code: name the function in it that builds the model, as {path}:build", usage=True
        )
    remedy = "save the model with torch.jit.save or torch.export.save"
    raise PathxError(f"{path} is damaged or not a model file: {remedy}", usage=True)


def _load_torchscript(path: Path) -> tuple[nn.Module, str]:
    extra: dict[str, Any] = {EMBEDDED: ""}
    try:
        with open_regular(path) as stream:
            check_text(Archive(stream))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but the file is what the user has
            # As torch.jit.load does it, which keeps the compiled functions to itself.
            unit: Any = torch._C.CompilationUnit()
            load: Any = torch._C.import_ir_module
            loaded = load(unit, str(path), torch.device("cpu"), extra, False)
            check_graphs(unit)
            module: nn.Module = torch.jit._recursive.wrap_cpp_module(loaded)
            module.eval()
    except Unsafe as error:
        remedy = "trace the network alone with torch.jit.trace, or export it with torch.export.save"
        raise PathxError(f"the program in {path} is not run ({error}): {remedy}", usage=True) from error
    except PathxError:
        raise
    except Exception as error:  # a RuntimeError, and whatever damage inside makes of the interpreter
        raise _unreadable(path, error) from error
    content = extra[EMBEDDED]
    return module, content.decode(errors="replace") if isinstance(content, bytes) else content


def _load_export(path: Path) -> tuple[nn.Module, str]:
    try:
        with open_regular(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load_export(Archive(stream))
    except Unsafe as error:
        found = f"{path} holds what no export of a plain network holds ({error})"
        remedy = "export the model with torch.export.save, with plain tensors as weights, inputs and results"
        raise PathxError(f"{found}: {remedy}", usage=True) from error
    except PathxError:
        raise
    except Exception as error:  # the deserialiser has no error type of its own
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> PathxError:
    if "required keyword attribute 'value' is undefined" in str(error):  # constants of a layout that cannot be saved
        found = f"{path} was made by torch.jit.optimize_for_inference and holds no weights"
        return PathxError(f"{found}: save the module that it was made from", usage=True)
    found = f"{path} cannot be loaded by torch {torch.__version__} ({reason_of(error)})"
    return PathxError(f"{found}: save it again with this version", usage=True)
