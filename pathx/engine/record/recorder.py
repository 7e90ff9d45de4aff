"""Run a model under one dispatch mode that records every operation on the image and saves the tensors that the rules ask for.

The mode sees what any module does (eager, TorchScript, torch.export) as operations on tensors. All of it is computed in the
precision and on the device of the images, whatever the model's tensors are. What does not depend on the image is a constant of
the recording, however it was computed. In-place operations are recorded as what they compute. Only where one writes to
a tensor that is also read under another name is `torch.func.functionalize` asked to sort that out. Common subexpressions
are recorded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from pathx.compat import DispatchMode, is_composite, memory_of
from pathx.engine.record.model import WriteLog, check_initialised, check_tensor, named_tensors, run
from pathx.engine.record.names import ModuleFinder, script_scopes
from pathx.engine.record.operations import Graph, Node, Scope, Value, value_at
from pathx.engine.record.spellings import HIDDEN_WRITES, MEMORY_RESETS, QUERIES, RESPELLINGS, Respelling
from pathx.errors import PathxError

Shape = tuple[int, ...]
OnOperation = Callable[[Node, tuple[Shape | None, ...]], Iterable[Value] | None]
"""Is given each node with the shapes of its outputs, and returns those of its values that must be saved; None where its outputs do
not depend on the image."""

Call = tuple[Node, tuple[Value, ...]]
"""A node with the values to save."""

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
        tensors: the saved values, and all constants of the graph.
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
            recorder = Recorder(model, images, watch(value_at(0)), forms or {}, functional)
            try:
                return recorder.recording(run(recorder))
            except _AliasedWrite:
                _ALIASING[model] = True
            finally:
                recorder.stopped = None  # whose traceback refers to the recorder: tensors would wait for the collector
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


class _Entry(ref):  # type: ignore[type-arg]
    """What is known of a tensor that an operation made, by weak reference: its id is unique only while it lives."""

    __slots__ = ("memory", "names", "value", "writes")

    value: Value | None  # what it holds; None if that does not depend on the image
    memory: int
    writes: int  # how often its memory had been written when it was made
    names: frozenset[str]  # of a constant: the model's tensors that it was computed from


class Recorder(DispatchMode):
    """The mode that records what a model does.

    Args:
        functional: run inside of `torch.func.functionalize`, which sorts out aliasing.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        on_operation: OnOperation,
        forms: Mapping[Any, Form],
        functional: bool,
    ) -> None:
        modules = list(model.named_modules())
        check_initialised(modules)
        super().__init__()
        self.model, self.modules, self.images, self.functional = model, modules, images.detach().clone(), functional
        self.stopped: BaseException | None = None  # an error that foreign code must not swallow
        self.device, self.dtype, self.forms, self.on_operation = images.device, images.dtype, forms, on_operation
        self.finder = ModuleFinder(model, modules, run.__code__)
        # The graph
        self.nodes: list[Node] = []
        self.calls: list[Node] = []  # the same with repeated expressions
        self.shapes: list[Shape] = []
        self.dtypes: list[torch.dtype] = []
        self.constants: dict[Value, frozenset[str] | None] = {}
        self.key: list[Hashable] = [str(images.device)]  # equal for equal graphs
        self.by_expression: dict[Hashable, Call] = {}
        # Tensors
        self.writes = WriteLog()
        self.tensors: dict[Value, Tensor] = {}  # saved
        self.saved_on: dict[int, list[Value]] = {}  # the saved values by their memory
        self.entries: dict[int, _Entry] = {}  # by the ids of tensors
        self.constant_values: dict[Hashable, Value] = {}  # by where in memory they are
        self.parameter_values: dict[int, tuple[int, int, Value]] = {}  # by id, with memory and writes: it saves time
        self.writes_to: Counter[int] = Counter()  # how often memory was written
        self.image_memory: set[int] = set()  # of constants that were written with what depends on the image
        self.model_memory: set[int] = set()  # of tensors that no operation made
        self._bind(self.images, self._new_value(self.images))

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

    def _entry(self, tensor: Tensor) -> _Entry | None:
        entry = self.entries.get(id(tensor))
        return entry if entry is not None and entry() is tensor else None

    def _bind(self, tensor: Tensor, value: Value | None, names: frozenset[str] = frozenset()) -> None:
        """From now on `tensor` holds `value`, or a constant."""
        if tensor.layout is not torch.strided:
            self._check(tensor)
        entry = self.entries[id(tensor)] = _Entry(tensor)
        entry.value, entry.names, entry.memory = value, names, memory_of(tensor)
        entry.writes = self.writes_to.get(entry.memory, 0)

    def _value(self, tensor: Tensor) -> Value:
        """The value that a tensor holds."""
        entry = self._entry(tensor)
        if entry is None or entry.value is None:
            return self._constant_value(tensor)
        if entry.writes != self.writes_to.get(entry.memory, 0):
            raise _AliasedWrite
        return entry.value

    def _constant_value(self, tensor: Tensor) -> Value:
        known = None if self.writes.resets else self.parameter_values.get(id(tensor))
        if known is not None and self.writes_to.get(known[0], 0) == known[1]:
            return known[2]
        names, memory = self._names_of(tensor)
        writes = self.writes_to.get(memory, 0)
        place = (memory, writes, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        value = self.constant_values.get(place)
        if value is None:
            computed = self._convert(tensor)
            value = self.constant_values[place] = self._new_value(computed)
            self.constants[value] = names
            self.key.append((names, self.shapes[value.index], computed.dtype))
            self._save(value, computed, memory if computed is tensor else memory_of(computed))
        if id(tensor) in self.names:
            self.parameter_values[id(tensor)] = memory, writes, value
        return value

    def _names_of(self, tensor: Tensor) -> tuple[frozenset[str] | None, int]:
        """The model's tensors that a constant was computed from, None if it came from outside of torch; and its memory."""
        entry, names = self._entry(tensor), None
        if entry is None:
            name = self.names.get(id(tensor))
            if name is None:  # parameters and buffers were checked before the model ran
                name = self.all_names.get(id(tensor))
                check_tensor(tensor, name)
            memory = memory_of(tensor)
            self.model_memory.add(memory)
            names = None if name is None else frozenset([name])
        else:
            memory, names = entry.memory, entry.names
        if memory in self.image_memory:
            raise _AliasedWrite
        return names, memory

    def convert_parameter(self, tensor: Tensor, name: str) -> Tensor:
        """What is computed with in place of a parameter or buffer of the model."""
        if tensor.dtype is self.dtype and tensor.device == self.device and tensor.layout is torch.strided:
            return tensor
        check_tensor(tensor, name)
        return self._convert(tensor.detach())  # type: ignore[no-any-return]

    def rebind(self, tensor: Tensor, other: Tensor) -> None:
        """`tensor` was given the memory of another (`tensor.data = other`)."""
        entry = self._entry(other)
        if entry is None:
            self.entries.pop(id(tensor), None)
        else:
            self._bind(tensor, None if entry.value is None else self._value(other), entry.names)

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

    def _save(self, value: Value, tensor: Tensor, memory: int) -> None:
        self.tensors[value] = tensor
        self.saved_on.setdefault(memory, []).append(value)

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
        if any(map(self._depends_on_image, args)) or (kwargs and any(map(self._depends_on_image, kwargs.values()))):
            return self._record(func, traits, args, kwargs)
        return self._run_constant(func, traits, args, kwargs)

    def _depends_on_image(self, arg: Any) -> bool:
        """Whether an argument is, or has in it, a tensor that was computed from the image."""
        if isinstance(arg, (list, tuple)):
            return any(map(self._depends_on_image, arg))
        entry = self.entries.get(id(arg))
        return entry is not None and entry.value is not None and entry() is arg

    def _run_constant(self, func: Any, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on constants."""
        if traits.is_random:
            self.on_operation(Node(0, func, (), {}, (), self.finder.find()), ())
        known = [self._names_of(tensor)[0] for tensor in _tensors_in((*args, *kwargs.values()))]
        converted = tuple(map(self._converted, args))
        if traits.writes:
            self._prepare_write(func, traits, args, kwargs)
        if not traits.is_mutable:
            args, kwargs = converted, {name: self._converted(arg) for name, arg in kwargs.items()}
        out = func(*args, **kwargs)
        if None not in known:  # otherwise what it makes came from outside of torch, too
            names = frozenset[str]().union(*(names for names in known if names))
            for tensor in _tensors_in(out if isinstance(out, (tuple, list)) else (out,)):
                if not traits.is_mutable or self._entry(tensor) is not None:
                    self._bind(tensor, None, names)
        return out

    def _converted(self, arg: Any) -> Any:
        """An argument in the precision and on the device of the images."""
        if isinstance(arg, Tensor):
            return self._convert(arg)
        if isinstance(arg, (list, tuple)):
            return arg if all(type(part) is int for part in arg) else [self._converted(part) for part in arg]
        if isinstance(arg, torch.dtype) and arg.is_floating_point:
            return self.dtype
        if isinstance(arg, torch.device) and arg.type != "meta":
            return self.device
        if isinstance(arg, torch.UntypedStorage):
            problem = f"the model reads numbers from memory in {self.finder.find().path or 'the model itself'}"
            raise PathxError(f"{problem}, past torch's operations: keep what it computes in tensors", usage=True)
        return arg

    def _record(self, func: Any, traits: _Traits, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operation on what depends on the image, and record it."""
        tensors: dict[Value, Tensor] = {}  # of the values that it reads and makes
        args, recorded = self._resolve_all(given, tensors)
        kwargs, recorded_kwargs = options, options
        if options:
            values, recorded_values = self._resolve_all(tuple(options.values()), tensors)
            kwargs = dict(zip(options, values, strict=True))
            recorded_kwargs = dict(zip(options, recorded_values, strict=True))
        call = None
        if traits.is_mutable:
            if traits.out_of_place is None or args[0] is not given[0]:
                raise _AliasedWrite  # it writes to an argument in a way of its own, or in another precision
            call = self._add_call(traits.out_of_place, recorded, recorded_kwargs, args[:1])
            self._save_needed(call, tensors)  # before they are written over
            entry = self._entry(given[0])
            if entry is None or entry.value is None:
                self.image_memory.add(memory_of(given[0]))
        if traits.writes:
            self._prepare_write(func, traits, given, options)
        form = self.forms.get(func)
        out = None if form is None else form(*args, **kwargs)
        out = func(*args, **kwargs) if out is None else out
        several = isinstance(out, (tuple, list))
        made = [
            one if getattr(one, "dtype", None) is self.dtype else self._convert(one)
            for one in (out if several else [out])
        ]
        if not traits.is_mutable:
            call = self._add_call(func, recorded, recorded_kwargs, made)
        for value, tensor in zip(call[0].outputs if call else [None] * len(made), made, strict=True):
            if isinstance(tensor, Tensor):
                self._bind(tensor, value)
                if value is not None:
                    tensors[value] = tensor
        self._save_needed(call, tensors)
        return type(out)(made) if several else made[0]

    def _save_needed(self, call: Call | None, tensors: dict[Value, Tensor]) -> None:
        """Save what the rule of a call asks for, as far as it is among `tensors`."""
        for value in call[1] if call else ():
            if value not in self.tensors and value in tensors:
                self._save(value, tensors[value], memory_of(tensors[value]))

    def _resolve_all(self, given: tuple[Any, ...], tensors: dict[Value, Tensor]) -> tuple[list[Any], tuple[Any, ...]]:
        """Arguments to compute with, and the same with values for tensors, which are added to `tensors`."""
        pairs = [(arg, arg) if type(arg) in _PLAIN else self._resolve(arg, tensors) for arg in given]
        return [computed for computed, _ in pairs], tuple([recorded for _, recorded in pairs])

    def _resolve(self, arg: Any, tensors: dict[Value, Tensor]) -> tuple[Any, Any]:
        if isinstance(arg, Tensor):
            value = self._value(arg)
            if value in self.constants:
                constant = self.tensors[value]
                is_same = constant.dtype is arg.dtype and constant.device == arg.device
                arg = arg if is_same else constant
            tensors[value] = arg
            return arg, value
        if isinstance(arg, (list, tuple)) and not all(type(part) is int for part in arg):
            parts, recorded = self._resolve_all(tuple(arg), tensors)
            return parts, list(recorded)
        arg = self._converted(arg)
        return arg, arg

    def _prepare_write(self, func: Any, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before an operation writes: remember what the model's tensors hold, and copy what is saved there."""
        if func.overloadpacket in MEMORY_RESETS:
            self.writes.remember_memory(args[0])
            return
        for tensor in _written(traits, args, kwargs):
            memory = memory_of(tensor)
            if memory in self.model_memory:
                self.writes.remember(tensor)
            self._copy_saved(memory)
            self.writes_to[memory] += 1

    # --- The graph ---

    def _add_call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Any]) -> Call | None:
        """The node of a call and the values to save; None where its result does not depend on the image.

        Common-subexpression elimination: equal calls share a node.
        """
        expression = (op, _key(args), (*kwargs, _key([*kwargs.values()])) if kwargs else None)
        call = self.by_expression.get(expression)
        if call is None:
            scope, first = self.finder.find(), len(self.shapes)
            outputs = tuple([self._new_value(one) if isinstance(one, Tensor) else None for one in made])
            node = Node(len(self.nodes), op, args, kwargs, outputs, scope)
            shapes = tuple([None if value is None else self.shapes[value.index] for value in outputs])
            saved = self.on_operation(node, shapes)
            if saved is None:
                del self.shapes[first:], self.dtypes[first:]
                return None
            self.nodes.append(node)
            self.key.append((expression, scope, shapes))
            call = self.by_expression[expression] = node, tuple(saved)
        self.calls.append(call[0])
        return call

    def _new_value(self, tensor: Tensor) -> Value:
        self.shapes.append(tuple(tensor.shape))
        self.dtypes.append(tensor.dtype)
        return value_at(len(self.shapes) - 1)

    # --- The end ---

    def finish(self) -> None:
        """The model has returned or failed: undo what it wrote."""
        for memory in self.writes.memory:  # what is undone must stay in what is saved
            self._copy_saved(memory)
        if self.writes.resets:
            self.tensors = {value: tensor.detach() for value, tensor in self.tensors.items()}
        self.writes.undo()

    def recording(self, outputs: Any) -> Recording:
        """The recording of a model that returned `outputs`."""
        tensors: dict[Value, Tensor] = {}
        returned = _map(outputs, lambda leaf: self._resolve(leaf, tensors)[1] if isinstance(leaf, Tensor) else leaf)
        for value, tensor in tensors.items():
            self.tensors.setdefault(value, tensor)
        scopes: dict[int, Scope] = {}
        if isinstance(self.model, torch.jit.ScriptModule):  # whose frames do not show
            scopes = script_scopes(self.model, self.calls)
        described = _map(returned, lambda leaf: leaf if isinstance(leaf, Value) else type(leaf).__name__)
        graph = Graph(
            nodes=tuple([replace(node, scope=scopes.get(node.index, node.scope)) for node in self.nodes])
            if scopes
            else tuple(self.nodes),
            shapes=tuple(self.shapes),
            dtypes=tuple(self.dtypes),
            input=value_at(0),
            constants=self.constants,
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


def _tensors_in(args: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, and in lists among them."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors_in(arg)


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
        is_mutable: it is an in-place operation.
        out_of_place: the operation that computes what this in-place one does; None where there is none.
        written: positions and names of the arguments that it writes to, by its schema.
        hidden_writes: which arguments it writes to without its schema saying so.
        writes: it writes to any.
    """

    is_query: bool
    is_composite: bool
    is_random: bool
    respell: Respelling | None
    is_mutable: bool
    out_of_place: Any
    written: tuple[tuple[int, str], ...]
    hidden_writes: Callable[..., Any] | None
    writes: bool


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
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        respell=RESPELLINGS.get(func),
        is_mutable=schema.is_mutable,
        out_of_place=out_of_place,
        written=tuple(written),
        hidden_writes=HIDDEN_WRITES.get(func),
        writes=schema.is_mutable or func in HIDDEN_WRITES,
    )


def _written(traits: _Traits, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    given = [args[number] if number < len(args) else kwargs.get(name) for number, name in traits.written]
    return _tensors_in((*given, *(traits.hidden_writes(args) if traits.hidden_writes else ())))
