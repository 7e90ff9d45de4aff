"""Tar files of images: which files are one sample, what its image and its label are, and damage at the end."""

from __future__ import annotations

import io
import tarfile
from itertools import islice

import pytest

from pathx.errors import PathxError
from pathx.images import tars
from pathx.images.tars import Row, tar_rows


def packed(members: list[tuple[str, bytes]], *others: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
        for about in others:
            archive.addfile(about)
    return stream.getvalue()


def rows(*members: tuple[str, bytes]) -> list[Row]:
    return list(tar_rows(io.BytesIO(packed(list(members))), "x.tar"))


def test_a_place_is_where_the_bytes_are() -> None:
    data = packed([("a.png", b"first"), ("b.jpg", b"second")])
    found = list(tar_rows(io.BytesIO(data), "x.tar"))
    assert [(key, data[start : start + size]) for key, (start, size), _ in found] == [("a", b"first"), ("b", b"second")]


def test_a_sample_is_called_by_its_name_up_to_the_first_dot() -> None:
    found = rows(
        ("cat/1.png", b"x"), ("cat/1.mask.png", b"y"), ("cat/2.seg.png", b"z"), ("3.png", b"x"), ("3.jpg", b"y")
    )
    assert [key for key, *_ in found] == ["cat/1", "cat/2", "3.png", "3.jpg"]


@pytest.mark.parametrize(
    ("name", "content", "label"),
    [
        ("1.cls", b" 7\n", "7"),
        ("1.json", b'{"label": "cat"}', "cat"),
        ("1.json", b'{"cls": 3}', "3"),
        ("1.json", b'{"label": true}', None),
        ("1.json", b"[1]", None),
        ("1.json", b"{", None),
        ("1.cls", b"\xff\xfe", None),
        ("1.cls", b"", None),
        ("1.txt", b"cat", None),
        ("2.cls", b"7", None),  # of another sample
    ],
)
def test_labels(name: str, content: bytes, label: str | None) -> None:
    assert [found for _, _, found in rows(("1.png", b"x"), (name, content))] == [label]


def test_a_label_as_large_as_a_book_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "LONGEST_LABEL", 3)
    assert rows(("1.png", b"x"), ("1.cls", b"long"))[0][2] is None


def test_what_is_no_file_is_never_followed_and_said_at_the_end() -> None:
    link = tarfile.TarInfo("evil.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    found = tar_rows(io.BytesIO(packed([("a.png", b"x")], link)), "x.tar")
    assert next(found)[0] == "a"
    with pytest.raises(PathxError, match=r"x\.tar holds links .* called like images, 1 of them"):
        list(found)


def test_what_comes_before_the_damage_is_there() -> None:
    whole = packed([(f"{number}.png", b"x" * 600) for number in range(4)])
    found = tar_rows(io.BytesIO(whole[: 3 * 1536 + 700]), "x.tar")
    assert [key for key, *_ in islice(found, 3)] == ["0", "1", "2"]
    with pytest.raises(PathxError, match="is damaged or cut short after 3 files"):
        next(found)
    with pytest.raises(PathxError, match=r"is no tar file, or damaged .*: give a tar file that is not compressed"):
        list(tar_rows(io.BytesIO(b"PK" * 700), "x.tar"))


def test_a_header_that_claims_too_much_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "LONGEST_HEADER", 600)
    with pytest.raises(PathxError, match="a header of"):
        rows(("a" * 2000 + ".png", b"x"))
