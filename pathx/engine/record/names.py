"""Which module a call was made in: from Python frames, the code of exported programs, and that of TorchScript."""

from __future__ import annotations

import operator
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from pathx.compat import module_path
from pathx.engine.record.operations import Node, Scope


class ModuleFinder:
    """Finds the module of a model that the current operation is called in.

    Args:
        modules: the model's modules with their paths; the first path of one that has several.
        outermost: the code of the function that runs the model, where the search ends.
    """

    def __init__(self, model: nn.Module, modules: list[tuple[str, nn.Module]], outermost: Any) -> None:
        self._modules = {id(module): (path, module) for path, module in modules}
        self._scopes: dict[int, Scope | None] = {}
        self._outermost = outermost
        self.last = Scope()  # the last answer
        self._generated: Any = None  # code that torch.fx wrote: each line is a call
        if isinstance(model, torch.fx.GraphModule):
            self._generated = getattr(type(model).forward, "__code__", None)
            self._lines = _line_scopes(model)

    def find(self) -> Scope:
        """The innermost module of the model whose code is running."""
        self.last = Scope()
        frame: Any = sys._getframe(2)
        while frame is not None and (code := frame.f_code) is not self._outermost:
            scope = None
            if code is _CALL:
                scope = self._scope(frame.f_locals["self"])
            elif code is self._generated:
                scope = self._lines.get(frame.f_lineno - code.co_firstlineno)
            if scope is not None:
                self.last = scope
                break
            frame = frame.f_back
        return self.last

    def _scope(self, module: nn.Module) -> Scope | None:
        """The scope of a module; None if it is not in the model."""
        key = id(module)
        if key not in self._scopes:
            path, known = self._modules.get(key, ("", None))
            self._scopes[key] = None if known is None else Scope(path, is_leaf(known))
        return self._scopes[key]


_CALL = nn.Module._wrapped_call_impl.__code__  # which has few local variables, and so is read quickly


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one of torch.nn's building blocks."""
    return not module._modules and type(module).__module__.startswith("torch.nn.")


# --- Programs of torch.fx and torch.export ---------------------------------------------------------------------------


def _line_scopes(model: torch.fx.GraphModule) -> dict[int, Scope]:
    """The scope of each line of a program's code, counted from the line of its `def`."""
    code = model.code
    if model not in _LINES or _LINES[model][0] != code:
        by_name = {node.name: scope for node in model.graph.nodes if (scope := _fx_scope(node)) is not None}
        lines = code.splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("def forward")), 0)
        names = ((number - first, re.match(r"\s+(\w+)(?: *:[^=]*)? = ", line)) for number, line in enumerate(lines))
        _LINES[model] = code, {number: by_name[n[1]] for number, n in names if n is not None and n[1] in by_name}
    return _LINES[model][1]


_LINES: WeakKeyDictionary[nn.Module, tuple[str, dict[int, Scope]]] = WeakKeyDictionary()


def _fx_scope(node: torch.fx.Node) -> Scope | None:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return None
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return Scope(module_path(path), name.startswith("torch.nn.modules.") and ".container." not in name)


# --- TorchScript -----------------------------------------------------------------------------------------------------


def script_scopes(model: torch.jit.ScriptModule, calls: list[Node]) -> dict[int, Scope]:
    """The scopes of a TorchScript model's calls, as far as its code shows them, by node index.

    The k-th call of an operation in the code is the k-th one recorded. Where the counts differ (an operation inside of a
    branch or a loop) the calls of that operation have no scope.
    """
    written = _calls_in_code(model)
    recorded: dict[str, list[int]] = defaultdict(list)
    for node in calls:
        recorded[_canonical_name(node.op_name)].append(node.index)
    scopes: dict[int, Scope] = {}
    for kind, numbers in recorded.items():
        if len(numbers) == len(written.get(kind, ())):
            for number, scope in zip(numbers, written[kind], strict=True):
                scopes.setdefault(number, scope)
    return scopes


