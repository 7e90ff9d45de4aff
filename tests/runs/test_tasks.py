"""What is made of each image: which classes are asked about, and what is written of them, free of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.small import LABELS, loaded, picture

from pathx.engine.freeze import freeze
from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.pipeline import Input, read_input
from pathx.runs.settings import Settings
from pathx.runs.tasks import Batch, decompose_task, explain_batch
from pathx.runs.writing import write_results

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(tmp_path: Path, targets: tuple[str, ...] = (), folder: str = "other", bias: float = 0.0, **how: Any) -> Batch:
    """Two images in one folder."""
    model = loaded()
    with torch.no_grad():
        model.module[-1].bias[1] += bias  # type: ignore[index, union-attr, operator]
    files = [picture(tmp_path / folder / f"{number}.png", seed=number) for number in range(2)]
    read = [read_input(ImageFile(str(file), file.name), model.preprocessing) for file in files]
    inputs = [one for one in read if isinstance(one, Input)]
    frozen = freeze(model.module, torch.stack([one.tensor for one in inputs]))
    return Batch.with_targets(
        model, frozen, inputs, targets, tmp_path / "out", Settings(depth=1, width=2, pictures=False, **how)
    )


def test_the_predicted_class_and_the_label_where_it_is_another(tmp_path: Path) -> None:
    assert batch(tmp_path, bias=99.0).targets == [(1,), (1,)]
    wrong = batch(tmp_path, folder="dog", bias=99.0)
    assert wrong.truths == [2, 2] and wrong.targets == [(1, 2), (1, 2)]
    assert batch(tmp_path, folder="red fox", bias=99.0).targets == [(1,), (1,)]  # as labelled
    assert batch(tmp_path, ("cat",), folder="dog", bias=99.0).targets == [(0,), (0,)]  # what is asked for is asked for


def test_one_class_against_another_is_nothing_against_itself(tmp_path: Path) -> None:
    asked = batch(tmp_path, ("cat", "dog"), against="dog")
    assert asked.against == 2 and asked.targets == [(0,), (0,)] and not list(asked.differences())
    made = list(explain_batch(batch(tmp_path, bias=99.0, against="red fox")))  # which is what the network says
    assert ["red fox is compared with itself" in str(one.failure and one.failure.error) for one in made] == [True, True]
    with pytest.raises(PathxError, match="dog is compared with itself") as caught:
        batch(tmp_path, ("dog",), against="dog")
    assert caught.value.usage


def test_an_output_that_is_no_number_fails_its_image_alone(tmp_path: Path) -> None:
    asked = batch(tmp_path)
    asked.frozen.logits[0] = torch.nan
    first, second = explain_batch(
        Batch.with_targets(asked.model, asked.frozen, asked.inputs, (), asked.out, asked.settings)
    )
    assert first.failure is not None and "NaN or infinite" in str(first.failure.error)
    assert second.failure is None and len(second.found) == 1


def test_several_classes_are_explained_each_and_compared(tmp_path: Path) -> None:
    first, _ = explain_batch(batch(tmp_path, ("cat", "dog", "cup")))
    assert first.image is not None
    results = write_results(first)
    assert [result.kind.name for result in results] == ["explanation"] * 3 + ["contrast"]
    assert [result.folder.name for result in results[:3]] == ["cat", "dog", "cup"]
    assert {file.parent.name for file in (tmp_path / "out").rglob("path.json")} == {
        *("cat", "dog", "cup", "cat-against-dog", "cat-against-cup")
    }
    label, probability = results[0].predictions[0]
    assert (label, probability) == first.image.top[0][1:] and label in LABELS and len(first.image.top) == 4


def test_a_decomposition_has_its_settings_in_the_index_and_no_other_class_beside_it(tmp_path: Path) -> None:
    task = decompose_task(features=2)
    assert task.settings == {"from_layer": None, "features": 2}
    first, _ = task.batch(batch(tmp_path, ("cat",)))
    (result,) = write_results(first)
    assert result.kind.name == "decomposition" and sum(bool(one["folder"]) for one in result.document["features"]) <= 2
    with pytest.raises(PathxError, match="decompose compares no classes"):
        list(task.batch(batch(tmp_path, ("cat",), against="dog")))
