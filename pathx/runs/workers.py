"""Threads that read ahead of the network and write behind it."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

_MOST = 8


class Workers:
    """Where work is done that need not be waited for. Decoders, encoders and disks let other threads run meanwhile."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable[..., R], *arguments: Any) -> Future[R]:
        return self._executor.submit(work, *arguments)

    def ahead(self, batches: Sequence[Sequence[T]], work: Callable[[T], R]) -> Iterator[tuple[Sequence[T], list[R]]]:
        """Each batch with the results of work on its items; the next batch is worked on while one is looked at."""
        waiting: deque[tuple[Sequence[T], list[Future[R]]]] = deque()
        try:
            for batch in batches:
                waiting.append((batch, [self.submit(work, item) for item in batch]))
                if len(waiting) > 1:
                    yield _results(*waiting.popleft())
            while waiting:
                yield _results(*waiting.popleft())
        finally:
            for _, futures in waiting:
                for future in futures:
                    future.cancel()


def _results(batch: Sequence[T], futures: Sequence[Future[R]]) -> tuple[Sequence[T], list[R]]:
    return batch, [future.result() for future in futures]


@contextmanager
def working(count: int | None) -> Iterator[Workers]:
    """Workers that end when all that was submitted is done.

    Args:
        count: how many threads; 0 to do everything at once where it is submitted, None for what the machine has.
    """
    if count == 0:
        yield Workers(_Immediate())
        return
    before = torch.get_num_threads()
    executor = ThreadPoolExecutor(count or min(_MOST, cores()), "pathx", initializer=_in_the_background)
    try:
        yield Workers(executor)
    finally:
        executor.shutdown(wait=True)
        torch.set_num_threads(before)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_the_background() -> None:
    # Torch has a number of threads per thread: one for each worker, and the network keeps its own.
    torch.set_num_threads(1)
    if sys.platform == "linux":
        # The threads of the network wait for each other; where one of them has to wait for a worker, all of them do.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class _Immediate(Executor):
    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
