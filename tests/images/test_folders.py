"""Folders as labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small import picture

from pathx.errors import PathxError
from pathx.images.folders import images_in


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/cat/a.png", "photos/dog/old/b.png", "photos/c.png", "photos/out/d.png"):
        picture(Path(name))


@pytest.mark.usefixtures("photos")
def test_the_folder_that_an_image_lies_in_is_its_label() -> None:
    found = {image.name: image.label for image in images_in(["photos"], "photos/out")}
    assert found == {"photos/c.png": None, "photos/cat/a.png": "cat", "photos/dog/old/b.png": "old"}
    assert [image.label for image in images_in(["photos/cat"])] == [None]  # a folder that the user named is no label
    assert [image.label for image in images_in(["photos/cat/a.png"])] == [None]


@pytest.mark.usefixtures("photos")
def test_some_may_be_missing_but_not_all() -> None:
    there, missing = images_in(["photos/c.png", "none.png"])
    assert there.error is None
    assert str(missing.error) == "none.png: no such file or folder; check the path"
    with pytest.raises(PathxError, match=r"none.png: no such file or folder") as raised:
        images_in(["none.png", "nor.png"])
    assert raised.value.usage
