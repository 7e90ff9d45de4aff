"""Splitting a run among processes: each image belongs to one shard, by a hash of its name."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pathx.errors import PathxError


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a run; numbers start at 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise PathxError(
                f"shard {self} is out of range; use 1/{self.count} to {self.count}/{self.count}", usage=True
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, name: str) -> bool:
        """Whether an image is in this shard: the same on every machine, whichever other images there are."""
        digest = hashlib.sha256(os.fsencode(name)).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


def parse_shard(text: str) -> Shard:
    """`3/8`: the third of eight."""
    if not re.fullmatch(r"\d{1,9}/0*[1-9]\d{0,8}", text, re.ASCII):
        raise PathxError(f"shard {text!r} is not a part of a whole; use 1/4 to 4/4 for four shards", usage=True)
    number, _, count = text.partition("/")
    return Shard(int(number), int(count))


def shard_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[Shard, str] | None:
    """The shard that a job is of a SLURM array, of torchrun's ranks, or of both; and the variables that say so."""
    array = _place(environment, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")
    ranks = _place(environment, "RANK", "WORLD_SIZE")
    if array is not None:
        first, step = (
            _number(environment, "SLURM_ARRAY_TASK_MIN") or 0,
            _number(environment, "SLURM_ARRAY_TASK_STEP") or 1,
        )
        task, tasks = array
        if (task - first) % step or not 0 <= (task - first) // step < tasks:
            problem = f"task {task} of the SLURM array is not one of {tasks} in a row"
            raise PathxError(
                f"{problem}; say which shard this is with `shard`, or `shard` 1/1 for everything", usage=True
            )
        array = (task - first) // step, tasks
    sources = [name for name, there in (("SLURM_ARRAY_TASK_ID", array), ("RANK", ranks)) if there]
    if not sources:
        return None
    (task, tasks), (rank, world) = array or (0, 1), ranks or (0, 1)
    shard = Shard(task * world + rank + 1, tasks * world)
    return (shard, " and ".join(sources)) if shard.count > 1 else None


def _place(environment: Mapping[str, str], number: str, count: str) -> tuple[int, int] | None:
    at, of = _number(environment, number), _number(environment, count)
    return None if at is None or of is None else (at, of)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
