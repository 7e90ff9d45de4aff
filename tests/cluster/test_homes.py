"""Runs on Ray whose images are in archives, and whose results are packed or in a store: as a local run has them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.archives import shard
from support.cluster import SETTINGS, documents, lines
from support.command_line import config, process, same
from support.stores import content, s3_server, upload

from pathx.cluster import Actors
from pathx.runs.cluster import OnRay
from pathx.runs.index import unpack_results
from pathx.runs.run import explain_files

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("here"),
]
ONE = Actors(1, 1)


def test_archives_and_shards(cluster: Any, load: Any, here: Path) -> None:
    archive = [str(here / shard("x.tar", 5))]
    local = list(explain_files(load(), archive, here / "local", settings=SETTINGS))
    ray = OnRay(load, actors=ONE)
    results = list(explain_files(load(), archive, here / "out", settings=SETTINGS, ray=ray, pack="tar"))
    assert not any(result.failed for result in (*local, *results))
    assert len(list((here / "out").glob("results-*.tar"))) == 3  # of two images each, the last of one
    assert unpack_results(here / "out", here / "unpacked").done == 5
    assert documents(here / "unpacked") == documents(here / "local")
    assert lines(here / "unpacked") == lines(here / "local")
    again = list(explain_files(load(), archive, here / "out", settings=SETTINGS, pack="tar"))
    assert {result.state.name for result in again} == {"kept"}


@pytest.mark.slow
def test_a_store_on_both_sides(load: Any, here: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    with s3_server() as place:
        photos = upload(here / "photos", f"{place}/photos")
        how = ("--model", "model.pt", "--depth", "2", "--width", "4", "--batch-size", "2", "--no-pictures")
        explain = ("-m", "pathx", "explain", photos, *how, "--out")
        for arguments in ((*explain, "local"), (*explain, f"{place}/out", "--ray", "local", *config(ray_actors=1))):
            ended = process(*arguments, seconds=500)  # whose children know of the server by their environment
            assert ended.status == 0, ended.err
        stored = content(f"{place}/out")
        found = {name: json.loads(data) for name, data in stored.items() if os.path.basename(name) == "path.json"}
        assert same(found, documents(here / "local"))
        index = [json.loads(line) for line in stored["index.jsonl"].splitlines()]
        assert {line["name"] for line in index} == set(lines(here / "local"))
        assert not [name for name in stored if name.endswith(".part")]
        again = process(*explain, f"{place}/out", "--ray", "local", seconds=500)
        assert again.status == 0 and "7 done before" in again.err
