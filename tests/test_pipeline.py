"""From images to the network: what it sees of a file, batches of that, and images that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from support.small import LABELS, loaded, picture

from pathx import pipeline
from pathx.errors import PathxError
from pathx.images.find import ImageFile, images_in
from pathx.images.read import KEPT_PIXELS, open_image
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import NOT_FINITE, Input, Unreadable, prepare, read_batches, read_input


def read(file: Path, preprocessing: Preprocessing) -> Input:
    found = read_input(ImageFile(str(file), file.name), preprocessing)
    assert isinstance(found, Input)
    return found


def problem(source: ImageFile, preprocessing: Preprocessing) -> str:
    found = read_input(source, preprocessing)
    assert isinstance(found, Unreadable)
    return str(found.error)


# Read


def test_the_input_is_made_of_all_pixels_and_a_smaller_copy_is_kept(tmp_path: Path) -> None:
    preprocessing = loaded().preprocessing
    file = picture(tmp_path / "large.png", (2400, 1800))
    assert KEPT_PIXELS < 2400 * 1800
    found = read(file, preprocessing)
    assert torch.equal(found.tensor, preprocessing(open_image(file).pixels))
    assert found.image.pixels.size == (1200, 900) and (found.image.width, found.image.height) == (2400, 1800)


def test_a_network_of_four_channels_sees_what_is_transparent(tmp_path: Path) -> None:
    """The colours below it too, which all others see on white; upright like the rest."""
    bands = [Image.frombytes("L", (4, 2), bytes(range(start, start + 80, 10))) for start in (0, 60, 120, 170)]
    stored = Image.merge("RGBA", bands)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    stored.save(tmp_path / "turned.png", exif=exif)
    upright = stored.transpose(Image.Transpose.ROTATE_270)
    for channels, seen in ((4, upright), (3, Image.alpha_composite(Image.new("RGBA", (2, 4), "white"), upright))):
        plain = Preprocessing((channels, 4, 2), (0.0,) * channels, (1.0,) * channels)
        found = read(tmp_path / "turned.png", plain)
        pixels = torch.tensor(list(seen.tobytes())).reshape(4, 2, 4)[..., :channels].permute(2, 0, 1) / 255
        torch.testing.assert_close(found.tensor, pixels)
        assert found.image.pixels.mode == "RGB" and found.image.layer is None


def test_whatever_is_wrong_costs_one_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preprocessing = loaded().preprocessing
    assert "no such file" in problem(ImageFile(str(tmp_path / "none.png"), "none.png"), preprocessing)
    assert problem(ImageFile("a", "a", error=PathxError("it is gone")), preprocessing) == "it is gone"

    def trips(self: Preprocessing, image: object) -> None:
        raise ZeroDivisionError("over")

    monkeypatch.setattr(Preprocessing, "__call__", trips)
    said = problem(ImageFile(str(picture(tmp_path / "a.png")), "a.png"), preprocessing)
    assert said.startswith("unexpected ZeroDivisionError: over (set PATHX_DEBUG=1")


# In batches, on the network


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
    assert failed == {found[0].name: NOT_FINITE}


def test_predictions_are_explained_in_parts_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, found = prepare(loaded(), device="cpu"), folder(tmp_path)
    failed: dict[str, str] = {}

    def note(source: ImageFile, error: PathxError) -> None:
        failed[source.name] = str(error)

    ((_, inputs),) = read_batches(found, ready.model.preprocessing, 8, note)
    inputs[1].tensor.fill_(torch.nan)  # the network has no answer for this one
    (whole,) = ready.explain_predictions(inputs, {"depth": 1, "width": 2}, note)
    assert [one.source for one in whole[0]] == [found[0], *found[2:]] and failed == {found[1].name: NOT_FINITE}

    whole_freeze = pipeline.freeze

    def short(module: torch.nn.Module, images: torch.Tensor) -> object:
        if len(images) > 2:
            raise MemoryError
        return whole_freeze(module, images)

    monkeypatch.setattr(pipeline, "freeze", short)
    parts = list(ready.explain_predictions(inputs[2:], {"depth": 1, "width": 2}, note))
    assert [len(part) for part, _, _ in parts] == [1, 2]
    targets = [one.target for _, _, several in parts for one in several]
    assert targets == [one.target for one in whole[2][1:]]


def test_the_names_of_folders_mean_classes() -> None:
    ready = prepare(loaded(), device="cpu")
    assert ready.labels == LABELS and ready.about["classes"] == 4
    assert (ready.class_of("red fox"), ready.class_of("zebra")) == (1, None)
    assert ready.network.depth == 3
