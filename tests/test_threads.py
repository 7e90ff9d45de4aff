"""Work ahead of the network and behind it: one batch ahead, and behind those who compute where cores are few."""

from __future__ import annotations

import os
import sys
import threading

import pytest
import torch

from pathx.pipeline import cores, start_workers


def test_a_process_has_the_cores_that_it_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_setaffinity"):
        found: list[int] = []

        def work() -> None:  # on Linux a thread has cores of its own
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
            found.append(cores())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [1]


def test_one_batch_ahead_and_no_further() -> None:
    started: list[int] = []
    with start_workers(0) as workers:
        batches = workers.ahead([[number] for number in range(9)], lambda number: started.append(number))
        next(batches)
        assert started == [0, 1]
        next(batches)
        assert started == [0, 1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
@pytest.mark.parametrize("behind", [True, False])
def test_only_where_threads_of_a_network_wait_for_each_other_are_others_behind_them(behind: bool) -> None:
    def found() -> tuple[bool, int]:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) > usual, torch.get_num_threads()

    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with start_workers(1, behind=behind) as workers:
        assert workers.submit(found).result() == (behind and usual < 19, 1)
