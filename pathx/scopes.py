"""Module paths for models whose calls no Python frame shows: torch.export programs and TorchScript files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pathx.trace import Node


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
    paths = {}
    graph = module._c._get_method(method).graph
    for node in graph.nodes():
        if node.kind() == "prim::GetAttr":
            above = paths.get(node.input().debugName(), path)
            paths[node.output().debugName()] = f"{above}.{node.s('name')}".strip(".")
        elif node.kind() == "prim::CallMethod":
            receiver = next(iter(node.inputs())).debugName()
            below = paths.get(receiver, path)
            yield from _calls(_submodule(module, path, below), node.s("name"), below)
        elif node.kind() == "prim::CallFunction":
            name = next(iter(node.inputs())).node().s("name")
            yield _plain(name), scope
        elif node.kind().startswith("aten::"):
            yield _plain(node.kind().removeprefix("aten::")), scope


def _submodule(module: Any, path: str, below: str) -> Any:
    for name in below.removeprefix(path).strip(".").split("."):
        module = getattr(module, name) if name else module
    return module
