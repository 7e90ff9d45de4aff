"""Runs on a real Ray of two nodes: the files and lines of a local run, and restarts either way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cluster import SETTINGS, check_same, lines
from support.command_line import Pathx, config

from pathx.cluster import Actors
from pathx.results.store import Result
from pathx.runs.cluster import OnRay
from pathx.runs.run import explain_files

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("here"),
]
ONE = Actors(1, 1)


def on_ray(load: Any, here: Path, out: str = "out", **options: Any) -> list[Result]:
    ray = OnRay(load, actors=options.pop("actors", ONE))
    return list(explain_files(load(), [here / "photos"], here / out, ray=ray, **{"settings": SETTINGS, **options}))


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
    locally(load, here, decompose={})
    on_ray(load, here, decompose={}, actors=None)
    check_same(here / "out", here / "local")


def test_either_goes_on_where_the_other_was_stopped(cluster: Any, load: Any, here: Path) -> None:
    locally(load, here)
    begun = explain_files(load(), [here / "photos"], here / "out", settings=SETTINGS)
    for _ in range(3):
        next(begun)
    begun.close()
    made = set(lines(here / "out"))
    assert 0 < len(made) < 7
    ray = OnRay(load, actors=ONE)
    going = explain_files(load(), [here / "photos"], here / "out", settings=SETTINGS, ray=ray)
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
    done = pathx_("explain", "photos", *how, "--out", "out", "--ray", "auto", *config(ray_actors=1))
    assert done.status == local.status == 1
    assert done.err == local.err.replace("local", "out")
    assert len(done.documents) == len(local.documents) > 0
    check_same(here / "out", here / "local")


@pytest.mark.parametrize("wrong", [("--target", "zebra"), ("--depth", "99")])
def test_a_call_that_is_wrong_on_a_cluster(
    cluster: Any, load: Any, here: Path, pathx_: Pathx, wrong: tuple[str, str]
) -> None:
    local = pathx_("explain", "photos", "--model", "model.pt", *wrong)
    done = pathx_("explain", "photos", "--model", "model.pt", *wrong, "--ray", "auto", *config(ray_actors=1))
    assert done == local
    assert done.status == 2
