"""Run a model under one dispatch mode that records every operation and saves the tensors that the rules ask for.

The mode sees what any module does (eager, TorchScript, torch.export) as operations on tensors. All of it is computed in the
precision and on the device of the images, whatever the model's tensors are. In-place operations are recorded as what they
compute. Only where one writes to a tensor that is also read under another name is `torch.func.functionalize` asked to sort
that out. Common subexpressions are recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from pathx.compat import is_composite, memory_of
from pathx.engine.record.model import RecordingMode, check_initialised, check_tensor, named_tensors, run
from pathx.engine.record.names import ModuleFinder, script_scopes
from pathx.engine.record.operations import Graph, Node, Scope, Value, value_at
from pathx.engine.record.spellings import HIDDEN_WRITES, MEMORY_RESETS, QUERIES, RESPELLINGS, Respelling
from pathx.errors import PathxError

Shape = tuple[int, ...]
OnOperation = Callable[[Node, tuple[Shape | None, ...]], Iterable[Value]]
"""Is given each node with the shapes of its outputs, and returns those of its values that must be saved."""

Form = Callable[..., Any]
"""Another way to compute an operation; returns None where the usual way is better."""


class Signature:
    """Two recordings have equal signatures exactly if their graphs are equal. The hash is computed once."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Signature) and self._key == other._key)


@dataclass(frozen=True, eq=False)
class Recording:
    """What a model did with a batch of images.

    Args:
        tensors: the saved values, and all `parameters` and `constants` of the graph.
    """

    graph: Graph
    signature: Signature
    tensors: dict[Value, Tensor]


def record(
    model: nn.Module, images: Tensor, watch: Callable[[Value], OnOperation], forms: Mapping[Any, Form] | None = None
) -> Recording:
    """Run `model` once on `images`, in eval mode, and record every operation. The model is left as it was.

    Args:
        watch: makes, from the input's value, what is called with every operation as soon as it is recorded.
        forms: other ways to compute operations.
    """
    with _LOCKS.setdefault(model, RLock()):  # modes and buffers are the model's, so its runs come one after the other
        for functional in (False, True) if model not in _ALIASING else (True,):
            recorder = _Recorder(model, images, watch, forms or {}, functional)
            try:
                return recorder.recording(run(recorder))
            except _AliasedWrite:
                _ALIASING[model] = True
            finally:
                recorder.release()
    problem = f"the model changes a tensor in place in {recorder.finder.last.path or 'the model itself'}"
    remedy = "write it without the in-place operation"
    if isinstance(model, torch.jit.ScriptModule):  # whose circular padding is torch's own
        remedy = "give the module that it was made from, or save that with torch.export.save"
    raise PathxError(f"{problem} that it also reads elsewhere; {remedy}", usage=True)


