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
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from pathx.errors import PathxError, reason_of, shown
from pathx.threads import stay_in_the_background

T = TypeVar("T")

INSTALL = "pip install 'pathx-relu[ray]'"
RETRIES = 1
"""How often Ray itself retries a batch whose process died."""

PIECES, MOST_PIECES, BATCHES_AT_ONCE = 10, 1000, 8
"""Ray schedules pieces of several batches, since scheduling a piece costs about 20 ms per stage. There are PIECES pieces for every
actor, so that no actor waits long, MOST_PIECES where the number of actors is open, and at most BATCHES_AT_ONCE batches in a piece.
"""

KEPT_MILLISECONDS = 60_000
"""How long a Ray that we started keeps an idle process."""

MOST_MACHINES = 3
"""How many other machines are asked to write results when the disk of one is full."""

DIED = "the process that worked on it died every time: explain this image alone"


@dataclass(frozen=True)
class Actors:
    """How many processes hold the model: at least and at most; None for as many as the cluster has room for.

    Args:
        gpus: of each; a share is fine.
    """

    least: int = 1
    most: int | None = None
    gpus: float = 0.0


def parse_actors(text: str | None, gpus: str | None = None) -> Actors:
    """`4` actors, or `1:16` of them as the work asks for; and the GPUs of each."""
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


def check_one_device(device: str) -> None:
    """Refuse several devices, which only make sense on one machine."""
    if "," in device:
        raise PathxError(
            f"on a cluster each process has one device, not {device}: leave out `device`, and have as many processes "
            "as there are GPUs",
            usage=True,
        )


