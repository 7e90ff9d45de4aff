"""The grid game: mosaics of four classes, and the share of heat in the right quarter, where the answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.small import images, loaded, picture
from torch import nn

from pathx.errors import PathxError
from pathx.evaluation.evaluate import evaluate
from pathx.evaluation.mosaics import make_mosaics, shares
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import SeenImage


def seen(targets: list[int]) -> list[SeenImage]:
    return [
        SeenImage(ImageFile(f"{number}.png", f"{number}.png"), None, images(1, number)[0], target)  # type: ignore[arg-type]
        for number, target in enumerate(targets)
    ]


def test_mosaics_have_four_classes_and_use_no_image_twice() -> None:
    mosaics = make_mosaics(seen([0, 0, 1, 2, 3, 1, 2, 3, 0]))
    used = [one.source.name for mosaic in mosaics for one in mosaic.images]
    assert len(mosaics) == 2 and len(set(used)) == 8
    assert all(len(set(mosaic.targets)) == 4 for mosaic in mosaics)
    assert [mosaic.name for mosaic in make_mosaics(seen([0, 0, 1, 2, 3, 1, 2, 3, 0]))] == [one.name for one in mosaics]
    assert make_mosaics(seen([0, 1, 2, 2, 1, 0])) == []


def test_shares_of_positive_heat() -> None:
    maps = torch.zeros(4, 3, 4, 6)
    maps[0, 0, 0, 0], maps[0, 1, 3, 5] = 3.0, 1.0  # three quarters of it where it belongs
    maps[1] = 1.0
    maps[2, 0, 3, 0], maps[2, 0, 0, 0] = 2.0, -5.0  # what counts against the class is no heat
    assert shares(maps) == pytest.approx([0.75, 0.25, 1.0, 0.0])


class Colours(nn.Module):
    """Says which of four patterns of two channels an image has, from how much of each there is anywhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.stack([x[:, 0] - 1, -x[:, 0] - 1, x[:, 1] - 1, -x[:, 1] - 1], 1)
        return 40 * torch.relu(found).mean((2, 3))


def model() -> LoadedModel:
    return LoadedModel(Colours(), "colours", "none", "0" * 64, Preprocessing((3, 8, 8), (0.5,) * 3, (0.1,) * 3), "abcd")


def save_images(folder: Path, count: int) -> None:
    colours = [(255, 128, 128), (0, 128, 128), (128, 255, 128), (128, 0, 128)]
    for number in range(count):
        Image.new("RGB", (8, 8), colours[number % 4]).save(folder / f"{number}.png")


def test_a_network_that_looks_at_one_quarter_wins_the_game(tmp_path: Path) -> None:
    save_images(tmp_path, 8)
    out, methods = tmp_path / "out", ["path_map", "frozen", "random"]
    made = evaluate(model(), [tmp_path], protocol="grid", methods=methods, width="all", out=out)
    assert (made["mosaics"], made["parameters"]["input"]) == (2, [3, 16, 16])
    assert made["methods"]["frozen"]["share"]["mean"] == pytest.approx(1.0)
    assert made["methods"]["path_map"]["share"]["mean"] > 0.9
    assert made["methods"]["random"]["share"]["mean"] == pytest.approx(0.25, abs=0.1)
    assert made["comparison"]["random"]["mean"] > 0.6
    assert json.loads((out / "mosaics.json").read_text()) == made
    schema = json.loads((files("pathx") / "schemas" / "mosaics.json").read_text())
    pytest.importorskip("jsonschema").validate(made, schema)
    assert len((out / "mosaics.jsonl").read_text().splitlines()) == 6
    again = evaluate(model(), [tmp_path], protocol="grid", methods=methods, width="all", out=out)
    assert again == made and len((out / "mosaics.jsonl").read_text().splitlines()) == 6


def test_a_network_of_one_size_sees_images_at_half_their_size(tmp_path: Path) -> None:
    class Fixed(Colours):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.ones(8, 8).reshape(-1)[: x[0, 0].numel()].reshape(x.shape[2:]).mean()

    save_images(tmp_path, 4)
    fixed = replace(model(), module=Fixed().eval())
    made = evaluate(fixed, [tmp_path], protocol="grid", methods=["frozen"])
    assert made["parameters"]["input"] == [3, 8, 8] and made["parameters"]["images"] == "at half their size"
    assert made["methods"]["frozen"]["share"]["mean"] == pytest.approx(1.0)


def test_too_few_classes_are_said(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / f"{number}.png", seed=number)
    with pytest.raises(PathxError, match="a mosaic takes images of four classes"):
        evaluate(loaded(), [tmp_path], protocol="grid", methods=["random"])
