"""Shards: every picture is in one, whoever asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathx.errors import PathxError
from pathx.runs.index import Shard, parse_shard, shard_of_environment


@settings(max_examples=30)
@given(st.text(st.sampled_from("a/é\n\udc80")), st.integers(1, 50))
def test_every_picture_is_in_one_shard(name: str, count: int) -> None:
    assert sum(Shard(number, count).holds(name) for number in range(1, count + 1)) == 1


def test_shards_are_alike_in_size_and_the_same_for_all_time() -> None:
    sizes = [sum(Shard(number, 4).holds(f"photos/{n}.jpg") for n in range(2000)) for number in range(1, 5)]
    assert all(440 < size < 560 for size in sizes)
    assert [n for n in range(20) if Shard(1, 3).holds(f"{n}.jpg")] == [0, 2, 5, 7, 11, 15, 17]


def test_texts() -> None:
    assert parse_shard("3/8") == Shard(3, 8)
    assert str(Shard(3, 8)) == "3/8"
    for text in ("3", "3/", "/8", "a/b", "1/0", "-1/2", "1/2/3", "²/3"):
        with pytest.raises(PathxError, match="is not a part of a whole; use 1/4 to 4/4") as caught:
            parse_shard(text)
        assert caught.value.usage
    for text in ("0/4", "5/4"):
        with pytest.raises(PathxError, match=rf"^shard {text} is out of range; use 1/4 to 4/4$"):
            parse_shard(text)


def slurm(task: int, count: int, first: int = 0, step: int = 1) -> dict[str, str]:
    numbers = {"ID": task, "COUNT": count, "MIN": first, "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}


def torchrun(rank: int, size: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size)}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "1"}, None),
        (torchrun(0, 1), None),
        (torchrun(2, 4), (Shard(3, 4), "RANK")),
        (slurm(0, 3), (Shard(1, 3), "SLURM_ARRAY_TASK_ID")),
        (slurm(3, 3, first=1), (Shard(3, 3), "SLURM_ARRAY_TASK_ID")),
        (slurm(14, 3, first=10, step=2), (Shard(3, 3), "SLURM_ARRAY_TASK_ID")),
        (slurm(1, 3) | torchrun(1, 2), (Shard(4, 6), "SLURM_ARRAY_TASK_ID and RANK")),
    ],
)
def test_the_environment(environment: dict[str, str], expected: tuple[Shard, str] | None) -> None:
    assert shard_of_environment(environment) == expected


def test_arrays_with_gaps_want_a_word() -> None:
    with pytest.raises(PathxError, match="task 7 of the SLURM array is not one of 3 in a row; say which shard this is"):
        shard_of_environment(slurm(7, 3, first=1))


def test_jobs_of_an_array_share_all_the_work() -> None:
    found = [shard_of_environment(slurm(task, 3, 1) | torchrun(rank, 2)) for task in (1, 2, 3) for rank in (0, 1)]
    assert [one[0] for one in found if one] == [Shard(number, 6) for number in range(1, 7)]
