"""Images in stores are found, opened and refused as those in folders are."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.archives import image_bytes, shard, write_parquet
from support.stores import put, store, upload

from pathx.errors import PathxError
from pathx.images.find import find_images, images_in
from pathx.images.read import decode_image, open_image
from pathx.stores import store_of

fsspec = pytest.importorskip("fsspec", reason="stores are an extra: pip install 'pathx-relu[remote]'")
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module", params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a store is."""
    with store(request.param) as address:
        yield address


def names(*inputs: str, **options: str) -> list[str]:
    found = find_images(inputs, **options)  # type: ignore[arg-type]
    assert [str(one.error) for one in found if one.error is not None] == []
    return [one.name for one in found]


def errors(*inputs: str) -> list[str]:
    return [str(one.error) for one in find_images(inputs) if one.error is not None]


def test_a_folder_in_a_store_gives_its_images_and_no_results(place: str) -> None:
    root = f"{place}/first/photos"
    for name in ("a/x.jpg", "a b/y.PNG", "z.png", ".hidden/x.png", "notes.txt", "cat.png/cat/heatmap.png", "b/.x.jpg"):
        put(f"{root}/{name}", image_bytes(1))
    put(f"{root}/out/run.json", b'{"schema": "pathx/run@1"}')
    put(f"{root}/out/report/plot.png", image_bytes(2))
    put(f"{root}/more/report/plot.png", image_bytes(2))
    put(f"{root}/others/run.json", b'{"mine": 1}')
    put(f"{root}/others/x.png", image_bytes(2))
    start = f"{root.partition('://')[2]}/"
    found = [name.removeprefix(start) for name in names(root, out=f"{root}/more")]
    assert found == ["a/x.jpg", "a b/y.PNG", "others/x.png", "z.png"]
    assert names(root + "/") == names(root)
    assert names(f"{root}/*/x.*") == [f"{start}a/x.jpg", f"{start}others/x.png"]
    assert names(f"{root}/z.png") == [f"{start}z.png"]
    assert next(picture.label for picture in images_in([root])) == "a"


def test_an_image_in_a_store_is_read_as_a_file_is(place: str, here: Path) -> None:
    data = image_bytes(5)
    put(f"{place}/second/x.png", data)
    (here / "x.png").write_bytes(data)
    with decode_image(f"{place}/second/x.png", web=True) as picture:
        assert picture.sha256 == open_image("x.png").sha256
        assert picture.pixels.tobytes() == open_image("x.png").pixels.tobytes()
    with pytest.raises(PathxError):  # a document may name it, and nothing is fetched for that
        open_image(f"{place}/second/x.png")


def test_archives_in_a_store(place: str, here: Path) -> None:
    shard("shards/s-000.tar", 12)
    images = [{"bytes": image_bytes(number), "path": f"{number}.png"} for number in range(9)]
    write_parquet("shards/t.parquet", {"image": images}, row_group_size=4)
    upload("shards", f"{place}/third")
    found = find_images([f"{place}/third"])
    assert len(found) == 21 and all(one.error is None for one in found)
    assert all(one.version for one in found) and len({one.version for one in found}) == 21
    random.Random(0).shuffle(found)
    for one in found:
        number = one.file.partition("#")[2].removesuffix(".png")
        with decode_image(one.source, web=True) as picture, decode_image(one.file, web=True) as again:
            (here / "x.png").write_bytes(image_bytes(int(number)))
            assert picture.sha256 == again.sha256 == open_image("x.png").sha256
    with pytest.raises(PathxError, match="is not fetched here"):
        open_image(found[0].file)


def test_versions_tell_when_an_image_changed(place: str) -> None:
    put(f"{place}/fourth/x.png", image_bytes(1))
    (before,) = find_images([f"{place}/fourth"])
    (same,) = find_images([f"{place}/fourth/x.png"])
    put(f"{place}/fourth/x.png", image_bytes(2))
    (after,) = find_images([f"{place}/fourth"])
    assert before.version == same.version != after.version != ""


def test_what_is_not_there_is_one_line(place: str) -> None:
    (line,) = errors(f"{place}/nowhere/x.png")
    assert "the store holds nothing there" in line
    put(f"{place}/fifth/readme.txt", b"hello")
    (line,) = errors(f"{place}/fifth")
    assert "holds no images" in line
    put(f"{place}/fifth/empty.png", b"")
    with pytest.raises(PathxError, match="empty"), decode_image(f"{place}/fifth/empty.png", web=True):
        pass


def test_a_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3:// needs s3fs: pip install s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    (line,) = errors("s3://bucket/x.png")
    assert "cannot be reached" in line and "\n" not in line
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(("scheme", "driver"), [("gs", "gcsfs"), ("abfs", "adlfs"), ("oss", "ossfs")])
def test_a_driver_that_is_missing_is_named(scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(PathxError, match=f"{scheme}:// needs {driver} besides fsspec: pip install {driver}"):
        store_of(f"{scheme}://bucket/x.png")


def test_fsspec_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    (line,) = errors("s3://bucket/x.png")
    assert "pip install 'pathx-relu[remote]'" in line
