"""The files of decompositions: decomposition.json last, nothing stale, every number finite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.command_line import files
from support.saved import explained, numbers
from support.small import loaded

from pathx.drawing.render import Drawing
from pathx.models.load import LoadedModel
from pathx.results.files import Kind
from pathx.results.store import Result

FILES = {"figure.png", "heatmap.png", "overlay.png", "path.json"}
OF_FEATURES = {"overlay.png", "tensors.safetensors"}


def decomposed(tmp_path: Path, model: LoadedModel | None = None, **options: Any) -> Result:
    own = {key: options.pop(key) for key in ("from_layer", "features") if key in options}
    (result,) = explained(tmp_path, "cat", model=model, apart=own, **options)
    assert result.kind is Kind.decomposition
    return result


def test_a_folder_per_feature_and_a_document_that_tells_the_same(tmp_path: Path) -> None:
    done = decomposed(tmp_path, width=4, save_tensors=True)
    document = json.loads((done.folder / "decomposition.json").read_text())
    assert document == done.document
    made = done.made
    assert " ".join(document) == (
        "schema image model target depth width alpha skips importance layer below_alpha contribution score features units "
        "grouping colour_scale files region settings preprocessing created_by"
    )
    whole = json.loads((done.folder / "path.json").read_text())
    assert whole["linear_model"]["score"] == document["score"]
    (layer,) = (one for one in whole["layers"] if one["layer"] == document["layer"])
    units = [{key: value for key, value in unit.items() if key in layer["units"][0]} for unit in document["units"]]
    assert sorted(units, key=str) == sorted(layer["units"], key=str)
    assert document["contribution"] == pytest.approx(sum(unit["contribution"] for unit in layer["units"]))
    for number, (entry, feature) in enumerate(zip(document["features"], made.features, strict=True), start=1):
        assert entry["feature"] == number
        assert entry["folder"] == (f"feature-{number:02}" if feature in made.drawn else None)
        assert entry["units"] == [position + 1 for position in feature.units]
        assert {document["units"][unit - 1]["feature"] for unit in entry["units"]} == {number}
        assert sum(channel["units"] for channel in entry["channels"]) == len(entry["units"])
        assert sum(channel["contribution"] for channel in entry["channels"]) == pytest.approx(entry["contribution"])
        assert bool(entry["files"]) == (entry["folder"] is not None)
    assert sum(entry["share"] for entry in document["features"]) == pytest.approx(1)
    parts = {f"{entry['folder']}/{name}" for entry in document["features"] if entry["folder"] for name in OF_FEATURES}
    assert files(done.folder) == FILES | {"tensors.safetensors", "sheet.png", "decomposition.json"} | parts
    assert {*done.files, "decomposition.json"} == files(done.folder)
    assert all(map(math.isfinite, numbers(document)))


def test_folders_are_for_the_features_that_were_asked_for(tmp_path: Path) -> None:
    every = decomposed(tmp_path, width=6)
    assert len(every.document["features"]) > 2
    some = decomposed(tmp_path, width=6, features=2)
    assert [entry["folder"] for entry in some.document["features"][:3]] == ["feature-01", "feature-02", None]
    assert some.document["units"] == every.document["units"]
    shown = {f"feature-{number:02}/overlay.png" for number in (1, 2)}
    assert files(some.folder) == FILES | shown | {"sheet.png", "decomposition.json"}  # tensors only where asked for


def test_features_of_an_older_run_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    before = decomposed(tmp_path, width=6)
    assert len(before.document["features"]) > 2
    (before.folder / "feature-02" / "notes.txt").write_text("mine")
    (before.folder / "feature-xy").mkdir()
    after = decomposed(tmp_path, features=1)
    assert after.folder == before.folder
    kept = {"feature-01/overlay.png", "feature-02/notes.txt"}
    assert files(after.folder) == FILES | kept | {"sheet.png", "decomposition.json"}
    assert not (after.folder / "feature-03").exists() and (after.folder / "feature-xy").exists()


def test_a_drawing_changes_pictures_and_no_numbers(tmp_path: Path) -> None:
    plain = decomposed(tmp_path, save_tensors=True)
    before = {name: (plain.folder / name).read_bytes() for name in files(plain.folder)}
    drawing = Drawing(smoothing=0, colours="orange-purple", percentile=90)
    other = decomposed(tmp_path, save_tensors=True, drawing=drawing)
    for name, data in before.items():
        same = (other.folder / name).read_bytes() == data
        assert same is not (name.endswith(".png") or name == "decomposition.json")
    assert {**plain.document, "colour_scale": 0} == {**other.document, "colour_scale": 0}


def test_an_image_and_an_attribution_of_zeros(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), "black").save(tmp_path / "photo.png")
    assert all(map(math.isfinite, numbers(decomposed(tmp_path).document)))
    model = loaded()
    for parameter in model.module.parameters():
        parameter.data.zero_()
    done = decomposed(tmp_path, model)
    assert all(map(math.isfinite, numbers(done.document)))
    assert all(entry["centre"] is entry["box"] is entry["share"] is None for entry in done.document["features"])
    contrast = explained(tmp_path, "cat", "dog", model=model)[-1]
    assert contrast.document["pairs"][0]["for_first"] == {"sum": 0.0, "centre": None, "box": None}