def _calls_in_code(model: torch.jit.ScriptModule) -> dict[str, list[Scope]]:
    """The scopes of the calls of each operation, in the order of the code. Read again if a setting changed."""
    if model not in _CODE or any(getattr(module, name, None) != value for module, name, value in _CODE[model][0]):
        code = _Code()
        calls: dict[str, list[Scope]] = defaultdict(list)
        for kind, scope in code.calls(model, "forward", ""):
            calls[kind].append(scope)
        _CODE[model] = code.settings, calls
    return _CODE[model][1]


Setting = tuple[Any, str, Any]
_CODE: WeakKeyDictionary[nn.Module, tuple[list[Setting], dict[str, list[Scope]]]] = WeakKeyDictionary()


def _canonical_name(name: str) -> str:
    """One name for all spellings of an operation: `relu6_`, `relu6` and `hardtanh`."""
    name = name.strip("_").removesuffix("_kernel")
    return "hardtanh" if name == "relu6" else name


class _Code:
    """Reads the code of a script module. `settings` are the attributes of modules that it read."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def calls(self, module: Any, method: str, path: str) -> Iterator[tuple[str, Scope]]:
        """(operation, scope) of every call in a method of a script module, in the order of its code."""
        own = getattr(module, "original_name", "")
        scope = Scope(path, hasattr(nn, own) and not any(module.children()))
        yield from self._block(module._c._get_method(method).graph, module, path, scope, {}, {})

    def _block(
        self, block: Any, module: Any, path: str, scope: Scope, paths: dict[str, str], known: dict[str, Any]
    ) -> Iterator[tuple[str, Scope]]:
        """The calls of one block. A branch is followed if a constant or a setting of the module decides it."""
        for node in block.nodes():
            kind = node.kind()
            if kind == "prim::GetAttr":
                above = paths.get(node.input().debugName(), path)
                name = node.output().debugName()
                paths[name] = f"{above}.{node.s('name')}".strip(".")
                known[name] = self._read_setting(_submodule(module, path, above), node.s("name"))
            elif kind == "prim::Constant":
                known[node.output().debugName()] = node.output().toIValue()
            elif kind in _DECISIONS:
                operands = [known.get(value.debugName(), _UNKNOWN) for value in node.inputs()]
                decided = not any(operand is _UNKNOWN for operand in operands)
                known[node.output().debugName()] = _DECISIONS[kind](*operands) if decided else _UNKNOWN
            elif kind == "prim::If":
                chosen = known.get(node.input().debugName(), _UNKNOWN)
                if isinstance(chosen, bool):
                    taken = list(node.blocks())[0 if chosen else 1]
                    yield from self._block(taken, module, path, scope, paths, known)
                    for outer, inner in zip(node.outputs(), taken.outputs(), strict=True):
                        known[outer.debugName()] = known.get(inner.debugName(), _UNKNOWN)
            elif kind == "prim::CallMethod":
                receiver = next(iter(node.inputs())).debugName()
                below = paths.get(receiver, path)
                yield from self.calls(_submodule(module, path, below), node.s("name"), below)
            elif kind == "prim::CallFunction":
                yield _canonical_name(next(iter(node.inputs())).node().s("name")), scope
            elif kind.startswith("aten::"):
                yield _canonical_name(kind.removeprefix("aten::")), scope

    def _read_setting(self, module: Any, name: str) -> Any:
        value = getattr(module, name, None)
        if isinstance(value, (bool, int, float, str)):
            self.settings.append((module, name, value))
        return value


_UNKNOWN = object()
_DECISIONS: dict[str, Callable[..., Any]] = {
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::gt": operator.gt,
    "aten::le": operator.le,
    "aten::ge": operator.ge,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
}


def _submodule(module: Any, path: str, below: str) -> Any:
    for name in below.removeprefix(path).strip(".").split("."):
        module = getattr(module, name) if name else module
    return module
