"""From a module to a graph of aten operations: every call recorded once, in order, with the module it came from.

A dispatch mode sees what any module does (eager, TorchScript, torch.export alike) as operations on tensors, so re-used
modules and functional calls all look the same. In-place operations are written down as what they compute; only where
one changes a tensor that is also read under another name is `torch.func.functionalize` asked to sort that out.
Parameters are kept by name, never by value: the graph of a model sees weights that change later.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pathx.errors import PathxError
from pathx.rewrites import REWRITES
from pathx.scopes import Scope, exported_interpreter, is_leaf, script_scopes


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph, by number. There is one object for each."""

    index: int


def filled(item: Any, fill: Callable[[Any], Any]) -> Any:
    """An argument with `fill` applied to everything in it that is not a list or tuple."""
    if isinstance(item, (list, tuple)):
        return [filled(part, fill) for part in item]
    return fill(item)


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an aten operation.

    Args:
        args, kwargs: as the operation takes them, with a `Value` for every tensor.
        outputs: the values it makes; None where an output is not a tensor.
        scope: the module the call was made in.
    """

    index: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    scope: Scope

    @cached_property
    def inputs(self) -> list[Value]:
        """The values among the arguments, in order."""
        found: list[Value] = []
        filled(
            [*self.args, *self.kwargs.values()], lambda leaf: found.append(leaf) if isinstance(leaf, Value) else None
        )
        return found

    @cached_property
    def kind(self) -> str:
        """The name under which the tables hold the operation: `convolution`, whatever its overload."""
        return str(getattr(self.op, "overloadpacket", self.op).__name__)

    @property
    def op_name(self) -> str:
        """The operation without its namespace and overload: `relu`, `convolution`."""
        return str(self.op.__name__).split(".")[0].strip("_")

    @property
    def place(self) -> str:
        """Operation and module path for messages: `sigmoid in features.1.block.1`."""
        return f"{self.op_name} in {self.module}"

    @property
    def module(self) -> str:
        """The module path for messages."""
        return self.scope.path or "the model itself"

    @property
    def name(self) -> str:
        """The call as torchvision names feature nodes: `features.28` for a module, `layer1.0.relu` for a function."""
        return self.scope.path if self.scope.leaf else f"{self.scope.path}.{self.op_name}".strip(".")


@dataclass(frozen=True, eq=False)
class Graph:
    """What a model does with one input shape.

    Args:
        shapes: shape of every value, the batch dimension included.
        parameters: the values that are parameters or buffers of the model, by their dotted names.
        constants: the values that are other tensors the model holds.
        outputs: what the model returned, with a `Value` for every tensor.
    """

    nodes: tuple[Node, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    input: Value
    parameters: dict[str, Value]
    constants: dict[Value, Tensor]
    outputs: Any


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and tensors that are plain attributes of modules, by their dotted names."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for holder in (module._parameters, module._buffers, vars(module)):
            for name, tensor in holder.items():
                if isinstance(tensor, Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, where torch.compile or data parallelism is wrapped around it."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def trace(model: nn.Module, images: Tensor, watch: Callable[[], Callable[[Node, Value], None]]) -> Graph:
    """Run `model` once on `images` and record every operation. The model is left as it was.

    Args:
        watch: makes what is shown every node, and the input's value, as soon as it is recorded.
    """
    model = _evaluation_view(model)
    try:
        return _record(_Recorder(model, images, watch()), lambda call: call)
    except _Aliased:
        pass
    recorder = _Recorder(model, images, watch())
    try:
        return _record(recorder, lambda call: torch.func.functionalize(call, remove="mutations"))
    except _Aliased:
        place = recorder.scope or recorder.nodes[-1].scope
        found = (
            f"the model changes a tensor in place in {place.path or 'the model itself'} that it also reads elsewhere"
        )
        raise PathxError(f"{found}; write it without the in-place operation", usage=True) from None


class _Aliased(Exception):
    """A tensor was changed in place and then read through another tensor that shares its memory."""


def _record(recorder: _Recorder, wrap: Callable[[Any], Any]) -> Graph:
    model, images = recorder.model, recorder.images
    call: Callable[[Tensor], Any] = model
    if isinstance(model, torch.fx.GraphModule):
        call = exported_interpreter(model, recorder)
    try:
        with torch.inference_mode(False), torch.no_grad(), _uncompiled(), _Escapes(), recorder:
            outputs = wrap(lambda x: _plain(call(x)))(images)
        return recorder.graph(outputs)
    except (PathxError, _Aliased):
        raise
    except Exception as error:
        reason = _why_it_cannot_run(model, images) or error
        line = (str(reason).strip().splitlines() or [type(reason).__name__])[-1].rstrip(". ")
        remedy = "check the size and number of channels it is made for"
        if re.search(r"missing \d+ required|missing value for argument", line):
            remedy = "pathx explains networks of one input: wrap it so that its forward takes the picture alone"
        found = f"the model cannot run on an input of shape {tuple(images.shape)}: {line}; {remedy}"
        raise PathxError(found, usage=True) from error


def _uncompiled() -> AbstractContextManager[Any]:
    """No compiled code, which a recorder cannot look into; without torch._dynamo loaded there is none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Escapes(TorchFunctionMode):
    """Notices values that leave torch, which a recorder does not see: reading one element of them is recorded instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.numpy, Tensor.tolist, Tensor.__array__) and args[0].numel():
            args[0].detach().flatten()[0].item()
        return func(*args, **(kwargs or {}))


def _why_it_cannot_run(model: nn.Module, images: Tensor) -> Exception | None:
    """The model's own error without a recorder around it, which makes TorchScript forget the text."""
    try:
        with torch.no_grad():
            model(images)
    except Exception as error:
        return error
    return None


