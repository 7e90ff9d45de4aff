"""Running the network on the images of a run, with as many of them at once as fit into memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from signal import SIGINT
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor, nn

from pathx.engine.device import ALONE, is_out_of_memory, release_memory, whole_products
from pathx.engine.freeze import Frozen, freeze, network_of
from pathx.engine.record.model import copied
from pathx.errors import PathxError
from pathx.results.result import Result
from pathx.runs.reading import Read
from pathx.runs.stop import Stop
from pathx.runs.tasks import Computed

AT_ONCE = 2
"""So many batches of a run are computed at a time on a CPU, each on its share of the threads that torch has.

The threads of one batch wait for each other after every operation, and for whoever else has their cores; those of two batches
do not. More than two would take more memory, and were not measured.
"""


def batches_at_once(devices: Sequence[torch.device], batches: int) -> int:
    """How many of a run's batches are computed at a time on each device; the same for every run of these batches."""
    if batches < 2 or [device.type for device in devices] != ["cpu"]:
        return 1
    return min(AT_ONCE, torch.get_num_threads())


class Computer:
    """Runs the network on batches of images, as many at once as it takes and memory allows.

    Args:
        explain: what to do with a frozen batch: what is to be written of each of its images.
        size: how many images to take at once.
        note: is told when memory is short.
        own: compute on a copy of the network, as another thread computes on the network itself. On a CPU they share its
            weights.
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
        own: bool = False,
    ) -> None:
        self._module = module if device.type == "cpu" and not own else copied(module).to(device)
        if device.type == "cpu" and own:
            for mine, theirs in zip(self._module.parameters(), module.parameters(), strict=True):
                mine.data = theirs.data
        self._explain, self.device, self._dtype, self._size, self._note = explain, device, dtype, size, note
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
Outcomes = dict[str, tuple[Computed, float]]


def computed(
    computers: Sequence[Computer],
    batches: Iterable[tuple[Slots, Sequence[Read], Sequence[Read]]],
    stop: Stop,
    threads: int | None = None,
) -> Iterator[tuple[Slots, Sequence[Read], Outcomes]]:
    """Batches with what was computed of them, in their order; as many at once as there are computers.

    Args:
        batches: what a batch is of, what was read of it, and what of that is to be computed.
        threads: of torch, for each computer; as many as this thread has by default.
    """
    before = torch.get_num_threads()
    threads = threads or before
    if len(computers) == 1:
        for slots, read, wanted in batches:
            torch.set_num_threads(threads)
            try:
                made = computers[0].compute(wanted)
            except KeyboardInterrupt:  # of a caller that has no handler of its own
                stop.ask(stop.asked or SIGINT)
                return
            finally:
                torch.set_num_threads(before)
            yield slots, read, made
        return
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)  # what the last thread took counts for threads that are to come
        # Of the process, so that no thread switches back on what another one needs switched off.
        stack.enter_context(whole_products(computers[0].device))
        pools = [ThreadPoolExecutor(1, "pathx-device", torch.set_num_threads, (threads,)) for _ in computers]
        for pool in pools:
            stack.enter_context(pool)
        waiting: deque[tuple[Slots, Sequence[Read], Future[Outcomes]]] = deque()
        for number, (slots, read, wanted) in enumerate(batches):
            turn = number % len(computers)
            waiting.append((slots, read, pools[turn].submit(computers[turn].compute, wanted)))
            if len(waiting) > len(computers):
                slots, read, future = waiting.popleft()
                yield slots, read, _outcomes(future, stop)
        while waiting:
            slots, read, future = waiting.popleft()
            yield slots, read, _outcomes(future, stop)


def _outcomes(future: Future[Outcomes], stop: Stop) -> Outcomes:
    """What a computer makes of its batch, once that is there, also where somebody does not want to wait so long."""
    try:
        return future.result()
    except KeyboardInterrupt:  # of a caller that has no handler of its own
        if stop.asked:
            raise
        stop.ask(SIGINT)
    return future.result()
