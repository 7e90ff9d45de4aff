"""Running a model under one dispatch mode that notes every operation and keeps the tensors that the rules ask for.

The mode sees what any module does (eager, TorchScript, torch.export alike) as operations on tensors. All of it is computed
in the precision and on the device of the images, whatever the model's tensors are. In-place operations are noted as what they
compute; only where one changes a tensor that is also read under another name is `torch.func.functionalize` asked to
sort that out. Common subexpressions are noted once.
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

from pathx.compat import is_composite
from pathx.engine.record.model import Mode, check_shapes, check_tensor, memory_of, named_tensors, run
from pathx.engine.record.names import Places, script_scopes
from pathx.engine.record.operations import Graph, Node, Scope, Value, value_at
from pathx.engine.record.spellings import QUESTIONS, RESETTING, RESPELLED, UNSAID
from pathx.errors import PathxError

Shape = tuple[int, ...]
OnOperation = Callable[[Node, tuple[Shape | None, ...]], Iterable[Value]]
"""Is given each node with the shapes of what it made, and returns those of its values that must be kept."""

Form = Callable[..., Any]
"""Another way to compute an operation; None from it where the usual way is better."""

Edit = Callable[[Tensor], Tensor]


class Signature:
    """What two recordings have in common exactly if their graphs are equal."""

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
        tensors: what was asked for, and the tensors that the model brought along: `parameters` and `constants` of the graph.
    """

    graph: Graph
    signature: Signature
    tensors: dict[Value, Tensor]


def record(
    model: nn.Module,
    images: Tensor,
    watch: Callable[[Value], OnOperation],
    *,
    forms: Mapping[Any, Form] | None = None,
    edits: Mapping[Value, Edit] | None = None,
) -> Recording:
    """Run `model` once on `images`, in eval mode, and note every operation. The model is left as it was.

    Args:
        watch: makes, from the input's value, what is called with every operation as soon as it is noted.
        forms: other ways to compute operations.
        edits: what becomes of values: the result goes on in their place.
    """
    with _LOCKS.setdefault(model, RLock()):  # modes and buffers are the model's, so its runs come one after the other
        for functional in (False, True) if model not in _ALIASING else (True,):
            recorder = _Recorder(model, images, watch, forms or {}, edits or {}, functional)
            try:
                return recorder.recording(run(recorder))
            except _Aliased:
                _ALIASING[model] = True
            finally:
                recorder.close()
    problem = f"the model changes a tensor in place in {recorder.places.last.path or 'the model itself'}"
    remedy = "write it without the in-place operation"
    if isinstance(model, torch.jit.ScriptModule):  # whose circular padding is torch's own
        remedy = "give the module that it was made from, or save that with torch.export.save"
    raise PathxError(f"{problem} that it also reads elsewhere; {remedy}", usage=True)


_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_ALIASING: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Models that were seen to change tensors under other names. A hint that saves time, and no more."""


class _Aliased(Exception):
    """A tensor was changed in place and then read through another tensor that shares its memory."""


@dataclass(frozen=True, eq=False)
class _Step:
    """An operation, or a tensor that was there before.

    Args:
        key: equal for equal steps that come after equal ones.
        values, shapes, dtypes: of what is new.
        node: None for a tensor.
        name: of the module's attribute that holds the tensor; None for other tensors.
        kept: the values that must be kept.
    """

    key: Any
    values: tuple[Value, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    node: Node | None = None
    name: str | None = None
    kept: tuple[Value, ...] = ()
    is_new: bool = True


@dataclass(frozen=True, eq=False)
class _Last:
    """A model's last run. As long as the model does the same again, its steps need not be made and analysed again."""

    steps: list[_Step]
    ending: Hashable
    graph: Graph
    signature: Signature


_LAST: WeakKeyDictionary[nn.Module, _Last] = WeakKeyDictionary()