def _plain(outputs: Any) -> Any:
    """Named tuples as dicts and other containers as they are, since functorch's trees want plain ones."""
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        outputs = dict(outputs._asdict())
    elif is_dataclass(outputs) and not isinstance(outputs, dict):
        outputs = {field.name: getattr(outputs, field.name) for field in fields(outputs)}
    if isinstance(outputs, dict):
        return {str(key): _plain(value) for key, value in outputs.items() if value is not None}
    if isinstance(outputs, (tuple, list)):
        return [_plain(value) for value in outputs if value is not None]
    return outputs


def _evaluation_view(model: nn.Module) -> nn.Module:
    """The model in eval mode: itself, or a copy of its structure that shares its tensors."""
    if not any(module.training for module in model.modules()):
        return model
    shared = {id(tensor): tensor for _, tensor in named_tensors(model)}
    try:
        return copy.deepcopy(model, shared).eval()
    except Exception as error:
        raise PathxError(
            "the model is in training mode and cannot be copied; call model.eval() first", usage=True
        ) from error


@dataclass
class _Recorder(TorchDispatchMode):
    """The dispatch mode that writes the graph down."""

    model: nn.Module
    images: Tensor
    watch: Callable[[Node, Value], None]
    scope: Scope | None = None  # set from outside where Python frames do not tell

    nodes: list[Node] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)
    constants: dict[Value, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: dict[int, Value] = {}
        self.alive: list[Tensor] = []  # an id stays unique only while its tensor lives
        self.sharing: dict[int, list[int]] = {}  # ids of the tensors on each piece of memory
        self.stale: set[int] = set()  # ids of tensors whose memory was changed through another tensor
        self.apart: set[int] = set()  # ids of parts of a tensor that are changed without regard to each other
        self.makers: dict[Value, Node] = {}
        named = reversed(list(self.model.named_modules()))
        self.modules = {id(module): Scope(name, is_leaf(module)) for name, module in named}
        self.input = self._value(self.images)
        self.parameters = {name: self._value(tensor) for name, tensor in named_tensors(self.model)}

    def _value(self, tensor: Tensor) -> Value:
        value = self.values[id(tensor)] = Value(len(self.shapes))
        self.alive.append(tensor)
        self.stale.discard(id(tensor))
        if id(tensor) not in self.apart:
            self.sharing.setdefault(tensor.untyped_storage()._cdata, []).append(id(tensor))
        self.shapes.append(tuple(tensor.shape))
        self.dtypes.append(tensor.dtype)
        return value

    def _known(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self.values:
            self.constants[self._value(leaf)] = leaf
        if id(leaf) in self.stale:
            raise _Aliased
        return self.values[id(leaf)]

    def _here(self, leaf: Any) -> Any:
        """Weights that were left on another device than the rest, where the pictures are."""
        elsewhere = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.device != self.images.device
        return leaf.to(self.images.device) if elsewhere else leaf

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question about a tensor, such as its device
            return func(*args, **kwargs)
        if func is torch.ops.aten.equal.default and not isinstance(args[0], Tensor):
            return args[0] == args[1]  # TorchScript's optimiser compares constants, which arrive here as plain numbers
        if _is_composite(func):  # as they arrive where tensors were made in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        other = REWRITES[func](self._factor, *args, **kwargs) if func in REWRITES else None
        if other is not None:
            with self:
                return other()
        known_args = tuple(filled(arg, self._known) for arg in args)
        known_kwargs = {name: filled(arg, self._known) for name, arg in kwargs.items()}
        if func._schema.is_mutable:
            out = func(*args, **kwargs)
            func = self._changes(func, args)
        else:
            out = func(*(filled(arg, self._here) for arg in args), **kwargs)
        if func is torch.ops.aten._convolution.default:  # as TorchScript spells it, with settings for one library
            func, known_args = torch.ops.aten.convolution.default, known_args[:9]
        outputs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        scope = self.scope or self._frame_scope()
        if func.name().startswith("aten::unsafe_"):
            self.apart.update(map(id, outputs))
        values = tuple(self._value(o) if isinstance(o, Tensor) else None for o in outputs)
        node = Node(len(self.nodes), func, known_args, known_kwargs, values, scope)
        self.nodes.append(node)
        self.makers.update({value: node for value in values if value is not None})
        self.watch(node, self.input)
        return out

    def _factor(self, part: Tensor, whole: Tensor) -> Any:
        """The number or tensor k where `part` was recorded as k times `whole`; None where it was not."""
        node, value = self.makers.get(self.values.get(id(part), self.input)), self.values.get(id(whole))
        if node is None or value is None or value not in node.args or node.kind not in ("mul", "div", "neg"):
            return None
        if node.kind == "neg":
            return -1.0
        place = node.args.index(value)
        other = self.alive[factor.index] if isinstance(factor := node.args[1 - place], Value) else factor
        if node.kind == "div":
            return 1 / other if place == 0 else None
        return other

    def _changes(self, func: Any, args: Any) -> Any:
        """Note whose memory an in-place operation changes; returns the operation that computes the same out of place."""
        name, overload = func._schema.name.removeprefix("aten::"), func._overloadname
        functional = getattr(torch.ops.aten, name.removesuffix("_"), None)
        if not name.endswith("_") or functional is None or not hasattr(functional, overload):
            raise _Aliased  # writes into an argument in a way of its own
        storage = args[0].untyped_storage()._cdata
        if id(args[0]) not in self.apart:
            self.stale.update(other for other in self.sharing[storage] if other != id(args[0]))
        return getattr(functional, overload)

    def _frame_scope(self) -> Scope:
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code is _CALL_IMPL:
                found = self.modules.get(id(frame.f_locals["self"]))
                if found is not None:
                    return found
            frame = frame.f_back  # type: ignore[assignment]
        return Scope()

    def graph(self, outputs: Any) -> Graph:
        nodes = self.nodes
        if isinstance(self.model, torch.jit.ScriptModule):
            scopes = script_scopes(self.model, nodes)
            nodes = [replace(node, scope=scopes.get(node.index, node.scope)) for node in nodes]
        return Graph(
            nodes=tuple(nodes),
            shapes=tuple(self.shapes),
            dtypes=tuple(self.dtypes),
            input=self.input,
            parameters=self.parameters,
            constants=self.constants,
            outputs=tree_map(self._known, outputs),
        )


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operation is made of others, whatever the device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


_CALL_IMPL = nn.Module._call_impl.__code__
