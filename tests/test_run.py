from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import pathx
from pathx.errors import PathxError
from pathx.models import LoadedModel
from pathx.preprocessing import Preprocessing
from pathx.run import Done, Failed, Settings, explain_files, resolve_device

pytestmark = pytest.mark.usefixtures("one_thread")


# Devices


def machine(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_takes_the_best_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert resolve_device("auto") == torch.device("cpu")
    machine(monkeypatch, mps=True)
    assert resolve_device("auto") == resolve_device("mps") == torch.device("mps")
    machine(monkeypatch, gpus=2, mps=True)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [
        ("cuda", 0, "device 'cuda' is not there; this machine has cpu: use --device auto"),
        ("cuda:99", 0, "device 'cuda:99' is not there; this machine has cpu: use --device auto"),
        ("mps", 1, "device 'mps' is not there; this machine has cpu, cuda: use --device auto"),
        ("cuda:2", 2, "device 'cuda:2' is not there; this machine has cuda:0 to cuda:1"),
        *(
            (device, 1, f"device '{device}' is unknown; use auto, cpu, cuda, cuda:1 or mps")
            for device in ("tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cpu:1", "", "AUTO")
        ),
    ],
)
def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, message: str) -> None:
    machine(monkeypatch, gpus=gpus)
    with pytest.raises(PathxError) as caught:
        resolve_device(device)
    assert str(caught.value) == message
    assert caught.value.usage


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
    names = [tmp_path / f"{number}.png" for number in range(5)]
    for number, name in enumerate(names):
        pixels = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(number))
        Image.frombytes("RGB", (10, 10), bytes(pixels.tolist())).save(name)
    names[1].write_text("no picture")
    names[4].unlink()
    return names


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_results_come_in_the_order_of_the_pictures(
    model: LoadedModel, pictures: list[Path], tmp_path: Path, batch_size: int
) -> None:
    settings = Settings(depth=1, batch_size=batch_size)
    results = list(explain_files(model, pictures, tmp_path / "out", targets=("fox", "top:1"), settings=settings))
    order = [result.file if isinstance(result, Failed) else result.picture.file for result in results]
    assert order == sorted(order)
    assert set(order) == set(map(str, pictures))
    failures = [result for result in results if isinstance(result, Failed)]
    assert [failure.file for failure in failures] == [str(pictures[1]), str(pictures[4])]
    assert not any(failure.error.usage for failure in failures)
    for result in results:
        if isinstance(result, Done):
            assert result.folder.parent == tmp_path / "out" / Path(result.picture.file).name
            assert json.loads((result.folder / "path.json").read_text()) == result.document
            assert result.document["depth"] == result.explanation.depth == 1
            assert sum(probability for _, probability in result.predictions) == pytest.approx(1)
    assert next(r for r in results if isinstance(r, Done)).explanation.target == 2


def test_only_bad_pictures(model: LoadedModel, pictures: list[Path], tmp_path: Path) -> None:
    results = list(explain_files(model, [pictures[4], pictures[1]], tmp_path / "out"))
    assert [result.file for result in results if isinstance(result, Failed)] == [str(pictures[4]), str(pictures[1])]
    assert len(results) == 2
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"index.jsonl", "run.json"}
    assert list(explain_files(model, [], tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()


def test_the_files_say_what_the_engine_says(model: LoadedModel, pictures: list[Path], tmp_path: Path) -> None:
    settings = Settings(depth="all", width=3, alpha=0.25, dtype="float64")
    (done,) = explain_files(model, pictures[:1], tmp_path / "out", settings=settings)
    assert isinstance(done, Done)
    with Image.open(pictures[0]) as image:
        inputs = model.preprocessing(image)[None].double()
    (expected,) = pathx.explain(model.module, inputs, depth="all", width=3, alpha=0.25)
    assert done.explanation.path == expected.path
    assert torch.equal(done.explanation.attribution, expected.attribution)
    assert done.explanation.attribution.dtype == torch.float64
    assert done.document["linear_model"]["score"] == expected.score
    assert done.predictions[0][0] == done.document["target"]["label"] == model.labels[expected.target]


def test_the_model_is_left_as_it_was(model: LoadedModel, pictures: list[Path], tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    list(explain_files(model, pictures, tmp_path / "out", settings=Settings(depth=2, dtype="float64")))
    after = model.module.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype is float32 or float64, not 'float16'"),
        ({"batch_size": 0}, "batch size 0 is out of range; use 1 or more, or auto"),
        ({"batch_size": "many"}, "batch size many is out of range; use 1 or more, or auto"),
        ({"workers": -1}, "workers -1 is out of range; use 0 or more"),
        ({"skips": "some"}, "skips is 'adjacent' or 'all', not 'some'"),
        ({"depth": 3}, "depth 3 is out of range: the network has 2 hidden layers; use 1 to 2 or all"),
    ],
)
def test_a_wrong_call_is_raised(
    model: LoadedModel, pictures: list[Path], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PathxError) as caught:
        list(explain_files(model, pictures, tmp_path / "out", settings=Settings(**options)))
    assert str(caught.value) == message
    assert caught.value.usage
    assert not (tmp_path / "out").exists()


def test_float64_on_mps_is_refused(
    model: LoadedModel, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, mps=True)
    with pytest.raises(PathxError, match=r"^mps has no float64; use --dtype float32 or --device cpu$"):
        list(explain_files(model, pictures, tmp_path / "out", settings=Settings(dtype="float64")))


def test_an_output_that_is_no_number_fails_that_picture_alone(
    model: LoadedModel, pictures: list[Path], tmp_path: Path
) -> None:
    class Fragile(nn.Module):
        """Overflows for bright pictures."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bright = torch.relu(x.mean((1, 2, 3), keepdim=True) - 1.5) * 1e38 * 1e10
            return self.inner(x) + bright.flatten(1)  # type: ignore[no-any-return]

    Image.new("RGB", (9, 9), "white").save(pictures[2])
    fragile = LoadedModel(Fragile().eval(), "net", "none", "0" * 64, model.preprocessing, model.labels)
    files = [pictures[0], pictures[2], pictures[3]]
    results = list(explain_files(fragile, files, tmp_path / "out", settings=Settings(depth=1)))
    assert [type(result) for result in results] == [Done, Failed, Done]
    assert isinstance(results[1], Failed)
    assert "NaN or infinite" in str(results[1].error)
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == {"0.png", "3.png", "index.jsonl", "run.json"}
