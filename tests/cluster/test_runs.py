"""Runs on a real Ray of two nodes: the files and lines of a local run, and restarts either way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cluster import SETTINGS, check_same, lines
from support.command_line import Pathx

from pathx import PathxError
from pathx.cluster import Actors, parse_actors
from pathx.results.result import Result
from pathx.runs.cluster import explain_on_ray
from pathx.runs.run import explain_files
from pathx.runs.tasks import decompose_task

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("one_thread", "here"),
]
ONE = Actors(1, 1)


def on_ray(load: Any, here: Path, out: str = "out", **options: Any) -> list[Result]:
    options = {"settings": SETTINGS, "actors": ONE, **options}
    return list(explain_on_ray(load, [here / "photos"], here / out, **options))


def locally(load: Any, here: Path, out: str = "local", **options: Any) -> list[Result]:
    return list(explain_files(load(), [here / "photos"], here / out, **{"settings": SETTINGS, **options}))


def test_the_files_and_lines_are_those_of_a_local_run(cluster: Any, load: Any, here: Path) -> None:
    (here / "photos/cat/bad.png").write_bytes(b"no image")
    local, results = locally(load, here), on_ray(load, here)
    assert {result.file: result.failed for result in results} == {result.file: result.failed for result in local}
    assert [result.file for result in results if result.failed] == [str(here / "photos/cat/bad.png")]
    check_same(here / "out", here / "local")
    assert "error" in lines(here / "out")["photos/cat/bad.png"]


@pytest.mark.slow
def test_decompositions_too(cluster: Any, load: Any, here: Path) -> None:
    locally(load, here, task=decompose_task())
    on_ray(load, here, task=decompose_task(), actors=None)
    check_same(here / "out", here / "local")


def test_either_goes_on_where_the_other_was_stopped(cluster: Any, load: Any, here: Path) -> None:
    locally(load, here)
    begun = explain_files(load(), [here / "photos"], here / "out", settings=SETTINGS)
    for _ in range(3):
        next(begun)
    begun.close()
    made = set(lines(here / "out"))
    assert 0 < len(made) < 7
    going = explain_on_ray(load, [here / "photos"], here / "out", settings=SETTINGS, actors=ONE)
    first = next(result for result in going if result.state.name != "kept")
    going.close()  # stopped under Ray as well, after one more
    assert first.state.name == "done"
    assert made < set(lines(here / "out"))
    again = locally(load, here, "out")
    assert len({result.file for result in again if result.state.name == "kept"}) > len(made)
    check_same(here / "out", here / "local")
    assert {result.state.name for result in on_ray(load, here)} == {"kept"}


def test_the_command_line_is_as_without_a_cluster(cluster: Any, load: Any, here: Path, pathx_: Pathx) -> None:
    (here / "photos/cat/bad.png").write_bytes(b"no image")
    how = ("--model", "model.pt", "--depth", 2, "--no-pictures", "--format", "json", "--quiet")
    local = pathx_("explain", "photos", *how, "--out", "local")
    done = pathx_("explain", "photos", *how, "--out", "out", "--ray", "auto", "--ray-actors", 1)
    assert done.status == local.status == 1
    assert done.err == local.err.replace("local", "out")
    assert len(done.documents) == len(local.documents) > 0
    check_same(here / "out", here / "local")


@pytest.mark.parametrize("wrong", [("--target", "zebra"), ("--depth", "99")])
def test_a_call_that_is_wrong_on_a_cluster(
    cluster: Any, load: Any, here: Path, pathx_: Pathx, wrong: tuple[str, str]
) -> None:
    local = pathx_("explain", "photos", "--model", "model.pt", *wrong)
    done = pathx_("explain", "photos", "--model", "model.pt", *wrong, "--ray", "auto", "--ray-actors", 1)
    assert done == local
    assert done.status == 2


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        (None, None, Actors()),
        ("4", None, Actors(4, 4)),
        ("1:16", "0.5", Actors(1, 16, 0.5)),
    ],
)
def test_how_many_actors(text: str | None, gpus: str | None, expected: Actors) -> None:
    assert parse_actors(text, gpus) == expected


@pytest.mark.parametrize(("text", "gpus"), [("0", None), ("3:1", None), ("many", None), ("1", "half"), ("1", "-1")])
def test_actors_that_make_no_sense(text: str, gpus: str | None) -> None:
    with pytest.raises(PathxError) as refused:
        parse_actors(text, gpus)
    assert refused.value.usage


def test_several_devices_are_for_one_machine(load: Any, here: Path, pathx_: Pathx) -> None:
    done = pathx_("explain", "photos", "--model", "model.pt", "--device", "cpu,cpu", "--ray", "auto")
    assert done.status == 2
    assert "leave out --device" in done.err


def test_networks_stay_out_of_what_is_sent() -> None:
    pytest.importorskip("ray.data", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    from pathx.cluster import packed, unpacked

    value = {"module": torch.nn.Linear(1000, 1000), "number": 3}
    data = packed(value)
    assert len(data) < 1000
    assert unpacked(data) == {"module": None, "number": 3}


def test_of_a_tensor_only_what_it_shows_is_sent() -> None:
    pytest.importorskip("ray.data", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    from pathx.cluster import packed, unpacked

    batch = torch.randn(8, 3, 50, 50)
    for one in (batch[3], batch[:, 1, :, 7], batch[0].double().requires_grad_(), torch.tensor(2.5), batch[:0]):
        data = packed([one])
        assert len(data) < one.numel() * one.element_size() + 500
        (found,) = unpacked(data)
        assert torch.equal(found, one.detach()) and found.dtype is one.dtype


@pytest.mark.parametrize("command", ["explain", "decompose", "evaluate"])
def test_without_ray_one_line_says_what_to_install(
    load: Any, here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = pathx_(command, "photos", "--model", "model.pt", "--ray", "local")
    assert done.status == 2
    assert done.err == "pathx: runs on a cluster need Ray: pip install 'pathx-relu[ray]'\n"
