"""The foreign model: its tensors by name, what is wrapped around it, and how it is run and left as it was (law 7)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from operator import is_not
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pathx.compat import force_eager, memory_of, reset_version
from pathx.engine.record.spellings import FUNCTIONS
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.engine.record.recorder import Recorder


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and tensors that are plain attributes of modules, by their dotted names."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for holder in (module._parameters, module._buffers, vars(module)):
            for name, tensor in holder.items():
                if isinstance(tensor, Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor


def check_initialised(modules: list[tuple[str, nn.Module]]) -> None:
    """Refuse weights that have no shape yet, which running the model would give them."""
    for path, module in modules:
        if isinstance(module, LazyModuleMixin):
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and is_lazy(tensor):
                    problem = f"{path}.{name}".strip(".") + " of the model has no shape yet"
                    raise PathxError(f"{problem}; run the model once on an input first", usage=True)


def check_tensor(tensor: Tensor, name: str | None, module: str = "the model") -> None:
    """Refuse a tensor that cannot be computed with.

    Args:
        name: where the model holds it; None for what it computed.
        module: that computed it.
    """
    subject = f"{name} of the model" if name else f"a tensor in {module}"
    if tensor.is_meta:
        raise PathxError(f"{subject} holds no numbers (it is on the meta device); load weights", usage=True)
    if tensor.is_complex():
        raise PathxError(f"{subject} is complex: pathx explains networks of real numbers", usage=True)
    if "sparse" in str(tensor.layout):
        raise PathxError(f"{subject} is sparse: make it dense (.to_dense())", usage=True)
    if tensor.is_quantized and name:  # what it quantises itself is refused with the operation
        raise PathxError(f"{subject} is quantised: explain the network it was made from", usage=True)


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside of torch.compile or data parallelism, if the wrapper does nothing of its own."""
    while not (model._forward_hooks or model._forward_pre_hooks or has_global_hooks()):
        inner = _inner_module(model)
        if inner is None:
            break
        model = inner
    return model


def _inner_module(model: nn.Module) -> nn.Module | None:
    """The module that a wrapper of torch runs; None for other modules and for changed wrappers."""
    kind, inner = type(model), None
    if kind.__module__.startswith("torch._dynamo.") and hasattr(model.forward, "_torchdynamo_orig_callable"):
        inner = getattr(model, "_orig_mod", None)
    elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) and "forward" not in vars(model):
        own = kind.forward not in _PARALLEL or kind.__call__ is not nn.Module.__call__
        inner = None if own else model.module
    return inner if isinstance(inner, nn.Module) else None


_PARALLEL = (nn.DataParallel.forward, nn.parallel.DistributedDataParallel.forward)


def has_global_hooks() -> bool:
    """Whether there are forward hooks on all modules."""
    return bool(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)


@contextmanager
def eval_mode(modules: list[tuple[str, nn.Module]], convert: Callable[[Tensor, str, str], Tensor]) -> Iterator[None]:
    """Put modules in eval mode, and afterwards give them back their modes, parameters and buffers.

    Only the flags are set: a module's own `train` and `eval` may do anything, such as merge weights.

    Args:
        convert: what to compute with in place of a parameter or buffer; is also given the module's path and the name.
    """
    # Frozen TorchScript has no modes.
    training = [module for _, module in modules if getattr(module, "training", False)]
    held = [
        (path, module, store, dict(store.items()))
        for path, module in modules
        for store in (module._parameters, module._buffers)
    ]
    converted: dict[int, Tensor] = {}  # shared tensors stay shared
    try:
        for module in training:
            module.training = False
        for path, module, store, before in held:
            for name, tensor in before.items():
                if tensor is not None:
                    other = converted.get(id(tensor))
                    if other is None:
                        other = converted[id(tensor)] = convert(tensor, path, name)
                    if other is not tensor:
                        _set_tensor(module, store, name, other)
        yield
    finally:
        for module in training:
            module.training = True
        for _, module, store, before in held:
            if [*store.keys()] != [*before] or any(map(is_not, store.values(), before.values())):
                if isinstance(store, dict):
                    store.clear()
                for name, tensor in before.items():
                    _set_tensor(module, store, name, tensor)


def _set_tensor(module: nn.Module, store: Any, name: str, tensor: Tensor | None) -> None:
    """Give a module a tensor. TorchScript has no dict of them, and lets none be added or deleted."""
    if isinstance(store, dict):
        store[name] = tensor
    else:
        setattr(module, name, tensor)