class _Known(ref):  # type: ignore[type-arg]
    """A tensor that the model has, by weak reference: its id is unique only while it lives."""

    __slots__ = ("actual", "key", "memory", "moves", "other", "stale", "value")

    key: int
    value: Value  # what it holds now
    memory: int
    other: _Known | None  # another tensor on this memory
    actual: Tensor | None  # is computed with in its place: in another precision, or on another device
    stale: bool  # its memory was changed through another tensor
    moves: bool  # by what depends on the image


class _Recorder(Mode):
    """The mode that notes what a model does."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        watch: Callable[[Value], OnOperation],
        forms: Mapping[Any, Form],
        edits: Mapping[Value, Edit],
        functional: bool,
    ) -> None:
        modules = list(model.named_modules())
        check_shapes(modules)
        held = (tensor for _, module in modules for tensor in module._parameters.values())
        like = next((tensor for tensor in held if tensor is not None and tensor.is_floating_point()), images)
        super().__init__(model, modules, images.detach().to(like.device, like.dtype, copy=True), functional)
        self.device, self.dtype, self.forms, self.edits = images.device, images.dtype, forms, edits
        self.places = Places(model, modules, run.__code__)
        self.steps: list[_Step] = []
        self.last = _LAST.get(model)  # None as soon as something is different
        self.on_operation = watch(value_at(0))
        self.moving = {value_at(0)}  # where torch sorts out memory, the values that depend on the image
        self.first: dict[Hashable, Node] = {}  # the first node of each expression
        self.count = 0  # of values
        self.tensors: dict[Value, Tensor] = {}
        self.stored: dict[int, list[Value]] = {}  # the kept values by their memory
        self.known: dict[int, _Known] = {}  # by the ids of tensors that live
        self.sharing: dict[int, _Known] = {}  # the last on each piece of memory
        self.apart: set[int] = set()  # ids of parts of a tensor that are changed without regard to each other
        self.brought: set[int] = set()  # the memory of tensors that were there before
        self.held: list[Tensor] = []  # those of them that something else stands for
        self.converted = False  # something is computed with in the place of what the model has
        same = like.dtype == images.dtype and like.device == images.device
        self._there(self.images, self.images if same else images.detach().clone(), str(images.device))

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of parameters and buffers by their ids."""
        names: dict[int, str] = {}
        for path, module in self.modules:
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    names.setdefault(id(tensor), f"{path}.{name}" if path else name)
        return names

    @cached_property
    def all_names(self) -> dict[int, str]:
        """The same with tensors that are plain attributes of modules."""
        return {id(tensor): name for name, tensor in named_tensors(self.model)}

    # --- Tensors ---

    def _bring(self, tensor: Tensor) -> _Known:
        """Note a tensor that was there before the model ran, or that came from outside of torch."""
        name = self.names.get(id(tensor)) or self.all_names.get(id(tensor))
        actual = tensor
        if tensor.dtype is not self.dtype or tensor.layout is not torch.strided or tensor.device != self.device:
            check_tensor(tensor, name)
            actual = self._fitted(tensor.detach())
        known = self._there(tensor, actual, name)
        memory = known.memory
        self.brought.add(memory)
        if actual is not tensor:
            self.held.append(tensor)
            memory = memory_of(actual)
        self.tensors[known.value] = actual
        self.stored.setdefault(memory, []).append(known.value)
        return known

    def _bring_changed(self, tensor: Tensor) -> _Known:
        """Note what a tensor holds after it was written under another name, as a constant."""
        known = self._there(tensor, self._fitted(tensor.detach()).clone(), None)
        self.tensors[known.value] = tensor.detach().clone() if known.actual is None else known.actual
        return known

    def _there(self, tensor: Tensor, actual: Tensor, name: str | None) -> _Known:
        """Note a tensor that is there, and what is computed with in its place."""
        shape, dtype = actual.shape, actual.dtype
        key = (name, shape, dtype)
        step = self._again(key) or self._add(_Step(key, self._new_values(1), (tuple(shape),), (dtype,), name=name))
        known = self._assign(tensor, step.values[0])
        if dtype is not tensor.dtype or actual.device != tensor.device:
            known.actual, self.converted = actual, True
        return known

    def _assign(self, tensor: Tensor, value: Value) -> _Known:
        """From now on `tensor` holds `value`."""
        key = id(tensor)
        known = self.known.get(key)
        if known is None:
            if tensor.layout is not torch.strided:
                self._check(tensor)
            known = self.known[key] = _Known(tensor, self._forget)
            memory = memory_of(tensor)
            known.key, known.memory = key, memory
            if key not in self.apart:
                known.other = self.sharing.get(memory)
                self.sharing[memory] = known
        known.value, known.stale, known.moves, known.actual = value, False, False, None
        return known

    def _check(self, tensor: Tensor) -> None:
        """Refuse what the model computed where it cannot be computed with, with the module that did."""
        check_tensor(tensor, None, self.places.here().path or "the model itself")

    def _forget(self, known: _Known) -> None:
        """A tensor is no more, and its id may be given to another."""
        if self.known.get(known.key) is known:
            del self.known[known.key]
            self.apart.discard(known.key)

    def _fitted(self, tensor: Any) -> Any:
        """A tensor in the precision and on the device that is computed in; anything else as it is."""
        if not isinstance(tensor, Tensor) or (tensor.dtype is self.dtype and tensor.device == self.device):
            return tensor
        self._check(tensor)
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device if tensor.dim() else tensor.device, dtype)  # numbers go with tensors anywhere

    def _keep(self, value: Value, tensor: Tensor) -> None:
        if value not in self.tensors:
            self.tensors[value] = tensor
            self.stored.setdefault(memory_of(tensor), []).append(value)

    def _set_aside(self, memory: int) -> None:
        """Copy what is kept on memory that is about to be written."""
        for value in self.stored.pop(memory, ()):
            self.tensors[value] = self.tensors[value].clone()

    # --- Operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._dispatched(func, args, kwargs or {})
        except BaseException as error:
            if isinstance(error, (PathxError, _Aliased)) or not isinstance(error, Exception):
                self.stopped = self.stopped or error
            raise

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        traits = _traits_of(func)
        if not traits.is_plain:
            if _is_aside(func):
                return func(*args, **kwargs)
            if is_composite(func):  # as they arrive where tensors were made in inference mode
                with self:
                    return func.decompose(*args, **kwargs)
            other = RESPELLED[func](*args, **kwargs)
            if other is not None:
                with self:
                    return other()
        return self._noted(func, traits, args, kwargs)

    def _noted(self, func: Any, traits: _Traits, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operation and note it.

        Where the model computes in another precision than the images', it runs twice: as the model has it, whose code sees
        that result, and in the images' precision.
        """
        tensors: dict[Value, Tensor] = {}  # of the values that it reads and makes
        args, noted = [], []
        for arg in given:
            actual, known = (arg, arg) if type(arg) in _PLAIN else self._argument(arg, tensors)
            args.append(actual)
            noted.append(known)
        kwargs, noted_kwargs = options, options
        if options:
            kwargs, noted_kwargs = {}, {}
            for name, arg in options.items():
                kwargs[name], noted_kwargs[name] = (arg, arg) if type(arg) in _PLAIN else self._argument(arg, tensors)
        in_place, op, step = traits.is_mutable, func, None
        moves = self.functional and not self.moving.isdisjoint(tensors)
        if in_place:
            op = self._out_of_place(traits, given, moves)
            # What its rule asks for is kept before it is written over.
            step = self._operation(op, tuple(noted), noted_kwargs, args[:1])
            self._keep_some(step, tensors)
        if in_place or (traits.unsaid is not None and traits.unsaid(given)):
            self._protect(func, traits, given, args, options)
        form = self.forms.get(func)
        out = None if form is None else form(*args, **kwargs)
        if out is None:
            out = func(*args, **kwargs)
        several = isinstance(out, (tuple, list))
        made = seen = list(out) if several else [out]
        if self.converted and _differ(given, args, options, kwargs) and not (in_place and args[0] is given[0]):
            shown = func(*map(self._moved, given), **{name: self._moved(arg) for name, arg in options.items()})
            seen = list(shown) if several else [shown]
        made = [one if getattr(one, "dtype", None) is self.dtype else self._fitted(one) for one in made]
        if traits.hands_out_parts:
            self.apart.update(map(id, seen))
        step = step or self._operation(op, tuple(noted), noted_kwargs, made)
        outputs: Any = step.node.outputs  # type: ignore[union-attr]
        if moves:
            self.moving.update(value for value in outputs if value is not None)
        if self.edits and outputs[0] in self.edits:
            edited = self.edits[outputs[0]](made[0])
            made[0], seen[0] = (one.copy_(edited) if in_place else edited.to(one) for one in (made[0], seen[0]))
        for value, tensor, shown in zip(outputs, made, seen, strict=True):
            if value is not None:
                known = self._assign(shown, value)
                if tensor is not shown:
                    known.actual, self.converted = tensor, True
                tensors[value] = tensor
        self._keep_some(step, tensors)
        return type(out)(seen) if several else seen[0]

    def _keep_some(self, step: _Step, tensors: dict[Value, Tensor]) -> None:
        """Keep what a step's rule asks for, as far as it is among `tensors`."""
        for value in step.kept:
            if value in tensors and value not in self.tensors:
                self._keep(value, tensors[value])

    def _argument(self, arg: Any, tensors: dict[Value, Tensor]) -> tuple[Any, Any]:
        """An argument to compute with, and the same with values for tensors, which are added to `tensors`."""
        if type(arg) in _PLAIN:
            return arg, arg
        if isinstance(arg, Tensor):
            known = self.known.get(id(arg)) or self._bring(arg)
            if known.stale and (not self.functional or known.moves or known.value in self.moving):
                raise _Aliased
            if known.stale:  # by what does not depend on the image
                known = self._bring_changed(arg)
            tensor = tensors[known.value] = arg if known.actual is None else known.actual
            return tensor, known.value
        if isinstance(arg, (list, tuple)):
            if all(type(part) is int for part in arg):
                return arg, arg
            parts = [self._argument(part, tensors) for part in arg]
            return [one for one, _ in parts], [other for _, other in parts]
        fitting: Any = arg
        if isinstance(arg, torch.dtype) and arg.is_floating_point:
            fitting = self.dtype
        elif isinstance(arg, torch.device) and arg.type != "meta" and arg != self.device:
            fitting = self.device
        elif isinstance(arg, torch.UntypedStorage):
            problem = f"the model reads numbers from memory in {self.places.here().path or 'the model itself'}"
            raise PathxError(f"{problem}, past torch's operations: keep what it computes in tensors", usage=True)
        self.converted |= fitting is not arg
        return fitting, fitting

    def _moved(self, arg: Any) -> Any:
        """An argument as the model has it, but where the images are."""
        if isinstance(arg, (list, tuple)):
            return [self._moved(part) for part in arg]
        if isinstance(arg, Tensor):
            return arg.to(self.device) if arg.dim() and arg.device != self.device else arg
        return self.device if isinstance(arg, torch.device) and arg.type != "meta" else arg

    def _out_of_place(self, traits: _Traits, given: tuple[Any, ...], moves: bool) -> Any:
        """The operation that computes what an in-place one does. Other tensors on the memory that this writes are stale."""
        if traits.functional is None:
            raise _Aliased  # it writes into an argument in a way of its own
        if id(given[0]) not in self.apart:
            other = self.sharing.get(memory_of(given[0]))
            while other is not None:
                other.stale = other.key != id(given[0])
                other.moves |= moves
                other = other.other
        return traits.functional

    def _protect(self, func: Any, traits: _Traits, given: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Note what an operation is about to write into, or to give other memory, and set aside what is kept there."""
        if func.overloadpacket in RESETTING:
            self.writes.note_memory(given[0])
            return
        for tensor in _written(traits, given, kwargs):
            if memory_of(tensor) in self.brought:
                self.writes.note(tensor)
        for tensor in _written(traits, args, kwargs):
            self._set_aside(memory_of(tensor))

    # --- Steps ---

    def _operation(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Any]) -> _Step:
        """The step of an operation. What was computed before in the same way is that."""
        named = (*kwargs, _key([*kwargs.values()])) if kwargs else None
        expression = (op, _key(args), named)
        shapes = tuple([tensor.shape if isinstance(tensor, Tensor) else None for tensor in made])
        key = (expression, self.places.here(), shapes)
        step = self._again(key)
        if step is not None:
            return step
        node = self.first.get(expression)
        if node is not None:
            return self._add(_Step(key, (), (), (), node, is_new=False))
        tensors = [tensor for tensor in made if isinstance(tensor, Tensor)]
        values = self._new_values(len(tensors))
        numbered = iter(values)
        outputs = tuple(next(numbered) if isinstance(tensor, Tensor) else None for tensor in made)
        node = self.first[expression] = Node(len(self.first), op, args, kwargs, outputs, self.places.last)
        kept = tuple(self.on_operation(node, shapes))
        new = tuple(tuple(shape) for shape in shapes if shape is not None)
        return self._add(_Step(key, values, new, tuple(tensor.dtype for tensor in tensors), node, kept=kept))

    def _new_values(self, count: int) -> tuple[Value, ...]:
        self.count += count
        return tuple(value_at(number) for number in range(self.count - count, self.count))

    def _add(self, step: _Step) -> _Step:
        self.steps.append(step)
        return step

    def _again(self, key: Hashable) -> _Step | None:
        """The same step of the model's last run, where all steps were the same up to this one."""
        if self.last is None:
            return None
        number = len(self.steps)
        if number < len(self.last.steps) and self.last.steps[number].key == key:
            return self._add(self.last.steps[number])
        self.last = None
        for step in self.steps:  # to go on from here as if there had been no last run
            self.count += len(step.values)
            if step.node is not None and step.is_new:
                self.first[step.key[0]] = step.node
                self.on_operation(step.node, step.key[2])
        return None

    # --- The end ---

    def finish(self) -> None:
        for memory in self.writes.memory:  # what is taken back must stay in what is kept
            self._set_aside(memory)
        if self.writes.resets:
            self.tensors = {value: tensor.detach() for value, tensor in self.tensors.items()}
        super().finish()

    def close(self) -> None:
        """Let go of all tensors, which would otherwise wait for the garbage collector: what is known refers back here."""
        self.known.clear()
        self.sharing.clear()
        self.tensors, self.held = {}, []

    def recording(self, outputs: Any) -> Recording:
        """What was recorded of a model that returned `outputs`."""
        tensors: dict[Value, Tensor] = {}
        returned = _mapped(outputs, lambda leaf: self._argument(leaf, tensors)[1] if isinstance(leaf, Tensor) else leaf)
        for value, tensor in tensors.items():
            self._keep(value, tensor)
        scopes: dict[int, Scope] = {}
        if isinstance(self.model, torch.jit.ScriptModule):  # whose frames do not show
            scopes = script_scopes(self.model, [step.node for step in self.steps if step.node is not None])
        ending = (_key(_mapped(returned, _described)), tuple(scopes.items()))
        last = self.last
        if last is None or len(last.steps) != len(self.steps) or last.ending != ending:
            signature = Signature((tuple([step.key for step in self.steps]), ending))
            graph = self._graph(_mapped(returned, _without_contents), scopes)
            last = _LAST[self.model] = _Last(self.steps, ending, graph, signature)
        tensors = {value: one.detach() if one.requires_grad else one for value, one in self.tensors.items()}
        return Recording(last.graph, last.signature, tensors)

    def _graph(self, outputs: Any, scopes: dict[int, Scope]) -> Graph:
        nodes = [step.node for step in self.steps if step.node is not None and step.is_new]
        there = [step for step in self.steps[1:] if step.node is None]
        return Graph(
            nodes=tuple(replace(node, scope=scopes.get(node.index, node.scope)) for node in nodes)
            if scopes
            else tuple(nodes),
            shapes=tuple(shape for step in self.steps for shape in step.shapes),
            dtypes=tuple(dtype for step in self.steps for dtype in step.dtypes),
            input=value_at(0),
            parameters={step.name: step.values[0] for step in there if step.name is not None},
            constants=frozenset(step.values[0] for step in there if step.name is None),
            outputs=outputs,
        )


_PLAIN = frozenset([int, float, bool, type(None), str, torch.layout, torch.memory_format])
_ALIKE = frozenset([int, Value, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format])
"""What is equal to nothing of another of these types."""


def _key(item: Any) -> Hashable:
    """Something to compare arguments by. Numbers are equal only if they are of one type; not a number is like itself."""
    kind = type(item)
    if kind in _ALIKE:
        return item  # type: ignore[no-any-return]
    if kind is list or kind is tuple:
        return tuple([part if type(part) in _ALIKE else _key(part) for part in item])
    if kind is dict:
        return ("dict", _key([*item.items()]))
    return repr(item)


def _mapped(outputs: Any, function: Callable[[Any], Any]) -> Any:
    """Plain containers with a function applied to all that they hold."""
    if isinstance(outputs, dict):
        return {key: _mapped(value, function) for key, value in outputs.items()}
    if isinstance(outputs, list):
        return [_mapped(value, function) for value in outputs]
    return function(outputs)


def _without_contents(leaf: Any) -> Any:
    """A graph outlives the model, so it must not hold what a model returned beside tensors."""
    return leaf if isinstance(leaf, (Value, bool, int, float, str, type(None))) else type(leaf)


def _described(leaf: Any) -> Any:
    return leaf if isinstance(leaf, Value) else type(leaf).__name__


def _differ(given: tuple[Any, ...], args: list[Any], options: dict[str, Any], kwargs: dict[str, Any]) -> bool:
    """Whether what is computed with is something else than what the model gave."""

    def differs(one: Any, other: Any) -> bool:
        if isinstance(one, (list, tuple)):
            return any(map(differs, one, other))
        return one is not other

    return any(map(differs, given, args)) or any(map(differs, options.values(), kwargs.values()))


# --- What is said of operations --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Traits:
    """What is said of an operation.

    Args:
        is_plain: it is always noted as what it is, with nothing to look at first.
        functional: the operation that computes what this one, which is in-place, does; None where there is none.
        written: numbers and names of the arguments that its schema says it writes into.
        unsaid: which arguments it writes into without its schema saying so.
        hands_out_parts: parts of a tensor, to be changed without regard to each other (`unsafe_split`).
    """

    is_plain: bool
    is_mutable: bool
    functional: Any
    written: tuple[tuple[int, str], ...]
    unsaid: Callable[..., Any] | None
    hands_out_parts: bool


@cache
def _traits_of(func: Any) -> _Traits:
    schema, functional = func._schema, None
    name = schema.name.removeprefix("aten::")
    if name.endswith("_") and len(schema.returns) == 1:
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        functional = getattr(packet, func._overloadname, None) if packet is not None else None
    written = [(n, one.name) for n, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write]
    return _Traits(
        is_plain=not (func in RESPELLED or _is_aside(func) or is_composite(func)),
        is_mutable=schema.is_mutable,
        functional=functional,
        written=tuple(written),
        unsaid=UNSAID.get(func),
        hands_out_parts=name.startswith("unsafe_"),
    )


def _is_aside(func: Any) -> bool:
    """Whether nothing is computed: a question about a tensor, such as its device, or a note for a profiler."""
    return func.namespace in ("prim", "profiler") or func in QUESTIONS


def _written(traits: _Traits, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes into."""
    given = [args[number] if number < len(args) else kwargs.get(name) for number, name in traits.written]
    for one in (*given, *(traits.unsaid(args) if traits.unsaid else ())):
        yield from (part for part in (one if isinstance(one, (list, tuple)) else [one]) if isinstance(part, Tensor))
