"""Which images are done already, and what is read of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.small import loaded, picture

from pathx.errors import PathxError
from pathx.images.find import ImageFile, find_images
from pathx.results.store import ResultStore
from pathx.runs.index import Index
from pathx.runs.reading import Read, Reader
from pathx.runs.run import Settings, explain_files
from pathx.runs.workers import working

pytestmark = pytest.mark.usefixtures("one_thread")


def run(tmp_path: Path) -> tuple[list[ImageFile], Reader]:
    """Three images that were explained as two classes each, and what reads them for a run that goes on."""
    for number in range(3):
        picture(tmp_path / "photos" / f"{number}.png", seed=number)
    out, settings = tmp_path / "out", Settings(depth=1, width=2, pictures=False)
    list(explain_files(loaded(), [tmp_path / "photos"], out, targets=("cat", "dog"), settings=settings))
    found = list(find_images([tmp_path / "photos"], out=out))
    record = json.loads((out / "run.json").read_text())
    index = Index(ResultStore(out), None, record, [one.name for one in found])
    return found, Reader(loaded().preprocessing, index)


def test_what_an_earlier_run_wrote_is_not_read_again(tmp_path: Path) -> None:
    found, reader = run(tmp_path)
    read = reader.read(found[0])
    assert read.input is None and [result.state.name for result in read.results] == ["kept", "kept"]
    assert [result.document["target"]["label"] for result in read.results] == ["cat", "dog"]


@pytest.mark.parametrize("what", ["document", "image", "contrast"])
def test_what_is_not_whole_or_of_another_image_is_read(tmp_path: Path, what: str) -> None:
    found, reader = run(tmp_path)
    if what == "image":
        picture(Path(found[0].file), seed=9)
    else:
        name = "contrast.json" if what == "contrast" else "path.json"
        next((tmp_path / "out").rglob(f"0.png/**/{name}")).unlink()
    read = reader.read(found[0])
    assert read.input is not None and not read.results
    assert reader.read(found[1]).input is None


def test_with_one_that_is_not_done_go_all_of_its_batch(tmp_path: Path) -> None:
    found, reader = run(tmp_path)
    picture(Path(found[1].file), seed=9)
    read = [reader.read(one) for one in found]
    with working(0) as workers:
        wanted = reader.with_companions(found, read, workers)
        assert [one.name for one in wanted] == [one.name for one in found]
        assert all(one.input is not None for one in wanted)
        assert reader.with_companions(found[:1], read[:1], workers) == []  # nothing to do, nothing to read


def test_images_that_cannot_be_read_have_failed_and_are_no_companions(tmp_path: Path) -> None:
    reader = Reader(loaded().preprocessing, None)
    good = picture(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("no image")
    slots = [ImageFile(str(file), file.name) for file in (good, tmp_path / "bad.png")]
    slots.append(ImageFile("gone.png", "gone.png", error=PathxError("it is gone")))
    read = [reader.read(one) for one in slots]
    assert [one.failed for one in read] == [False, True, True]
    assert str(read[2].results[0].error) == "it is gone"
    with working(0) as workers:
        (only,) = reader.with_companions(slots, read, workers)
    assert only.input is not None and torch.isfinite(only.input.tensor).all() and isinstance(only, Read)
