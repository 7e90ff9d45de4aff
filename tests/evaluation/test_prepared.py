"""A model ready to be examined: batches of what the network sees, and images that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.small import LABELS, loaded, picture

from pathx.errors import PathxError
from pathx.evaluation.prepared import prepare, read_images
from pathx.images.find import ImageFile
from pathx.images.folders import images_in

pytestmark = pytest.mark.usefixtures("one_thread")


def folder(tmp_path: Path, count: int = 5) -> list[ImageFile]:
    for number in range(count):
        picture(tmp_path / "cat" / f"{number}.png", seed=number)
    return list(images_in([str(tmp_path / "cat")]))


def test_every_image_is_seen_once_with_what_the_model_says(tmp_path: Path) -> None:
    ready, found = prepare(loaded(), device="cpu", dtype="float64"), folder(tmp_path)
    failed: list[str] = []
    batches = list(ready.see(found, 2, lambda source, error: failed.append(source.name)))
    assert [len(batch) for batch in batches] == [2, 2, 1] and not failed
    for seen, source in zip([one for batch in batches for one in batch], found, strict=True):
        assert seen.source is source and seen.input.dtype is torch.float64
        logits = ready.module.double()(seen.input[None])
        assert seen.target == int(logits.argmax())


def test_what_cannot_be_read_or_has_no_numbers_costs_itself(tmp_path: Path) -> None:
    found = folder(tmp_path, 3)
    Path(found[1].file).write_text("no image")
    ready = prepare(loaded(), device="cpu")
    failed: dict[str, str] = {}
    seen = list(ready.see(found, 3, lambda source, error: failed.update({source.name: str(error)})))
    assert [one.source for one in seen[0]] == [found[0], found[2]] and list(failed) == [found[1].name]
    with torch.no_grad():
        ready.module[-1].bias.fill_(torch.inf)  # type: ignore[index, union-attr, operator]
    failed.clear()
    assert not list(ready.see([found[0]], 3, lambda source, error: failed.update({source.name: str(error)})))
    assert failed == {found[0].name: "the model's output is NaN or infinite; check its weights"}


def test_an_error_that_was_found_earlier_is_kept(tmp_path: Path) -> None:
    gone = PathxError("it is gone")
    ((_, read),) = read_images([ImageFile("a", "a", error=gone)], loaded().preprocessing)
    assert read is gone


def test_the_names_of_folders_mean_classes() -> None:
    ready = prepare(loaded(), device="cpu")
    assert ready.labels == LABELS and ready.about["classes"] == 4
    assert (ready.class_of("red fox"), ready.class_of("zebra")) == (1, None)
    assert ready.network.depth == 3