@dataclass(frozen=True)
class Stages:
    """What is done with a batch, in this order. All of it is sent to other processes.

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
        grows: machines may still join; where no number of actors is asked for, there are as many as Ray finds room for.
    """

    def __init__(self, ray: Any, actors: Actors, device: str, *, grows: bool) -> None:
        self._ray, total = ray, ray.cluster_resources()
        cpus, gpus = total.get("CPU", 1.0), total.get("GPU", 0.0)
        self.gpus = actors.gpus or (1.0 if gpus and device in ("auto", "cuda") else 0.0)
        """Of each actor."""
        self._least, self._most = actors.least, actors.most
        if self._most is None and not grows:
            # On two cores both compute: reading and writing take a fifth of the time, and not one of the cores.
            room = int(gpus / self.gpus) if self.gpus else max(int(cpus) - 1, min(int(cpus), 2))
            self._most = max(actors.least, room, 1)
        # One CPU stays for those who read: a pool that takes all of them starves.
        self._cpus = min(1.0, max(cpus - 1, 0.5) / (self._most or self._least))
        # Of those who read, and of those who write. Each has half a CPU, so that there would be two for every CPU once the
        # actors are done, in processes that are started for that and import torch first.
        self._tasks = None if grows else max(int(cpus), 1)
        self._few = MOST_PIECES if self._most is None else PIECES * self._most
        """So many pieces a short run has, and so many wait for a stage in a long one."""

    def outcomes(self, batches: Sequence[Sequence[T]], stages: Stages) -> Iterator[tuple[Sequence[T], Any]]:
        """Batches with their results, as they are done; None for a single image whose process died every time.

        A batch whose process died is tried again alone, and then each of its images alone. What a stage raises is raised here.
        """
        lost = yield from self._once(batches, stages)
        if lost and self._pieces(len(batches)) < len(batches):
            lost = yield from self._once(lost, stages)
        if lost:
            lost = yield from self._once([[item] for batch in lost for item in batch], stages)
        yield from ((batch, None) for batch in lost)

    def _once(
        self, batches: Sequence[Sequence[T]], stages: Stages
    ) -> Generator[tuple[Sequence[T], Any], None, list[Sequence[T]]]:
        """As `outcomes`, without retries; returns the batches that were lost."""
        missing = dict(enumerate(batches))
        if not missing:
            return []
        rows = [{"number": number, "value": to_bytes(batch)} for number, batch in missing.items()]
        try:
            with closing(iter(self._pipeline(rows, stages).iter_rows())) as done:
                for row in done:
                    value = from_bytes(row["value"])
                    if isinstance(value, _Raised):
                        raise value.error
                    if row["number"] in missing:
                        yield missing.pop(row["number"]), value
        except self._ray.exceptions.RayError as error:
            raise PathxError(f"the cluster is lost ({reason_of(error)}): run it again to go on") from error
        return list(missing.values())

    def _pieces(self, batches: int) -> int:
        """How many pieces the list of batches is cut into."""
        return max(min(batches, self._few), batches // BATCHES_AT_ONCE)

    def _pipeline(self, rows: list[dict[str, Any]], stages: Stages) -> Any:
        data, here = self._ray.data, os.getcwd()
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.max_errored_blocks = -1  # what is lost is done again, and counted, by name
        _let_few_wait(context, self._few)
        pool = data.ActorPoolStrategy(min_size=self._least, max_size=self._most)
        task = {"compute": data.TaskPoolStrategy(size=self._tasks), "num_cpus": 0.5, "max_retries": RETRIES}
        with warnings.catch_warnings():  # Ray means to drop some of these settings, and has nothing in their place yet
            warnings.simplefilter("ignore")
            made = (
                data.from_items(rows, override_num_blocks=self._pieces(len(rows)))
                .map(partial(_run_stage_in, here, stages.read), **task)
                .map(
                    _Actor,
                    fn_constructor_args=(here, stages.start),
                    compute=pool,
                    num_cpus=self._cpus,
                    num_gpus=self.gpus,
                    max_restarts=-1,
                    max_task_retries=RETRIES,
                )
            )
            if stages.finish is not None:
                made = made.map(partial(_run_stage_in, here, stages.finish), **task)
        return made


def _let_few_wait(context: Any, most: int) -> None:
    """Hold a stage back while `most` pieces wait for the next one.

    By default Ray holds back fast actors only when half of its object store, a seventh of all memory, is full of results that
    wait to be written. Ray has no setting for this, only an internal list of policies; a version without that list holds
    nothing back.
    """
    try:
        from ray.data._internal.execution import backpressure_policy as rules
        from ray.data._internal.execution.streaming_executor_state import OpState

        others, key, count = (
            rules.ENABLED_BACKPRESSURE_POLICIES,
            rules.ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY,
            OpState.total_enqueued_input_blocks,
        )
    except (ImportError, AttributeError):
        return

    class FewWait(rules.BackpressurePolicy):  # type: ignore[misc]  # Ray is an extra, unknown to the type check
        def can_add_input(self, stage: Any) -> bool:
            return all(count(self._topology[after]) < most for after in stage.output_dependencies)

    context.set_config(key, [*others, FewWait])


@dataclass(frozen=True)
class _Raised:
    """Stands for the result of a stage that raised an error."""

    error: Exception


class _Actor:
    """A process that computes. If it cannot start, every batch reports why; otherwise Ray would start it again for ever."""

    def __init__(self, here: str, start: Callable[[], Callable[[Any], Any]]) -> None:
        # Several threads would wait for each other, and for cores that readers and writers occupy.
        torch.set_num_threads(1)
        try:
            _change_folder(here)
            self._compute = start()
        except Exception as error:
            self._compute = partial(_refuse, error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return _run_stage(self._compute, row)


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


def _run_stage_in(here: str, work: Callable[[Any], Any], row: dict[str, Any]) -> dict[str, Any]:
    def there(value: Any) -> Any:
        stay_in_the_background()
        _change_folder(here)
        return work(value)

    return _run_stage(there, row)


def _run_stage(work: Callable[[Any], Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row of Ray's dataset after one more stage."""
    value = from_bytes(row["value"])
    if isinstance(value, _Raised):
        return row
    try:
        data = to_bytes(work(value))
    except _ray().exceptions.RayError:  # another machine that was asked is gone: as if this process were
        raise
    except Exception as error:
        data = to_bytes(_Raised(_sendable(error)))
    return {"number": row["number"], "value": data}


def _sendable(error: Exception) -> Exception:
    """An error that can be pickled: a PathxError, or the text of another one."""
    return error if isinstance(error, PathxError) else RuntimeError(f"{type(error).__name__}: {reason_of(error)}")


def other_machines() -> Iterator[Callable[[Callable[[Any], Any], Any], Any]]:
    """In a task: functions that run work on another machine of the cluster, for a few machines in turn."""
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    for other in others[:MOST_MACHINES]:
        remote = ray.remote(_run_stage_in).options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(other, soft=False)
        )
        yield partial(_there, ray, remote)


def _there(ray: Any, remote: Any, work: Callable[[Any], Any], value: Any) -> Any:
    made = from_bytes(ray.get(remote.remote(os.getcwd(), work, {"number": 0, "value": to_bytes(value)}))["value"])
    if isinstance(made, _Raised):
        raise made.error
    return made


def to_bytes(value: Any) -> bytes:
    """A value as bytes, without networks, and with tensors as plain data: a part of a batch does not bring the batch along.

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
    """What `to_bytes` made bytes of, in a process of the same run."""
    return pickle.loads(data)


def _no_network() -> None:
    """Stands for a network, which is not sent."""


@contextmanager
def join_cluster(address: str, actors: Actors | None, device: str) -> Iterator[Cluster]:
    """While in here, this process is part of a cluster.

    Args:
        address: `local` starts a Ray of its own on this machine, `auto` joins the one at hand; or where one is.
        actors: how many processes compute.
        device: what they are to compute on.
    """
    ray = _ray()
    check_one_device(device)
    if ray.is_initialized():
        yield Cluster(ray, actors or Actors(), device, grows=address != "local")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that it runs
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what Ray has to say is for its logs, not for the terminal
    try:
        options = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            options |= {"include_dashboard": False}
            # Ray ends processes that have nothing to do for a second, and starts others, which import torch again.
            os.environ.setdefault("RAY_idle_worker_killing_time_threshold_ms", str(KEPT_MILLISECONDS))
        with _silence_stderr(), _keep_signals():
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        remedy = "start one with `ray start --head`, or use `ray` local"
        raise PathxError(f"there is no Ray at {address} ({reason_of(error)}): {remedy}", usage=True) from None
    try:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield Cluster(ray, actors or Actors(), device, grows=address != "local")
    finally:
        ray.shutdown()


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM: Ray replaces it by one whose exit status means something else here."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # how Ray ends a process that is told to while it starts
        raise KeyboardInterrupt(error.code) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard what libraries write to stderr past Python: Ray announces there that its log is switched off."""
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
        import ray.data
    except ImportError:
        raise PathxError(f"runs on a cluster need Ray: {INSTALL}", usage=True) from None
    return ray
