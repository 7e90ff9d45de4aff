"""The files of gathered units: photos that are still the same, crops of each once, and units of this model only."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.small import loaded, picture

from pathx.explanation import LayerTensor
from pathx.images.read import open_image
from pathx.pipeline import Prepared, prepare
from pathx.units.files import read_units, save_units
from pathx.units.references import Channel, Reference, Units

PREPROCESSING = asdict(loaded().preprocessing)


def reference(file: Path, index: tuple[int, ...] = (0, 2, 2)) -> Reference:
    return Reference(str(file), open_image(file).sha256, index, (2, 2, 5, 5), 1.5, "cat", None)


def units(*references: Reference, **about: Any) -> Units:
    ready = prepare(loaded(), device="cpu")
    one = Channel(1, "1", 0, references, 2, 0.5, (("cat", 2),), 0.25)
    known = {"model": ready.about, "preprocessing": PREPROCESSING, "settings": {"by": "contribution"}, **about}
    return Units(known, {"1": LayerTensor("1", (5, 8, 8))}, {"1": 1}, {("1", 0): one}, 2, {})


@pytest.fixture
def ready() -> Prepared:
    return prepare(loaded(), device="cpu")


def test_what_was_saved_is_read_and_the_document_is_last(tmp_path: Path, ready: Prepared) -> None:
    made = units(reference(picture(tmp_path / "a.png")))
    names = save_units(made, tmp_path / "out", ready)
    assert names == ["layer-1.png", "tensors.safetensors", "units.json"]
    assert read_units(tmp_path / "out") == Units.read(json.loads((tmp_path / "out/units.json").read_text()))
    tensors = load_file(tmp_path / "out/tensors.safetensors")
    assert tensors["means.1"].tolist() == [0.25, 0, 0, 0, 0] and tensors["paths.1"].tolist() == [2, 0, 0, 0, 0]
    assert tensors["values.1"][0].tolist() == [1.5] and tensors["values.1"][1].isnan().all()
    assert save_units(made, tmp_path / "out", ready, draw=False) == names[1:]
    assert not (tmp_path / "out/layer-1.png").exists()  # nothing of an earlier gathering stays
