"""What runs and evaluations on Ray share, as far as it needs no cluster; `tests/cluster` has one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
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


def test_networks_stay_out_of_what_is_sent() -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    from pathx.cluster import from_bytes, to_bytes

    value = {"module": torch.nn.Linear(1000, 1000), "number": 3}
    data = to_bytes(value)
    assert len(data) < 1000
    assert from_bytes(data) == {"module": None, "number": 3}


def test_of_a_tensor_only_what_it_shows_is_sent() -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    from pathx.cluster import from_bytes, to_bytes

    batch = torch.randn(8, 3, 50, 50)
    for one in (batch[3], batch[:, 1, :, 7], batch[0].double().requires_grad_(), torch.tensor(2.5), batch[:0]):
        data = to_bytes([one])
        assert len(data) < one.numel() * one.element_size() + 500
        (found,) = from_bytes(data)
        assert torch.equal(found, one.detach()) and found.dtype is one.dtype


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


@pytest.mark.parametrize(
    ("cpus", "actors"), [(1, Actors()), (2, Actors()), (2, Actors(2, 2)), (8, Actors()), (4, Actors(1, 16))]
)
def test_actors_never_take_the_last_cpu_from_those_who_read(cpus: int, actors: Actors) -> None:
    made = Cluster(Machines(CPU=cpus), actors, "auto", grows=False)
    assert made._most is not None and made._most >= actors.least
    assert made._cpus * made._most <= max(cpus - 1, 0.5)
