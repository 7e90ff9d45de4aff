"""path.json is exact, strict and last; its presence means that the files beside it are whole and belong to it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.drawing.render import pixel_map
from pathx.explanation import Edges, Explanation, LayerTensor, PathLayer, Unit
from pathx.images.read import UserImage
from pathx.results.documents import ResultSubject, explanation_files, path_document
from pathx.results.files import NoRoomError
from pathx.results.older import replace_results
from pathx.results.saved import read_explanation
from pathx.runs.run import result_folder

MODEL = {"name": "net", "weights": "IMAGENET1K_V1", "sha256": "m" * 64, "classes": 4}
IMAGE = UserImage(file="photos/../cat.png", sha256="p" * 64, pixels=Image.new("RGB", (60, 40), "grey"))


def unit(tensor: str, index: tuple[int, ...], activation: float = 2.0, weight: float = 0.25) -> Unit:
    return Unit(tensor, index, activation, weight, weight * activation, 0.5, (0, 1, 7, 8))


def explanation(**changes: Any) -> Explanation:
    attribution = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    top = PathLayer(3, False, (LayerTensor("fc", (10,)),), (unit("fc", (4,)), unit("fc", (2,))))
    places = ((1.0, 2.0), (1.5, 2.0))
    branches = (LayerTensor("left", (5, 4, 4)), LayerTensor("right", (6, 4, 4), places), LayerTensor("side", (9,)))
    low = PathLayer(2, True, branches, (unit("right", (5, 1, 2)), unit("side", (8,)), unit("left", (0, 3, 3))))
    whole: dict[str, Any] = {
        "target": 2,
        "path": (top, low),
        "attribution": attribution,
        "weight": attribution * 2,
        "bias": 0.5,
        "score": float(attribution.double().sum()) + 0.5 + 1e-7,
        "logits": torch.tensor([3.0, -1.0, 2.0, 2.5]),
        "depth": 2,
        "width": 3,
        "alpha": 0.25,
        "skips": "adjacent",
        "hidden_layers": 3,
    }
    return Explanation(**whole | changes)


def subject(**changes: Any) -> ResultSubject:
    whole = {"image": IMAGE, "region": (10.0, 0.0, 50.0, 40.0), "model": MODEL, "device": "cuda:0"}
    return ResultSubject(**{**whole, "labels": ("a", "b", "tiger cat", "d"), **changes})


def write(folder: Path, explained: Explanation | None = None, **options: Any) -> dict[str, Any]:
    files = explanation_files(explained or explanation(), subject(**options))
    replace_results(folder, files)
    return files.document


def document(explained: Explanation, **changes: Any) -> dict[str, Any]:
    return path_document(explained, subject(**changes))


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def with_edges(values: torch.Tensor) -> Explanation:
    """The lower layer's three units, with edges to the two units above and to the class."""
    whole = explanation()
    edges = (Edges(None, values[:, :1]), Edges(3, values[:, 1:]))
    return replace(whole, path=(whole.path[0], replace(whole.path[1], edges=edges)))


def test_the_document_lists_the_strongest_edges_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([[0.0, 1.0, -4.0], [0.5, 0.0, 2.0], [0.0, 0.0, 0.0]])
    layer = document(with_edges(values))["layers"][1]
    assert list(layer) == ["layer", "below_alpha", "tensors", "units", "edges", "edges_share"]
    assert layer["edges"] == [
        {"to_layer": None, "values": [[1, 0, 0.5]]},
        {"to_layer": 3, "values": [[0, 1, -4.0], [1, 1, 2.0], [0, 0, 1.0]]},
    ]
    assert layer["edges_share"] == 1.0
    monkeypatch.setattr("pathx.results.documents.MOST_EDGES", 2)  # the strongest, and their share
    layer = document(with_edges(torch.tensor([[0.0, 1.0, -4.0], [-3.0, 0.0, 2.0], [0.0, 0.0, 0.0]])))["layers"][1]
    assert layer["edges"] == [{"to_layer": None, "values": [[1, 0, -3.0]]}, {"to_layer": 3, "values": [[0, 1, -4.0]]}]
    assert layer["edges_share"] == 0.7


def test_the_document_says_what_the_explanation_holds() -> None:
    made = document(explanation())
    assert made["schema"] == "pathx/path@1"
    assert made["image"] == {"file": "photos/../cat.png", "sha256": "p" * 64, "width": 60, "height": 40}
    assert made["model"]["hidden_layers"] == 3 and made["model"]["classes"] == 4
    assert (made["depth"], made["width"], made["alpha"], made["skips"]) == (2, 3, 0.25, "adjacent")
    assert made["complete"] is False and document(explanation(depth=3))["complete"] is True
    assert [layer["layer"] for layer in made["layers"]] == [3, 2]
    assert [layer["below_alpha"] for layer in made["layers"]] == [False, True]
    assert made["layers"][1]["tensors"][1] == {
        "name": "right",
        "shape": [6, 4, 4],
        "places": [[1.0, 2.0], [1.5, 2.0]],
    }
    assert made["layers"][1]["units"][0] == {
        "tensor": "right",
        "index": [5, 1, 2],
        "activation": 2.0,
        "weight": 0.25,
        "contribution": 0.5,
        "importance": 0.5,
        "receptive_field": [0, 1, 7, 8],
    }
    assert made["created_by"]["pathx"] == pathx.__version__ and made["created_by"]["torch"] == version("torch")
    assert (made["created_by"]["device"], made["created_by"]["dtype"]) == ("cuda:0", "float32")


