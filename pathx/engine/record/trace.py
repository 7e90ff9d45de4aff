"""From a module to a graph of aten operations: every call recorded once, in order, with the module it came from.

A dispatch mode sees what any module does (eager, TorchScript, torch.export alike) as operations on tensors, so re-used
modules and functional calls all look the same. In-place operations are written down as what they compute; only where
one changes a tensor that is also read under another name is `torch.func.functionalize` asked to sort that out.
Parameters are kept by name, never by value: the graph of a model sees weights that change later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pathx.engine.record.listen import Aliased, Listener, run
from pathx.engine.record.rewrites import FACTORS, hands_out_parts, spelled
from pathx.engine.record.scopes import Scope, exported_interpreter, script_scopes
from pathx.errors import PathxError


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph, by number. There is one object for each."""

    index: int


def filled(item: Any, fill: Callable[[Any], Any]) -> Any:
    """An argument with `fill` applied to everything in it that is not a list or tuple."""
    if isinstance(item, (list, tuple)):
        return [filled(part, fill) for part in item]
    return fill(item)


def values_in(item: Any) -> list[Value]:
    """The values in an argument, in order."""
    found: list[Value] = []
    filled(item, lambda leaf: found.append(leaf) if isinstance(leaf, Value) else None)
    return found


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
        return values_in([*self.args, *self.kwargs.values()])

    @cached_property
    def kind(self) -> str:
        """The name under which the tables hold the operation: `convolution`, whatever its overload.

        They hold torch's own. What others call by the same name may do anything: `quantized.linear`.
        """
        name = str(self.op.overloadpacket.__name__)
        return name if self.op.namespace == "aten" else f"{self.op.namespace}.{name}"

    @property
    def op_name(self) -> str:
        """The operation without its namespace and overload: `relu`, `convolution`."""
        return str(self.op.__name__).split(".")[0].strip("_")

    @property
    def place(self) -> str:
        """Operation and module path for messages: `sigmoid in features.1.block.1`."""
        return f"{self.op_name if self.op.namespace == 'aten' else self.kind} in {self.module}"

    @property
    def module(self) -> str:
        """The module path for messages."""
        return self.scope.path or "the model itself"

    @property
    def name(self) -> str:
        """The call as torchvision names feature nodes: `features.28` for a module, `layer1.0.relu` for a function."""
        alone = self.scope.leaf and self.scope.path  # a ReLU that is the whole model has no path
        return self.scope.path if alone else f"{self.scope.path}.{self.op_name}".strip(".")


@dataclass(frozen=True, eq=False)
class Graph:
    """What a model does with one input shape.

    Args:
        shapes: shape of every value, the batch dimension included.
        parameters: the values that are parameters or buffers of the model, by their dotted names.
        constants: the values that are other tensors the model holds.
        outputs: what the model returned, with a `Value` for every tensor.
        contiguous: whether each value lay in memory in order.
        functional: in-place operations were sorted out by torch.
        framed: the scopes are those of the Python code that ran.
    """

    nodes: tuple[Node, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    input: Value
    parameters: dict[str, Value]
    constants: dict[Value, Tensor]
    outputs: Any
    contiguous: tuple[bool, ...] = ()
    functional: bool = False
    framed: bool = False


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
    """The network itself, where torch.compile or data parallelism is wrapped around it and does nothing of its own."""
    while not (model._forward_hooks or model._forward_pre_hooks or has_global_hooks()):
        inner = _wrapped(model)
        if inner is None:
            break
        model = inner
    return model


def _wrapped(model: nn.Module) -> nn.Module | None:
    """What a wrapper of torch's own runs; None for anything else, and where somebody changed what the wrapper does."""
    kind, inner = type(model), None
    if kind.__module__.startswith("torch._dynamo.") and hasattr(model.forward, "_torchdynamo_orig_callable"):
        inner = getattr(model, "_orig_mod", None)
    elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) and "forward" not in vars(model):
        own = kind.forward not in _PARALLEL or kind.__call__ is not nn.Module.__call__
        inner = None if own else model.module
    return inner if isinstance(inner, nn.Module) else None


_PARALLEL = (nn.DataParallel.forward, nn.parallel.DistributedDataParallel.forward)


def modules_of(model: nn.Module) -> Iterator[nn.Module]:
    """A model and all modules in it, each once, in no order. (torch's own takes its time.)"""
    stack, seen = [model], {id(model)}
    while stack:
        module = stack.pop()
        yield module
        for one in module._modules.values():
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                stack.append(one)


def has_global_hooks() -> bool:
    """Whether someone listens to every module there is."""
    return bool(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)


def evaluation_view(model: nn.Module) -> nn.Module:
    """The model in eval mode: itself, or a copy of its structure that shares its tensors."""
    if not any(getattr(module, "training", False) for module in modules_of(model)):  # frozen TorchScript has no modes
        return model
    shared = {id(tensor): tensor for _, tensor in named_tensors(model)}
    try:
        return copy.deepcopy(model, shared).eval()
    except Exception as error:
        raise PathxError(
            "the model is in training mode and cannot be copied; call model.eval() first", usage=True
        ) from error


def trace(model: nn.Module, images: Tensor, watch: Callable[[], Callable[[Node, Value], None]]) -> Graph:
    """Run `model`, which is in eval mode, once on `images` and record every operation. The model is left as it was.

    Args:
        watch: makes what is shown every node, and the input's value, as soon as it is recorded.
    """
    if isinstance(model, torch.fx.GraphModule):  # whose own code says nothing of the modules it was made from
        recorder = _Recorder(model, images, watch())
        try:
            return recorder.graph(run(recorder, exported_interpreter(model, recorder)))
        except Aliased:
            pass
    return trace_call(model, images, watch)


