"""Running the network on the pictures of a run, with as many of them at once as fit into memory."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from pathx.errors import PathxError
from pathx.frozen import Frozen, freeze, network_of
from pathx.reading import Failed, Opened

T = TypeVar("T")


class Computer(Generic[T]):
    """Runs the network on batches of pictures, as many at once as it takes and memory allows.

    Args:
        explain: what to do with a frozen batch: one outcome for each of its pictures.
        size: how many pictures to take at once.
        note: is told when memory is short.
    """

    def __init__(
        self,
        module: nn.Module,
        explain: Callable[[Frozen, Sequence[Opened]], Iterable[T | Failed]],
        *,
        device: torch.device,
        dtype: torch.dtype,
        size: int,
        note: Callable[[str], None],
    ) -> None:
        self._module = module if device.type == "cpu" else copy.deepcopy(module).to(device)
        self._explain, self._device, self._dtype, self._size, self._note = explain, device, dtype, size, note
        self._checked = size == 1

    def compute(self, opened: Sequence[Opened]) -> dict[str, tuple[T | Failed, float]]:
        """By name: what is to be written of each picture, or why not, and the picture's share of the time."""
        made: dict[str, tuple[T | Failed, float]] = {}
        if not self._checked and len(opened) > 1:
            self._checked = True
            if not self._takes(opened):
                self._size = 1
        while opened:
            start = perf_counter()
            batch = opened[: self._size]
            outcomes = self._outcomes(batch)
            if outcomes is None:  # out of memory; outside of the handler, which holds on to the tensors
                self._size = len(batch) // 2
                self._release()
                self._note(f"memory is short: going on with {self._size} at once instead of {len(batch)}")
                continue
            share = (perf_counter() - start) / len(batch)
            made |= {one.name: (outcome, share) for one, outcome in zip(batch, outcomes, strict=True)}
            opened = opened[len(batch) :]
        return made

    def _outcomes(self, batch: Sequence[Opened]) -> list[T | Failed] | None:
        try:
            frozen = freeze(self._module, self._inputs(batch))
            return list(self._explain(frozen, batch))
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            if len(batch) > 1:
                return None
        self._release()
        remedy = "take a smaller --width or --depth, or a device with more"
        return [Failed(batch[0].picture.file, PathxError(f"out of memory, even for one picture alone: {remedy}"))]

    def _inputs(self, batch: Sequence[Opened]) -> Tensor:
        return torch.stack([one.input for one in batch]).to(self._device, self._dtype)

    def _takes(self, opened: Sequence[Opened]) -> bool:
        """Whether a network runs on several pictures at once; a file may have been traced or exported for one."""
        try:
            network_of(self._module, self._inputs(opened))
        except PathxError as error:
            return _is_out_of_memory(error)
        return True

    def _release(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _is_out_of_memory(error: BaseException | None) -> bool:
    if error is None:
        return False
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    said = (
        re.search("out of memory|(not enough|allocate) memory", str(error)) if isinstance(error, RuntimeError) else None
    )
    return said is not None or _is_out_of_memory(error.__cause__)
