"""What is read back from files is what was written. (That it draws the same pictures: test_redraw.py.)"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from support.saved import run

from pathx.errors import PathxError
from pathx.results.saved import read_decomposition, read_explanation


def test_a_saved_explanation_is_the_one_that_was_made(tmp_path: Path) -> None:
    folder = run(tmp_path, pictures=False) / "photo.png" / "cat"
    saved = read_explanation(folder)
    document = json.loads((folder / "path.json").read_text())
    assert saved.document == document
    made = saved.explanation
    assert made.score == document["linear_model"]["score"] and made.bias == document["linear_model"]["bias"]
    assert made.removal is not None and asdict(made.removal) == document["removal"]
    assert float(made.attribution.double().sum()) == document["linear_model"]["attribution_sum"]
    assert [unit.contribution for unit in made.path[0].units] == [
        unit["contribution"] for unit in document["layers"][0]["units"]
    ]


def test_of_the_logits_only_those_it_is_about_are_known(tmp_path: Path) -> None:
    folder = run(tmp_path, pictures=False) / "photo.png" / "cat-against-dog"
    saved = read_explanation(folder)
    assert (saved.explanation.target, saved.explanation.against) == (0, 2)
    known = [not math.isnan(value) for value in saved.explanation.logits.tolist()]
    assert known == [True, False, True, False]
    assert saved.explanation.removal is not None
    assert asdict(saved.explanation.removal) == saved.document["removal"]
    assert saved.document["removal"]["against"].keys() == {"before", "after", "at_random"}
    assert float(saved.explanation.logits[0]) == pytest.approx(saved.document["target"]["logit"])


def test_a_decomposition_comes_back_with_its_features(tmp_path: Path) -> None:
    folder = run(tmp_path, decompose=True) / "photo.png" / "cat"
    document = json.loads((folder / "decomposition.json").read_text())
    made, whole = read_decomposition(folder, document)
    assert whole.explanation is made.whole and len(made.units) == len(document["units"])
    assert [one.share for one in made.features] == [entry["share"] for entry in document["features"]]
    with pytest.raises(PathxError, match=r"decomposition\.json is damaged, or not of this version: make it again$"):
        read_decomposition(folder, {key: value for key, value in document.items() if key != "layer"})