_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_ALIASING: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Models that were seen to write to tensors under other names: only a hint that saves a run."""


class _AliasedWrite(Exception):
    """A tensor was written in place and then read through another tensor that shares its memory."""


class _Tracked(ref):  # type: ignore[type-arg]
    """A tensor that the model holds now, by weak reference: its id is unique only while it lives."""

    __slots__ = ("computed", "key", "memory", "next_alias", "stale", "stale_by_image", "value")

    key: int
    value: Value  # what it holds now
    memory: int
    next_alias: _Tracked | None  # another tensor on the same memory
    computed: Tensor | None  # used in its place, where that is in another precision or on another device
    stale: bool  # its memory was written through another tensor
    stale_by_image: bool  # with numbers that depend on the image


class _Recorder(RecordingMode):
    """The mode that records what a model does."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        watch: Callable[[Value], OnOperation],
        forms: Mapping[Any, Form],
        functional: bool,
    ) -> None:
        modules = list(model.named_modules())
        check_initialised(modules)
        parameters = (tensor for _, module in modules for tensor in module._parameters.values())
        like = next((tensor for tensor in parameters if tensor is not None and tensor.is_floating_point()), images)
        super().__init__(model, modules, images.detach().to(like.device, like.dtype, copy=True), functional)
        self.device, self.dtype, self.forms = images.device, images.dtype, forms
        self.finder = ModuleFinder(model, modules, run.__code__)
        # The graph
        self.nodes: list[Node] = []
        self.calls: list[Node] = []  # the same with repeated expressions
        self.shapes: list[Shape] = []
        self.dtypes: list[torch.dtype] = []
        self.parameters: dict[str, Value] = {}
        self.constants: set[Value] = set()
        self.key: list[Hashable] = []  # equal for equal graphs
        self.by_expression: dict[Hashable, tuple[Node, tuple[Value, ...]]] = {}  # each with the values to save
        self.on_operation = watch(value_at(0))
        # Tensors
        self.tensors: dict[Value, Tensor] = {}  # saved
        self.saved_on: dict[int, list[Value]] = {}  # the saved values by their memory
        self.tracked: dict[int, _Tracked] = {}  # by id
        self.aliases: dict[int, _Tracked] = {}  # the newest on each piece of memory
        self.disjoint: set[int] = set()  # ids of views that are written without regard to each other
        self.model_memory: set[int] = set()  # of tensors that existed before the run
        self.converted: list[Tensor] = []  # such tensors that another is computed with; kept alive for their ids
        self.from_image = {value_at(0)}  # where torch sorts out aliasing, the values that depend on the image
        same = like.dtype == images.dtype and like.device == images.device
        self._track_source(self.images, self.images if same else images.detach().clone(), str(images.device))

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of parameters and buffers by their ids."""
        names: dict[int, str] = {}
        for path, module in self.modules:
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    names.setdefault(id(tensor), f"{path}.{name}" if path else name)
        return names

    @cached_property
    def all_names(self) -> dict[int, str]:
        """The same with tensors that are plain attributes of modules."""
        return {id(tensor): name for name, tensor in named_tensors(self.model)}

    # --- Tensors ---

    def _track_outside(self, tensor: Tensor) -> _Tracked:
        """Track a tensor that existed before the run, or that came from outside of torch."""
        name = self.names.get(id(tensor)) or self.all_names.get(id(tensor))
        computed = tensor
        if tensor.dtype is not self.dtype or tensor.layout is not torch.strided or tensor.device != self.device:
            check_tensor(tensor, name)
            computed = self._convert(tensor.detach())
        tracked = self._track_source(tensor, computed, name)
        self.model_memory.add(tracked.memory)
        if computed is not tensor:
            self.converted.append(tensor)
        self._save(tracked.value, computed)
        return tracked

    def _track_rewritten(self, tensor: Tensor) -> _Tracked:
        """Track a tensor that was written under another name as a new constant."""
        tracked = self._track_source(tensor, self._convert(tensor.detach()).clone(), None)
        self.tensors[tracked.value] = tensor.detach().clone() if tracked.computed is None else tracked.computed
        return tracked

    def _track_source(self, tensor: Tensor, computed: Tensor, name: str | None) -> _Tracked:
        """Track a tensor that no recorded operation made.

        Args:
            computed: what is computed with in its place.
            name: where the model holds it; None for a constant from elsewhere.
        """
        value = self._new_value(computed)
        self.key.append((name, self.shapes[value.index], computed.dtype))
        if len(self.key) > 1:  # the first is the input
            if name is None:
                self.constants.add(value)
            else:
                self.parameters[name] = value
        same = computed.dtype is tensor.dtype and computed.device == tensor.device
        return self._bind(tensor, value, None if same else computed)

    def _bind(self, tensor: Tensor, value: Value, computed: Tensor | None) -> _Tracked:
        """From now on `tensor` holds `value`, and `computed`, if any, is computed with in its place."""
        key = id(tensor)
        tracked = self.tracked.get(key)
        if tracked is None:
            if tensor.layout is not torch.strided:
                self._check(tensor)
            memory = memory_of(tensor)
            tracked = self.tracked[key] = _Tracked(tensor, self._forget)
            tracked.key, tracked.memory, tracked.next_alias = key, memory, None
            if key not in self.disjoint:
                tracked.next_alias = self.aliases.get(memory)
                self.aliases[memory] = tracked
        tracked.value, tracked.stale, tracked.stale_by_image = value, False, False
        tracked.computed = computed
        return tracked

    def _forget(self, tracked: _Tracked) -> None:
        """A tensor is gone, and its id may be given to another."""
        if self.tracked.get(tracked.key) is tracked:
            del self.tracked[tracked.key]
            self.disjoint.discard(tracked.key)

    def _check(self, tensor: Tensor) -> None:
        """Refuse a computed tensor that the engine cannot compute with, and name the module."""
        check_tensor(tensor, None, self.finder.find().path or "the model itself")

    def _convert(self, tensor: Any) -> Any:
        """A tensor in the precision and on the device of the images; anything else as it is."""
        if not isinstance(tensor, Tensor) or (tensor.dtype is self.dtype and tensor.device == self.device):
            return tensor
        self._check(tensor)
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device if tensor.dim() else tensor.device, dtype)  # scalars go with tensors anywhere

    def _save(self, value: Value, tensor: Tensor) -> None:
        if value not in self.tensors:
            self.tensors[value] = tensor
            self.saved_on.setdefault(memory_of(tensor), []).append(value)

    def _copy_saved(self, memory: int) -> None:
        """Copy what is saved on memory that is about to be written."""
        for value in self.saved_on.pop(memory, ()):
            self.tensors[value] = self.tensors[value].clone()

    # --- Operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._handle(func, args, kwargs or {})
        except BaseException as error:
            if isinstance(error, (PathxError, _AliasedWrite)) or not isinstance(error, Exception):
                self.stopped = self.stopped or error
            raise

    def _handle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traits = _traits_of(func)
        if traits.is_query:
            return func(*args, **kwargs)
        if traits.is_composite:  # as they arrive where tensors were made in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        if traits.respell is not None and (other := traits.respell(*args, **kwargs)) is not None:
            with self:
                return other()
        return self._record(func, traits, args, kwargs)

    def _record(self, func: Any, traits: _Traits, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operation and record it.

        Where the model computes in another precision than the images', it runs twice: in the model's precision, whose result
        the model's code sees, and in that of the images.
        """
        tensors: dict[Value, Tensor] = {}  # of the values that it reads and makes
        args, recorded = self._resolve_all(given, tensors)
        kwargs, recorded_kwargs = options, options
        if options:
            values, recorded_values = self._resolve_all(tuple(options.values()), tensors)
            kwargs = dict(zip(options, values, strict=True))
            recorded_kwargs = dict(zip(options, recorded_values, strict=True))
        in_place, call = traits.is_mutable, None
        from_image = self.functional and not self.from_image.isdisjoint(tensors)
        if in_place:
            self._mark_aliases_stale(traits, given, from_image)
            call = self._add_call(traits.out_of_place, recorded, recorded_kwargs, args[:1])
            self._save_needed(call, tensors)  # before they are written over
        if in_place or (traits.hidden_writes is not None and traits.hidden_writes(given)):
            self._prepare_write(func, traits, given, args, options)
        form = self.forms.get(func)
        out = None if form is None else form(*args, **kwargs)
        out = func(*args, **kwargs) if out is None else out
        several = isinstance(out, (tuple, list))
        made = shown = list(out) if several else [out]
        is_converted = any(map(_is_not, given, args)) or any(map(_is_not, options.values(), kwargs.values()))
        if is_converted and not (in_place and args[0] is given[0]):
            out = func(*map(self._to_device, given), **{name: self._to_device(arg) for name, arg in options.items()})
            shown = list(out) if several else [out]
        made = [one if getattr(one, "dtype", None) is self.dtype else self._convert(one) for one in made]
        if traits.makes_disjoint_views:
            self.disjoint.update(map(id, shown))
        call = call or self._add_call(func, recorded, recorded_kwargs, made)
        outputs = call[0].outputs
        if from_image:
            self.from_image.update(value for value in outputs if value is not None)
        for value, computed, tensor in zip(outputs, made, shown, strict=True):
            if value is not None:
                self._bind(tensor, value, None if computed is tensor else computed)
                tensors[value] = computed
        self._save_needed(call, tensors)
        return type(out)(shown) if several else shown[0]

    def _save_needed(self, call: tuple[Node, tuple[Value, ...]], tensors: dict[Value, Tensor]) -> None:
        """Save what the rule of a call asks for, as far as it is among `tensors`."""
        for value in call[1]:
            if value in tensors:
                self._save(value, tensors[value])

    def _resolve_all(self, given: tuple[Any, ...], tensors: dict[Value, Tensor]) -> tuple[list[Any], tuple[Any, ...]]:
        """Arguments to compute with, and the same with values for tensors, which are added to `tensors`."""
        pairs = [(arg, arg) if type(arg) in _PLAIN else self._resolve(arg, tensors) for arg in given]
        return [computed for computed, _ in pairs], tuple([recorded for _, recorded in pairs])

    def _resolve(self, arg: Any, tensors: dict[Value, Tensor]) -> tuple[Any, Any]:
        if isinstance(arg, Tensor):
            tracked = self.tracked.get(id(arg)) or self._track_outside(arg)
            if tracked.stale and (not self.functional or tracked.stale_by_image or tracked.value in self.from_image):
                raise _AliasedWrite
            if tracked.stale:  # the model wrote numbers that do not depend on the image
                tracked = self._track_rewritten(arg)
            tensor = tensors[tracked.value] = arg if tracked.computed is None else tracked.computed
            return tensor, tracked.value
        if isinstance(arg, (list, tuple)):
            if all(type(part) is int for part in arg):
                return arg, arg
            parts, recorded = self._resolve_all(tuple(arg), tensors)
            return parts if any(map(_is_not, parts, arg)) else arg, list(recorded)
        converted = arg
        if isinstance(arg, torch.dtype) and arg.is_floating_point:
            converted = self.dtype
        elif isinstance(arg, torch.device) and arg.type != "meta" and arg != self.device:
            converted = self.device
        elif isinstance(arg, torch.UntypedStorage):
            problem = f"the model reads numbers from memory in {self.finder.find().path or 'the model itself'}"
            raise PathxError(f"{problem}, past torch's operations: keep what it computes in tensors", usage=True)
        return converted, converted

    def _to_device(self, arg: Any) -> Any:
        """An argument as the model has it, on the device of the images."""
        if isinstance(arg, (list, tuple)):
            return [self._to_device(part) for part in arg]
        if isinstance(arg, Tensor):
            return arg.to(self.device) if arg.dim() and arg.device != self.device else arg
        return self.device if isinstance(arg, torch.device) and arg.type != "meta" else arg

    # --- Writes ---

    def _mark_aliases_stale(self, traits: _Traits, given: tuple[Any, ...], from_image: bool) -> None:
        """Mark all other tensors on the memory that an in-place operation writes."""
        if traits.out_of_place is None:
            raise _AliasedWrite  # it writes to an argument in a way of its own
        if id(given[0]) not in self.disjoint:
            alias = self.aliases.get(memory_of(given[0]))
            while alias is not None:
                alias.stale = alias.key != id(given[0])
                alias.stale_by_image |= from_image
                alias = alias.next_alias

    def _prepare_write(self, func: Any, traits: _Traits, given: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Remember what the model's tensors held before an operation writes to them, and copy what is saved there."""
        if func.overloadpacket in MEMORY_RESETS:
            self.writes.remember_memory(given[0])
            return
        for tensor in _written(traits, given, kwargs):
            if memory_of(tensor) in self.model_memory:
                self.writes.remember(tensor)
        for tensor in _written(traits, args, kwargs):
            self._copy_saved(memory_of(tensor))

    # --- The graph ---

    def _add_call(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Any]
    ) -> tuple[Node, tuple[Value, ...]]:
        """The node of a call, and which values to save. Common-subexpression elimination: equal calls share a node."""
        expression = (op, _key(args), (*kwargs, _key([*kwargs.values()])) if kwargs else None)
        call = self.by_expression.get(expression)
        if call is None:
            scope, first = self.finder.find(), len(self.shapes)
            outputs = tuple([self._new_value(one) if isinstance(one, Tensor) else None for one in made])
            node = Node(len(self.nodes), op, args, kwargs, outputs, scope)
            self.nodes.append(node)
            self.key.append((expression, scope, tuple(self.shapes[first:])))
            shapes = tuple([None if value is None else self.shapes[value.index] for value in outputs])
            call = self.by_expression[expression] = node, tuple(self.on_operation(node, shapes))
        self.calls.append(call[0])
        return call

    def _new_value(self, tensor: Tensor) -> Value:
        self.shapes.append(tuple(tensor.shape))
        self.dtypes.append(tensor.dtype)
        return value_at(len(self.shapes) - 1)

    # --- The end ---

    def finish(self) -> None:
        for memory in self.writes.memory:  # what is undone must stay in what is saved
            self._copy_saved(memory)
        if self.writes.resets:
            self.tensors = {value: tensor.detach() for value, tensor in self.tensors.items()}
        super().finish()

    def release(self) -> None:
        """Let go of all tensors now: weak references point back here, so the garbage collector would take its time."""
        self.tracked.clear()
        self.aliases.clear()
        self.tensors, self.converted = {}, []

    def recording(self, outputs: Any) -> Recording:
        """The recording of a model that returned `outputs`."""
        tensors: dict[Value, Tensor] = {}
        returned = _map(outputs, lambda leaf: self._resolve(leaf, tensors)[1] if isinstance(leaf, Tensor) else leaf)
        for value, tensor in tensors.items():
            self._save(value, tensor)
        scopes: dict[int, Scope] = {}
        if isinstance(self.model, torch.jit.ScriptModule):  # whose frames do not show
            scopes = script_scopes(self.model, self.calls)
        described = _map(returned, lambda leaf: leaf if isinstance(leaf, Value) else type(leaf).__name__)
        graph = Graph(
            nodes=tuple(
                replace(node, scope=scopes.get(node.index, node.scope)) if scopes else node for node in self.nodes
            ),
            shapes=tuple(self.shapes),
            dtypes=tuple(self.dtypes),
            input=value_at(0),
            parameters=self.parameters,
            constants=frozenset(self.constants),
            outputs=_map(returned, _without_contents),
        )
        tensors = {value: one.detach() if one.requires_grad else one for value, one in self.tensors.items()}
        return Recording(graph, Signature((*self.key, _key(described), *scopes.items())), tensors)


