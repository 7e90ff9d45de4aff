"""Where the engine computes, and how exactly: in full precision, whatever the flags of the process say."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.amp.autocast_mode import is_autocast_available

from pathx.compat import OUT_OF_MEMORY, has_fp32_precision, precision_switches, silent_vmap
from pathx.errors import PathxError

One = TypeVar("One")
Result = TypeVar("Result")

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_device(device: str) -> torch.device:
    """The device that a name means here: `auto` takes a GPU where there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    if "," in device:
        remedy = "use `ray` local for a process per GPU, or give each GPU a part with `shard` 1/2"
        raise PathxError(f"a run has one device, not {device}: {remedy}", usage=True)
    kind, _, number = device.partition(":")
    if kind not in available or not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device, re.ASCII):
        raise PathxError(f"device {device!r} is unknown; use auto, cpu, cuda, cuda:1 or mps", usage=True)
    if not available[kind]:
        there = ", ".join(name for name, here in available.items() if here)
        raise PathxError(f"device {device!r} is not there; this machine has {there}: use `device` auto", usage=True)
    if number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise PathxError(f"device {device!r} is not there; this machine has cuda:0 to cuda:{last}", usage=True)
    return torch.device(device)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The precision that a name means, where the device has it."""
    if name not in DTYPES:
        raise PathxError(f"dtype is {' or '.join(DTYPES)}, not {name!r}", usage=True)
    if device.type == "mps" and name == "float64":
        raise PathxError("mps has no float64; use float32, or `device` cpu", usage=True)
    return DTYPES[name]


def resolve_batch_size(size: int | str, device: torch.device) -> int:
    """How many images go through the network at once; `auto` is what its devices were seen to gain from."""
    if size == "auto":
        return 8 if device.type == "cpu" else 32
    if isinstance(size, str) or size < 1:
        raise PathxError(f"batch size {size} is out of range; use 1 or more, or auto", usage=True)
    return size


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this is how a device, or the machine, says that memory is short."""
    if error is None:
        return False
    if isinstance(error, (OUT_OF_MEMORY, MemoryError)):
        return True
    said = (
        re.search("out of memory|(not enough|allocate) memory", str(error)) if isinstance(error, RuntimeError) else None
    )
    return said is not None or is_out_of_memory(error.__cause__)


ALONE = "out of memory, even for one image alone: take a smaller `width` or `depth`, or a device with more"


def release_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_parts(batch: Sequence[One], work: Callable[[Sequence[One]], Result]) -> Iterator[Result]:
    """What some work gives for a batch; where memory is short, for its halves, one after the other.

    The work must leave nothing behind where it fails. Raises PathxError where memory is short for one image alone.
    """
    short = False
    try:
        result = work(batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        short = True
    if not short:
        yield result
        return
    release_memory()  # outside of the handler, which holds on to the tensors
    if len(batch) == 1:
        raise PathxError(ALONE)
    middle = len(batch) // 2
    yield from in_parts(batch[:middle], work)
    yield from in_parts(batch[middle:], work)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, and no products of float32 numbers that are rounded to fewer bits (TF32, bfloat16)."""
    autocast = torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()
    with torch.no_grad(), autocast, whole_products(device):
        yield


@contextmanager
def engine_precision(device: torch.device) -> Iterator[None]:
    """Full precision for the engine's own work, which the default dtype and device of the process do not reach either."""
    dtype = torch.get_default_dtype()
    own_device = nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")
    with full_precision(device), own_device, silent_vmap():
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@contextmanager
def whole_products(device: torch.device) -> Iterator[None]:
    """Switch off what rounds the factors of products, where it is on; nothing is written where it is off already."""
    switches = precision_switches(device.type)
    before = [getattr(holder, name) for holder, name, _ in switches]
    rounding = [switch for switch, value in zip(switches, before, strict=True) if value in _ROUNDED]
    older = _older_switch()
    if not rounding and (older in (None, "highest") or has_fp32_precision()):
        yield
        return
    # The older switch first: it moves some of the newer ones, and torch refuses to compute where the two disagree.
    if older not in (None, "highest"):
        torch.set_float32_matmul_precision("highest")
    for holder, name, full in rounding:
        setattr(holder, name, full)
    try:
        yield
    finally:
        if older not in (None, "highest"):
            torch.set_float32_matmul_precision(older)
        for (holder, name, full), value in zip(switches, before, strict=True):
            _restore(holder, name, full, value)


_ROUNDED = ("tf32", "bf16", True)


def _older_switch() -> str | None:
    """`torch.get_float32_matmul_precision()`; None where only the newer settings were used, and torch will not tell."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _restore(holder: Any, name: str, full: str | bool, value: str | bool) -> None:
    """Set a switch back; one that followed a more general setting follows it again."""
    if getattr(holder, name) == value and value not in _ROUNDED:
        return
    if full == "ieee":
        setattr(holder, name, "none")
    if getattr(holder, name) != value:
        setattr(holder, name, value)
