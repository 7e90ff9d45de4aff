"""Work on a frozen network, recorded once and played back: the same operations without the Python between them.

The walk down through the layers looks at no number, so for images of one shape it is always the same list of operations. Once
it was asked for a few times, that list is written down as a program for TorchScript's interpreter, together with what is made of
the result where that looks at no number either. On small networks, where most of the time is spent between operations, playing it
takes less than half of the time.

A recording is found by all that the work can see: the network, the settings, and of every tensor its shape, its place in memory and
its type. The numbers themselves, weights too, are handed in each time. Whatever else the work should turn out
to read is no constant that we made, and then there is no recording.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from threading import Lock
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pathx.engine.branches import Branches
from pathx.engine.device import is_out_of_memory
from pathx.engine.freeze import Frozen
from pathx.engine.network import Network
from pathx.engine.window import is_constant

Result = TypeVar("Result")
Work = Callable[[Frozen, Branches], Result]

MOST_RECORDINGS = 8
"""How many forms of work are remembered for each network. A complete path through a ResNet-50 takes some 28 MB, one of three
layers a tenth of that."""

LARGEST = 1 << 25
"""How many numbers the results may have in all. They are made twice when work is recorded, to compare them; and where they are
more than that, what lies between operations hardly matters."""


def repeated(
    work: Work[Result],
    frozen: Frozen,
    branches: Branches,
    settings: Hashable,
    after: int | None,
    then: Callable[[Frozen, Result], Result] | None = None,
) -> Result:
    """What `work` gives: played back from a recording, once it was asked for often enough.

    Args:
        work: must depend on nothing but the frozen network, the branches and the settings. Where it looks at numbers, it
            is never recorded.
        after: how many times in the same form it is done as it is, before it is recorded; None for always.
        then: makes more of what work gave. It is recorded and played back together with it, where it looks at no numbers either;
            otherwise, and before that, it is left to the caller.
    """
    if after is None or not frozen.compact or _is_watched():
        return work(frozen, branches)
    inputs = _inputs(frozen, branches)
    if not all(type(tensor) in _PLAIN and tensor.layout is torch.strided for tensor in inputs):
        return work(frozen, branches)
    form = (settings, *_form(frozen, branches, inputs))
    with _LOCK:
        known = _KNOWN.setdefault(frozen.network, OrderedDict())
        found = known.setdefault(form, _Seen())
        known.move_to_end(form)
        if len(known) > MOST_RECORDINGS:
            known.popitem(last=False)
        found.times += 1
        now = found.times > after and not found.tried
        found.tried = found.tried or now
    recording = found.recording
    if recording is not None:
        try:
            return cast(Result, recording.play(inputs, frozen, branches))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            found.recording, found.why = None, str(error)  # something is not as it was, though nothing told
    if not now:
        return work(frozen, branches)
    result, found.recording, found.why = _record(work, then, frozen, branches, inputs)
    return result


@dataclass(eq=False)
class _Seen:
    """What is known of one form of work.

    Args:
        why: something was not recorded, though it was tried.
    """

    times: int = 0
    tried: bool = False
    recording: _Recording | None = None
    why: str = ""


_KNOWN: WeakKeyDictionary[Network, OrderedDict[Hashable, _Seen]] = WeakKeyDictionary()
_LOCK = Lock()
_PLAIN = frozenset([Tensor, nn.Parameter])


def _is_watched() -> bool:
    """Whether somebody listens to operations, who should hear each of them, or pretends to do them."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def _inputs(frozen: Frozen, branches: Branches) -> list[Tensor]:
    """All tensors that work may begin with."""
    of_branches = [branches.image, branches.target, branches.logits, branches.parent]
    given = [tensor for tensor in of_branches if tensor is not None]
    return [frozen.images, frozen.logits, *given, *frozen.kept.values()]


