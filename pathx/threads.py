"""Threads that read ahead of the network and write behind it, at a lower priority than the network."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

_LATER = 10
"""How much the priority of these threads is lowered (niceness)."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_THIS_THREAD = threading.local()


def stay_in_the_background() -> None:
    """Lower the priority of this thread, and compute with one thread in it.

    The threads of a network wait for each other, so one that loses its core to a reader or writer stops all of them.
    """
    torch.set_num_threads(1)  # for this thread only: torch keeps the number per thread
    if sys.platform == "linux" and not hasattr(_THIS_THREAD, "lowered"):  # Ray calls this once per task, in one thread
        _THIS_THREAD.lowered = True
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, now + _LATER))


class Workers:
    """A pool of threads. Threads are enough, because decoders, encoders and disks release the interpreter."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable[..., R], *arguments: Any) -> Future[R]:
        return self._executor.submit(work, *arguments)

    def ahead(self, batches: Sequence[Sequence[T]], work: Callable[[T], R]) -> Iterator[tuple[Sequence[T], list[R]]]:
        """Each batch with the results of `work` on its items. The next batch is worked on while the caller has this one."""
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
def start_workers(count: int | None, *, behind: bool = True) -> Iterator[Workers]:
    """Workers that end when everything that was submitted is done.

    Args:
        count: number of threads; 0 to do the work in the calling thread, None for one per core.
        behind: whether to lower their priority.
    """
    if count == 0:
        yield Workers(_Immediate())
        return
    before = torch.get_num_threads()
    start = stay_in_the_background if behind else partial(torch.set_num_threads, 1)
    executor = ThreadPoolExecutor(count or cores(), "pathx", initializer=start)
    try:
        yield Workers(executor)
    finally:
        executor.shutdown(wait=True)
        torch.set_num_threads(before)


class _Immediate(Executor):
    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
