"""Networks that the user's own Python code builds: `file.py:build` or `package.module:build`.

The code runs as it is, with all rights of the user.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from pathx.errors import PathxError, kind_in_words, reason_of
from pathx.models.checkpoints import fixed_seed, load_weights
from pathx.models.load import LoadedModel, made_of
from pathx.models.preprocessing import EXAMPLE, complete, sidecar_beside
from pathx.regular import sha256_of

BESIDE = "pathx.json"
"""The sidecar for all networks in a folder of code."""


def load_python(
    text: str, weights: str | None, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> LoadedModel:
    """The network that a function, a class or a module of the user's code gives.

    Args:
        weights: a state dict or a trainer's checkpoint; None for the weights that the code gives the network; `none` for
            the same with a fixed seed.
        arguments: for the function, by name.
    """
    place, _, attribute = text.rpartition(":")
    is_path = place.endswith(".py")
    folder = Path(place).parent if is_path else Path()
    chance = fixed_seed() if weights == "none" else nullcontext()
    with _as_a_script_would(folder), _note_files_read(text) as read, chance:
        code = _import(place)
        module = _build(text, _attribute(code, attribute, place), arguments)
    name = f"{Path(place).name}:{attribute}" if is_path else text
    file = Path(code.__file__) if code.__file__ else None
    beside = {} if file is None else sidecar_beside(file, file.with_name(BESIDE))
    description = {**beside, **options}
    remedy = f"give them as options or write {(file or Path()).with_name(BESIDE)} such as {EXAMPLE}"
    preprocessing = complete(description, text, remedy)
    shown, sha256 = load_weights(module, weights, text, "as built")
    origin = {"source": "python", "name": text}
    if file is not None and file.is_file():
        origin["code_sha256"] = sha256_of(file)
        above = 0 if is_path else max(0, place.count(".") - (file.name != "__init__.py"))
        root = file.parents[above]  # the folder of the file, or that of its outermost package
        origin |= made_of({os.path.realpath(file), *(one for one in read if _is_own(one, root))}, arguments)
    module.eval()  # in two steps, since the user's own eval() may return nothing
    with suppress(NotImplementedError):  # on the meta device, which the engine refuses
        module.cpu()
    return LoadedModel(module, name, shown, sha256, preprocessing, description.get("labels", ()), origin)


@contextmanager
def _as_a_script_would(folder: Path) -> Iterator[None]:
    """Let imports find modules beside the code, and send what the code prints to stderr."""
    entry = os.path.abspath(folder)
    for modules in _BESIDE.values():  # other folders may have modules of the same names
        for name in modules:
            sys.modules.pop(name, None)
    sys.modules.update(_BESIDE.setdefault(entry, {}))
    before = {*sys.modules}
    sys.path.insert(0, entry)
    try:
        with redirect_stdout(sys.stderr), _processes_print_to_stderr():
            yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
        _BESIDE[entry] |= {
            name: module
            for name, module in sys.modules.items()
            if name not in before and _lies_below(module, entry) and not name.startswith("pathx.")
        }


_BESIDE: dict[str, dict[str, ModuleType]] = {}
"""By folder: the modules that code in it has imported from that folder."""


def _lies_below(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return os.path.abspath(file).startswith(os.path.join(folder, "")) and "site-packages" not in file


_reads: list[set[str]] = []
"""The sets to which files are added when they are opened for reading."""

_read_before: dict[str, set[str]] = {}
"""By name of the model: the files that its code has read in this process."""


@contextmanager
def _note_files_read(text: str) -> Iterator[set[str]]:
    """Collect the files that Python code opens for reading; for compiled modules, their sources."""
    _listen()
    read = _read_before.setdefault(text, set())  # modules are imported once in a process
    _reads.append(read)
    try:
        yield read
    finally:
        _reads.pop()


@cache
def _listen() -> None:
    def on_event(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and _reads and isinstance(given[0], str) and not given[2] & (os.O_WRONLY | os.O_RDWR):
            file = os.path.realpath(given[0])
            with suppress(ValueError):  # not a compiled module
                file = importlib.util.source_from_cache(file)
            for read in _reads:
                read.add(file)

    sys.addaudithook(on_event)  # hooks cannot be removed


def _is_own(file: str, root: Path) -> bool:
    """Whether a file that code has read belongs to it, and not to an installed package or a cache."""
    for folder in {root.resolve(), Path().resolve()}:
        if Path(file).is_relative_to(folder) and "site-packages" not in file:
            return os.path.isfile(file) and not any(part[0] == "." for part in Path(file).relative_to(folder).parts)
    return False


@contextmanager
def _processes_print_to_stderr() -> Iterator[None]:
    """Send to stderr what C code or other programs print, too."""
    try:
        before = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        yield
        return
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def _import(place: str) -> ModuleType:
    if place.endswith(".py") and not os.path.isfile(place):
        raise PathxError(f"there is no file {place}: check the path", usage=True)
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        name = re.sub(r"\W", "_", Path(place).stem)
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None and spec.loader is not None
        code = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, code)  # dataclasses and pickles of the code look it up there
        spec.loader.exec_module(code)
        return code
    except ModuleNotFoundError as error:
        if error.name in (place, place.partition(".")[0]):
            remedy = "check the name, or give the file as path/to/file.py:function"
            raise PathxError(f"there is no Python module {place}: {remedy}", usage=True) from error
        raise PathxError(f"{place} needs {error.name}, which is not installed: install it", usage=True) from error
    except (Exception, SystemExit) as error:
        if "operator torchvision::" in str(error) and "pathx.models.torchvision" not in sys.modules:
            importlib.import_module("pathx.models.torchvision")  # imports it in spite of that
            return _import(place)
        raise _failure(f"importing {place}", error) from error


def _attribute(code: ModuleType, name: str, place: str) -> Any:
    found: Any = code
    for part in name.split("."):
        if not hasattr(found, part):
            callables = [key for key, value in vars(code).items() if callable(value) and not key.startswith("_")]
            there = f"it has {', '.join(callables[:8])}" if callables else "it has no functions and classes"
            raise PathxError(f"{place} has no {name}: {there}", usage=True)
        found = getattr(found, part)
    return found


def _build(text: str, maker: Any, arguments: Mapping[str, Any]) -> nn.Module:
    if isinstance(maker, nn.Module):
        return maker
    if not callable(maker):
        problem = f"{text} is {kind_in_words(maker)}: give a function or a class that makes a network"
        raise PathxError(problem, usage=True)
    try:
        made = maker(**arguments)
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "argument" in str(error):
            problem = f"{text} cannot be called ({reason_of(error)})"
            remedy = """give its arguments as `arguments` '{"name": value}'"""
            raise PathxError(f"{problem}: {remedy}", usage=True) from error
        raise _failure(text, error) from error
    if not isinstance(made, nn.Module):
        raise PathxError(f"{text} gave {kind_in_words(made)}, not a torch.nn.Module: return the network", usage=True)
    return made


def _failure(what: str, error: BaseException) -> PathxError:
    problem = f"{what} failed with {type(error).__name__}: {reason_of(error)}"
    return PathxError(f"{problem}; it is your own code (PATHX_DEBUG=1 shows where)", usage=True)
