from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.small import picture
from torch import nn

import pathx
import pathx.runs.compute
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing
from pathx.runs.run import Settings, State, explain_files

# Pictures to explanations


@pytest.fixture
def model() -> LoadedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6), nn.ReLU(), nn.Linear(6, 3)
        module = nn.Sequential(*layers).eval()
    preprocessing = Preprocessing((3, 8, 8), (0.5,) * 3, (0.25,) * 3)
    return LoadedModel(module, "net", "none", "0" * 64, preprocessing, ("cat", "dog", "fox"))


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Five files, of which the second and the last are no pictures."""
    names = [picture(tmp_path / f"{number}.png", (10, 10), seed=number) for number in range(5)]
    names[1].write_text("no picture")
    names[4].unlink()
    return names


def test_the_files_say_what_the_engine_says(model: LoadedModel, pictures: list[Path], tmp_path: Path) -> None:
    settings = Settings(depth="all", width=3, alpha=0.25, dtype="float64")
    (done,) = explain_files(model, pictures[:1], tmp_path / "out", settings=settings)
    assert done.state is State.done
    with Image.open(pictures[0]) as image:
        inputs = model.preprocessing(image)[None].double()
    (expected,) = pathx.explain(model.module, inputs, depth="all", width=3, alpha=0.25)
    for layer, like in zip(done.made.path, expected.path, strict=True):
        assert [(u.tensor, u.index) for u in layer.units] == [(u.tensor, u.index) for u in like.units]
        assert [u.weight for u in layer.units] == pytest.approx([u.weight for u in like.units])
    assert torch.allclose(done.made.attribution, expected.attribution, rtol=1e-9)
    assert done.made.attribution.dtype == torch.float64
    assert done.document["linear_model"]["score"] == pytest.approx(expected.score)
    assert done.predictions[0][0] == done.document["target"]["label"] == model.labels[expected.target]


def test_an_output_that_is_no_number_fails_that_picture_alone(
    model: LoadedModel, pictures: list[Path], tmp_path: Path
) -> None:
    class Fragile(nn.Module):
        """Overflows for bright pictures."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bright = torch.relu(x.mean((1, 2, 3), keepdim=True) - 0.2) * 3e38
            return self.inner(x) + bright.flatten(1)  # type: ignore[no-any-return]

    Image.new("RGB", (9, 9), "white").save(pictures[2])
    fragile = LoadedModel(Fragile().eval(), "net", "none", "0" * 64, model.preprocessing, model.labels)
    files = [pictures[0], pictures[2], pictures[3]]
    results = list(explain_files(fragile, files, tmp_path / "out", settings=Settings(depth=1)))
    assert [result.state for result in results] == [State.done, State.failed, State.done]
    assert "NaN or infinite" in str(results[1].error)
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == {"0.png", "3.png", "index.jsonl", "run.json"}


# Threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def many(folder: Path, count: int) -> list[Path]:
    return [picture(folder / f"{number:02}.png", (10, 10), seed=number) for number in range(count)]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("form", [lambda module: module, torch.jit.script], ids=["eager", "scripted"])
def test_a_run_warns_of_nothing(model: LoadedModel, tmp_path: Path, form: Callable[[nn.Module], nn.Module]) -> None:
    files = many(tmp_path / "photos", 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        network = form(model.module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        given = replace(model, module=network)
        results = list(explain_files(given, files, tmp_path / "out", settings=Settings(depth=1, batch_size=2)))
    assert [result.state for result in results] == [State.done] * 6
