"""Pictures redrawn from what was saved are those that the run made; what cannot be is one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image
from support.command_line import files
from support.saved import run
from support.small import picture

from pathx.drawing.render import Drawing
from pathx.errors import PathxError
from pathx.results.redraw import redraw

DRAWINGS = [Drawing(), Drawing(smoothing=0.1, colours="orange-purple", percentile=90)]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


@pytest.mark.parametrize(("decompose", "drawing"), [(False, DRAWINGS[0]), (True, DRAWINGS[1])])
def test_what_is_drawn_anew_is_what_the_run_draws(tmp_path: Path, decompose: bool, drawing: Drawing) -> None:
    expected = contents(run(tmp_path, "expected", decompose=decompose, drawing=drawing))
    folder = run(tmp_path, decompose=decompose)
    results = list(redraw(folder, drawing))
    assert all(not result.failed and not result.notes for result in results)
    assert len(results) == 4  # two classes, the one against the other, and a contrast
    found = contents(folder)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_without_the_photo_it_is_drawn_on_grey(tmp_path: Path) -> None:
    folder = run(tmp_path, pictures=False)
    photo = tmp_path / "photo.png"
    picture(photo, seed=5)
    results = list(redraw(folder))
    assert all(not r.failed and r.notes == (f"the photo {photo} has changed since and is left out",) for r in results)
    photo.unlink()
    results = list(redraw(folder))
    assert all(not r.failed and "is not where it was" in r.notes[0] for r in results)
    with Image.open(folder / "photo.png/cat/overlay.png") as shown:
        assert shown.size == (520, 520)


def problem(folder: Path) -> str:
    (failed,) = {str(result.error) for result in redraw(folder) if result.failed}
    return failed


def test_results_without_tensors(tmp_path: Path) -> None:
    folder = run(tmp_path, save_tensors=False, pictures=False) / "photo.png"
    shutil.rmtree(folder / "dog")
    shutil.rmtree(folder / "cat-against-dog")
    (folder / "contrast.json").unlink()
    assert problem(folder) == f"{folder / 'cat'} has no tensors.safetensors to draw from: run again with `save_tensors`"


def test_results_of_different_runs_are_not_mixed(tmp_path: Path) -> None:
    folder = run(tmp_path, decompose=True, pictures=False) / "photo.png"
    shutil.rmtree(folder / "dog")
    (folder / "contrast.json").unlink()
    other = run(tmp_path, "other", width=2, pictures=False) / "photo.png" / "cat"
    for name in files(other):
        shutil.copy(other / name, folder / "cat" / name)
    assert problem(folder) == f"{folder / 'cat'} holds parts of different runs: run pathx decompose again"
    shutil.copy(run(tmp_path, "third", width=3, pictures=False) / "photo.png/cat/path.json", other)
    assert problem(other).endswith("is of another explanation than path.json beside it: make it again")


def test_a_contrast_of_explanations_made_since(tmp_path: Path) -> None:
    folder = run(tmp_path, pictures=False) / "photo.png"
    shutil.rmtree(folder / "cat")
    shutil.copytree(run(tmp_path, "other", width=2, pictures=False) / "photo.png" / "cat", folder / "cat")
    assert problem(folder) == f"{folder} holds explanations of different runs: run pathx explain again"


def test_files_that_are_broken(tmp_path: Path) -> None:
    folder = run(tmp_path, pictures=False) / "photo.png" / "cat"
    for name, content, message in (
        ("tensors.safetensors", b"torn", "cannot be read (SafetensorError): make it again"),
        ("path.json", b"{", "cannot be read (it is not valid JSON): make it again"),
        ("path.json", b"{}", "was not written by pathx: it has no schema of pathx"),
        ("path.json", b'{"schema": "pathx/path@1"}', "is damaged (the document has no image): make it again"),
    ):
        (folder / name).write_bytes(content)
        assert problem(folder).endswith(message)


def test_folders_without_results(tmp_path: Path) -> None:
    for folder, message in ((tmp_path, "holds no results of pathx"), (tmp_path / "x", "is not a folder")):
        with pytest.raises(PathxError, match=message) as caught:
            list(redraw(folder))
        assert caught.value.usage
