"""The files of contrasts: the first class against each other, and what still holds of an older picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.saved import explained, numbers
from support.small import LABELS, loaded, picture

from pathx import Contrast
from pathx.results.files import Kind
from pathx.runs.run import Settings, explain_files


def test_the_first_of_several_targets_is_compared_with_each_other(tmp_path: Path) -> None:
    done = explained(tmp_path, "dog", "cat", "cup", dtype="float64", pictures=False)[-1]
    document = json.loads((done.folder / "contrast.json").read_text())
    assert document == done.document and done.folder == tmp_path / "out" / "photo.png"
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
    done = explained(tmp_path, "top:4")[-1]
    assert len(done.document["targets"]) == 4 and len(done.document["pairs"]) == 3
    with Image.open(done.folder / "contrast.png") as shown:
        assert shown.width < 1560


@pytest.mark.parametrize("decompose", [None, {}])
def test_a_wrong_prediction_is_explained_against_the_folders_name(tmp_path: Path, decompose: Any) -> None:
    names = [picture(tmp_path / label / f"{seed}.png", seed=seed) for label in (*LABELS, "other") for seed in range(2)]
    settings = Settings(depth=1, width=1, pictures=False)
    results = list(explain_files(loaded(), names, tmp_path / "out", settings=settings, decompose=decompose))
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
    asked = explain_files(loaded(), names, tmp_path / "out", targets=("top:1",), settings=settings, decompose=decompose)
    assert not any(result.kind is Kind.contrast for result in asked)
