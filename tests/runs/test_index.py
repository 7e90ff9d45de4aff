"""The index: a line per picture, whatever was torn, replaced or written at the same time; shards join without a loss."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults import Refusal, watched

from pathx.errors import PathxError
from pathx.results.store import ResultStore
from pathx.runs.index import Index, Shard, merge, merge_if_finished, parse_shard, shard_of_environment


def index(out: Path, *names: str, shard: Shard | None = None) -> Index:
    record = {"command": "explain", "run": "r1", "model": {}, "preprocessing": {}, "settings": {}}
    return Index(ResultStore(out), shard, record, names)


def line(out: Path, name: str, **more: Any) -> dict[str, Any]:
    """A line of results that are whole."""
    (out / name / "cat").mkdir(parents=True, exist_ok=True)
    (out / name / "cat" / "path.json").write_text("{}")
    made = {
        "folder": f"{name}/cat",
        "files": ["path.json"],
        "document": "path.json",
        "sha256": sha256(b"{}").hexdigest(),
    }
    return {"file": name, "name": name, "explanations": [made], "seconds": 0.1, **more}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in file.read_text().splitlines()]


def test_torn_lines_are_mended(tmp_path: Path) -> None:
    first = index(tmp_path, "a", "b")
    first.begin()
    first.append(line(tmp_path, "a"))
    with (tmp_path / "index.jsonl").open("ab") as stream:
        stream.write(b'[]\n{}\n\n{"name": "x"}\n\xff\xfe{}\n{"file": "c", "na')
    again = index(tmp_path, "a", "b")
    assert again.line_of("a") is not None
    again.begin()
    for seconds in (1, 2):
        again.append(line(tmp_path, "b", seconds=seconds))
    again.finish()  # later lines replace earlier ones
    assert [(one["name"], one["seconds"]) for one in lines(tmp_path / "index.jsonl")] == [("a", 0.1), ("b", 2)]


# Merging


def test_what_is_missing_is_said_and_nothing_is_thrown_away(tmp_path: Path) -> None:
    one = index(tmp_path, "a", "b", "c", shard=Shard(1, 3))
    one.begin()
    one.append(line(tmp_path, "a"))
    one.append({"file": "x/b", "name": "b", "explanations": [], "error": "no such file"})
    other = index(tmp_path, "d", shard=Shard(2, 3))
    other.begin()
    other.append(line(tmp_path, "d"))
    (tmp_path / "d" / "cat" / "path.json").write_text("torn")
    merged = merge(tmp_path)
    assert merged.done == 1
    assert merged.failed == (("x/b", "no such file"),)
    assert merged.missing == ("c", "d")
    assert merged.shards == ("3/3",)
    one.append(line(tmp_path, "c"))
    other.append(line(tmp_path, "d"))
    last = index(tmp_path, shard=Shard(3, 3))
    last.begin()
    assert merge(tmp_path).missing == merge(tmp_path).shards == ()
    assert len(lines(tmp_path / "index.jsonl")) == 4


def run_shard(out: Path, number: int, *names: str, complete: bool = True) -> None:
    one = index(out, *names, shard=Shard(number, 2))
    one.begin()
    for name in names:
        one.append(line(out, name))
    one.finish(complete=complete)
    one.close()


def record(out: Path, name: str) -> Any:
    return json.loads((out / name).read_text())


def records(out: Path) -> set[str]:
    return {file.name for file in out.iterdir() if file.is_file()}


def test_the_last_shard_merges_and_only_where_all_have_finished(tmp_path: Path) -> None:
    run_shard(tmp_path, 1, "a", "c")
    assert not merge_if_finished(tmp_path)
    run_shard(tmp_path, 2, "b", complete=False)  # was stopped, or is running
    assert not merge_if_finished(tmp_path)
    assert "index.jsonl" not in records(tmp_path)
    run_shard(tmp_path, 2, "b")
    assert merge_if_finished(tmp_path)
    assert records(tmp_path) == {"index.jsonl", "run.json"}
    assert record(tmp_path, "run.json")["finished"] is True
    assert merge_if_finished(tmp_path)  # by a shard that ended at the same time


def test_a_shard_of_a_merged_run_that_is_done_again_is_merged_into_it(tmp_path: Path) -> None:
    run_shard(tmp_path, 1, "a", "c")
    run_shard(tmp_path, 2, "b")
    assert merge_if_finished(tmp_path)
    before = (tmp_path / "index.jsonl").read_bytes()
    run_shard(tmp_path, 1, "a", "c")
    assert merge_if_finished(tmp_path)
    assert (tmp_path / "index.jsonl").read_bytes() == before
    assert record(tmp_path, "run.json")["images"] == ["a", "b", "c"]
    run_shard(tmp_path, 1, "a", "d")  # an image that is new: what is new in the other shard is missing
    assert not merge_if_finished(tmp_path)
    assert merge(tmp_path).shards == ("2/2",)


def test_shards_that_end_together_lose_nothing(tmp_path: Path) -> None:
    """Threads have locks of their own, as each opens the file for itself."""
    for attempt in range(5):
        out = tmp_path / str(attempt)
        names = {number: [f"{number}.{count}" for count in range(3)] for number in (1, 2)}

        def end(number: int, out: Path = out, names: dict[int, list[str]] = names) -> bool:
            run_shard(out, number, *names[number])
            return merge_if_finished(out)

        with ThreadPoolExecutor(2) as both:
            assert any(both.map(end, (1, 2)))
        assert records(out) == {"index.jsonl", "run.json"}
        assert [one["name"] for one in lines(out / "index.jsonl")] == sorted(names[1] + names[2])


def test_a_merge_that_fails_at_any_write_loses_nothing(tmp_path: Path) -> None:
    counted = Refusal(-2, errno.EIO)
    for at in range(-2, 40):
        out = tmp_path / str(at)
        run_shard(out, 1, "a", "c")
        run_shard(out, 2, "b")
        refusal = counted if at == -2 else Refusal(at, errno.EIO)
        with watched(refusal), suppress(PathxError, OSError):
            merge_if_finished(out)
        assert merge_if_finished(out)
        assert records(out) == {"index.jsonl", "run.json"}
        assert [one["name"] for one in lines(out / "index.jsonl")] == ["a", "b", "c"]
        if at >= counted.seen:
            break
    assert 5 < counted.seen <= at


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(PathxError, match="holds no index to merge: give the folder that `out` named"):
            merge(folder)


# Which images a shard has


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