class WriteLog:
    """Undoes what a model does to its tensors: writes in place, and other memory given to them."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[Tensor, int]] = {}  # autograd's counts of changes
        self._undo: list[Callable[[], Any]] = []
        self._written: set[int] = set()
        self.memory: set[int] = set()  # that is written
        self.resets = False  # some tensor is given other memory

    def remember(self, tensor: Tensor) -> None:
        """Call before a tensor is written: remembers what it holds, the first time."""
        self.memory.add(memory_of(tensor))
        if id(tensor) not in self._written and not tensor.is_inference():
            self._written.add(id(tensor))
            self._versions.setdefault(id(tensor), (tensor, tensor._version))
            self._undo.append(partial(tensor.detach().copy_, tensor.detach().clone()))

    def remember_memory(self, tensor: Tensor) -> None:
        """Call before a tensor is given other memory: remembers its own."""
        self.resets = True
        self._versions.setdefault(id(tensor), (tensor, tensor._version))
        self._undo.append(partial(setattr, tensor, "data", tensor.data))

    def undo(self) -> None:
        """Undo everything, the last change first, and reset the counts of changes."""
        with torch.no_grad():
            while self._undo:
                self._undo.pop()()
        while self._versions:
            reset_version(*self._versions.popitem()[1])


# --- Running ---------------------------------------------------------------------------------------------------------


def run(mode: Recorder) -> Any:
    """Run a mode's model on its images in eval mode; returns its outputs in plain containers. The model is left as it was."""

    def call(x: Tensor) -> Any:
        outputs = mode.model(x)
        if len(x) == 1 and isinstance(outputs, Tensor) and outputs.dim() < 2:  # `squeeze()` dropped the batch, too
            outputs = outputs.reshape(1, -1)
        return _plain_containers(outputs)

    wrapped = torch.func.functionalize(call, remove="mutations") if mode.functional else call
    with eval_mode(mode.modules, mode.convert_parameter), torch.random.fork_rng(devices=[]):
        try:
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                _no_compiled_code(),
                _unfused_attention(),
                _forwards_of_functions() if mode.functional else nullcontext(),
                _FunctionMode(mode),
                mode,
            ):
                outputs = wrapped(mode.images)
        except Exception as error:
            _explain_failure(mode, error)
        finally:
            mode.finish()
    if mode.stopped is not None:  # the model caught it
        raise mode.stopped
    return outputs