def test_target_says_logit_probability_and_rank_from_one() -> None:
    target = document(explanation())["target"]
    wanted = math.exp(2.0) / sum(map(math.exp, (3.0, -1.0, 2.0, 2.5)))
    assert (target["index"], target["logit"], target["rank"]) == (2, 2.0, 3)
    assert target["probability"] == pytest.approx(wanted, rel=1e-12)
    assert document(explanation(target=0))["target"]["rank"] == 1
    assert document(explanation(logits=torch.zeros(4)))["target"]["rank"] == 1


def test_sums_are_taken_in_float64() -> None:
    attribution = torch.full((1, 1000, 1000), 0.1)  # a sum in float32 is off by more than a thousandth of this residual
    linear = document(explanation(attribution=attribution, weight=attribution, score=100_001.0, bias=1.0))[
        "linear_model"
    ]
    assert linear["attribution_sum"] == pytest.approx(float(torch.tensor(0.1)) * 1e6, rel=1e-12)
    assert linear["residual"] == 100_001.0 - 1.0 - linear["attribution_sum"]


@pytest.mark.parametrize(
    ("bad", "where"), [(math.nan, "score"), (math.inf, "logits"), (math.nan, "attribution"), (math.inf, "unit")]
)
def test_numbers_that_json_cannot_say_are_refused_before_anything_is_written(
    tmp_path: Path, bad: float, where: str
) -> None:
    whole = explanation()
    change: dict[str, Any] = {
        "score": bad,
        "logits": torch.tensor([1.0, 2.0, bad, 0.0]),
        "attribution": torch.full((3, 8, 8), bad),
        "path": (replace(whole.path[0], units=(unit("fc", (1,), activation=bad),)),),
    }
    key = "path" if where == "unit" else where
    with pytest.raises(PathxError, match="NaN or infinite") as caught:
        write(tmp_path / "x", explanation(**{key: change[key]}))
    assert "photos/../cat.png" in str(caught.value) and not (tmp_path / "x").exists()


