"""Runs on a real Ray that is disturbed: processes, nodes and drivers that die, images that kill, disks that are full."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.cluster import PYTHON_PATH, SETTINGS, check_same, lines, photos_and_model
from support.command_line import config

from pathx import PathxError
from pathx.cluster import Actors
from pathx.results.store import Result
from pathx.runs import cluster as runs
from pathx.runs.cluster import OnRay
from pathx.runs.run import explain_files

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("here"),
]


def on_ray(load: Any, here: Path, **options: Any) -> list[Result]:
    ray = OnRay(load, actors=Actors(1, 1))
    return list(explain_files(load(), [here / "photos"], here / "out", settings=SETTINGS, ray=ray, **options))


def check_all_is_there(load: Any, here: Path) -> None:
    """What a local run writes, once each in the index."""
    list(explain_files(load(), [here / "photos"], here / "local", settings=SETTINGS))
    check_same(here / "out", here / "local")


def test_an_image_that_kills_its_reader_is_counted_and_not_tried_for_ever(
    cluster: Any, load: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, tries = runs._read, here / "tries"

    def deadly(preprocessing: Any, batch: Any) -> Any:
        if any(found.name.endswith("3.png") for found, _ in batch):
            with tries.open("a") as stream:
                stream.write("x")
            os._exit(9)
        return read(preprocessing, batch)

    monkeypatch.setattr(runs, "_read", deadly)
    failed = [result for result in on_ray(load, here) if result.failed]
    assert [Path(result.file).name for result in failed] == ["3.png"]
    assert "died" in str(failed[0].error)
    found = lines(here / "out")
    assert len(found) == 7
    assert [name for name, line in found.items() if "error" in line] == ["photos/cat/3.png"]
    assert len(tries.read_text()) == 6  # four times in its batch, twice alone


def test_actors_that_are_killed_cost_nothing(
    cluster: Any, load: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, killed = runs.Explainer.__call__, here / "killed"

    class Fragile(runs.Explainer):
        def __call__(self, batch: Any) -> Any:
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return compute(self, batch)

    monkeypatch.setattr(runs, "Explainer", Fragile)
    assert not any(result.failed for result in on_ray(load, here))
    assert killed.exists()
    check_all_is_there(load, here)


def test_a_model_that_is_not_on_the_other_machines(cluster: Any, load: Any, here: Path) -> None:
    def elsewhere() -> Any:
        if os.environ.get("RAY_WORKER_MODE") == "WORKER_MODE" or os.getpid() != driver:
            raise PathxError("there is no model file here", usage=True)
        return load()

    driver = os.getpid()
    with pytest.raises(PathxError, match="there is no model file here") as refused:
        on_ray(elsewhere, here)
    assert refused.value.usage


@pytest.mark.slow
def test_a_node_that_is_killed_and_one_that_joins(cluster: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    load, read, seen = photos_and_model(here, 40), runs._read, here / "seen"
    seen.mkdir()

    def slowly(preprocessing: Any, batch: Any) -> Any:
        (seen / ray.get_runtime_context().get_node_id()).touch()
        time.sleep(0.5)
        return read(preprocessing, batch)

    monkeypatch.setattr(runs, "_read", slowly)
    extra = cluster.add_node(num_cpus=2)
    ray_run = OnRay(load, actors=Actors(1, 2))
    results = explain_files(load(), [here / "photos"], here / "out", settings=SETTINGS, ray=ray_run)
    found = [next(results)]
    before = {node["NodeID"] for node in ray.nodes()}
    cluster.remove_node(extra, allow_graceful=False)
    late = cluster.add_node(num_cpus=2)
    found += results
    cluster.remove_node(late)
    assert not any(result.failed for result in found)
    assert {file.name for file in seen.iterdir()} - before, "the node that joined late had nothing to do"
    check_all_is_there(load, here)


@pytest.mark.slow
def test_a_full_disk(cluster: Any, load: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.faults import Refusal, watched

    def short(*arguments: Any) -> Any:
        from pathx.runs import cluster as there  # in that process nobody has replaced it

        with watched(Refusal(0, errno.ENOSPC, lasting=True)):
            return there._write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "_write", short)
        with pytest.raises(PathxError, match="make room, then run it again"):
            on_ray(load, here)
    assert not any(result.failed for result in on_ray(load, here))
    check_all_is_there(load, here)


def started(here: Path, out: str, *more: str) -> subprocess.Popen[str]:
    """The command line in a process and a group of its own."""
    how = ("--model", "model.pt", "--depth", "2", "--width", "4", "--batch-size", "2", "--no-pictures", "--out", out)
    return subprocess.Popen(
        [sys.executable, "-m", "pathx", "explain", "photos", *how, *more],
        cwd=here,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(run: subprocess.Popen[str]) -> tuple[int, str]:
    """The status of a process, and what it said on stderr."""
    _, said = run.communicate(timeout=240)
    return run.returncode, said


def wait_for_a_line(here: Path, run: subprocess.Popen[str]) -> None:
    index, end = here / "out/index.jsonl", time.monotonic() + 240
    while not (index.exists() and index.read_bytes().count(b"\n")):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again(cluster: Any, here: Path) -> None:
    photos_and_model(here, 60)
    on_cluster = ("--ray", cluster.address, *config(ray_actors=1))
    run = started(here, "out", *on_cluster)
    wait_for_a_line(here, run)
    run.kill()
    run.communicate()
    assert 0 < len(lines(here / "out")) < 60
    status, said = ended(started(here, "out", *on_cluster))
    assert status == 0, said
    assert "done before" in said
    assert ended(started(here, "local"))[0] == 0
    check_same(here / "out", here / "local")


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_sigterm_on_a_ray_that_was_started_here(here: Path, early: bool) -> None:
    """Ray has a handler of its own, which ends the process in its own way."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    photos_and_model(here, 60)
    run = started(here, "out", "--ray", "local")
    if early:
        wait_for_ray(run)
    else:
        wait_for_a_line(here, run)
    run.terminate()
    status, said = ended(run)
    assert status == 143, said
    assert "run the same command again to continue" in said


def wait_for_ray(run: subprocess.Popen[str]) -> None:
    """Wait until Ray is being started."""
    end = time.monotonic() + 120
    while not any(b"gcs_server" in _command(one) for one in Path("/proc").glob("[0-9]*") if _parent(one) == run.pid):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.slow
def test_ctrl_c_on_a_ray_that_was_started_here(here: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    photos_and_model(here, 60)
    run = started(here, "out", "--ray", "local")
    wait_for_a_line(here, run)
    os.killpg(run.pid, signal.SIGINT)
    status, said = ended(run)
    assert status == 130, said
    assert "run the same command again to continue" in said
    status, said = ended(started(here, "out", "--ray", "local"))
    assert status == 0, said
    assert all(line.startswith("pathx: ") for line in said.splitlines())  # Ray keeps quiet
    assert ended(started(here, "local"))[0] == 0
    check_same(here / "out", here / "local")
