"""Differences between releases of torch, from 2.4 on, and what torch offers under private names only.

Each function says what happens where a release lacks the thing.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pathx.errors import PathxError

OUT_OF_MEMORY: type[Exception] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""What a device raises that has no memory left; before torch 2.5 only `torch.cuda` has the name."""


class DispatchMode(TorchDispatchMode):
    """A mode that sees every operation. It has no public name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes as long as the rest of torch. Older releases do not ask."""
        return False


def memory_of(tensor: Tensor) -> int:
    """A number that tensors share if and only if they share memory. (Addresses are 0 for all empty tensors.)"""
    return int(tensor.untyped_storage()._cdata)


@cache
def is_composite(op: Any) -> bool:
    """Whether an operation is made of others on every device. Where torch does not tell, it is taken for whole."""
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    return bool(has_kernel and has_kernel(op.name(), "CompositeImplicitAutograd"))


def reset_version(tensor: Tensor, version: int) -> None:
    """Set the count of changes that autograd keeps of a tensor. Where torch cannot, the count stays as it is."""
    reset = getattr(getattr(torch._C, "_autograd", None), "_unsafe_set_version_counter", None)
    if reset is None:
        return
    try:
        reset((tensor,), (version,))
    except TypeError:  # before torch 2.6 it takes one tensor
        reset(tensor, version)


def force_eager() -> AbstractContextManager[None]:
    """Run compiled code as it was written. Before torch 2.6 a dispatch mode has that effect by itself."""
    stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if stance is None else cast("AbstractContextManager[None]", stance("force_eager"))


@contextmanager
def silent_vmap() -> Iterator[None]:
    """Keep `torch.vmap` from writing to stderr where it runs an operation one by one. Where torch cannot, it writes."""
    switch = getattr(getattr(torch._C, "_functorch", None), "_set_vmap_fallback_warning_enabled", lambda enabled: None)
    switch(False)
    try:
        yield
    finally:
        switch(True)  # torch does not tell what it was; this is its default


def has_fp32_precision() -> bool:
    """Whether torch has a precision setting per library and kind of product (from 2.9 on)."""
    return hasattr(torch.backends.mkldnn, "matmul")


def precision_switches(device: str) -> tuple[tuple[Any, str, str | bool], ...]:
    """The settings that round the factors of float32 products: holder, name, and the value that rounds nothing.

    Before torch 2.9 there are only the switches of TF32; `torch.set_float32_matmul_precision` covers the rest.
    """
    backends: Any = torch.backends
    if has_fp32_precision():
        parts = [backends.mkldnn.matmul, backends.mkldnn.conv]
        parts += [] if device == "cpu" else [backends.cuda.matmul, backends.cudnn.conv]
        return tuple((part, "fp32_precision", "ieee") for part in parts)
    switches = [] if device == "cpu" else [(backends.cuda.matmul, "allow_tf32"), (backends.cudnn, "allow_tf32")]
    switches += [(backends.mkldnn, "allow_tf32")] if hasattr(backends.mkldnn, "allow_tf32") else []
    return tuple((holder, name, False) for holder, name in switches)


@contextmanager
def safe_globals(types: list[Any]) -> Iterator[None]:
    """Let torch's restricted unpickler name these types too. torch 2.4 has no context for that, but its parts."""
    before = list(torch.serialization.get_safe_globals())
    torch.serialization.add_safe_globals(types)  # type: ignore[no-untyped-call,unused-ignore]
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)  # type: ignore[no-untyped-call,unused-ignore]


def record_sizes(reader: Any, stream: IO[bytes]) -> Callable[[str], int]:
    """How many bytes a record of a torch archive has. Where torch's reader does not tell, the zip directory does."""
    if hasattr(reader, "get_record_size"):
        size: Callable[[str], int] = reader.get_record_size
        return size
    with zipfile.ZipFile(stream) as archive:
        sizes = {info.filename.partition("/")[2]: info.file_size for info in archive.infolist()}
    return sizes.__getitem__


def module_path(text: str) -> str:
    """The name of a module as an exported program has it. Older releases write Python: `getattr(L['self'].body, '2')`."""
    if "L['" not in text:
        return text
    inside = re.sub(r"^(getattr\()*L\['\w+'\]", "", text)
    return re.sub(r", '(\w+)'\)", r".\1", inside).lstrip(".")


def export_reader() -> Callable[..., Any]:
    """The function that reads `.pt2` files; releases before torch 2.9 write and read other files."""
    try:
        from torch.export.pt2_archive._package import load_pt2
    except ImportError as error:
        remedy = "use torch 2.9 or newer, or save the model with torch.jit.save"
        raise PathxError(f"torch {torch.__version__} cannot read torch.export files: {remedy}", usage=True) from error
    return load_pt2
