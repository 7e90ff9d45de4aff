"""What folders, patterns and lists lead to: every picture once, in one order, each with a place of its own."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from pathlib import Path, PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.small import picture

from pathx.errors import PathxError
from pathx.images.archives import SUFFIXES
from pathx.images.find import ImageFile, find_images, images_in, relative_names


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*files: str) -> None:
    for file in files:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()


def names(*inputs: str, **options: str) -> list[str]:
    found = find_images(inputs, **options)  # type: ignore[arg-type]
    assert [one.error for one in found] == [None] * len(found)
    return [one.name for one in found]


def errors(*inputs: str, stdin: bytes = b"") -> list[str]:
    return [str(one.error) for one in find_images(inputs, stdin=io.BytesIO(stdin)) if one.error is not None]


# Folders


def test_a_folder_gives_its_pictures_with_all_that_is_below_in_order() -> None:
    touch("p/b.jpg", "p/a/x.jpg", "p/a/x.png", "p/b/x.JPEG", "p/a b/é\n.webp")
    touch("p/notes.md", "p/.hidden.jpg", "p/.git/x.png")
    expected = ["p/a/x.jpg", "p/a/x.png", "p/a b/é\n.webp", "p/b/x.JPEG", "p/b.jpg"]
    assert names("p") == names("p/") == names("./p") == names("p", "p/a", "p/b.jpg") == expected
    assert [one.file for one in find_images(["p"])] == expected
    files = [f"q/{number % 3}/{number}{suffix}" for number, suffix in enumerate(sorted(SUFFIXES))]
    random.Random(0).shuffle(files)
    touch(*files, "q/x.png.bak")
    assert names("q") == sorted(files, key=lambda file: PurePath(file).parts)


def test_an_absolute_folder_keeps_its_name_and_what_is_below(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("one/p/a/x.jpg", "one/p/x.jpg", "two/p/x.jpg")
    assert names(str(here / "one/p")) == ["p/a/x.jpg", "p/x.jpg"]
    assert names(str(here / "one/p"), str(here / "two/p")) == ["one/p/a/x.jpg", "one/p/x.jpg", "two/p/x.jpg"]
    monkeypatch.chdir("one/p")
    assert names(".") == ["a/x.jpg", "x.jpg"]
    assert names("../../two") == ["two/p/x.jpg"]


def test_pictures_that_only_look_the_same_are_kept_apart(here: Path) -> None:
    touch("p/x.jpg", "q/p/x.jpg", "q/p/y.jpg")
    both = find_images(["p/x.jpg", str(here / "q/p")])
    assert [(one.file, one.name) for one in both] == [
        ("p/x.jpg", "p/x.jpg"),
        (str(here / "q/p/x.jpg"), "p/x.jpg-2"),
        (str(here / "q/p/y.jpg"), "p/y.jpg"),
    ]
    assert names("p/x.jpg", "./p/x.jpg", "p", "p/*") == ["p/x.jpg"]


def test_links_are_followed_once_and_loops_end(here: Path) -> None:
    touch("p/a/x.jpg", "elsewhere/y.jpg")
    os.symlink("..", "p/a/up")
    os.symlink(here / "p", "p/self")
    os.symlink(here / "elsewhere", "p/0-link")
    os.symlink("a", "p/again")
    os.symlink("b", "p/b")
    os.symlink("nowhere.jpg", "p/dangling.jpg")
    os.symlink("a/x.jpg", "p/same.jpg")
    assert names("p") == ["p/0-link/y.jpg", "p/a/x.jpg", "p/dangling.jpg", "p/same.jpg"]


def test_results_are_no_pictures(here: Path) -> None:
    touch("p/x.jpg", "p/out/x.jpg/cat/heatmap.png", "p/out/report/plot.png")
    assert names("p", out="p/out") == names("p", out=str(here / "p" / "out")) == ["p/x.jpg"]
    assert names("p", out="elsewhere") == ["p/out/report/plot.png", "p/x.jpg"]  # of x.jpg/ the name tells
    Path("p/out/run.json").write_text(json.dumps({"schema": "pathx/run@1"}, indent=2))
    assert names("p") == ["p/x.jpg"]
    touch("q/x.jpg", "q/IMG/cat/overlay.png", "q/theirs/path.json", "q/theirs/y.jpg")
    Path("q/IMG/cat/path.json").write_text(json.dumps({"schema": "pathx/path@1"}, indent=2))
    assert names("q") == ["q/theirs/y.jpg", "q/x.jpg"]
    assert names("q", out="q") == ["q/theirs/y.jpg", "q/x.jpg"]


def test_folders_that_lead_to_nothing_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("p/empty").mkdir(parents=True)
    touch("q/x.jpg", "q/closed/y.jpg")
    assert errors("p")[0].startswith("p holds no images: pathx looks for jpg, png, ")
    found = find_images(["p", "q"])
    assert [one.file for one in found if one.error is None] == ["q/closed/y.jpg", "q/x.jpg"]
    whole = os.scandir

    def scandir(folder: str) -> object:  # as for anyone but root
        if folder.endswith("closed"):
            raise PermissionError(13, "Permission denied", folder)
        return whole(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    first, second = find_images(["q"])
    assert str(first.error) == "the folder q/closed cannot be read: Permission denied; check its permissions"
    assert second == ImageFile("q/x.jpg", "q/x.jpg")


# Patterns, lists, standard input


def test_patterns() -> None:
    touch("p/a.jpg", "p/b.png", "p/c/d.jpg", "p/e[1].jpg", "p/e1.jpg")
    assert names("p/*.jpg") == ["p/a.jpg", "p/e1.jpg", "p/e[1].jpg"]
    assert names("p/**/*.jpg") == ["p/a.jpg", "p/c/d.jpg", "p/e1.jpg", "p/e[1].jpg"]
    assert names("p/?") == ["p/c/d.jpg"]  # a folder that matches is searched
    assert names("p/e[1].jpg") == ["p/e[1].jpg"]  # a file of that very name comes first
    assert names("p/*.gif") == ["p/*.gif"]  # which fails when it is opened


def test_lists_and_standard_input() -> None:
    touch("p/a.jpg", "p/b.png", "q/a.jpg", "odd name.jpg", "# 1.jpg")
    Path("list.txt").write_bytes(b"\xef\xbb\xbfp/a.jpg\r\n\n  \nodd name.jpg\n# 1.jpg\nq\np/*.png\nnone.jpg")
    expected = ["p/a.jpg", "odd name.jpg", "# 1.jpg", "q/a.jpg", "p/b.png", "none.jpg"]
    assert names("list.txt") == expected
    assert [one.name for one in find_images(["-"], stdin=io.BytesIO(Path("list.txt").read_bytes()))] == expected
    mixed = find_images(["q", "-", "list.txt"], stdin=io.BytesIO(b"p/b.png\n"))
    assert [one.name for one in mixed] == ["q/a.jpg", "p/b.png", "p/a.jpg", "odd name.jpg", "# 1.jpg", "none.jpg"]
    Path("empty.txt").touch()
    assert errors("-", "empty.txt") == [
        "standard input names no image: give a path per line",
        "the list empty.txt names no image: give a path per line",
    ]


def test_a_binary_file_is_no_list() -> None:
    """Between two null characters it may well have the name of a folder, and be it `/`."""
    touch("p/a.jpg")
    Path("p.txt").write_bytes(b"PK\3\4\0\0p\0q\0")
    assert errors("p.txt") == ["the list p.txt names no image: give a path per line"]
    assert [one.name for one in find_images(["-"], stdin=io.BytesIO(b"p\0q\0"))] == ["p/a.jpg", "q"]


def test_a_process_without_standard_input_names_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    (found,) = find_images(["-"])
    assert str(found.error) == "standard input names no image: give a path per line"


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="file names are Unicode there")
def test_names_that_are_no_text_and_names_with_newlines() -> None:
    listed = b"a\nb.jpg\0caf\xe9.jpg\0"
    for name in listed.split(b"\0")[:2]:
        Path(os.fsdecode(name)).touch()
    expected = ["a\nb.jpg", "caf\udce9.jpg"]
    assert [one.file for one in find_images(["-"], stdin=io.BytesIO(listed))] == expected
    assert names(".") == expected


# Where results go

parts = st.lists(st.sampled_from(["a", "b", "a-2", "..", ".", "tmp"]), max_size=4)
paths = st.builds(
    lambda root, folders, name: root + "/".join([*folders, name]),
    st.sampled_from(["", "/", "./", "../"]),
    parts,
    st.sampled_from(["a", "b", "a-2", "a.png"]),
)


def climbs(file: str) -> bool:
    return PurePath(file).is_absolute() or ".." in PurePath(file).parts


@given(st.lists(paths, max_size=7))
@example(["a.png", "/a.png"])
@example(["../a.png", "a.png", "../../a.png", "/x/a.png"])
@example(["/a", "a", "a-2"])
def test_two_pictures_never_share_a_place_and_none_is_outside(files: list[str]) -> None:
    names = relative_names(files)
    assert len(names) == len(files)
    places: dict[PurePath, PurePath] = {}
    for file, name in zip(files, map(PurePath, names), strict=True):
        assert not name.is_absolute()
        assert ".." not in name.parts
        assert name.name.startswith(PurePath(file).name)
        assert places.setdefault(name, PurePath(file)) == PurePath(file)
        if not climbs(file):
            assert name == PurePath(file)
    assert len(places) == len(set(map(PurePath, files)))


def test_parents_tell_pictures_of_one_name_apart() -> None:
    assert relative_names(["/x/1/a.png", "/x/2/a.png", "/y/b.png"]) == ["1/a.png", "2/a.png", "b.png"]
    assert relative_names(["/x/1/a.png", "/y/1/a.png", "a.png"]) == ["x/1/a.png", "y/1/a.png", "a.png"]
    assert relative_names(["/a.png", "a.png", "/a.png"]) == ["a.png-2", "a.png", "a.png-2"]
    assert relative_names(["x/a.png", "./x/a.png", "/x/b/../a.png"]) == ["x/a.png", "x/a.png", "a.png"]


# Folders as labels


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/cat/a.png", "photos/dog/old/b.png", "photos/c.png", "photos/out/d.png"):
        picture(Path(name))


@pytest.mark.usefixtures("photos")
def test_the_folder_that_an_image_lies_in_is_its_label() -> None:
    found = {image.name: image.label for image in images_in(["photos"], "photos/out")}
    assert found == {"photos/c.png": None, "photos/cat/a.png": "cat", "photos/dog/old/b.png": "old"}
    assert [image.label for image in images_in(["photos/cat"])] == [None]  # one folder that the user named is no label
    assert [image.label for image in images_in(["photos/cat", "photos/dog"])] == ["cat", "old"]
    assert [image.label for image in images_in(["photos/cat/a.png"])] == [None]


@pytest.mark.usefixtures("photos")
def test_some_may_be_missing_but_not_all() -> None:
    there, missing = images_in(["photos/c.png", "none.png"])
    assert there.error is None
    assert str(missing.error) == "none.png: no such file or folder; check the path"
    with pytest.raises(PathxError, match=r"none.png: no such file or folder") as raised:
        images_in(["none.png", "nor.png"])
    assert raised.value.usage
