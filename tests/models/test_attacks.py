"""No file that pathx is given runs code: not a pickle in any disguise, and not an archive that shows two faces."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.attacks import attacks, exported, packed, records_of
from support.command_line import Pathx, picture

from pathx.errors import PathxError
from pathx.models.load import load_model

EXTENSIONS = (".pt", ".pth", ".pt2", ".ts", ".safetensors", ".onnx", ".bin", ".ckpt", ".json", ".txt", ".py", "")


@pytest.fixture(scope="module")
def genuine() -> bytes:
    return exported()


def test_the_genuine_archive_is_loaded(genuine: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    file.write_bytes(packed(records_of(genuine)))  # packed as the attacks are
    loaded = load_model(file)
    assert loaded.labels == ("cat", "red fox", "dog")
    assert loaded.module(torch.zeros(3, 3, 8, 8)).shape == (3, 3)


def is_answer(attempt: Callable[[], object]) -> bool:
    """Whether a file is loaded, or refused with one line about the call."""
    try:
        attempt()
    except PathxError as error:
        return error.usage and "\n" not in str(error)
    return True


def check(mark: Path, name: str) -> None:
    found = mark.exists()
    mark.unlink(missing_ok=True)
    assert not found, name


def test_no_model_file_runs_code(genuine: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.syspath_prepend(tmp_path)  # where a module called `mark` would be found, and touch the mark
    (tmp_path / "mark.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    image = torch.zeros(1, 3, 8, 8)
    for name, content in attacks(mark, genuine):
        file = tmp_path / "model.pt2"
        file.write_bytes(content)
        for attempt in (
            lambda: load_model(file, input_size=(3, 8, 8), mean=0.5, std=0.5).module(image),  # noqa: B023
            lambda: load_model("squeezenet1_1", weights=file),  # noqa: B023
            lambda: load_model("squeezenet1_1", labels=file),  # noqa: B023
        ):
            assert is_answer(attempt), name
            check(mark, name)
    assert "mark" not in sys.modules


def test_the_attacks_are_real(genuine: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch itself, given the same files, runs them."""
    mark = tmp_path / "mark"
    files = dict(attacks(mark, genuine))
    for logger in ("torch.export", "torch._export"):
        monkeypatch.setattr(logging.getLogger(logger), "disabled", True)
    names = ["record-case-data/sample_inputs/model.PT", "size", "guards", "older-layout", "weights-flagged"]
    ran = []
    for name in names:
        with contextlib.suppress(Exception):  # raised after the deed
            torch.export.load(io.BytesIO(files[name])).module()(torch.zeros(2, 3, 8, 8))
        if mark.exists():
            ran.append(name)
            mark.unlink()
    pickle.loads(files["pickle-2"])
    assert mark.exists()
    assert ran == names


def calls(file: str) -> list[tuple[str, ...]]:
    """Every option that takes a file, and every file that is found beside another."""
    size = ("--input-size", "3,8,8", "--mean", "0.5", "--std", "0.5", "--quiet")
    return [
        ("explain", "photo.png", "--model", file, *size),
        ("models", file, "--input-size", "3,8,8"),
        ("explain", "photo.png", "--weights", file, "--quiet"),
        ("explain", "photo.png", "--labels", file, "--quiet"),
        ("explain", file, "--quiet"),
        ("redraw", file),
    ]


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_no_option_runs_code(here: Path, pathx_: Pathx, genuine: bytes, step: int) -> None:
    mark = here / "mark"
    picture()
    for number, (name, content) in enumerate(list(attacks(mark, genuine))[::step]):
        extension = EXTENSIONS[number % len(EXTENSIONS)]
        file = f"attack{extension}"
        Path(file).write_bytes(content)
        for call in calls(file):
            done = pathx_(*call)
            assert done.status in (0, 1, 2), name
            assert extension == ".txt" or done.err.count("\n") <= 3, done.err  # failures are listed; a list names many
            assert "Traceback" not in done.err
            assert "unexpected" not in done.err.replace("do not fit", ""), (name, call, done.err)
            check(mark, f"{name}: {' '.join(call)}")


def test_no_file_beside_a_model_or_a_result_runs_code(here: Path, pathx_: Pathx, genuine: bytes) -> None:
    """Sidecars, and what earlier runs are taken to have written."""
    mark = here / "mark"
    picture()
    Path("model.pt2").write_bytes(genuine)
    model = ("--model", "model.pt2", "--depth", "1", "--quiet")
    assert pathx_("explain", "photo.png", *model, "--save-tensors").status == 0
    (folder,) = Path("pathx-out/photo.png").iterdir()
    whole = {name: (folder / name).read_bytes() for name in ("path.json", "tensors.safetensors")}
    for name, content in list(attacks(mark, genuine))[::32]:
        for beside in ("model.json", "model.pt2.json"):
            Path(beside).write_bytes(content)
            assert pathx_("explain", "photo.png", *model).status == 2, name
            Path(beside).unlink()
            check(mark, name)
        for saved, good in whole.items():
            (folder / saved).write_bytes(content)
            pathx_("redraw", "pathx-out/photo.png")
            (folder / saved).write_bytes(good)
            check(mark, name)


def test_a_refusal_says_what_and_how_to_mend_it(genuine: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    files = dict(attacks(tmp_path / "mark", genuine))
    for name, reason in (
        ("operation-torch.os.system", "'torch.os.system' is not an operation on tensors"),
        ("weights-flagged", "is a pickle, and pathx never runs one"),
        ("compiled", "it is compiled, and compiled code cannot be checked"),
        ("constant-opaque_obj_", "'opaque_obj_0' is no plain tensor"),
    ):
        file.write_bytes(files[name])
        with pytest.raises(PathxError, match=re.escape(reason)) as caught:
            load_model(file)
        assert str(caught.value).endswith(
            "): export the model with torch.export.save, with plain tensors as weights, inputs and results"
        )