def _form(frozen: Frozen, branches: Branches, inputs: Sequence[Tensor]) -> tuple[Hashable, ...]:
    """All that can be seen of what work begins with, but for the numbers; also which tensors are one and the same."""
    first: dict[int, int] = {}
    seen = tuple(
        (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), first.setdefault(id(tensor), number))
        for number, tensor in enumerate(inputs)
    )
    given = (branches.logits is None, branches.parent is None)
    about = (branches.classes, branches.alone, branches.parts, branches.whole, given)
    return about, tuple(frozen.kept), seen, tuple(setting() for setting in _SETTINGS)


# What torch may choose another way to compute by, whose results lie in memory in another order.
_SETTINGS: tuple[Callable[[], Hashable], ...] = (
    torch.get_num_threads,
    torch._C._get_mkldnn_enabled,
    torch._C._get_mkldnn_deterministic,
    torch._C._get_nnpack_enabled,
    torch.are_deterministic_algorithms_enabled,
)


@dataclass(frozen=True, eq=False)
class _Recording:
    """A program, and how its results are put together.

    Args:
        reads: the numbers of the inputs that it takes.
        constants: what it takes beside them.
        result: with a `_Place` for everything that is another one each time.
    """

    program: Callable[..., list[Tensor]]
    reads: tuple[int, ...]
    constants: tuple[Any, ...]
    result: Any

    def play(self, inputs: Sequence[Tensor], frozen: Frozen, branches: Branches) -> Any:
        """What the work would give for these inputs."""
        return _filled(self.result, [frozen, branches, *inputs, *self.run(inputs)])

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the program makes. It is run as it is: nothing is to be gained by fusing or reordering operations."""
        before = torch._C._get_graph_executor_optimize()  # a flag of this thread
        torch._C._set_graph_executor_optimize(False)
        try:
            return self.program(*[inputs[number] for number in self.reads], *self.constants)
        finally:
            torch._C._set_graph_executor_optimize(before)


@dataclass(frozen=True, eq=False)
class _Place:
    """The place of something in the list of what a result is put together from."""

    number: int


@dataclass(frozen=True, eq=False)
class _Parts:
    """A tuple or a dataclass with such places in it."""

    make: Callable[..., Any]
    parts: tuple[Any, ...]


def _filled(item: Any, given: Sequence[Any]) -> Any:
    """A result with what belongs in its places."""
    if type(item) is _Place:
        return given[item.number]
    if type(item) is _Parts:
        return item.make(*[_filled(part, given) for part in item.parts])
    return item


def _several(*parts: Any) -> tuple[Any, ...]:
    return parts


def _with_places(item: Any, place: Callable[[Any], _Place | None]) -> Any:
    """A result with places for everything that has one."""
    found = place(item)
    if found is not None:
        return found
    if isinstance(item, tuple):
        parts = tuple(_with_places(part, place) for part in item)
        return _Parts(_several, parts) if _differ(parts, item) else item
    if is_dataclass(item) and not isinstance(item, type):
        before = [getattr(item, one.name) for one in fields(item)]
        parts = tuple(_with_places(part, place) for part in before)
        return _Parts(type(item), parts) if _differ(parts, before) else item
    return item


def _differ(parts: Sequence[Any], others: Sequence[Any]) -> bool:
    return any(part is not other for part, other in zip(parts, others, strict=True))


def _record(
    work: Work[Result],
    then: Callable[[Frozen, Result], Result] | None,
    frozen: Frozen,
    branches: Branches,
    inputs: Sequence[Tensor],
) -> tuple[Result, _Recording | None, str]:
    """Do the work, and record it; and why not, or not what comes after it."""
    own = Frozen(frozen.network, frozen.images, frozen.logits, frozen.kept, frozen.compact)  # with nothing worked out
    those = replace(branches, memory={})
    notes = _Notes(inputs)
    with notes:
        written = result = work(own, those)
        if notes.why:
            return result, None, notes.why
        if then is not None:
            length = len(notes.lines)
            result = then(own, written)
            if notes.why:
                del notes.lines[length:]
            else:
                written = result
    made: dict[int, int] = {}  # names of tensors by place
    outputs: list[Tensor] = []

    def place(item: Any) -> _Place | None:
        if item is own or item is those:
            return _Place(0 if item is own else 1)
        if not isinstance(item, Tensor):
            return None
        if id(item) in notes.given:
            return _Place(2 + notes.given[id(item)])
        if notes.known(item) is None and is_constant(item):
            return None
        if id(item) not in made:
            made[id(item)] = len(outputs)
            outputs.append(item)
        return _Place(2 + len(inputs) + made[id(item)])

    form = _with_places(written, place)
    try:
        program = notes.program(outputs)
        recording = _Recording(program, tuple(notes.reads), tuple(notes.constants), form)
        same = all(map(_same, recording.run(inputs), outputs))
    except Exception as error:  # such as an operation that the interpreter does not have
        return result, None, str(error)
    return (result, recording, notes.why) if same else (result, None, "other numbers")


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether tensors are the same to the last bit; what is not a number counts as the same."""
    alike = one.shape == other.shape and one.dtype == other.dtype and one.stride() == other.stride()
    return alike and bool(((one == other) | ((one != one) & (other != other))).all())


