"""What runs and evaluations on Ray share, as far as it needs no cluster; `tests/cluster` has one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.cluster import photos_and_model
from support.command_line import Pathx

from pathx import PathxError
from pathx.cluster import Actors, Cluster, parse_actors

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def load(here: Path) -> Any:
    return photos_and_model(here, 1)


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


@pytest.mark.parametrize("command", ["explain", "decompose", "evaluate"])
def test_without_ray_one_line_says_what_to_install(
    load: Any, here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = pathx_(command, "photos", "--model", "model.pt", "--ray", "local")
    assert done.status == 2
    assert done.err == "pathx: runs on a cluster need Ray: pip install 'pathx-relu[ray]'\n"


class Machines:
    """A Ray that only says what it has."""

    def __init__(self, **resources: float) -> None:
        self.resources = resources

    def cluster_resources(self) -> dict[str, float]:
        return self.resources


def test_an_actor_has_a_gpu_where_there_are_any_unless_told_otherwise() -> None:
    assert Cluster(Machines(CPU=8, GPU=2), Actors(), "auto", grows=False).gpus == 1
    assert Cluster(Machines(CPU=8, GPU=2), Actors(), "cpu", grows=False).gpus == 0
    assert Cluster(Machines(CPU=8, GPU=2), Actors(gpus=0.5), "auto", grows=False).gpus == 0.5
    assert Cluster(Machines(CPU=8), Actors(), "auto", grows=False).gpus == 0
