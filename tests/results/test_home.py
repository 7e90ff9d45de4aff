"""Results in their folder: what is taken from there, what a line tells of, and what is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.indexes import line

from pathx.errors import PathxError
from pathx.results.home import Home, described, failed_line, files_of, remove_empty, taken
from pathx.results.result import Kind, Result, State


def written(folder: Path, name: str = "a.png", *files: str) -> Result:
    place = folder / name / "cat"
    place.mkdir(parents=True, exist_ok=True)
    for file in files:
        (place / file).write_text(file)
    return Result(name, State.done, Kind.explanation, place, {}, files)


def test_what_is_taken_is_gone_and_its_empty_folders_too(tmp_path: Path) -> None:
    first = written(tmp_path, "a.png", "heatmap.png", "path.json")
    second = written(tmp_path, "b.png", "path.json")
    (second.folder / "mine.txt").write_text("somebody else's")
    found = taken(tmp_path, [first, second, Result.failure("c.png", PathxError("no"))])
    assert list(found.files) == ["a.png/cat/heatmap.png", "a.png/cat/path.json", "b.png/cat/path.json"]
    assert found.files["a.png/cat/heatmap.png"] == b"heatmap.png"
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")] == [
        "b.png",
        "b.png/cat",
        "b.png/cat/mine.txt",
    ]


def test_a_document_is_whole_or_an_error(tmp_path: Path) -> None:
    home, made = Home(tmp_path), line(tmp_path, "a.png")["explanations"][0]
    assert home.document(made) == {} and home.where(made) == tmp_path / "a.png/cat"
    with pytest.raises((ValueError, OSError)):
        home.document({**made, "sha256": "0" * 64})
    with pytest.raises((ValueError, OSError)):
        home.document({**made, "files": ["path.json", "heatmap.png"]})


def test_shards_are_read_by_place_and_named_when_they_are_whole(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "open").write_bytes(b"0123456789")
    home.put(tmp_path / "open", "results-1.tar")
    assert home.read("results-1.tar", (2, 3)) == b"234" and not (tmp_path / "open").exists()
    with home.read("results-1.tar", None) as stream:
        assert stream.read(2) == b"01"


def test_files_are_removed_with_folders_that_are_empty_then(tmp_path: Path) -> None:
    written(tmp_path, "x/a.png", "path.json", "heatmap.png")
    home = Home(tmp_path)
    home.remove(["x/a.png/cat/path.json", "nowhere/path.json"])
    assert (tmp_path / "x/a.png/cat/heatmap.png").is_file()
    home.remove(["x/a.png/cat/heatmap.png"])
    assert not list(tmp_path.iterdir()) and tmp_path.is_dir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(OSError, match="not empty"):
        remove_empty(tmp_path / "full", tmp_path)


def test_a_line_tells_of_every_file_of_an_image() -> None:
    one = {"folder": "a/cat", "files": ["heatmap.png", "path.json"], "document": "path.json"}
    other = {**one, "folder": "a/dog"}
    contrast = {"folder": "a", "files": ["contrast.png", "contrast.json"], "document": "contrast.json"}
    whole = {"name": "a", "explanations": [one, other], "contrast": contrast}
    assert list(described(whole)) == [one, other, contrast]
    between = {"a/cat-against-dog/heatmap.png", "a/cat-against-dog/path.json"}
    own = {f"a/{label}/{name}" for label in ("cat", "dog") for name in one["files"]}
    assert files_of(whole) == {*own, *between, "a/contrast.png", "a/contrast.json"}
    assert files_of({"name": "a", "explanations": [{**one, "pack": "results-1.tar"}]}) == set()


def test_an_image_that_did_not_get_home_has_failed() -> None:
    lost = failed_line({"name": "a", "explanations": [1], "contrast": 2, "seconds": 3}, PathxError("no room"))
    assert lost == {"name": "a", "explanations": [], "seconds": 3, "error": "no room"}