_PLAIN = frozenset([int, float, bool, type(None), str, torch.layout, torch.memory_format])
_EXACT = frozenset([int, Value, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format])
"""Types whose values equal nothing of another of these types."""


def _key(item: Any) -> Hashable:
    """Something to compare arguments by. Numbers are equal only if they are of one type; NaN equals itself."""
    kind = type(item)
    if kind in _EXACT:
        return item  # type: ignore[no-any-return]
    if kind is list or kind is tuple:
        return tuple([part if type(part) in _EXACT else _key(part) for part in item])
    if kind is dict:
        return ("dict", _key([*item.items()]))
    return repr(item)


def _is_not(one: Any, other: Any) -> bool:
    return one is not other


def _map(outputs: Any, function: Callable[[Any], Any]) -> Any:
    """Plain containers with a function applied to all that they hold."""
    if isinstance(outputs, dict):
        return {key: _map(value, function) for key, value in outputs.items()}
    if isinstance(outputs, list):
        return [_map(value, function) for value in outputs]
    return function(outputs)


def _without_contents(leaf: Any) -> Any:
    """A graph outlives the model, so it must not hold the other objects that a model returned."""
    return leaf if isinstance(leaf, (Value, bool, int, float, str, type(None))) else type(leaf)


# --- What is known of operations --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Traits:
    """How an operation is recorded.

    Args:
        is_query: it computes nothing: it asks for a tensor's device, or is a note for a profiler.
        respell: what to run instead, where another spelling has the rule.
        out_of_place: the operation that computes what this in-place one does; None where there is none.
        written: positions and names of the arguments that it writes to, by its schema.
        hidden_writes: which arguments it writes to without its schema saying so.
        makes_disjoint_views: its views are meant to be written without regard to each other (`unsafe_split`).
    """

    is_query: bool
    is_composite: bool
    respell: Respelling | None
    is_mutable: bool
    out_of_place: Any
    written: tuple[tuple[int, str], ...]
    hidden_writes: Callable[..., Any] | None
    makes_disjoint_views: bool


@cache
def _traits_of(func: Any) -> _Traits:
    schema, out_of_place = func._schema, None
    name = schema.name.removeprefix("aten::")
    if name.endswith("_") and len(schema.returns) == 1:
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        out_of_place = getattr(packet, func._overloadname, None) if packet is not None else None
    written = [(n, one.name) for n, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write]
    is_query = func.namespace in ("prim", "profiler") or func in QUERIES
    return _Traits(
        is_query=is_query,
        is_composite=not is_query and is_composite(func),
        respell=RESPELLINGS.get(func),
        is_mutable=schema.is_mutable,
        out_of_place=out_of_place,
        written=tuple(written),
        hidden_writes=HIDDEN_WRITES.get(func),
        makes_disjoint_views=name.startswith("unsafe_"),
    )


def _written(traits: _Traits, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    given = [args[number] if number < len(args) else kwargs.get(name) for number, name in traits.written]
    for one in (*given, *(traits.hidden_writes(args) if traits.hidden_writes else ())):
        yield from (part for part in (one if isinstance(one, (list, tuple)) else [one]) if isinstance(part, Tensor))
