"""Runs that are disturbed on purpose: killed at a chosen moment, or refused a chosen write."""

from __future__ import annotations

import csv
import errno
import faulthandler
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pytest
import torch
from PIL import Image

from pathx.cli import run
from pathx.runs.index import unpack_results
from pathx.runs.stop import end_at_once

T = TypeVar("T")

BUDGET = float(os.environ.get("PATHX_FAULT_SECONDS", "0"))
"""Seconds that each of the eighteen parts of the harness may take: 0 for a few trials, 8 for two minutes, 225 for an hour."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "photos", "--target", "top:2", "--batch-size", "2"),
    "explain without pictures": ("explain", "photos", "--no-pictures", "--save-tensors", "--batch-size", "3"),
    "decompose": ("decompose", "photos", "--depth", "2", "--width", "2", "--batch-size", "2"),
    "evaluate": ("evaluate", "photos", "--methods", "saliency,random", "--steps", "3", "--batch-size", "2"),
    "grid": (
        *("evaluate", "photos", "--grid", "1,2/1,2", "--methods", "saliency"),
        *("--steps", "3", "--batch-size", "2"),
    ),
    "common": ("common", "photos", "--batch-size", "2"),
    "units": ("units", "photos", "--top", "2", "--batch-size", "2"),
    "explain into shards": ("explain", "photos", "--no-pictures", "--batch-size", "2", "--pack", "tar"),
    "explain with a report": ("explain", "photos", "--no-pictures", "--batch-size", "2", "--report"),
}

EVERYDAY = ("explain", "decompose", "evaluate", "units", "explain into shards")
"""Those that are tried every time; the others with `pytest -m slow`."""

MARKED_COMMANDS = [pytest.param(name, marks=[] if name in EVERYDAY else pytest.mark.slow) for name in COMMANDS]


# What happens, event by event


@contextmanager
def watched(happens: Callable[[str], None]) -> Iterator[None]:
    """Call a function before everything that a run does to its files, reads, or computes, with the name of the phase."""
    import pathx.engine.freeze
    import pathx.models.load
    import pathx.pipeline
    import pathx.runs.compute

    with pytest.MonkeyPatch.context() as patch:

        def watch(place: Any, name: str, phase: str, counts: Callable[..., bool] = lambda *_: True) -> None:
            whole = getattr(place, name)

            def call(*arguments: Any, **options: Any) -> Any:
                if counts(*arguments):
                    happens(phase)
                return whole(*arguments, **options)

            patch.setattr(place, name, call)

        watch(os, "replace", "name")
        watch(os, "fsync", "sync")
        watch(os, "unlink", "remove")
        watch(os, "mkdir", "folder")
        watch(os, "write", "write", lambda descriptor, *_: descriptor > 2)
        watch(os, "open", "create", lambda path, flags, *_: bool(flags & os.O_CREAT))
        watch(pathx.pipeline, "decode_image", "read")
        watch(pathx.runs.compute, "freeze", "compute")
        yield


WRITES = ("name", "sync", "remove", "folder", "write", "create")


def call(arguments: tuple[str, ...]) -> int:
    """The command line in this process; its exit status."""
    try:
        run([*arguments, "--model", "model.pt"])
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a command ends the process")


_FORKING = Lock()


def in_a_child(arguments: tuple[str, ...], log: Path, at: int | None = None, number: int = 0) -> tuple[int, list[str]]:
    """Run a command in a process of its own that gets a signal at its n-th event; the status, and the phases gone through."""
    ours, theirs = os.pipe()
    with _FORKING:  # filelock refuses a fork while another is made
        child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            with log.open("wb") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            torch.set_num_threads(1)
            faulthandler.dump_traceback_later(300, exit=True)  # a fork may wait for a lock that another thread held
            events, tell = 0, os.write

            def happens(phase: str) -> None:
                nonlocal events
                tell(theirs, f"{phase}\n".encode())
                if events == at:
                    os.kill(os.getpid(), number)
                events += 1

            end_at_once()
            with watched(happens):
                status = call(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(99)
    os.close(theirs)
    with os.fdopen(ours) as stream:
        phases = stream.read().split()
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), phases


def killed_after(calls: int, method: str, arguments: tuple[object, ...]) -> None:
    """Run a command in a process of its own that is killed right after so many calls of a method, `module:Class.name`."""
    module, _, name = method.partition(":")
    owner, _, name = name.partition(".")
    code = f"""
