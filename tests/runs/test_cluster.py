"""A run in batches that come back in any order leaves what a run of one process leaves; `tests/cluster` has a real Ray."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.cluster import SETTINGS, check_same, lines, photos_and_model
from support.pretended import Pretended

from pathx.cluster import DIED
from pathx.results.store import Result
from pathx.runs import cluster
from pathx.runs.cluster import OnRay
from pathx.runs.run import explain_files

pytestmark = pytest.mark.usefixtures("one_thread", "here")


@pytest.fixture
def load(here: Path) -> partial[Any]:
    return photos_and_model(here, 5)


def pretended(monkeypatch: pytest.MonkeyPatch, *deadly: str) -> Pretended:
    made = Pretended(deadly)
    monkeypatch.setattr(cluster, "join_cluster", made.join_cluster())
    return made


def on_ray(load: partial[Any], here: Path, **options: Any) -> list[Result]:
    ray = OnRay(load, documents=options.pop("documents", True))
    return list(explain_files(load(), [here / "photos"], here / "out", ray=ray, **{"settings": SETTINGS, **options}))


def test_files_and_lines_are_those_of_a_run_of_one_process(
    load: partial[Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "photos/cat/bad.png").write_bytes(b"no image")
    pretended(monkeypatch)
    results = on_ray(load, here)
    local = list(explain_files(load(), [here / "photos"], here / "local", settings=SETTINGS))
    assert {one.file: one.failed for one in results} == {one.file: one.failed for one in local}
    check_same(here / "out", here / "local")
    assert all(result.made is None for result in results)


def test_only_batches_with_something_to_do_are_sent(
    load: partial[Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(monkeypatch)
    results = on_ray(load, here)
    done = next(result for result in results if result.file.endswith("1.png"))
    done.folder.joinpath("path.json").unlink()
    again = pretended(monkeypatch)
    states = {result.file: result.state.name for result in on_ray(load, here)}
    (batch,) = again.batches
    assert len(batch) == 2 and states[done.file] == "done"  # with its companion, as last digits depend on the batch
    assert sorted(states.values()) == ["done", "kept", "kept", "kept", "kept"]


def test_an_image_that_kills_is_a_line_of_the_index(
    load: partial[Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(monkeypatch, "2.png")
    results = on_ray(load, here, settings=SETTINGS.__class__(**{**vars(SETTINGS), "batch_size": 1}))
    (failed,) = (result for result in results if result.failed)
    assert str(failed.error) == DIED
    assert [line["error"] for line in lines(here / "out").values() if "error" in line] == [DIED]


def test_where_nobody_asks_for_documents_they_stay_where_they_are(
    load: partial[Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(monkeypatch)
    brief = [result.document for result in on_ray(load, here, documents=False) if result.kind.name == "explanation"]
    assert len(brief) >= 5 and all(list(document) == ["target"] for document in brief)
