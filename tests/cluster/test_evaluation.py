"""Evaluations on a real Ray: the records and figures of a local one, and restarts either way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Finished, Pathx, config, same

from pathx.evaluation import measure as evaluations

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("here", "cluster"),
]


def on_ray() -> tuple[str, ...]:
    return ("--ray", "auto", *config(ray_actors=1))


def evaluate(pathx_: Pathx, out: str, *more: Any) -> Finished:
    how = ("--model", "model.pt", "--methods", "path_map,random,edges", "--steps", 4, "--batch-size", 2)
    return pathx_("evaluate", "photos", *how, "--depth", 2, "--width", 4, "--format", "json", "--out", out, *more)


def records(out: str) -> dict[str, Any]:
    """By key, each once, without the time that it took."""
    found = [json.loads(line) for line in Path(out, "records.jsonl").read_text().splitlines()]
    assert len({line["key"] for line in found}) == len(found)
    return {line["key"]: {**line, "seconds": 0.0} for line in sorted(found, key=lambda line: line["key"])}


def document(out: str) -> dict[str, Any]:
    made = json.loads(Path(out, "evaluation.json").read_text())
    return {**made, "methods": {name: {**one, "seconds": 0.0} for name, one in made["methods"].items()}}


def test_the_records_and_figures_are_those_of_a_local_evaluation(load: Any, pathx_: Pathx) -> None:
    Path("photos/cat/bad.png").write_bytes(b"no image")
    local = evaluate(pathx_, "local", "--quiet")
    done = evaluate(pathx_, "out", "--quiet", *on_ray())
    assert done.status == local.status == 1
    assert done.err == local.err
    assert len(records("out")) == 21
    assert same(records("out"), records("local"))
    assert same(document("out"), document("local"))
    assert json.loads(done.out)["images"] == 7
    assert [row.split(",")[0] for row in Path("out/images.csv").read_text().splitlines()] == [
        row.split(",")[0] for row in Path("local/images.csv").read_text().splitlines()
    ]


def test_either_goes_on_from_the_records_of_the_other(
    load: Any, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(pathx_, "whole")
    for first, second in (((), on_ray()), (on_ray(), ())):
        out = "out" + "-ray" * bool(first)
        evaluate(pathx_, out, *first)
        lines = Path(out, "records.jsonl").read_text().splitlines(keepends=True)
        Path(out, "records.jsonl").write_text("".join(lines[:10]))
        assert evaluate(pathx_, out, *second).status == 0
        kept = Path(out, "records.jsonl").read_text().splitlines(keepends=True)
        assert kept[:10] == lines[:10]
        assert same(records(out), records("whole"))
        assert same(document(out), document("whole"))


def test_an_image_that_kills_is_left_out_and_named(load: Any, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    read = evaluations._read

    def deadly(preprocessing: Any, batch: Any) -> Any:
        if any(source.name.endswith("3.png") for source, _ in batch):
            os._exit(9)
        return read(preprocessing, batch)

    monkeypatch.setattr(evaluations, "_read", deadly)
    done = evaluate(pathx_, "out", *on_ray())
    assert done.status == 1
    assert "photos/cat/3.png: the process that worked on it died" in done.err
    assert list(document("out")["unread"]) == ["photos/cat/3.png"]
    assert document("out")["images"] == 6


def test_a_depth_that_the_network_has_not(load: Any, pathx_: Pathx) -> None:
    local, done = evaluate(pathx_, "out", "--depth", 99), evaluate(pathx_, "out", "--depth", 99, *on_ray())
    assert done == local
    assert done.status == 2