def test_files_are_those_of_the_design(tmp_path: Path) -> None:
    made = write(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == {"figure.png", "heatmap.png", "overlay.png", "path.json"}
    assert made["files"] == {"figure": "figure.png", "heatmap": "heatmap.png", "overlay": "overlay.png"}
    text = (tmp_path / "a" / "b" / "path.json").read_text("utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    read = json.loads(text, parse_constant=refuse)
    assert read == made and list(read) == list(made)
    with Image.open(tmp_path / "a" / "b" / "heatmap.png") as image:
        assert image.tobytes() == pixel_map(explanation().attribution).convert("RGB").tobytes() and image.size == (8, 8)
    with Image.open(tmp_path / "a" / "b" / "overlay.png") as image:
        assert image.width / image.height == 1.5


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    whole = explanation()
    made = write(tmp_path, whole, save_tensors=True)
    assert made["files"]["tensors"] == "tensors.safetensors"
    with safe_open(tmp_path / "tensors.safetensors", "pt") as saved:
        read = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118  it is no dict
        about = json.loads(saved.metadata()["pathx"])
    assert set(read) == {"attribution", "weight", "bias", "path_map"} | {
        f"{x}.{n}" for x in ("units", "tensors", "weights") for n in (2, 3)
    }
    assert torch.equal(read["attribution"], whole.attribution) and torch.equal(read["weight"], whole.weight)
    assert read["bias"].item() == whole.bias
    assert read["path_map"].any()
    assert_close(read["path_map"], whole.path_map())
    assert_close(read_explanation(tmp_path).explanation.path_map(), whole.path_map())
    assert about["schema"] == "pathx/tensors@1"
    assert about["region"] == [10.0, 0.0, 50.0, 40.0]
    assert about["target"] == made["target"] and about["model"] == made["model"] and about["image"] == made["image"]
    for layer, listed in zip(whole.path, about["layers"], strict=True):
        which, index = read[f"tensors.{layer.layer}"].tolist(), read[f"units.{layer.layer}"]
        assert index.dtype == torch.int64
        rebuilt = [
            (listed["tensors"][place]["name"], tuple(row[: len(listed["tensors"][place]["shape"])]))
            for place, row in zip(which, index.tolist(), strict=True)
        ]
        assert rebuilt == [(kept.tensor, kept.index) for kept in layer.units]
        assert read[f"weights.{layer.layer}"].tolist() == [kept.weight for kept in layer.units]


def test_weights_that_share_memory_or_are_views_are_saved(tmp_path: Path) -> None:
    values = torch.randn(8, 8, 3).permute(2, 0, 1)
    write(tmp_path, explanation(attribution=values, weight=values, score=0.0), save_tensors=True)
    with safe_open(tmp_path / "tensors.safetensors", "pt") as saved:
        assert torch.equal(saved.get_tensor("weight"), values) and torch.equal(saved.get_tensor("attribution"), values)


class Crash(BaseException):
    """Not an Exception: as Ctrl-C."""


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("raised", [Crash(), OSError(28, "No space left on device")])
def test_no_error_between_files_leaves_a_whole_looking_or_half_written_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, raised: BaseException
) -> None:
    write(tmp_path, save_tensors=True)
    calls = 0

    def fail(source: Path, target: Path) -> None:
        nonlocal calls
        if calls == step:
            raise raised
        calls += 1
        assert not (tmp_path / "path.json").exists(), "the old path.json vouches for new files"
        rename(source, target)

    rename = os.replace
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((Crash, PathxError)) as caught:
        write(tmp_path, save_tensors=True)
    if isinstance(raised, OSError):
        assert str(tmp_path) in str(caught.value) and "No space left" in str(caught.value)
    assert names(tmp_path) == set()


def test_what_is_still_true_stays_and_nothing_else(tmp_path: Path) -> None:
    whole = write(tmp_path, save_tensors=True)
    (tmp_path / "notes.txt").write_text("mine")
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    assert write(tmp_path, draw=False) == whole
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before
    (tmp_path / "heatmap.png").unlink()
    assert set(write(tmp_path, draw=False)["files"]) == {"figure", "overlay", "tensors"}
    assert write(tmp_path, explanation(alpha=0.5), draw=False)["files"] == {}
    assert names(tmp_path) == {"path.json", "notes.txt"}


@pytest.mark.parametrize(
    "other",
    [
        {"depth": 1},
        {"width": 4},
        {"alpha": 0.2},
        {"skips": "all"},
        {"importance": "effect"},
        {"target": 1},
        {"logits": torch.tensor([3.0, -1.0, 2.1, 2.5])},
        {"attribution": torch.zeros(3, 8, 8, dtype=torch.float64)},
    ],
)
def test_another_explanation_keeps_nothing_of_an_older_one(tmp_path: Path, other: dict[str, Any]) -> None:
    write(tmp_path, save_tensors=True)
    write(tmp_path, explanation(**other), draw=False)
    assert names(tmp_path) == {"path.json"}


def test_what_rests_on_an_explanation_stays_as_long_as_that_is_true(tmp_path: Path) -> None:
    folder = tmp_path / "cat.png" / "tiger-cat"
    resting = ["decomposition.json", "sheet.png", "feature-01/path.json", "feature-01/heatmap.png", "../contrast.json"]
    about = write(folder)
    contrast = {**about, "targets": [about["target"]]}
    (folder / "feature-01").mkdir()
    for name in resting:
        (folder / name).write_text(json.dumps(contrast if "contrast" in name else about))
    write(folder, draw=False)
    assert all((folder / name).exists() for name in resting)
    write(folder, explanation(width=1))
    assert not any((folder / name).exists() for name in (*resting, "feature-01"))
    (folder / "feature-02").mkdir()  # of a decomposition that was cut short
    (folder / "feature-02" / "path.json").write_text("{}")
    write(folder, explanation(width=1))
    assert not (folder / "feature-02").exists()


def test_every_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    def replace(source: Path, target: Path) -> None:
        assert os.stat(source).st_ino in synced, target
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path, save_tensors=True)
    assert len(synced) == 5


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, save_tensors=True)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoRoomError, match="No space left on device"):
        write(tmp_path, explanation(width=1))
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(PathxError) as caught:
            write(folder)
        message = str(caught.value)
        assert str(folder) in message and "`out`" in message and "\n" not in message
    assert names(tmp_path) == {"file"}


def test_folders_mirror_the_path_of_the_image() -> None:
    for image in ("cat.png", "/home/me/cat.png", "../../cat.png", "a/../../cat.png"):
        assert result_folder(image, "tiger-cat") == Path("cat.png/tiger-cat")
    assert result_folder("./a/b/x.jpg", "fox") == Path("a/b/x.jpg/fox")
    for slug in ("", ".", "..", "a/b", "/etc"):
        with pytest.raises(PathxError):
            result_folder("cat.png", slug)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["a", "..", ".", "/", "x.png", "~", "\n"]), max_size=6), st.sampled_from(["/", ""]))
def test_no_path_escapes_the_output_folder(parts: list[str], start: str) -> None:
    try:
        folder = "/out" / result_folder(start + "/".join(parts), "fox")
    except PathxError:
        assert not parts or parts[-1] in ("..", ".", "/") or set(parts) <= {".", "/", ".."}
    else:
        resolved = os.path.normpath(folder)
        assert resolved.startswith("/out/") and resolved.endswith("/fox") and resolved != "/out/fox"
