"""Model files: what a file is by its content, and TorchScript and torch.export files as networks.

No pickle is ever executed, and no file is seen by two readers that could disagree about it. What a TorchScript file
computes is up to the file, but it reaches for no other.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from pathx import regular
from pathx.errors import PathxError, reason_of
from pathx.models.exported import EMBEDDED, Archive, load_export
from pathx.models.operations import Unsafe, check_operations


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
            _check_text(Archive(stream))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but the file is what the user has
            # As torch.jit.load does it, which keeps the compiled functions to itself.
            unit: Any = torch._C.CompilationUnit()
            load: Any = torch._C.import_ir_module
            loaded = load(unit, str(path), torch.device("cpu"), extra, False)
            _check_graphs(unit)
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


# The program in a TorchScript file. torch runs parts of a file while it loads it: `__setstate__` and default values. So the text
# may have neither, but for plain literals; that is the one thing that is read off the text, with patterns that a line must match as
# a whole. Everything else is read off torch's own compiled graphs, which are complete once the file is loaded.

_TEXT = r"\"[^\"\\\n()\[\]]*\""
_LITERAL = rf"(?:[ \w.,\[\]+-]|{_TEXT})"  # without round brackets, so that nothing is called
_NUMBER = r"[ \de.,+-]|True|False|None"
_TUPLE = rf"(?:{_NUMBER}|[()\[\]]|{_TEXT})"  # without names
_TYPE = r"[ \w.,\[\]]"
_DEFAULTS = {  # words behind which torch evaluates values (a digit may stand before them), and how a plain file goes on
    word: (re.compile(rf"(?<![A-Za-z_]){word}(?!\w)"), re.compile(word + pattern, re.ASCII))
    for word, pattern in {
        "def": rf" \w+\(((?:{_LITERAL}|[:=\n]|=\((?:{_NUMBER})*\)|=torch\.device\({_TEXT}\))*)\) ->",
        "Final": rf"(\[{_TYPE}+\] = (?:{_LITERAL}*|{_TUPLE}*))\n",
        "NamedTuple": rf"\):\n((?:  \w+ : {_TYPE}+(?: = {_LITERAL}+)?\n)+)(?=\S|\Z)",
    }.items()
}
_NATIVE_CLASS = re.compile(rb"[.\n]classes[.\n]")  # objects of torch.classes are made by C++ code of their own


def _check_text(archive: Archive) -> None:
    """Raise Unsafe if loading a TorchScript archive would run a part of it."""
    for name in archive.names:
        lower = name.lower()  # torch's reader does not mind upper and lower case
        if lower == "model.json":
            raise Unsafe("it has the layout of an early version of torch")
        if lower.endswith(".pkl") and _NATIVE_CLASS.search(archive.read(name)):
            raise Unsafe("it holds an object that is no tensor")
        if not (lower.startswith("code/") and lower.endswith(".py")):
            continue
        text = archive.read(name).decode("latin-1")
        for word in ("__setstate__", "PythonOp"):  # runs while it is loaded; takes down torch's compiler
            if word in text:
                raise Unsafe(f"it names `{word}`")
        for start, plain in _DEFAULTS.values():
            if not all(_ends(plain.match(text, found.start())) for found in start.finditer(text)):
                raise Unsafe("it has a default value that is computed while it is loaded")


def _ends(found: re.Match[str] | None) -> bool:
    """Whether a plain value was found, and no bracket in it goes on behind it."""
    return found is not None and all(found[1].count(pair[0]) == found[1].count(pair[1]) for pair in ("[]", "()"))


def _check_graphs(unit: Any) -> None:
    """Raise Unsafe if a loaded program names what no model file may; its warnings are taken out.

    Args:
        unit: the `torch._C.CompilationUnit` that the file was loaded into.
    """
    for function in unit.get_functions():
        for node in list(_nodes(function.graph)):
            kind = node.kind()
            if kind == "aten::warn":  # functions of torch itself warn; the text would be printed as it is
                node.destroy()
                continue
            check_operations([kind])
            if kind == "prim::CreateObject" and ".torch.classes." in str(node.output().type()):
                raise Unsafe("it makes an object that is no tensor")


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
