"""Work ahead of the network and behind it: in order, one batch ahead, and behind those who compute where cores are few."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from pathx.pipeline import cores, start_workers, stay_in_the_background


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


def test_a_thread_in_the_background_leaves_the_others_as_they_are() -> None:
    mine, before = [], torch.get_num_threads()
    torch.set_num_threads(2)

    def work() -> None:
        stay_in_the_background()
        mine.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert mine == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_it_comes_after_those_who_compute_however_late_these_are() -> None:
    program = """
import os, threading
from pathx.pipeline import stay_in_the_background
os.nice(3)
found = []
def work():
    for _ in range(3):
        stay_in_the_background()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*found, os.getpriority(os.PRIO_PROCESS, os.getpid()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    *found, others = map(int, done.stdout.split())
    assert found == [min(19, others + 10)] * 3  # lowered once, however often it is asked for


@pytest.mark.parametrize("count", [0, 1, 4, None])
def test_batches_come_in_order_with_their_results(count: int | None) -> None:
    before = torch.get_num_threads()
    with start_workers(count) as workers:
        found = list(workers.ahead([[1, 2], [3], [], [4, 5]], lambda number: number * 10))
    assert found == [([1, 2], [10, 20]), ([3], [30]), ([], []), ([4, 5], [40, 50])]
    assert torch.get_num_threads() == before


def test_one_batch_ahead_and_no_further() -> None:
    started: list[int] = []
    with start_workers(0) as workers:
        batches = workers.ahead([[number] for number in range(9)], lambda number: started.append(number))
        next(batches)
        assert started == [0, 1]
        next(batches)
        assert started == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 2])
def test_what_goes_wrong_is_raised_where_it_is_looked_at(count: int) -> None:
    with start_workers(count) as workers:
        failing = workers.submit(int, "x")
        assert workers.submit(int, "7").result() == 7
        with pytest.raises(ValueError, match="invalid literal"):
            failing.result()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
@pytest.mark.parametrize("behind", [True, False])
def test_only_where_threads_of_a_network_wait_for_each_other_are_others_behind_them(behind: bool) -> None:
    def found() -> tuple[bool, int]:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) > usual, torch.get_num_threads()

    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with start_workers(1, behind=behind) as workers:
        assert workers.submit(found).result() == (behind and usual < 19, 1)
