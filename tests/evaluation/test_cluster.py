"""An evaluation in batches that come back in any order is the evaluation of one process; `tests/cluster` has a real Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.pretended import Pretended
from support.small import loaded, picture

from pathx.cluster import DIED
from pathx.evaluation import cluster
from pathx.evaluation.cluster import measure_on_ray
from pathx.evaluation.measure import contender, curve_records, measure_images
from pathx.evaluation.protocols import make_protocol
from pathx.images.find import images_in
from pathx.pipeline import prepare

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def setup(tmp_path: Path) -> tuple[Any, ...]:
    for number in range(5):
        picture(tmp_path / "cat" / f"{number}.png", seed=number)
    contenders = [contender("random", "rise"), contender("pathx", "rise", depth=1)]
    return (
        prepare(loaded(), device="cpu"),
        list(images_in([str(tmp_path / "cat")])),
        contenders,
        make_protocol("rise", 10, 10),
    )


def test_the_figures_are_those_of_one_process(setup: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "join_cluster", Pretended().join_cluster())
    made = measure_on_ray(loaded, *setup, batch_size=2, device="cpu")
    local = measure_images(*setup, batch_size=2)
    assert made.images == local.images and not made.unread
    for one in setup[2]:
        for measure in ("insertion", "deletion"):
            assert made.areas(one, measure) == pytest.approx(local.areas(one, measure))


def test_what_is_known_is_not_measured_again(
    setup: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = curve_records(tmp_path / "records.jsonl")
    measure_images(*setup, batch_size=2, records=before)
    known = (tmp_path / "records.jsonl").read_bytes()
    monkeypatch.setattr(cluster, "join_cluster", Pretended().join_cluster())
    steps: list[int] = []
    again = curve_records(tmp_path / "records.jsonl")
    made = measure_on_ray(loaded, *setup, batch_size=2, device="cpu", records=again, progress=steps.append)
    assert (tmp_path / "records.jsonl").read_bytes() == known and len(made.images) == 5
    assert sum(steps) == 5 * 2


def test_an_image_that_kills_costs_itself(setup: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "join_cluster", Pretended(["3.png"]).join_cluster())
    made = measure_on_ray(loaded, *setup, batch_size=1, device="cpu")
    assert len(made.images) == 4 and [*made.unread.values()] == [DIED]
