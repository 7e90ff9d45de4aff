"""A real Ray of two nodes on this machine, small photos, and what a run on it leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.command_line import ROOT, files, network, picture, same, scripted

from pathx.models.load import load_model
from pathx.runs.compute import Settings

SETTINGS = Settings(depth=2, width=4, batch_size=2, pictures=False, removal=True)
PYTHON_PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
"""Where workers find pathx and the helpers of tests, wherever they start."""


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A cluster that this process has joined."""
    import ray
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ |= {"PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


def photos_and_model(here: Path, count: int = 7) -> partial[Any]:
    """Photos in `photos`, the network `model.pt`, and what loads it."""
    for number in range(count):
        picture(str(here / f"photos/{'cat' if number % 2 else 'dog'}/{number}.png"), seed=number)
    return partial(load_model, str(here / scripted(network())))


def lines(out: Path) -> dict[str, Any]:
    """The index by name, each once, without what no two runs share."""
    found = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert len({line["name"] for line in found}) == len(found)
    for line in found:
        del line["seconds"], line["run"]
        for one in line["explanations"]:
            del one["sha256"]  # of digits beyond rounding
        line.get("contrast", {}).pop("sha256", None)
    return {line["name"]: line for line in sorted(found, key=lambda line: str(line["name"]))}


def documents(out: Path) -> dict[str, Any]:
    """Every document of results."""
    names = sorted(name for name in files(out) if name.endswith(("path.json", "decomposition.json")))
    return {name: json.loads((out / name).read_bytes()) for name in names}


def check_same(out: Path, local: Path) -> None:
    """The results and the index of a run are those of another, to rounding."""
    assert documents(out)
    assert same(documents(out), documents(local))
    assert same(lines(out), lines(local))
