"""Batches of images on a Ray cluster: tasks read them, actors that hold the model compute, tasks finish the work.

Runs and evaluations share this module. They define the stages; this module runs them and retries batches whose process died.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from pathx.errors import PathxError, reason_of, shown
from pathx.pipeline import stay_in_the_background

T = TypeVar("T")

INSTALL = "pip install 'pathx-relu[ray]'"
AHEAD = 3
"""Batches of an actor at once: one is computed while the next is read and the previous one written."""

KEPT_MILLISECONDS = 60_000
"""How long a Ray started by pathx keeps an idle process."""

DIED = "the process that worked on it died every time: explain this image alone"


@dataclass(frozen=True)
class Actors:
    """The number of processes that hold the model.

    Args:
        least, most: bounds; None for as many as the cluster has room for.
        gpus: of each process, or a share of one.
    """

    least: int = 1
    most: int | None = None
    gpus: float = 0.0


def parse_actors(text: str | None, gpus: str | None = None) -> Actors:
    """Read `4` actors, or `1:16` for one to sixteen, and the GPUs of each."""
    share = 0.0
    if gpus is not None:
        try:
            share = float(gpus)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 64:
            raise PathxError(f"each actor takes a number of GPUs such as 1 or 0.5, not {gpus!r}", usage=True)
    if text is None:
        return Actors(gpus=share)
    found = re.fullmatch(r"([1-9]\d{0,5})(?::([1-9]\d{0,5}))?", text, re.ASCII)
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        raise PathxError(f"actors are given as 4, or as 1:16 for one to sixteen, not as {text!r}", usage=True)
    return Actors(int(found[1]), int(found[2] or found[1]), share)


@dataclass(frozen=True)
class Stages:
    """The work on a batch, in this order. All of it is sent to other processes.

    Args:
        read: turns a batch into the input of the computation, in a task.
        start: returns the function that computes; called once in every actor.
        finish: turns its result into what comes back, in a task.
    """

    read: Callable[[Any], Any]
    start: Callable[[], Callable[[Any], Any]]
    finish: Callable[[Any], Any] | None = None


class Cluster:
    """A Ray that this process is part of.

    Args:
        grows: whether machines may still join; then there are as many actors as fit, unless their number is given.
    """

    def __init__(self, ray: Any, actors: Actors, device: str, *, grows: bool) -> None:
        self._ray, total = ray, ray.cluster_resources()
        cpus, gpus = total.get("CPU", 1.0), total.get("GPU", 0.0)
        self.gpus = actors.gpus or (1.0 if gpus and device in ("auto", "cuda") else 0.0)
        """Of each actor."""
        # On two cores both compute, since reading and writing take only a fifth of the time.
        room = int(gpus / self.gpus) if self.gpus else max(int(cpus) - 1, min(int(cpus), 2))
        room = max(actors.least, room, 1)
        self._most = actors.most if actors.most is not None or grows else room
        self._first = room if self._most is None else min(room, self._most)
        """The number of actors that are started first; others follow, up to the most, once these have started."""
        # One CPU is left for reading: a pool that takes all of them starves.
        self._cpus = min(1.0, max(cpus - 1, 0.5) / (self._most or actors.least))

    def outcomes(self, batches: Sequence[Sequence[T]], stages: Stages) -> Iterator[tuple[Sequence[T], Any]]:
        """Batches with their results, as they are done; None for a single image whose process died every time.

        A batch whose process died is tried again as its actor's only batch, and then image by image. Errors of stages are raised
        here.
        """
        lost = yield from self._once(batches, stages, AHEAD)
        lost = yield from self._once(lost, stages, 1)
        lost = yield from self._once([[item] for batch in lost for item in batch], stages, 1)
        yield from ((batch, None) for batch in lost)

    def _once(
        self, batches: Sequence[Sequence[T]], stages: Stages, ahead: int
    ) -> Generator[tuple[Sequence[T], Any], None, list[Sequence[T]]]:
        """As `outcomes`, without retries; returns the batches that were lost.

        Args:
            ahead: batches of an actor at once.
        """
        ray, here = self._ray, os.getcwd()
        run = ray.remote(_run_stage_in).options(num_cpus=0.5, max_retries=1)
        start = ray.remote(_Actor).options(num_cpus=self._cpus, num_gpus=self.gpus)
        waiting, lost = deque(batches), list[Sequence[T]]()
        starting: dict[Any, Any] = {}  # actors, by the object that is ready once they have started
        load: dict[Any, int] = {}  # running actors, with the number of their batches
        pending: dict[Any, tuple[Sequence[T], Any]] = {}

        def start_actors(count: int) -> None:
            for _ in range(count):
                actor = start.remote(here, stages.start)
                starting[actor.is_ready.remote()] = actor

        try:
            start_actors(min(self._first, len(batches)))
            while waiting or pending:
                free = [actor for actor in load if load[actor] < ahead]
                if waiting and free:
                    batch, actor = waiting.popleft(), min(free, key=load.__getitem__)
                    load[actor] += 1
                    made = actor.compute.remote(run.remote(here, stages.read, to_bytes(batch)))
                    last = made if stages.finish is None else run.remote(here, stages.finish, made)
                    pending[last] = batch, actor
                    continue
                if waiting and not starting and (self._most is None or len(load) < self._most):
                    start_actors(1)  # this one may wait until a machine joins
                (ready,), _ = ray.wait([*pending, *starting], num_returns=1)
                actor = starting.pop(ready) if ready in starting else pending[ready][1]
                try:
                    value = from_bytes(ray.get(ready))
                except ray.exceptions.RayError:  # a process or a machine is gone: is it this actor's?
                    if ready in pending:
                        lost.append(pending.pop(ready)[0])
                        if load.pop(actor, None) is not None:
                            starting[actor.is_ready.remote()] = actor
                    continue
                if ready not in pending:
                    load[actor] = sum(other is actor for _, other in pending.values())
                    continue
                batch, _ = pending.pop(ready)
                if actor in load:
                    load[actor] -= 1
                if isinstance(value, _Raised):
                    raise value.error
                yield batch, value
        except ray.exceptions.RayError as error:
            raise PathxError(f"the cluster is lost ({reason_of(error)}): run it again to continue") from error
        finally:
            for actor in (*load, *starting.values()):
                ray.kill(actor)
        return lost


@dataclass(frozen=True)
class _Raised:
    """Stands for the result of a stage that raised an error."""

    error: Exception


class _Actor:
    """A process that computes. If it cannot start, every batch reports why."""

    def __init__(self, here: str, start: Callable[[], Callable[[Any], Any]]) -> None:
        # Several threads would wait for each other, and for cores that readers and writers occupy.
        torch.set_num_threads(1)
        try:
            _change_folder(here)
            self._compute = start()
        except Exception as error:
            self._compute = partial(_refuse, error)

    def is_ready(self) -> bytes:
        return to_bytes(True)

    def compute(self, data: bytes) -> bytes:
        return _run_stage(self._compute, data)


def _refuse(error: Exception, value: Any) -> Any:
    raise error


def _change_folder(here: str) -> None:
    """Change to the folder in which the run was started, since file names are relative to it."""
    try:
        os.chdir(here)
    except OSError as error:
        raise PathxError(
            f"{shown(here)} is not on {socket.gethostname()} ({error.strerror}): start the run in a folder that all machines share",
            usage=True,
        ) from None


def _run_stage_in(here: str, work: Callable[[Any], Any], data: bytes) -> bytes:
    def there(value: Any) -> Any:
        stay_in_the_background()
        _change_folder(here)
        return work(value)

    return _run_stage(there, data)


def _run_stage(work: Callable[[Any], Any], data: bytes) -> bytes:
    """The value that was sent, after one more stage."""
    value = from_bytes(data)
    if isinstance(value, _Raised):
        return data
    try:
        return to_bytes(work(value))
    except Exception as error:
        can_be_sent = isinstance(error, PathxError)
        return to_bytes(_Raised(error if can_be_sent else RuntimeError(f"{type(error).__name__}: {reason_of(error)}")))


def to_bytes(value: Any) -> bytes:
    """A value as bytes, without networks, and with tensors as plain data, so that a view does not include its base.

    Tensors come back on the CPU, since processes that write have no GPU.
    """
    from ray import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # Ray is an extra, unknown to the type check
        def reducer_override(self, item: Any) -> Any:
            if isinstance(item, torch.nn.Module):
                return _no_network, ()
            if type(item) is torch.Tensor:
                return torch.from_numpy, (item.detach().cpu().contiguous().numpy(),)
            return super().reducer_override(item)

    stream = io.BytesIO()
    Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


def from_bytes(data: bytes) -> Any:
    """The value that `to_bytes` encoded in a process of the same run."""
    return pickle.loads(data)


def _no_network() -> None:
    """Stands for a network, which is not sent."""


@contextmanager
def join_cluster(address: str, actors: Actors | None, device: str) -> Iterator[Cluster]:
    """Make this process part of a cluster.

    Args:
        address: `local` to start Ray on this machine, `auto` to join the running one, or its address.
        actors: the number of processes that compute.
        device: of these processes.
    """
    if "," in device:
        raise PathxError(
            f"on a cluster each process has one device, not {device}: leave out `device`, and run as many processes "
            "as there are GPUs",
            usage=True,
        )
    ray = _ray()
    if ray.is_initialized():
        yield Cluster(ray, actors or Actors(), device, grows=address != "local")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # to its logs, not to the terminal
    try:
        options = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            options |= {"include_dashboard": False}
            # Ray would end processes after an idle second, and new ones would import torch again.
            os.environ.setdefault("RAY_idle_worker_killing_time_threshold_ms", str(KEPT_MILLISECONDS))
        with _silence_stderr(), _keep_signals():
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        remedy = "start one with `ray start --head`, or use `ray` local"
        raise PathxError(f"there is no Ray at {address} ({reason_of(error)}): {remedy}", usage=True) from None
    try:
        yield Cluster(ray, actors or Actors(), device, grows=address != "local")
    finally:
        ray.shutdown()


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM after Ray, whose own exits with a status that means something else here."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # Ray's way to end a process on SIGTERM while it starts
        raise KeyboardInterrupt(error.code) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard what C code writes to stderr: Ray announces there that its log is off."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise PathxError(f"runs on a cluster need Ray: {INSTALL}", usage=True) from None
    return ray