import os, signal, sys, {module} as module
from pathx.cli import run
whole, seen = module.{owner}.{name}, []
def call(*arguments):
    made = whole(*arguments)
    seen.append(1)
    if len(seen) == {calls}:
        os.kill(os.getpid(), signal.SIGKILL)
    return made
module.{owner}.{name} = call
for setting in os.environ["PATHX_TEST_SETTINGS"].split():
    name, _, value = setting.partition("=")
    setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], float(value))
run(sys.argv[1:])
"""
    environment = {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PATHX_TEST_SETTINGS": SETTINGS_OF_KILLED_RUNS,
    }
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


SETTINGS_OF_KILLED_RUNS = "pathx.results.store.LINES_EVERY=0 pathx.results.packs.SHARD_BYTES=20000"
"""So that lines go to stores one by one, and shards are small."""


# What is there afterwards


def tree(out: str) -> dict[str, Any]:
    """Every file to the byte, but for what is said of the time that something took; of shards what is in them."""
    if any(Path(out).glob("results-*.*")):
        shutil.rmtree("unpacked", ignore_errors=True)
        assert not unpack_results(out, "unpacked").lost
        return tree("unpacked")
    files = (file for file in sorted(Path(out).rglob("*")) if file.is_file())
    return timeless({str(file.relative_to(out)): file.read_bytes() for file in files})


def timeless(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """The same of files by their names."""
    return {name: _timeless(Path(name), data) for name, data in contents.items()}


def _timeless(file: Path, data: bytes) -> Any:
    if file.suffix == ".jsonl":
        lines = [json.dumps(_without_seconds(json.loads(line))) for line in data.splitlines()]
        return sorted(lines)
    if file.name in ("evaluation.json", "grid.json"):
        return _without_seconds(json.loads(data))
    if file.suffix == ".csv":
        rows = list(csv.reader(data.decode().splitlines()))
        kept = [column for column, heading in enumerate(rows[0]) if heading != "seconds"]
        return [[row[column] for column in kept] for row in rows]
    return data


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_seconds(one) for key, one in value.items() if key not in ("seconds", "key")}
    return [_without_seconds(one) for one in value] if isinstance(value, list) else value


def check_nothing_is_left_over(out: str) -> None:
    """What a run that was killed had begun to write is gone."""
    left = [str(file) for file in Path(out).rglob(".pathx-*")]
    assert not left, left


def check_nothing_is_half_written(out: str) -> None:
    """Every document vouches for files that are there and whole."""
    for file in Path(out).rglob("*.json"):
        if file.is_file():
            document = json.loads(file.read_bytes())
            for name in (document.get("files") or {}).values() if isinstance(document.get("files"), dict) else ():
                assert (file.parent / name).is_file(), f"{file} lists {name}"
    for file in Path(out).rglob("*.png"):
        if file.is_file():
            with Image.open(file) as image:
                image.load()


def trials(everything: Iterable[T], least: int) -> Iterator[T]:
    """What there is to try, in random order, as far as there is time; at least so many of it."""
    shuffled, end = list(everything), time.monotonic() + BUDGET
    random.Random(len(shuffled)).shuffle(shuffled)
    for done, one in enumerate(shuffled):
        if done >= least and time.monotonic() > end:
            return
        yield one


@dataclass
class Refusal:
    """Refuses one write of a run, or all from that one on.

    Args:
        at: which one, counted from 0.
        seen: how many there were so far.
    """

    at: int
    number: int
    lasting: bool = False
    seen: int = 0

    def __call__(self, phase: str) -> None:
        if phase not in WRITES:
            return
        self.seen += 1
        if self.seen == self.at + 1 or (self.lasting and self.seen > self.at):
            raise OSError(self.number, os.strerror(self.number))

    def __str__(self) -> str:
        return f"{errno.errorcode[self.number]} at write {self.at}{' and from there on' if self.lasting else ''}"


ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