def trace_call(model: nn.Module, images: Tensor, watch: Callable[[], Callable[[Node, Value], None]]) -> Graph:
    """As `trace`, by calling the model as anyone does, whatever it is."""
    try:
        recorder = _Recorder(model, images, watch())
        return recorder.graph(run(recorder))
    except Aliased:
        pass
    recorder = _Recorder(model, images, watch())
    try:
        return recorder.graph(run(recorder, functional=True), functional=True)
    except Aliased:
        place = recorder.scope or recorder.nodes[-1].scope
        found = (
            f"the model changes a tensor in place in {place.path or 'the model itself'} that it also reads elsewhere"
        )
        remedy = "write it without the in-place operation"
        if isinstance(model, torch.jit.ScriptModule):  # whose circular padding and recurrent layers are torch's own
            remedy = "give the module that it was made from, or save that with torch.export.save"
        raise PathxError(f"{found}; {remedy}", usage=True) from None


class _Recorder(Listener):
    """The mode that writes the graph down."""

    def __init__(self, model: nn.Module, images: Tensor, watch: Callable[[Node, Value], None]) -> None:
        super().__init__(model, images)
        self.watch = watch
        self.nodes: list[Node] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[torch.dtype] = []
        self.contiguous: list[bool] = []
        self.constants: dict[Value, Tensor] = {}
        self.values: dict[int, Value] = {}
        self.alive: list[Tensor] = []  # an id stays unique only while its tensor lives
        self.sharing: dict[int, list[int]] = {}  # ids of the tensors on each piece of memory
        self.stale: set[int] = set()  # ids of tensors whose memory was changed through another tensor
        self.apart: set[int] = set()  # ids of parts of a tensor that are changed without regard to each other
        self.makers: dict[Value, Node] = {}
        self.input = self._value(images)
        self.parameters = {name: self._foreign(tensor) for name, tensor in named_tensors(model)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would otherwise import its compiler, as long as the rest of torch, to keep it from looking in here."""
        return False

    def _value(self, tensor: Tensor) -> Value:
        if tensor.layout not in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
            raise PathxError("the model computes with sparse tensors: make them dense (.to_dense())", usage=True)
        value = self.values[id(tensor)] = Value(len(self.shapes))
        self.alive.append(tensor)
        self.stale.discard(id(tensor))
        if id(tensor) not in self.apart:
            self.sharing.setdefault(tensor.untyped_storage()._cdata, []).append(id(tensor))
        self.shapes.append(tuple(tensor.shape))
        self.dtypes.append(tensor.dtype)
        self.contiguous.append(tensor.is_contiguous())
        return value

    def _foreign(self, tensor: Tensor) -> Value:
        self.foreign.add(tensor.untyped_storage()._cdata)
        return self._value(tensor)

    def _known(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self.values:
            self.constants[self._foreign(leaf)] = leaf
        if id(leaf) in self.stale:
            raise Aliased
        return self.values[id(leaf)]

    def heard(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known_args = tuple(filled(arg, self._known) for arg in args)
        known_kwargs = {name: filled(arg, self._known) for name, arg in kwargs.items()}
        self.protect(func, args, kwargs)
        if func._schema.is_mutable:
            out = func(*args, **kwargs)
            func = self._changes(func, args)
        else:
            out = func(*(filled(arg, self.here) for arg in args), **kwargs)
        func, known_args = spelled(func, known_args, args)
        outputs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if hands_out_parts(func):
            self.apart.update(map(id, outputs))
        values = tuple(self._value(o) if isinstance(o, Tensor) else None for o in outputs)
        node = Node(len(self.nodes), func, known_args, known_kwargs, values, self.place())
        self.nodes.append(node)
        self.makers.update({value: node for value in values if value is not None})
        self.watch(node, self.input)
        return out

    def factor(self, part: Tensor, whole: Tensor) -> Any:
        node, value = self.makers.get(self.values.get(id(part), self.input)), self.values.get(id(whole))
        return factor_of(node, value, lambda other: self.alive[other.index])

    def _changes(self, func: Any, args: Any) -> Any:
        """Note whose memory an in-place operation changes; returns the operation that computes the same out of place."""
        functional = out_of_place(func)
        if functional is None:
            raise Aliased  # writes into an argument in a way of its own
        storage = args[0].untyped_storage()._cdata
        if id(args[0]) not in self.apart:
            self.stale.update(other for other in self.sharing.get(storage, ()) if other != id(args[0]))
        return functional

    def graph(self, outputs: Any, *, functional: bool = False) -> Graph:
        nodes, made = self.nodes, tree_map(self._known, outputs)  # which may be tensors that were not heard of before
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
            outputs=made,
            contiguous=tuple(self.contiguous),
            functional=functional,
            framed=self.scope is None and not isinstance(self.model, torch.jit.ScriptModule),
        )


def factor_of(node: Node | None, value: Value | None, tensor: Callable[[Value], Tensor]) -> Any:
    """The number or tensor k where a node makes k times `value`; None where it does not."""
    if node is None or value is None or value not in node.args or node.kind not in FACTORS:
        return None
    place = node.args.index(value)

    def other() -> Any:
        factor = node.args[1 - place]
        return tensor(factor) if isinstance(factor, Value) else factor

    return FACTORS[node.kind](place, other)


@cache
def out_of_place(func: Any) -> Any:
    """The operation that computes what an in-place one does; None where there is none."""
    name, overload = func._schema.name.removeprefix("aten::"), func._overloadname
    functional = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(functional, overload, None) if name.endswith("_") and functional is not None else None


@cache
def in_place(func: Any) -> Any:
    """The operation that writes what another one computes over its first argument."""
    return getattr(getattr(torch.ops.aten, f"{func.overloadpacket.__name__}_"), func._overloadname)
