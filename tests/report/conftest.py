"""One browser for all pages of a run, and pages that both browsers open."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import axe_source, chromium
from support.firefox import Firefox, firefox
from support.reports import HOSTILE, results
from support.small import images, network

import pathx
from pathx.report.build import report


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(Path(tmp_path_factory.mktemp("axe")))


@pytest.fixture(scope="session")
def fox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with firefox(tmp_path_factory.mktemp("firefox")) as running:
        yield running


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything that takes the model."""
    file = tmp_path_factory.mktemp("live") / "report.html"
    (made,) = pathx.explain(network(), images(), depth=3, width=6)
    made.report(file, label="cat")
    return file


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page made of files: two classes with their contrast and features, and a verdict."""
    return report([results(tmp_path_factory.mktemp("saved"), targets=("cat",), decompose=True)])


FIGURES = {
    "insertion": {"mean": 0.5, "low": 0.4, "high": 0.6},
    "deletion": {"mean": 0.2, "low": 0.1, "high": 0.3},
    "seconds": 0.1,
}


@pytest.fixture(scope="session")
def measures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An evaluation, a grid and common units, hostile where they can be."""
    tmp_path = tmp_path_factory.mktemp("measures")
    model = {"name": HOSTILE[0], "sha256": "0" * 64}
    about = {"images": 2, "model": model, "notes": [HOSTILE[1]], "unread": {HOSTILE[2]: "x"}, "protocol": "rise"}
    table = [["image", "label", "predicted", "method", "insertion", "deletion"]]
    for method in ("pathx", HOSTILE[0]):
        table += [[f"{number}.png", "", HOSTILE[1], method, "0.5", "0.25"] for number in range(3)]
    common = {"tensor": HOSTILE[0], "index": [3, 1, 1], "share": 0.5}
    classes = [{"label": label, "images": 1, "layers": [{"layer": 2, "units": [common]}]} for label in HOSTILE]
    grid = [{"depth": depth, "width": width, **FIGURES} for depth in (1, 2) for width in (1, 5)]
    documents = {
        "evaluation": {"methods": {"pathx": FIGURES, HOSTILE[0]: FIGURES}, **about},
        "grid": {"grid": grid, "methods": {}, **about},
        "common": {"layers": [{"layer": 2, "tensors": []}], "classes": classes, **about},
    }
    documents["common"]["overlap"] = {"classes": list(HOSTILE), "channels": [[0.5] * 4] * 4}
    for name, document in documents.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.json").write_text(json.dumps({"schema": f"pathx/{name}@1", **document}))
        with (folder / "images.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(table)
    return [report([tmp_path / name]) for name in documents]
