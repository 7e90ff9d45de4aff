"""Running the network on the images of a run, with as many of them at once as fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from signal import SIGINT
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor, nn

from pathx.engine.device import ALONE, is_out_of_memory, release_memory
from pathx.engine.explain import class_logits
from pathx.engine.freeze import Frozen, freeze, network_of
from pathx.errors import PathxError
from pathx.results.result import Result
from pathx.runs.reading import Read
from pathx.runs.stop import Stop
from pathx.runs.tasks import Computed


class Computer:
    """Runs the network on batches of images, as many at once as it takes and memory allows.

    Args:
        module: on the device.
        explain: what to do with a frozen batch: what is to be written of each of its images.
        size: how many images to take at once.
        note: is told when memory is short.
    """

    def __init__(
        self,
        module: nn.Module,
        explain: Callable[[Frozen, Sequence[Read]], Iterable[Computed]],
        *,
        device: torch.device,
        dtype: torch.dtype,
        size: int,
        note: Callable[[str], None],
    ) -> None:
        self._module, self._explain, self._note = module, explain, note
        self.device, self._dtype, self._size = device, dtype, size
        self._checked = size == 1

    def compute(self, read: Sequence[Read]) -> dict[str, tuple[Computed, float]]:
        """By name: what is to be written of each image, or why nothing is, and the image's share of the seconds."""
        made: dict[str, tuple[Computed, float]] = {}
        if not self._checked and len(read) > 1:
            self._checked = True
            if not self._takes(read):
                self._size = 1
        while read:
            start = perf_counter()
            batch = read[: self._size]
            outcomes = self._outcomes(batch)
            if outcomes is None:  # out of memory; outside of the handler, which holds on to the tensors
                self._size = len(batch) // 2
                release_memory()
                self._note(f"memory is short: going on with {self._size} at once instead of {len(batch)}")
                continue
            share = (perf_counter() - start) / len(batch)
            made |= {one.name: (outcome, share) for one, outcome in zip(batch, outcomes, strict=True)}
            read = read[len(batch) :]
        return made

    def logits(self, one: Read) -> list[float]:
        """What the network says of an image, for every class."""
        found: list[float] = class_logits(freeze(self._module, self._inputs([one])).logits)[0].tolist()
        return found

    def _outcomes(self, batch: Sequence[Read]) -> list[Computed] | None:
        try:
            frozen = freeze(self._module, self._inputs(batch))
            return self._explained(frozen, batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) > 1:
                return None
        release_memory()
        problem = PathxError(ALONE)
        return [Computed(failure=Result.failure(one.input.image.file, problem)) for one in batch if one.input]

    def _explained(self, frozen: Frozen, batch: Sequence[Read]) -> list[Computed]:
        """What is to be written of a batch; an image whose numbers cannot be explained costs itself alone."""
        try:
            return list(self._explain(frozen, batch))
        except PathxError as error:
            if error.usage or is_out_of_memory(error):
                raise
            if len(batch) == 1:
                return [Computed(failure=Result.failure(one.input.image.file, error)) for one in batch if one.input]
        return [
            outcome for one in batch for outcome in self._explained(freeze(self._module, self._inputs([one])), [one])
        ]

    def _inputs(self, batch: Sequence[Read]) -> Tensor:
        return torch.stack([one.input.tensor for one in batch if one.input]).to(self.device, self._dtype)

    def _takes(self, read: Sequence[Read]) -> bool:
        """Whether a network runs on several images at once; a file may have been traced or exported for one."""
        try:
            network_of(self._module, self._inputs(read))
        except Exception as error:
            if is_out_of_memory(error):
                return True
            if not isinstance(error, PathxError):
                raise
            return False
        return True


Slots = TypeVar("Slots")


def computed(
    computer: Computer, batches: Iterable[tuple[Slots, Sequence[Read], Sequence[Read]]], stop: Stop
) -> Iterator[tuple[Slots, Sequence[Read], dict[str, tuple[Computed, float]]]]:
    """Batches with what was computed of them, one after the other: a network is never run twice at a time, nor copied.

    Args:
        batches: what a batch is of, what was read of it, and what of that is to be computed.
    """
    for slots, read, wanted in batches:
        try:
            made = computer.compute(wanted)
        except KeyboardInterrupt:  # of a caller that has no handler of its own
            stop.ask(stop.asked or SIGINT)
            return
        yield slots, read, made
