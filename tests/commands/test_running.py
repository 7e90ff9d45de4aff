"""Where a run goes: to this process, or to a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.small import loaded

import pathx.runs.cluster
import pathx.runs.run
from pathx.commands.running import check_report, guide, started
from pathx.errors import PathxError
from pathx.runs.run import Plan
from pathx.runs.settings import Settings

OPTIONS: dict[str, Any] = {
    "ray_actors": None,
    "ray_gpus": None,
    "pack": None,
    "targets": (),
    "quiet": False,
    "documents": True,
}


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where runs were sent; none is run."""
    places: list[str] = []

    def sent(place: str) -> Any:
        def run(*arguments: Any, **options: Any) -> Iterator[None]:
            places.append(place)
            return iter(())

        return run

    monkeypatch.setattr(pathx.runs.run, "explain_files", sent("here"))
    monkeypatch.setattr(pathx.runs.cluster, "explain_on_ray", sent("cluster"))
    return places


@pytest.mark.parametrize(
    ("ray", "indexed", "place"), [(None, True, "here"), ("auto", True, "cluster"), ("auto", False, "here")]
)
def test_an_image_named_by_itself_is_explained_here(
    went: list[str], ray: str | None, indexed: bool, place: str
) -> None:
    plan = Plan((), indexed=indexed)
    assert not list(started(loaded, loaded(), plan, "out", ray=ray, settings=Settings(), **OPTIONS))
    assert went == [place]


def test_references_are_shown_on_this_machine_only(went: list[str]) -> None:
    settings: Any = Settings(guide=object())  # type: ignore[arg-type]
    with pytest.raises(PathxError, match="leave out --units or --ray"):
        started(loaded, loaded(), Plan(()), "out", ray="auto", settings=settings, **OPTIONS)
    assert not went and guide(None, loaded(), "cpu", "float32", quiet=True) is None


def test_a_report_is_of_results_in_a_folder() -> None:
    check_report(True, "out", None)
    check_report(False, "s3://bucket", "tar")
    for out, pack in (("out", "tar"), ("s3://bucket/out", None)):
        with pytest.raises(PathxError, match="leave out --report"):
            check_report(True, out, pack)
