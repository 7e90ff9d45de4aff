"""The work that a call gives to a device, counted and not timed: launches, host transfers, bytes, the largest tensor.

What a GPU would be given to do can be counted on a CPU, and a busy machine does not disturb the count: every operation that
is no view is a launch, and moves the bytes of the tensors that it reads and writes; of a tensor that is read or written by
index, those of the elements that the indices name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.measure import Effort, Row
from benchmarks.parts import part
from benchmarks.subjects import NAMES, subject


@dataclass(frozen=True)
class Work:
    """What a call had a device do."""

    launches: int
    transfers: int
    moved: int
    largest: int


def work_of(call: Callable[[], object]) -> Work:
    """Count the work of a call, which runs on the CPU."""
    launched, read = Launches(), Transfers()
    with ExitStack() as modes:
        modes.enter_context(read)
        modes.enter_context(launched)
        call()
    return Work(launched.count, read.count, launched.moved, launched.largest)


class Launches(TorchDispatchMode):
    """Counts operations that a device would run, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.moved = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not _is_view(func) and func.overloadpacket.__name__ not in NO_WORK:
            made = list(_tensors(out))
            self.count += 1
            self.moved += _moved(func.overloadpacket.__name__, list(_tensors((args, kwargs))), made)
            self.largest = max([self.largest, *map(_held, made)])
        return out


def _moved(name: str, given: list[Tensor], made: list[Tensor]) -> int:
    """Bytes that an operation reads and writes: all of its tensors, but of one that is indexed what the indices name."""
    if name in PICKING:
        return sum(map(_held, given[1:])) + 2 * sum(map(_held, made))
    if name in PUTTING:
        index, *source = given[1:]
        touched = (source[0] if source else index).numel() * given[0].element_size()
        return sum(map(_held, given[1:])) + touched * (1 + name.endswith("add_"))  # what is added to is read as well
    return sum(map(_held, [*given, *made]))


PICKING = frozenset(["index_select", "gather", "index", "take"])
PUTTING = frozenset(["index_fill_", "index_copy_", "index_add_", "scatter_", "scatter_add_"])
NO_WORK = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "detach", "_unsafe_view"])


def _is_view(func: Any) -> bool:
    """Whether an operation hands on memory that it was given, and writes nothing."""
    shared = [result.alias_info for result in func._schema.returns if result.alias_info is not None]
    return bool(shared) and not any(info.is_write for info in shared)


def _tensors(item: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(item) if isinstance(leaf, Tensor))


def _held(tensor: Tensor) -> int:
    """Bytes of a tensor; what is repeated by strides counts once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return torch.Size(sizes).numel() * tensor.element_size()


class Transfers(TorchFunctionMode):
    """Counts where the host reads numbers off the device, or waits for a shape that depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in READING or _masked(func, args)
        return func(*args, **(kwargs or {}))


READING = frozenset(
    [
        *("tolist", "item", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__iter__"),
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "equal", "allclose", "is_nonzero"),
        "bincount",
    ]
)


def _masked(func: Any, args: Iterable[Any]) -> bool:
    """Whether a tensor is read by a mask, so that the result's shape depends on the mask."""
    if func is not Tensor.__getitem__:
        return False
    _, index = args
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


MIB = 2**20
SETTINGS: tuple[tuple[int | str, int, float], ...] = (
    (3, 5, 1.5),
    ("all", 5, 2.0),
    ("all", 64, 4.0),
    ("all", 1024, 20.0),
)
"""Depth, width, and how many times the bytes of Saliency they may move."""


@part("work", "Bytes moved in the form that a GPU runs, against Saliency; 1000 classes, counted and not timed")
def work(effort: Effort) -> Iterator[Row]:
    for name in ("squeezenet1_1", "resnet18") if effort.quick else NAMES:
        measured = subject(name, settled=True)
        saliency = work_of(measured.saliency())
        layers = measured.layers()
        yield Row(f"{name}, Saliency", saliency.moved / MIB, unit="MiB", note=_note(saliency))
        for depth, width, limit in SETTINGS[:3] if effort.quick else SETTINGS:
            with patch.dict(os.environ, PATHX_DEVICE_FORM="1"):
                call = measured.path(depth=depth, width=width)
                call()  # makes the constants of these shapes, once
                done = work_of(call)
            what, value = f"{name}, depth {depth}, width {width}", done.moved / MIB
            per_layer = done.launches / (layers if depth == "all" else int(depth))
            note = f"{_note(done)}, {per_layer:.0f} launches per layer"
            yield Row(what, value, "Saliency", saliency.moved / MIB, "MiB", limit, note)
            if width <= 64:
                yield Row(
                    f"{what}, largest tensor", done.largest / MIB, "Saliency", saliency.largest / MIB, "MiB", limit=4.0
                )


def _note(done: Work) -> str:
    return f"{done.launches} launches, {done.transfers} transfers, largest tensor {done.largest / MIB:.1f} MiB"