@contextmanager
def _unfused_attention() -> Iterator[None]:
    """Run attention as products and a softmax instead of one fused operation."""
    mha, cuda = torch.backends.mha, torch.backends.cuda
    switches: list[tuple[Callable[[], bool], Callable[[bool], None]]] = [
        (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
        (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    ]
    before = [is_on() for is_on, _ in switches]
    try:
        for _, switch in switches:
            switch(False)
        yield
    finally:
        for was_on, (_, switch) in zip(before, switches, strict=True):
            switch(was_on)


@contextmanager
def _forwards_of_functions() -> Iterator[None]:
    """Run just the forward of a `torch.autograd.Function` in this thread: `functionalize` refuses the rest of it."""
    kind: Any = torch.autograd.Function
    thread, no_context = get_ident(), kind.setup_context

    def run_forward(cls: Any, *args: Any) -> Any:
        if get_ident() != thread:
            return apply.__get__(None, cls)(*args)
        context: Any = torch.autograd.function.FunctionCtx()
        context.needs_input_grad = (False,) * len(args)
        return cls.forward(*([context] if cls.setup_context is no_context else []), *args)

    with _FUNCTIONS_LOCK:
        apply = vars(kind)["apply"]
        kind.apply = classmethod(run_forward)
        try:
            yield
        finally:
            kind.apply = apply


_FUNCTIONS_LOCK = RLock()


def _plain_containers(outputs: Any) -> Any:
    """Named tuples and dataclasses as dicts: functorch takes plain containers only."""
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        outputs = dict(outputs._asdict())
    elif is_dataclass(outputs) and not isinstance(outputs, (dict, type)):
        outputs = {field.name: getattr(outputs, field.name) for field in fields(outputs)}
    if isinstance(outputs, dict):
        return {str(key): _plain_containers(value) for key, value in outputs.items() if value is not None}
    if isinstance(outputs, (tuple, list)):
        return [_plain_containers(value) for value in outputs if value is not None]
    return outputs


def _no_compiled_code() -> AbstractContextManager[Any]:
    """Run compiled code eagerly, so that the mode sees it. Without torch._dynamo loaded there is none."""
    return force_eager() if "torch._dynamo" in sys.modules else nullcontext()


class _FunctionMode(TorchFunctionMode):
    """Sees what no operation shows: numbers that leave torch, tensors that are given other memory, functions that are rewritten.

    Where numbers leave torch it reads one of them with `item`, which is recorded.
    """

    def __init__(self, mode: Recorder) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _INTERCEPTED:  # nearly all
            return func(*args, **(kwargs or {}))
        if func in _LEAVING_TORCH and args[0].numel():
            args[0].detach().flatten()[0].item()
        elif func in _RESETTING_MEMORY:
            if self.mode.functional:  # torch would crash
                raise PathxError(
                    "the model replaces a tensor's memory (.data = …); write into the tensor instead", usage=True
                )
            self.mode.log.remember_memory(args[0])
            func(*args)
            return self.mode.rebind(*args)
        other = FUNCTIONS[func](*args, **(kwargs or {})) if func in FUNCTIONS else None
        return func(*args, **(kwargs or {})) if other is None else other


_LEAVING_TORCH = frozenset(
    [Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.apply_, Tensor.map_, Tensor.map2_]
)
_RESETTING_MEMORY = frozenset([Tensor.data.__set__])  # type: ignore[attr-defined]
_INTERCEPTED = _LEAVING_TORCH | _RESETTING_MEMORY | FUNCTIONS.keys()


# --- Failures --------------------------------------------------------------------------------------------------------


def _explain_failure(mode: Recorder, error: Exception) -> NoReturn:
    model, reason = mode.model, error
    if mode.stopped is not None and not isinstance(mode.stopped, PathxError):
        raise mode.stopped
    raise_interrupt(error)
    if isinstance(model, torch.jit.ScriptModule) and "mkldnn" in str(model.inlined_graph):
        raise PathxError(
            "the model was made for one processor (torch.jit.optimize_for_inference), and its operations can no longer be "
            "seen: give the module it was made from",
            usage=True,
        ) from error
    if mode.stopped is not None or isinstance(error, PathxError):
        raise mode.stopped or error
    if mode.functional and "mutating a non-functional tensor" in str(error):
        raise PathxError(
            "the model writes what it computed from the image into a tensor of its own, which it also reads elsewhere; "
            "write it without the in-place operation",
            usage=True,
        ) from error
    if isinstance(model, (torch.jit.ScriptModule, torch.fx.GraphModule)):
        reason = _error_without_mode(mode) or error
    line = (str(reason).strip().splitlines() or [type(reason).__name__])[-1].rstrip(". ")
    remedy = "check the size and number of channels it is made for"
    if not isinstance(reason, (RuntimeError, ValueError, TypeError, IndexError, AssertionError)):
        line, remedy = f"{type(reason).__name__}: {line}", "it is the model's own code that fails"
    if "exported input tree spec" in str(reason):  # as older releases of torch say it
        line = "it was exported with inputs other than one image"
    if re.search(
        r"missing \d+ required|missing value for argument|same number and type of args|other than one image", line
    ):
        remedy = "pathx explains networks of one input: wrap it so that its forward takes the image alone"
    if "'indices' to have one of the following scalar types" in line:
        line, remedy = (
            "it looks its input up in an embedding",
            "it reads tokens, and no images; wrap what follows the embedding",
        )
    if mode.images.dim() == 3:
        remedy = f"{remedy}, or give a single image as image[None]"
    problem = f"the model cannot run on an input of shape {tuple(mode.images.shape)}: {line}; {remedy}"
    raise PathxError(problem, usage=True) from error


def raise_interrupt(error: BaseException) -> None:
    """Raise the interrupt behind an error: foreign code turns one into an error with its name in the text."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if not isinstance(link, Exception):
            raise link
        if isinstance(link, RuntimeError) and re.search(r"^\W*(KeyboardInterrupt|SystemExit)\b", str(link), re.M):
            raise KeyboardInterrupt from error
        link = link.__cause__ or link.__context__


def _error_without_mode(mode: Recorder) -> Exception | None:
    """The error of a run without the mode, under which TorchScript and exported programs lose the message."""
    for tensor in mode.model.buffers():
        mode.log.remember(tensor)
    try:
        with torch.no_grad():
            mode.model(mode.images)
    except Exception as error:
        raise_interrupt(error)
        return error
    return None
