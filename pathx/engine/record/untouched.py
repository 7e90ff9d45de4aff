"""A model left as it was: what its `forward` writes into itself is taken back, also after an exception.

Attributes, and the containers and objects that hang on them, are noted before a run and put back after it. Tensors that
are written in place are noted when that happens, by whoever sees the operations.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Undo = Callable[[], object]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back, at the end, every attribute of a model and all that its attributes hold."""
    before = _Before(model)
    try:
        yield
    finally:
        before.put_back()


class Writes:
    """Tensors that are written in place or given other memory, with what they held before."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[Tensor, int]] = {}  # with their counts of changes
        self._written: set[int] = set()
        self._undo: list[Undo] = []
        self.memory: set[int] = set()  # that is written

    def note(self, tensor: Tensor) -> None:
        """Remember a tensor that is about to be written, unless it was noted before."""
        whole = tensor if tensor._base is None else tensor._base
        self.memory.add(whole.untyped_storage()._cdata)
        if id(whole) not in self._written and not whole.is_inference():
            self._written.add(id(whole))
            self._noted.setdefault(id(whole), (whole, whole._version))
            self._undo.append(partial(whole.copy_, whole.detach().clone()))

    def note_memory(self, tensor: Tensor) -> None:
        """Remember the memory of a tensor that is about to be given another."""
        self._noted.setdefault(id(tensor), (tensor, tensor._version))
        self._undo.append(partial(setattr, tensor, "data", tensor.data))

    def take_back(self) -> None:
        """Undo all that was noted, the last first, and count no change."""
        with torch.no_grad():
            while self._undo:
                self._undo.pop()()
        for tensor, version in self._noted.values():
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
        self._noted.clear()


class _Before:
    """Every container and object that is reached from a model, with what it held.

    Everyday networks have thousands of them, so they are held in flat lists, and the empty ones without a copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self.items: list[tuple[Any, list[Any]]] = []
        self.empty: list[Any] = []
        self.others: list[Undo] = []
        seen: set[int] = set()
        stack: list[Any] = [model]
        while stack:
            item = stack.pop()
            if id(item) not in seen:
                seen.add(id(item))
                for one in self._note(item):
                    kind = type(one)
                    if kind in _PLAIN:
                        continue
                    if kind in _EMPTIED and not one:
                        self.empty.append(one)
                    else:
                        stack.append(one)

    def _note(self, item: Any) -> Iterable[Any]:
        """Write down what an object holds; returns that."""
        family = _family(type(item))  # type: ignore[arg-type]
        if family is dict:
            self.dicts.append((item, dict(item)))
            return item.values()  # type: ignore[no-any-return]
        if family is list:
            self.items.append((item, list(item)))
            return item  # type: ignore[no-any-return]
        if family is tuple:
            return item  # type: ignore[no-any-return]
        if family is None:
            return ()
        if family is torch.jit.ScriptModule:
            self.others += _script_notes(item)
        held: list[Any] = []
        own = getattr(item, "__dict__", None)
        if isinstance(own, dict):
            self.dicts.append((own, dict(own)))
            held += own.values()
        for name in _slots(type(item)):  # type: ignore[arg-type]
            value = getattr(item, name, _ABSENT)
            self.others.append(partial(_set_slot, item, name, value))
            held.append(value)
        return held

    def put_back(self) -> None:
        for held in self.empty:
            if held:
                held.clear()
        for own, before in self.dicts:
            if list(own) != list(before) or not all(map(operator.is_, own.values(), before.values())):
                _refill(own, before)
        for several, order in self.items:
            if len(several) != len(order) or not all(map(operator.is_, several, order)):
                several.clear()
                (several.update if isinstance(several, set) else several.extend)(order)
        for undo in self.others:
            undo()


_PLAIN = frozenset([bool, int, float, complex, str, bytes, type(None), Tensor, nn.Parameter, torch.Size, torch.dtype])
_APART = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Tensor, torch.device)
_EMPTIED = frozenset([dict, OrderedDict, list, set])  # most hold nothing: no copy, no further look
_ABSENT = object()
_FAMILIES: tuple[tuple[type | None, tuple[type, ...]], ...] = (
    (dict, (dict,)),
    (list, (list, deque, set)),
    (tuple, (tuple, frozenset)),
    (None, _APART),
    (torch.jit.ScriptModule, (torch.jit.ScriptModule,)),
)


def _refill(own: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Put back what a dict held, past what classes of their own make of it; an OrderedDict keeps its order beside it."""
    kind = OrderedDict if isinstance(own, OrderedDict) else dict
    kind.clear(own)
    for key, value in before.items():
        kind.__setitem__(own, key, value)


def _set_slot(item: Any, name: str, before: Any) -> None:
    if before is not _ABSENT and getattr(item, name, _ABSENT) is not before:
        object.__setattr__(item, name, before)
    elif before is _ABSENT and hasattr(item, name):
        object.__delattr__(item, name)


@cache
def _family(kind: type) -> type | None:
    """How objects of a class are noted: as dict, list, tuple, ScriptModule or object; None for not at all."""
    for family, members in _FAMILIES:
        if issubclass(kind, members):
            return family
    return object


@cache
def _slots(kind: Any) -> tuple[str, ...]:
    """Names of the attributes that objects of a class hold outside of their `__dict__`."""
    found = []
    for one in kind.__mro__:
        named = one.__dict__.get("__slots__", ())
        for name in (named,) if isinstance(named, str) else named:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{one.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)


def _script_notes(module: torch.jit.ScriptModule) -> Iterator[Undo]:
    """What a TorchScript module holds beside tensors and modules and may change: copies are made on reading."""
    script: Any = getattr(module, "_c", None)
    if script is not None:
        if module not in _WRITTEN:
            _WRITTEN[module] = tuple(_written(script))
        for name in _WRITTEN[module]:
            yield partial(_set_script, script, name, script.getattr(name))


_WRITTEN: WeakKeyDictionary[torch.jit.ScriptModule, tuple[str, ...]] = WeakKeyDictionary()


def _written(script: Any) -> Iterator[str]:
    """Names of the attributes that a TorchScript module's own code sets, or that hold a container that it may change."""
    names: dict[str, None] = {}
    for method in script._method_names():
        graph = script._get_method(method).graph
        names.update(dict.fromkeys(node.s("name") for node in graph.findAllNodes("prim::SetAttr", recurse=True)))
        names.update(dict.fromkeys(node.s("name") for node in graph.findAllNodes("prim::GetAttr", recurse=True)))
    for name in names:
        held = script.getattr(name) if script.hasattr(name) else None
        if isinstance(held, (bool, int, float, str, list, dict, tuple)):
            yield name


def _set_script(script: Any, name: str, before: Any) -> None:
    if script.getattr(name) != before:
        script.setattr(name, before)
