"""The files of decompositions and contrasts: decomposition.json last, nothing stale, every number finite."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.small import LABELS, files, loaded, picture

from pathx import Contrast, PathxError
from pathx.drawing.render import Drawing
from pathx.models.load import LoadedModel
from pathx.results.result import Kind, Result
from pathx.runs.run import Settings, explain_files
from pathx.runs.tasks import decompose_task

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = {"figure.png", "heatmap.png", "overlay.png", "path.json"}


def decomposed(tmp_path: Path, model: LoadedModel | None = None, **options: Any) -> Result:
    own = {key: options.pop(key) for key in ("from_layer", "features", "group") if key in options}
    targets = options.pop("targets", ("cat",))
    results = explain_files(
        model or loaded(),
        [picture(tmp_path / "photo.png")],
        tmp_path / "out",
        targets=targets,
        settings=Settings(**{"depth": 2, **options}),
        task=decompose_task(**own),
    )
    (result,) = results
    if result.error is not None:
        raise result.error
    assert result.kind is Kind.decomposition
    return result


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from numbers(entry)
    elif isinstance(value, float):
        yield value


def test_a_folder_per_feature_and_a_document_that_tells_the_same(tmp_path: Path) -> None:
    done = decomposed(tmp_path, width=4, save_tensors=True)
    document = json.loads((done.folder / "decomposition.json").read_text())
    assert document == done.document
    made = done.decomposition
    assert " ".join(document) == (
        "schema image model target depth width alpha skips layer reason below_alpha whole features overlap grouping groups "
        "others difference colour_scale files created_by region"
    )
    whole = json.loads((done.folder / "path.json").read_text())
    assert whole["linear_model"]["score"] == document["whole"]["score"] == made.whole.score
    for number, (entry, feature) in enumerate(zip(document["features"], made.features, strict=True), start=1):
        assert (entry["feature"], entry["folder"]) == (number, f"feature-{number:02}")
        path = json.loads((done.folder / entry["folder"] / "path.json").read_text())
        (unit,) = next(layer for layer in path["layers"] if layer["layer"] == document["layer"])["units"]
        assert unit == entry["unit"] and unit["importance"] == entry["importance"]
        assert path["linear_model"]["score"] == entry["score"] == feature.score
        assert number in document["groups"][entry["group"] - 1]["features"]
    assert sum(entry["share"] for entry in document["features"]) == pytest.approx(1)
    assert sorted(n for group in document["groups"] for n in group["features"]) == list(
        range(1, len(made.features) + 1)
    )
    assert [len(row) for row in document["overlap"]] == [len(made.features)] * len(made.features)
    parts = {f"{e['folder']}/{name}" for e in document["features"] for name in FILES | {"tensors.safetensors"}}
    assert files(done.folder) == FILES | {"tensors.safetensors", "sheet.png", "decomposition.json"} | parts
    assert {*done.files, "decomposition.json"} == files(done.folder)
    assert document["difference"]["exact"] is made.difference.exact
    assert all(map(math.isfinite, numbers(document)))


def test_at_depth_1_the_scores_in_the_document_sum_to_the_whole(tmp_path: Path) -> None:
    document = decomposed(tmp_path, depth=1, width=8, dtype="float64").document
    assert len(document["features"]) > 1
    assert sum(entry["score"] for entry in document["features"]) == pytest.approx(document["whole"]["score"])
    assert document["difference"]["exact"]
    assert document["difference"]["score"] == pytest.approx(0, abs=1e-12)


def test_features_of_an_older_run_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    before = decomposed(tmp_path, width=6, group=False)
    assert len(before.document["features"]) > 2
    (before.folder / "feature-02" / "notes.txt").write_text("mine")
    (before.folder / "feature-xy").mkdir()
    after = decomposed(tmp_path, features=1, group=False)
    assert after.folder == before.folder
    kept = {"feature-01/" + name for name in FILES} | {"feature-02/notes.txt"}
    assert files(after.folder) == FILES | kept | {"sheet.png", "decomposition.json"}
    assert not (after.folder / "feature-03").exists() and (after.folder / "feature-xy").exists()
    assert after.document["grouping"] is None and after.document["others"]["units"] > 0


def test_the_document_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = decomposed(tmp_path).folder

    before = files(folder)
    rename, named = os.replace, []

    def replace(source: Path, target: Path) -> None:
        assert not (folder / "decomposition.json").exists()
        if len(named) == steps:
            raise OSError(5, "Input/output error")
        named.append(target)
        rename(source, target)

    for most in range(len(before)):
        steps = most
        named.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(PathxError, match="Input/output error"):
                decomposed(tmp_path)
        assert not files(folder)
        assert files(decomposed(tmp_path).folder) == before
    assert named[-1].name == "sheet.png"  # all but the document had their names by then


def test_a_drawing_changes_pictures_and_no_numbers(tmp_path: Path) -> None:
    plain = decomposed(tmp_path, save_tensors=True)
    before = {name: (plain.folder / name).read_bytes() for name in files(plain.folder)}
    drawing = Drawing(smoothing=0, colours="orange-purple", percentile=90, show_units=True, magnify=False)
    other = decomposed(tmp_path, save_tensors=True, drawing=drawing)
    for name, data in before.items():
        same = (other.folder / name).read_bytes() == data
        assert same is not (name.endswith(".png") or name == "decomposition.json")
    assert {entry["magnified"] for entry in other.document["features"]} == {1}
    dropped = {"features", "groups", "colour_scale"}
    for document in (plain.document, other.document):
        assert document.keys() > dropped
    assert {k: v for k, v in plain.document.items() if k not in dropped} == {
        k: v for k, v in other.document.items() if k not in dropped
    }


@pytest.mark.parametrize("colour", ["black", "white", "grey"])
def test_a_picture_of_one_colour(tmp_path: Path, colour: str) -> None:
    file = tmp_path / "flat.png"
    Image.new("RGB", (20, 20), colour).save(file)
    (done,) = explain_files(loaded(), [file], tmp_path / "out", settings=Settings(depth=2), task=decompose_task())
    assert done.kind is Kind.decomposition
    assert all(map(math.isfinite, numbers(done.document)))


def test_an_attribution_of_zeros(tmp_path: Path) -> None:
    model = loaded()
    for parameter in model.module.parameters():
        parameter.data.zero_()
    done = decomposed(tmp_path, model)
    assert all(map(math.isfinite, numbers(done.document)))
    assert all(entry["centre"] is entry["box"] is entry["share"] is None for entry in done.document["features"])
    contrast = contrasted(tmp_path, model, ("cat", "dog"))
    assert contrast.document["pairs"][0]["for_first"] == {"sum": 0.0, "centre": None, "box": None}


# Contrasts


def contrasted(tmp_path: Path, model: LoadedModel | None, targets: tuple[str, ...], **options: Any) -> Result:
    file = picture(tmp_path / "photo.png")
    results = list(
        explain_files(model or loaded(), [file], tmp_path / "out", targets=targets, settings=Settings(**options))
    )
    last = results[-1]
    assert last.kind is Kind.contrast
    return last


def test_the_first_of_several_targets_is_compared_with_each_other(tmp_path: Path) -> None:
    done = contrasted(tmp_path, None, ("dog", "cat", "cup"), dtype="float64")
    document = json.loads((done.folder / "contrast.json").read_text())
    assert document == done.document and done.folder == tmp_path / "out" / "photo.png"
    assert " ".join(document) == (
        "schema image model reason depth width alpha skips targets pairs colour_scale files created_by region"
    )
    assert [target["label"] for target in document["targets"]] == ["dog", "cat", "cup"]
    assert [(pair["first"], pair["second"]) for pair in document["pairs"]] == [(2, 0), (2, 3)]
    for target in document["targets"]:
        path = json.loads((done.folder / target["folder"] / "path.json").read_text())
        assert path["linear_model"]["score"] == target["score"]
    for pair, target in zip(document["pairs"], document["targets"][1:], strict=True):
        between = json.loads((done.folder / pair["folder"] / "path.json").read_text())
        assert (between["target"]["label"], between["against"]["label"]) == ("dog", target["label"])
        assert pair["score"] == between["linear_model"]["score"]
        assert pair["share"] == pytest.approx(pair["score"] / (document["targets"][0]["logit"] - target["logit"]))
        assert pair["attribution_sum"] + pair["bias"] == pytest.approx(pair["score"])
        assert pair["for_first"]["sum"] - pair["for_second"]["sum"] == pytest.approx(pair["attribution_sum"])
    assert all(map(math.isfinite, numbers(document)))


def test_many_classes_are_all_in_the_document_and_the_first_in_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contrast, "MOST_SHOWN", 2)
    done = contrasted(tmp_path, None, ("top:4",))
    assert len(done.document["targets"]) == 4 and len(done.document["pairs"]) == 3
    with Image.open(done.folder / "contrast.png") as shown:
        assert shown.width < 1560


@pytest.mark.parametrize("task", [None, decompose_task()])
def test_a_wrong_prediction_is_explained_against_the_folders_name(tmp_path: Path, task: Any) -> None:
    names = [picture(tmp_path / label / f"{seed}.png", seed=seed) for label in (*LABELS, "other") for seed in range(2)]
    settings = Settings(depth=1, width=1)
    results = list(explain_files(loaded(), names, tmp_path / "out", settings=settings, task=task))
    said: dict[Path, list[str]] = {}
    for result in results:
        assert not result.failed
        if result.kind is not Kind.contrast:
            said.setdefault(Path(result.file), []).append(result.document["target"]["label"])
    reasons = {Path(r.file): r.document["reason"] for r in results if r.kind is Kind.contrast}
    wrong = {file for file, labels in said.items() if file.parent.name in LABELS and labels[0] != file.parent.name}
    assert 0 < len(wrong) < len(names) - 2
    for file, labels in said.items():
        assert labels[1:] == ([file.parent.name] if file in wrong else [])
    assert reasons == {file: f"The network says {said[file][0]}; the label is {file.parent.name}." for file in wrong}
    asked = explain_files(loaded(), names, tmp_path / "out", targets=("top:1",), settings=settings, task=task)
    assert not any(result.kind is Kind.contrast for result in asked)
