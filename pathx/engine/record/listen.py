"""Running a foreign module under a mode that hears every operation it makes, and leaving it as it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pathx.engine.record.rewrites import FUNCTIONS, QUESTIONS, RESETTING, RESPELLED, REWRITES, UNSAID
from pathx.engine.record.scopes import Scope, is_leaf
from pathx.engine.record.untouched import Writes, untouched
from pathx.errors import PathxError


class Aliased(Exception):
    """A tensor was changed in place and then read through another tensor that shares its memory."""


class Departed(Exception):
    """The model did something else than what was recorded of it."""


class Listener(TorchDispatchMode):
    """Hears a model's operations in one spelling: composite ones taken apart, rewrites applied.

    Args:
        images: what the model is given.
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.images = model, images
        self.scope: Scope | None = None  # set from outside where Python frames do not tell
        self.writes = Writes()
        self.foreign: set[int] = set()  # the memory of tensors that were there before the run
        self.stopped: BaseException | None = None  # what must not be lost in foreign code that catches or wraps errors

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while a listener listens, and asking costs as much as following

    @cached_property
    def modules(self) -> dict[int, tuple[str, nn.Module]]:
        """The model's modules by id, with their paths; the first path of one that has several."""
        return {id(module): (name, module) for name, module in self.model.named_modules()}

    def heard(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and take note of it."""
        raise NotImplementedError

    def factor(self, part: Tensor, whole: Tensor) -> Any:
        """The number or tensor k where `part` was computed as k times `whole`; None where it was not."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._dispatched(func, args, kwargs or {})
        except BaseException as error:
            if isinstance(error, (PathxError, Aliased, Departed)) or not isinstance(error, Exception):
                self.stopped = self.stopped or error
            raise

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        if _is_aside(func):
            return func(*args, **kwargs)
        if _is_composite(func):  # as they arrive where tensors were made in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        other = REWRITES[func](self.factor, *args, **kwargs) if func in REWRITES else None
        if other is not None:
            with self:
                return other()
        return self.heard(func, args, kwargs)

    def here(self, leaf: Any) -> Any:
        """Weights that were left on another device than the rest, where the images are."""
        elsewhere = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.device != self.images.device
        return leaf.to(self.images.device) if elsewhere else leaf

    def protect(self, func: Any, args: Any, kwargs: Any) -> None:
        """Note the tensors of the model that an operation is about to write into, or to give other memory."""
        if func.overloadpacket in RESETTING:
            self.writes.note_memory(args[0])
        for tensor in written(func, args, kwargs):
            if tensor.untyped_storage()._cdata in self.foreign:
                self.writes.note(tensor)

    def place(self) -> Scope:
        """The module that the operation is called in."""
        if self.scope is not None:
            return self.scope
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code is _CALL_IMPL:
                found = self.modules.get(id(frame.f_locals["self"]))
                if found is not None:
                    return Scope(found[0], is_leaf(found[1]))
            frame = frame.f_back  # type: ignore[assignment]
        return Scope()

    def ended(self) -> None:
        """The model has returned or failed: take back what it wrote."""
        self.writes.take_back()


def run(listener: Listener, call: Callable[[Tensor], Any] | None = None, *, functional: bool = False) -> Any:
    """What the listener's model makes of its images, with the model left as it was.

    Args:
        call: runs the model in another way than calling it.
        functional: let torch sort out who shares memory with whom.
    """
    call = call or listener.model

    def plain(x: Tensor) -> Any:
        return _plain(call(x))

    wrapped = torch.func.functionalize(plain, remove="mutations") if functional else plain
    with untouched(listener.model), torch.random.fork_rng(devices=[]):
        try:
            with torch.inference_mode(False), torch.no_grad(), _uncompiled(), _Escapes(listener.writes), listener:
                outputs = wrapped(listener.images)
        except Exception as error:
            _explain_failure(listener, error)
        finally:
            listener.ended()
    if listener.stopped is not None:  # the model caught it
        raise listener.stopped
    return outputs


def _explain_failure(listener: Listener, error: Exception) -> NoReturn:
    if listener.stopped is not None:
        raise listener.stopped
    if isinstance(error, PathxError):
        raise error
    raise_interrupt(error)
    reason = error
    if isinstance(listener.model, torch.jit.ScriptModule) and "mkldnn" in str(listener.model.inlined_graph):
        raise PathxError(
            "the model was made for one processor (torch.jit.optimize_for_inference), and its operations can no longer be "
            "seen: give the module it was made from",
            usage=True,
        ) from error
    if isinstance(listener.model, (torch.jit.ScriptModule, torch.fx.GraphModule)):
        reason = _own_words(listener) or error
    line = (str(reason).strip().splitlines() or [type(reason).__name__])[-1].rstrip(". ")
    remedy = "check the size and number of channels it is made for"
    if not isinstance(reason, (RuntimeError, ValueError, TypeError, IndexError, AssertionError)):
        line, remedy = f"{type(reason).__name__}: {line}", "it is the model's own code that fails"
    if re.search(r"missing \d+ required|missing value for argument", line):
        remedy = "pathx explains networks of one input: wrap it so that its forward takes the image alone"
    if re.search(r"not implemented for '(Half|BFloat16)'", line):
        remedy = "torch has no such operation in half precision here: give the model in float32 (model.float())"
    found = f"the model cannot run on an input of shape {tuple(listener.images.shape)}: {line}; {remedy}"
    raise PathxError(found, usage=True) from error


def raise_interrupt(error: BaseException) -> None:
    """Raise the interrupt that an error stands for: foreign code turns one into an error with its name in the text."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if not isinstance(link, Exception):
            raise link
        if isinstance(link, RuntimeError) and re.search(r"^\W*(KeyboardInterrupt|SystemExit)\b", str(link), re.M):
            raise KeyboardInterrupt from error
        link = link.__cause__ or link.__context__


def _own_words(listener: Listener) -> Exception | None:
    """The model's own error without a mode around it, which makes TorchScript and exported programs forget the text."""
    for tensor in listener.model.buffers():
        listener.writes.note(tensor)
    try:
        with torch.no_grad():
            listener.model(listener.images)
    except Exception as error:
        raise_interrupt(error)
        return error
    return None


def _uncompiled() -> AbstractContextManager[Any]:
    """No compiled code, which a mode cannot look into; without torch._dynamo loaded there is none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Escapes(TorchFunctionMode):
    """Notices what no operation shows: values that leave torch, and tensors that are given other memory.

    Where values leave, reading one element of them is heard instead; some functions are heard as others.
    """

    def __init__(self, writes: Writes) -> None:
        super().__init__()
        self.writes = writes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _HEEDED:  # nearly all
            return func(*args, **(kwargs or {}))
        if func in _LEAVING and args[0].numel():
            args[0].detach().flatten()[0].item()
        elif func in _RESETTING:
            if any(isinstance(arg, Tensor) and torch._is_functional_tensor(arg) for arg in args):  # torch would crash
                raise PathxError("the model gives a tensor other memory (.data = …); write into it instead", usage=True)
            self.writes.note_memory(args[0])
        other = FUNCTIONS[func](*args, **(kwargs or {})) if func in FUNCTIONS else None
        return func(*args, **(kwargs or {})) if other is None else other


_LEAVING = frozenset(
    [Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.apply_, Tensor.map_, Tensor.map2_]
)
_RESETTING = frozenset([Tensor.data.__set__])  # type: ignore[attr-defined]
_HEEDED = _LEAVING | _RESETTING | FUNCTIONS.keys()


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes into; one that is given other memory is not written into."""
    if func.overloadpacket in RESETTING:
        return
    for number, name in _written_arguments(func):
        given = args[number] if number < len(args) else kwargs.get(name)
        yield from (one for one in (given if isinstance(given, (list, tuple)) else [given]) if _is_tensor(one))
    if func.overloadpacket in UNSAID:
        yield from filter(_is_tensor, UNSAID[func.overloadpacket](args))


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Numbers and names of the arguments that an operation's schema says it writes into."""
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (number, one.name) for number, one in arguments if one.alias_info is not None and one.alias_info.is_write
    )


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


def _plain(outputs: Any) -> Any:
    """Named tuples as dicts and other containers as they are, since functorch's trees want plain ones."""
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        outputs = dict(outputs._asdict())
    elif is_dataclass(outputs) and not isinstance(outputs, (dict, type)):
        outputs = {field.name: getattr(outputs, field.name) for field in fields(outputs)}
    if isinstance(outputs, dict):
        return {str(key): _plain(value) for key, value in outputs.items() if value is not None}
    if isinstance(outputs, (tuple, list)):
        return [_plain(value) for value in outputs if value is not None]
    return outputs


def is_plain(func: Any) -> bool:
    """Whether an operation is always heard as what it is."""
    other = func in REWRITES or _is_aside(func) or func in RESPELLED
    return not (other or func._schema.is_mutable or _is_composite(func))


def _is_aside(func: Any) -> bool:
    """Whether nothing is computed: a question about a tensor, such as its device, or a note for a profiler."""
    return func.namespace in ("prim", "profiler") or func in QUESTIONS


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operation is made of others, whatever the device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


_CALL_IMPL = nn.Module._call_impl.__code__
