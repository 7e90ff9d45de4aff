"""Which images are done already, and what is computed with those that are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.small import loaded, picture

from pathx.images.find import ImageFile, find_images
from pathx.pipeline import read_input
from pathx.results.store import ResultStore
from pathx.runs.index import Index
from pathx.runs.run import Settings, explain_files, with_companions
from pathx.threads import start_workers

pytestmark = pytest.mark.usefixtures("one_thread")


def run(tmp_path: Path) -> tuple[list[ImageFile], Index]:
    """Three images that were explained as two classes each, and the index of a run that goes on."""
    for number in range(3):
        picture(tmp_path / "photos" / f"{number}.png", seed=number)
    out, settings = tmp_path / "out", Settings(depth=1, width=2, pictures=False)
    list(explain_files(loaded(), [tmp_path / "photos"], out, targets=("cat", "dog"), settings=settings))
    found = list(find_images([tmp_path / "photos"], out=out))
    record = json.loads((out / "run.json").read_text())
    return found, Index(ResultStore(out), None, record, [one.name for one in found])


def test_what_an_earlier_run_wrote_is_kept(tmp_path: Path) -> None:
    found, index = run(tmp_path)
    kept = index.kept(found[0])
    assert kept is not None and [result.state.name for result in kept.results] == ["kept", "kept"]
    assert [result.document["target"]["label"] for result in kept.results] == ["cat", "dog"]


@pytest.mark.parametrize("what", ["document", "image", "contrast"])
def test_what_is_not_whole_or_of_another_image_is_not(tmp_path: Path, what: str) -> None:
    found, index = run(tmp_path)
    if what == "image":
        picture(Path(found[0].file), seed=9)
    else:
        name = "contrast.json" if what == "contrast" else "path.json"
        next((tmp_path / "out").rglob(f"0.png/**/{name}")).unlink()
    assert index.kept(found[0]) is None and index.kept(found[1]) is not None


def test_with_one_that_is_not_done_go_all_of_its_batch(tmp_path: Path) -> None:
    found, index = run(tmp_path)
    picture(Path(found[1].file), seed=9)
    preprocessing = loaded().preprocessing
    read = [index.kept(one) or read_input(one, preprocessing) for one in found]
    with start_workers(0) as workers:
        assert [one.source for one in with_companions(read, preprocessing, workers)] == found
        assert with_companions(read[:1], preprocessing, workers) == []  # nothing to do, nothing to read