class _Elsewhere(Exception):
    """Something that depends on numbers, or a tensor that came from elsewhere."""


class _Notes(TorchDispatchMode):
    """Writes every operation down in the language of TorchScript's interpreter."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = {id(tensor): number for number, tensor in reversed(list(enumerate(inputs)))}
        self.why = ""
        self.reads: list[int] = []
        self.constants: list[Any] = []
        self._parameters: list[list[str]] = [[], []]  # of the program: inputs, then constants
        self.lines: list[str] = []
        self._names: dict[int, tuple[ref[Tensor], str]] = {}  # by id, which another may have after a tensor is gone
        self._written: dict[Any, str] = {}  # numbers, and lists of them
        self._numbers = count()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here, and torch would import its compiler to make sure

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.why:
            return func(*args, **kwargs)
        try:
            written = self._call(func, args, kwargs)
        except Exception as error:  # what cannot be written down is done all the same
            self.why = str(error)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        try:
            self._results(out, written, _schema(func))
        except Exception as error:
            self.why = str(error)
        return out

    def _call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        schema = _schema(func)
        if schema.depends_on_numbers:
            raise _Elsewhere(schema.name)
        given = [
            self._name(args[place] if place < len(args) else kwargs.get(name, default), kind)
            for place, (name, kind, default) in enumerate(schema.arguments)
        ]
        return f"{schema.name}({', '.join(given)})"

    def _results(self, out: Any, call: str, schema: _Schema) -> None:
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        if not all(tensor is None or isinstance(tensor, Tensor) for tensor in outputs):
            raise _Elsewhere(f"{schema.name} gives no tensor")
        names = [f"{self._new(tensor)} : Tensor" for tensor in outputs]
        if schema.gives_list:
            several = f"%{next(self._numbers)}"
            self.lines.append(f"{several} : Tensor[] = {call}")
            call = f"prim::ListUnpack({several})"
        self.lines.append(f"{', '.join(names)} = {call}")

    def _new(self, tensor: Tensor | None) -> str:
        """A name for what an operation gives; what it changed in place has one already, which stays."""
        name = f"%{next(self._numbers)}"
        if tensor is not None and id(tensor) not in self.given and self.known(tensor) is None:
            self._names[id(tensor)] = ref(tensor), name
        return name

    def known(self, tensor: Tensor) -> str | None:
        """The name of a tensor that has one."""
        which, name = self._names.get(id(tensor), (None, None))
        return name if which is not None and which() is tensor else None

    def _name(self, item: Any, kind: str) -> str:
        """What an argument is called."""
        if isinstance(item, Tensor):
            return self.known(item) or self._outside(item)
        if isinstance(item, (list, tuple)):
            return self._list(item, kind)
        if kind.startswith("number") and type(item) is bool:
            item = int(item)
        key = (type(item), repr(item))  # 0.0 is not -0.0
        if key not in self._written:
            self._written[key] = self._constant(item)
        return self._written[key]

    def _outside(self, tensor: Tensor) -> str:
        """The name of an input, or of a constant."""
        number = self.given.get(id(tensor))
        if number is None:
            if not is_constant(tensor):
                raise _Elsewhere("a tensor from elsewhere")
            name = self._parameter(tensor, "Tensor")
        else:
            name = f"%{next(self._numbers)}"
            self.reads.append(number)
            self._parameters[0].append(f"{name} : Tensor")
        self._names[id(tensor)] = ref(tensor), name
        return name

    def _list(self, items: Sequence[Any], kind: str) -> str:
        inner = next((each for each in ("int", "bool", "float") if each in kind), None)
        key = None if inner is None else (inner, *items)
        if key is not None and key in self._written:
            return self._written[key]
        inner = inner or ("Tensor?" if "Optional" in kind else "Tensor")
        parts = ", ".join(self._name(item, inner) for item in items)
        name = f"%{next(self._numbers)}"
        self.lines.append(f"{name} : {inner}[] = prim::ListConstruct({parts})")
        if key is not None:
            self._written[key] = name
        return name

    def _constant(self, item: Any) -> str:
        """A number in the program; what has no spelling there is handed in."""
        if item is None or type(item) in (bool, int):
            name = f"%{next(self._numbers)}"
            value = "" if item is None else f"[value={int(item)}]"
            kind = "NoneType" if item is None else type(item).__name__
            self.lines.append(f"{name} : {kind} = prim::Constant{value}()")
            return name
        kind = "Device" if isinstance(item, torch.device) else type(item).__name__
        return self._parameter(item, kind if kind in ("Device", "float", "str") else "int")

    def _parameter(self, item: Any, kind: str) -> str:
        name = f"%{next(self._numbers)}"
        self.constants.append(item)
        self._parameters[1].append(f"{name} : {kind}")
        return name

    def program(self, outputs: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        """All of it, with these results."""
        names = [self.known(tensor) for tensor in outputs]
        if None in names:
            raise _Elsewhere("a result from elsewhere")
        if sum(tensor.numel() for tensor in outputs) > LARGEST:
            raise _Elsewhere("too many numbers")
        results = ", ".join(map(str, names))
        lines = "\n".join(f"  {line}" for line in self.lines)
        parameters = ", ".join(self._parameters[0] + self._parameters[1])
        text = f"graph({parameters}):\n{lines}\n  %all : Tensor[] = prim::ListConstruct({results})\n  return (%all)\n"
        graph = torch._C.parse_ir(text)
        return torch._C._create_function_from_graph("walk", graph)


@dataclass(frozen=True, eq=False)
class _Schema:
    """What an operation takes: the name, type and default of each argument; and what it gives."""

    name: str
    arguments: tuple[tuple[str, str, Any], ...]
    gives_list: bool
    depends_on_numbers: bool


_SCHEMAS: dict[Any, _Schema] = {}


def _schema(func: Any) -> _Schema:
    if func not in _SCHEMAS:
        known = func._schema
        _SCHEMAS[func] = _Schema(
            known.name,
            tuple((one.name, str(one.type), one.default_value) for one in known.arguments),
            [str(one.type) for one in known.returns] == ["List[Tensor]"],
            _depends_on_numbers(func),
        )
    return _SCHEMAS[func]


def _depends_on_numbers(func: Any) -> bool:
    """Whether shapes, or what leaves torch, depend on numbers, or these are drawn at random."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
    return not tags.isdisjoint(func.tags)
