"""Module paths for models whose calls no Python frame shows: torch.export programs and TorchScript files."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pathx.engine.record.trace import Node


@dataclass(frozen=True)
class Scope:
    """Where a call was made.

    Args:
        path: of the module, "" for the model itself.
        leaf: the module is one of torch.nn's own, so that its path names the call.
    """

    path: str = ""
    leaf: bool = False


class HasScope(Protocol):
    """What wants to know the scope of the calls being made."""

    scope: Scope | None


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one of torch.nn's own building blocks."""
    return type(module).__module__.startswith("torch.nn.") and not any(module.children())


def exported_interpreter(model: torch.fx.GraphModule, listener: HasScope) -> Callable[[Tensor], Any]:
    """Runs an exported program and tells `listener` the module path that each of its nodes came from."""

    class Interpreter(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            stack = list((n.meta.get("nn_module_stack") or {}).values())
            if stack:
                path, kind = stack[-1]
                name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
                leaf = name.startswith("torch.nn.modules.") and ".container." not in name
                listener.scope = Scope(path, leaf)
            return super().run_node(n)

    interpreter = Interpreter(model)
    return lambda x: interpreter.run(x)


def script_scopes(model: torch.jit.ScriptModule, nodes: list[Node]) -> dict[int, Scope]:
    """Scopes of a TorchScript model's recorded calls, as far as its code tells, by the numbers of the nodes.

    The code is read in order; the k-th call of an operation there is the k-th one recorded. Where the counts differ (an
    operation inside a branch or a loop) the calls of that operation stay without a scope.
    """
    written: dict[str, list[Scope]] = defaultdict(list)
    for kind, scope in _calls(model, "forward", ""):
        written[kind].append(scope)
    recorded: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        recorded[_plain(node.op_name)].append(node.index)
    return {
        number: scope
        for kind, numbers in recorded.items()
        if len(numbers) == len(written.get(kind, ()))
        for number, scope in zip(numbers, written[kind], strict=True)
    }


def _plain(name: str) -> str:
    """One name for the spellings of an operation: `relu6_`, `relu6` and `hardtanh` are one."""
    name = name.strip("_").removesuffix("_kernel")
    return "hardtanh" if name == "relu6" else name


def _calls(module: Any, method: str, path: str) -> Iterator[tuple[str, Scope]]:
    """(operation, scope) of every call in a method of a script module, in the order of its code."""
    own = getattr(module, "original_name", "")
    scope = Scope(path, hasattr(nn, own) and not any(module.children()))
    yield from _block_calls(module._c._get_method(method).graph, module, path, scope, {}, {})


def _block_calls(
    block: Any, module: Any, path: str, scope: Scope, paths: dict[str, str], settings: dict[str, Any]
) -> Iterator[tuple[str, Scope]]:
    """The calls of one block of code; branches are followed where a constant or a setting of the module decides them."""
    for node in block.nodes():
        kind = node.kind()
        if kind == "prim::GetAttr":
            above = paths.get(node.input().debugName(), path)
            name = node.output().debugName()
            paths[name] = f"{above}.{node.s('name')}".strip(".")
            settings[name] = getattr(_submodule(module, path, above), node.s("name"), None)
        elif kind == "prim::Constant":
            settings[node.output().debugName()] = node.output().toIValue()
        elif kind in _DECISIONS:
            operands = [settings.get(value.debugName(), _UNKNOWN) for value in node.inputs()]
            known = not any(operand is _UNKNOWN for operand in operands)
            settings[node.output().debugName()] = _DECISIONS[kind](*operands) if known else _UNKNOWN
        elif kind == "prim::If":
            chosen = settings.get(node.input().debugName(), _UNKNOWN)
            if isinstance(chosen, bool):
                taken = list(node.blocks())[0 if chosen else 1]
                yield from _block_calls(taken, module, path, scope, paths, settings)
                for outer, inner in zip(node.outputs(), taken.outputs(), strict=True):
                    settings[outer.debugName()] = settings.get(inner.debugName(), _UNKNOWN)
        elif kind == "prim::CallMethod":
            receiver = next(iter(node.inputs())).debugName()
            below = paths.get(receiver, path)
            yield from _calls(_submodule(module, path, below), node.s("name"), below)
        elif kind == "prim::CallFunction":
            yield _plain(next(iter(node.inputs())).node().s("name")), scope
        elif kind.startswith("aten::"):
            yield _plain(kind.removeprefix("aten::")), scope


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
