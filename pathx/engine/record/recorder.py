"""Run a model under one dispatch mode that records every operation on the image and saves the tensors that the rules ask for.

The mode sees what any module does (eager, TorchScript, torch.export) as operations on tensors. All of it is computed in the
precision and on the device of the images, whatever the model's tensors are. What does not depend on the image is a constant of
the recording, however it was computed. In-place operations are recorded as what they compute. Only where one writes to
a tensor that is also read under another name is `torch.func.functionalize` asked to sort that out. Common subexpressions
are recorded once.

A recording is a walk through a tree of what was recorded before: a step per operation or constant, and at the end the graph.
A model that did the same again ends where it ended before, so the end is what its analysis is remembered by; a model that changed
leaves the known way, and new steps are added there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from pathx.compat import DispatchMode, is_composite, memory_of
from pathx.engine.record.model import WriteLog, check_initialised, check_tensor, named_tensors, run
from pathx.engine.record.names import ModuleFinder, script_scopes
from pathx.engine.record.operations import Graph, Node, Scope, Value, map_leaves, value_at
from pathx.engine.record.spellings import HIDDEN_WRITES, MEMORY_RESETS, QUERIES, RESPELLINGS, Respelling
from pathx.errors import PathxError

Shape = tuple[int, ...]
OnOperation = Callable[[Node, tuple[Shape | None, ...]], Iterable[Value] | None]
"""Is given each new node with the shapes of its outputs, and returns those of its values that must be saved; None where its outputs
do not depend on the image."""

Form = Callable[..., Any]
"""Another way to compute an operation; returns None where the usual way is better."""


# --- The tree ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Step:
    """One step of all recordings that did the same before it: the image, a constant, an operation, or the end.

    Args:
        outputs: the values that it makes; None for what is no tensor or does not depend on the image.
        count: how many nodes and values there are up to here.
        node: the call of an operation.
        saved: the values that the node's rule asks for.
        expression: what equal calls have in common; None for one that repeats an earlier call.
        made: shapes and dtypes of new values.
        names: of a constant, the model's tensors that it was computed from; None if it came from outside of torch.
        following: the next steps, by what they are.
        graph, analysis: of the recordings that end here.
    """

    outputs: tuple[Value | None, ...] = ()
    count: tuple[int, int] = (0, 0)
    node: Node | None = None
    saved: tuple[Value, ...] = ()
    expression: Hashable = None
    made: tuple[tuple[Shape, torch.dtype] | None, ...] = ()
    names: frozenset[str] | None = None
    following: dict[Hashable, Step] = field(default_factory=dict)
    graph: Graph | None = None
    analysis: Any = None


_ROOT = Step()
MOST_STEPS = 50_000
"""How many steps are remembered: some hundreds of recordings of a ResNet-18. Then all are forgotten."""
_steps = 0


def _remember(before: Step, key: Hashable, step: Step) -> Step:
    """Add a step to the tree; returns the one that is there already, if another thread was quicker."""
    global _steps
    if _steps >= MOST_STEPS:
        _ROOT.following.clear()
        _steps = 0
    _steps += 1
    return before.following.setdefault(key, step)


@dataclass(frozen=True, eq=False)
class Recording:
    """What a model did with a batch of images.

    Args:
        end: the last step: the same object for equal graphs.
        tensors: the saved values, and all constants of the graph.
    """

    graph: Graph
    end: Step
    tensors: dict[Value, Tensor]


def record(
    model: nn.Module, images: Tensor, watch: Callable[[Value], OnOperation], forms: Mapping[Any, Form] | None = None
) -> Recording:
    """Run `model` once on `images`, in eval mode, and record every operation. The model is left as it was.

    Args:
        watch: makes, from the input's value, what is called with every new operation.
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
    """What is known of a tensor, by weak reference: its id is unique only while it lives."""

    __slots__ = ("computed", "depends", "names", "value", "writes")

    depends: bool  # on the image
    value: Value | None  # that it holds; None for a constant that nothing on the way from the image has read
    computed: Tensor | None  # of a constant that was read: what is computed with in its place
    names: (
        frozenset[str] | None
    )  # of a constant: the model's tensors that it was computed from; None if it is from outside
    writes: int  # how many writes there had been, to any memory, when this was so


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
        self.device, self.dtype, self.on_operation = images.device, images.dtype, on_operation
        self.forms = {id(op): form for op, form in forms.items()}  # the hash of operations is slow
        self.finder = ModuleFinder(model, modules, run.__code__)
        # The walk through the tree
        self.step, self.steps = _ROOT, list[Step]()
        self.learned = 0  # how many of the steps `on_operation` and the next have seen: only new steps ask for that
        self.by_expression: dict[Hashable, Step] = {}
        # Tensors
        self.log = WriteLog()
        self.names: dict[int, frozenset[str]] = {}  # of parameters and buffers, by id
        self.entries: dict[int, _Entry] = {}  # by the ids of tensors
        self.outside: list[Tensor] = []  # tensors that no operation made: the model's, and others
        self.model_memory: list[int] = []  # their memory, but for the last ones
        self.tensors: dict[Value, Tensor] = {}  # saved
        self.saved_on: dict[int, list[Value]] = {}  # the saved values by their memory, but for the last ones,
        self.saved_since: list[Value] = []  # which were saved since there was a write
        self.writes = 0
        self.last_write: dict[int, int] = {}  # by memory, the number of the last write to it
        self.image_memory: set[int] = set()  # of constants that were written with what depends on the image
        self.copied: set[int] = set()  # memory that a view had to copy, and the copies: one is written with the other
        image = self._take((str(images.device), images.shape, images.dtype), self._new_value, self.images)
        self._bind(self.images, image.outputs[0])

    @cached_property
    def all_names(self) -> dict[int, str]:
        """The names of parameters, buffers, and tensors that are plain attributes of modules, by their ids."""
        return {id(tensor): name for name, tensor in named_tensors(self.model)}

    # --- Steps ---

    def _take(self, key: Hashable, make: Callable[..., Step], *args: Any) -> Step:
        """Take the step that a key stands for. It is made where no recording took it before."""
        step = self.step.following.get(key)
        if step is None:
            for known in self.steps[self.learned :]:
                if known.expression is not None and known.node is not None:
                    self.on_operation(known.node, _shapes(known))
                    self.by_expression[known.expression] = known
            step = _remember(self.step, key, make(*args))
            self.learned = len(self.steps) + 1
        self.step = step
        self.steps.append(step)
        return step

    def _new_value(self, tensor: Tensor, names: frozenset[str] | None = None) -> Step:
        """The step of the image or of a constant."""
        nodes, values = self.step.count
        return Step((value_at(values),), (nodes, values + 1), made=_describe([tensor]), names=names)

    def _new_call(self, expression: Hashable, op: Any, args: Any, kwargs: Any, scope: Scope, made: list[Any]) -> Step:
        """The step of an operation. Common-subexpression elimination: equal calls share a node."""
        (nodes, values), first = self.step.count, self.by_expression.get(expression)
        if first is not None:
            return Step(first.outputs, (nodes, values), first.node, first.saved)
        outputs: list[Value | None] = []
        for one in made:
            outputs.append(value_at(values) if isinstance(one, Tensor) else None)
            values += isinstance(one, Tensor)
        node = Node(nodes, op, args, kwargs, tuple(outputs), scope)
        step = Step(node.outputs, (nodes + 1, values), node, (), expression, _describe(made))
        saved = self.on_operation(node, _shapes(step))
        if saved is None:
            return Step((None,) * len(made), self.step.count)
        step.saved = tuple(saved)
        self.by_expression[expression] = step
        return step

    # --- Tensors ---

    def _bind(self, tensor: Tensor, value: Value | None, names: frozenset[str] | None = frozenset()) -> _Entry:
        """From now on `tensor` holds `value`, or a constant."""
        if tensor.layout is not torch.strided:
            self._check(tensor)
        entry = self.entries[id(tensor)] = _Entry(tensor)
        entry.depends, entry.value, entry.computed = value is not None, value, None
        entry.names, entry.writes = names, self.writes
        return entry

    def _entry(self, tensor: Tensor) -> _Entry:
        entry = self.entries.get(id(tensor))
        if entry is not None and entry() is tensor:
            return entry
        names = self.names.get(id(tensor))
        if names is None:  # parameters and buffers were checked before the model ran
            name = self.all_names.get(id(tensor))
            check_tensor(tensor, name)
            names = None if name is None else frozenset([name])
        self.outside.append(tensor)
        return self._bind(tensor, None, names)

    def _value(self, tensor: Tensor) -> tuple[Value, Tensor]:
        """The value that a tensor holds, and what to compute with in its place."""
        entry = self._entry(tensor)
        is_stale = entry.writes != self.writes and self.last_write.get(memory_of(tensor), 0) > entry.writes
        if entry.depends:
            if is_stale:
                raise _AliasedWrite
            computed = tensor
        elif entry.computed is None or is_stale:
            computed = self._read_constant(tensor, entry)
        else:
            computed = entry.computed
        assert entry.value is not None
        return entry.value, computed

    def _read_constant(self, tensor: Tensor, entry: _Entry) -> Tensor:
        self._check_not_written(tensor)
        computed: Tensor = self._convert(tensor)
        (entry.value,) = self._take(
            (entry.names, computed.shape, computed.dtype), self._new_value, computed, entry.names
        ).outputs
        entry.computed, entry.writes = computed, self.writes
        assert entry.value is not None
        self._save(entry.value, computed)
        return computed

    def _check_not_written(self, constant: Tensor) -> None:
        if self.image_memory and memory_of(constant) in self.image_memory:
            raise _AliasedWrite

    def convert_parameter(self, tensor: Tensor, path: str, name: str) -> Tensor:
        """What is computed with in place of a parameter or buffer of the model."""
        if tensor.dtype is not self.dtype or tensor.device != self.device or tensor.layout is not torch.strided:
            check_tensor(tensor, *_names(path, name))
            if tensor.is_floating_point() or tensor.device != self.device:  # numbers of batches stay as they are
                tensor = self._convert(tensor.detach())
        self.names.setdefault(id(tensor), _names(path, name))
        return tensor

    def rebind(self, tensor: Tensor, other: Tensor) -> None:
        """`tensor` was given the memory of another (`tensor.data = other`)."""
        self.entries.pop(id(tensor), None)
        if id(other) in self.entries:
            entry = self._entry(other)
            self._bind(tensor, self._value(other)[0] if entry.depends else None, entry.names)

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
        self.tensors[value] = tensor
        self.saved_since.append(value)

    def _copy_saved(self, memory: int) -> None:
        """Copy what is saved on memory that is about to be written."""
        for value in self.saved_since:
            self.saved_on.setdefault(memory_of(self.tensors[value]), []).append(value)
        self.saved_since.clear()
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
        traits = _TRAITS.get(id(func)) or _traits_of(func)
        if traits.is_query:
            return func(*args, **kwargs)
        if traits.is_composite:  # as they arrive where tensors were made in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        if traits.respell is not None and (other := traits.respell(*args, **kwargs)) is not None:
            with self:
                out = other()
            if traits.is_view and memory_of(out) != memory_of(args[0]):
                self.copied |= {memory_of(out), memory_of(args[0])}
            return out
        if any(map(self._depends_on_image, args)) or (kwargs and any(map(self._depends_on_image, kwargs.values()))):
            return self._record(func, traits, args, kwargs)
        return self._run_constant(func, traits, args, kwargs)

    def _depends_on_image(self, arg: Any) -> bool:
        """Whether an argument is, or has in it, a tensor that was computed from the image."""
        if isinstance(arg, (list, tuple)):
            return any(map(self._depends_on_image, arg))
        entry = self.entries.get(id(arg))
        return entry is not None and entry.depends and entry() is arg

    def _run_constant(self, func: Any, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on constants."""
        if traits.is_random:
            self.on_operation(Node(0, func, (), {}, (), self.finder.find()), ())
        names: list[frozenset[str] | None] = []
        for tensor in _tensors_in((*args, *kwargs.values())):
            self._check_not_written(tensor)
            names.append(self._entry(tensor).names)
        converted = tuple(map(self._convert_argument, args))  # also refuses numbers from outside of torch
        if traits.writes:
            self._prepare_write(traits, args, kwargs)
        if traits.is_mutable or traits.is_view:  # a view is of the tensor itself, which may be written through it
            out = func(*args, **kwargs)
        else:  # the result is converted too, so that views of it are of what is read
            options = {name: self._convert_argument(arg) for name, arg in kwargs.items()}
            out = map_leaves(func(*converted, **options), self._convert)
        union = None if None in names else frozenset[str]().union(*(one for one in names if one))
        for tensor in _tensors_in(out if isinstance(out, (tuple, list)) else (out,)):
            self._bind(tensor, None, union)
        return out

    def _convert_argument(self, arg: Any) -> Any:
        """An argument in the precision and on the device of the images."""
        if isinstance(arg, Tensor):
            return self._convert(arg)
        if isinstance(arg, (list, tuple)):
            return arg if all(type(part) is int for part in arg) else [self._convert_argument(part) for part in arg]
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
        args, recorded, key = self._resolve_all(given, tensors)
        kwargs, recorded_kwargs = options, options
        if options:
            values, recorded_values, more = self._resolve_all((*options.values(),), tensors)
            kwargs = dict(zip(options, values, strict=True))
            recorded_kwargs = dict(zip(options, recorded_values, strict=True))
            key += (*options, more)
        op, step = func, None
        if traits.is_mutable:
            if traits.out_of_place is None or args[0] is not given[0]:
                raise _AliasedWrite  # it writes to an argument in a way of its own, or in another precision
            op = traits.out_of_place
            made = [op(*args, **kwargs)] if traits.changes_shape else args[:1]  # a view costs nothing
            step = self._take_call(op, recorded, recorded_kwargs, key, made)
            self._save_needed(step, tensors)  # before they are written over
            if not self._entry(given[0]).depends:
                self.image_memory.add(memory_of(given[0]))
        if traits.writes:
            self._prepare_write(traits, given, options)
        form = self.forms.get(id(func))
        out = None if form is None else form(*args, **kwargs)
        out = func(*args, **kwargs) if out is None else out
        several = isinstance(out, (tuple, list))
        made = [
            one if getattr(one, "dtype", None) is self.dtype else self._convert(one)
            for one in (out if several else (out,))
        ]
        step = step or self._take_call(op, recorded, recorded_kwargs, key, made)
        for value, tensor in zip(step.outputs, made, strict=True):
            if isinstance(tensor, Tensor):
                self._bind(tensor, value)
                if value is not None:
                    tensors[value] = tensor
        if step.saved:
            self._save_needed(step, tensors)
        return type(out)(made) if several else made[0]

    def _take_call(self, op: Any, args: Any, kwargs: dict[str, Any], key: Hashable, made: list[Any]) -> Step:
        """The step of a call.

        Args:
            key: stands for its arguments.
        """
        scope, expression = self.finder.find(), (id(op), key)
        shapes = tuple([one.shape if isinstance(one, Tensor) else None for one in made])
        return self._take((expression, scope, shapes), self._new_call, expression, op, args, kwargs, scope, made)

    def _save_needed(self, step: Step, tensors: dict[Value, Tensor]) -> None:
        """Save what the rule of a call asks for, as far as it is among `tensors`."""
        for value in step.saved:
            if value not in self.tensors and value in tensors:
                self._save(value, tensors[value])

    def _resolve_all(
        self, given: Iterable[Any], tensors: dict[Value, Tensor]
    ) -> tuple[list[Any], tuple[Any, ...], tuple[Hashable, ...]]:
        """Arguments to compute with; the same with values for tensors; and a key for those.

        Args:
            tensors: are given the tensors that were among the arguments.
        """
        args, recorded, key = list(given), [], []
        for number, arg in enumerate(args):
            kind = type(arg)
            if kind in _EXACT:
                recorded.append(arg)
                key.append(arg)
            elif isinstance(arg, Tensor):
                value, args[number] = self._value(arg)
                tensors[value] = args[number]
                recorded.append(value)
                key.append(value)
            elif (kind is list or kind is tuple) and _INTEGERS.issuperset(map(type, arg)):
                recorded.append(arg)
                key.append(tuple(arg))
            elif isinstance(arg, (list, tuple)):
                args[number], parts, part_key = self._resolve_all(arg, tensors)
                recorded.append(list(parts))
                key.append(part_key)
            else:
                args[number] = arg = self._convert_argument(arg)
                recorded.append(arg)
                key.append(repr(arg))  # numbers are equal only if they are of one type; NaN equals itself
        return args, tuple(recorded), tuple(key)

    def _prepare_write(self, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before an operation writes: remember what the model's tensors hold, and copy what is saved there."""
        if traits.resets_memory:
            self.log.remember_memory(args[0])
            self.entries.pop(id(args[0]), None)
            return
        self.model_memory.extend(map(memory_of, self.outside[len(self.model_memory) :]))
        for tensor in _written_tensors(traits, args, kwargs):
            memory = memory_of(tensor)
            if memory in self.copied:
                raise _AliasedWrite
            if memory in self.model_memory:
                self.log.remember(tensor)
            self._copy_saved(memory)
            self.writes += 1
            self.last_write[memory] = self.writes

    # --- The end ---

    def finish(self) -> None:
        """The model has returned or failed: undo what it wrote."""
        for memory in self.log.memory:  # what is undone must stay in what is saved
            self._copy_saved(memory)
        if self.log.resets:
            self.tensors = {value: tensor.detach() for value, tensor in self.tensors.items()}
        self.log.undo()

    def recording(self, outputs: Any) -> Recording:
        """The recording of a model that returned `outputs`."""
        tensors: dict[Value, Tensor] = {}
        returned = _map(
            outputs, lambda leaf: self._resolve_all([leaf], tensors)[1][0] if isinstance(leaf, Tensor) else leaf
        )
        for value, tensor in tensors.items():
            self.tensors.setdefault(value, tensor)
        scopes: dict[int, Scope] = {}
        if isinstance(self.model, torch.jit.ScriptModule):  # whose frames do not show
            scopes = script_scopes(self.model, [step.node for step in self.steps if step.node is not None])
        described = _map(returned, lambda leaf: leaf if isinstance(leaf, Value) else type(leaf).__name__)
        end = self._take(("end", repr(described), *scopes.items()), self._new_end, returned, scopes)
        assert end.graph is not None
        tensors = {value: one.detach() if one.requires_grad else one for value, one in self.tensors.items()}
        return Recording(end.graph, end, tensors)

    def _new_end(self, outputs: Any, scopes: dict[int, Scope]) -> Step:
        _, *steps = self.steps
        made = [one for step in self.steps for one in step.made if one is not None]
        nodes = [step.node for step in steps if step.expression is not None and step.node is not None]
        graph = Graph(
            nodes=tuple([replace(node, scope=scopes.get(node.index, node.scope)) for node in nodes]),
            shapes=tuple([shape for shape, _ in made]),
            dtypes=tuple([dtype for _, dtype in made]),
            input=value_at(0),
            constants={value: step.names for step in steps if step.node is None for value in step.outputs if value},
            outputs=_map(outputs, _without_contents),
        )
        return Step(graph=graph)


@lru_cache(maxsize=10_000)
def _names(path: str, name: str) -> frozenset[str]:
    """The name of a module's tensor; one object for each, which is quick to compare."""
    return frozenset([f"{path}.{name}" if path else name])


_EXACT = frozenset([int, type(None), torch.layout, torch.memory_format])
"""Types of arguments that are taken as they are, and equal nothing of another of these types."""
_INTEGERS = frozenset([int])


def _describe(made: list[Any]) -> tuple[tuple[Shape, torch.dtype] | None, ...]:
    return tuple((tuple(one.shape), one.dtype) if isinstance(one, Tensor) else None for one in made)


def _shapes(step: Step) -> tuple[Shape | None, ...]:
    return tuple(None if one is None else one[0] for one in step.made)


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
        is_view: it makes another name for its argument's memory.
        changes_shape: it makes another view of the tensor itself, in place.
        resets_memory: it gives a tensor other memory.
    """

    op: Any
    is_query: bool
    is_composite: bool
    is_random: bool
    respell: Respelling | None
    is_mutable: bool
    out_of_place: Any
    written: tuple[tuple[int, str], ...]
    hidden_writes: Callable[..., Any] | None
    writes: bool
    is_view: bool
    changes_shape: bool
    resets_memory: bool


_TRAITS: dict[int, _Traits] = {}  # by the ids of operations, whose own hash is slow


def _traits_of(func: Any) -> _Traits:
    schema, out_of_place = func._schema, None
    name = schema.name.removeprefix("aten::")
    if name.endswith("_") and len(schema.returns) == 1:
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        out_of_place = getattr(packet, func._overloadname, None) if packet is not None else None
    written = [(n, one.name) for n, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write]
    is_query = func.namespace in ("prim", "profiler") or func in QUERIES
    traits = _TRAITS[id(func)] = _Traits(
        op=func,
        is_query=is_query,
        is_composite=not is_query and is_composite(func),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        respell=RESPELLINGS.get(func),
        is_mutable=schema.is_mutable,
        out_of_place=out_of_place,
        written=tuple(written),
        hidden_writes=HIDDEN_WRITES.get(func),
        writes=schema.is_mutable or func in HIDDEN_WRITES,
        is_view=any(one.alias_info and not one.alias_info.is_write for one in schema.returns),
        changes_shape=torch.Tag.inplace_view in func.tags,
        resets_memory=func.overloadpacket in MEMORY_RESETS,
    )
    return traits


def _written_tensors(traits: _Traits, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    given = [args[number] if number < len(args) else kwargs.get(name) for number, name in traits.written]
    return _tensors_in((*given, *(traits.hidden_writes(args) if traits.hidden_writes else ())))
