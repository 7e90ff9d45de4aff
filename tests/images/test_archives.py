"""Archives of images: each image once, by its key, whatever else is in them, and nothing that they say is taken for granted."""

from __future__ import annotations

import io
import json
import random
import sys
import tarfile
import tracemalloc
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePath
from typing import Any

import pytest
from support.archives import image_bytes, shard, write_parquet, write_tar

from pathx.errors import PathxError
from pathx.images import archives
from pathx.images.archives import ImageTable, Member, Parquet, member_of, members_in
from pathx.images.find import find_images, images_in
from pathx.images.read import decode_image, open_image, sha256_of_image

pytestmark = pytest.mark.usefixtures("here")
ONE = image_bytes(1)


def keys(archive: str) -> list[str]:
    return [member.key for member in members_in(archive)]


def found(*inputs: str) -> dict[str, str | None]:
    """Names with why there is no image."""
    return {one.name: None if one.error is None else str(one.error) for one in find_images(inputs)}


def decode_all(file: str) -> None:
    """Decode whatever a damaged archive still gives; each failure is a PathxError."""
    for one in find_images([file]):
        if one.error is None:
            with suppress(PathxError), decode_image(one.source) as image:
                image.pixels.load()


# Tar files


def test_a_shard_gives_its_samples_by_key_with_their_labels() -> None:
    archive = shard("data/shard-000.tar", 4)
    members = list(members_in(archive))
    assert [member.key for member in members] == ["00000", "00001", "00002", "00003"]
    assert [member.label for member in members] == ["0", "1", "2", "0"]
    one = find_images([archive])[2]
    assert (one.file, one.name) == ("data/shard-000.tar#00002", "data/shard-000.tar/00002")
    for source in (one.source, one.file, Path(one.file)):
        with decode_image(source) as picture:
            assert (picture.file, picture.label) == (one.file, "2")
            assert picture.pixels.tobytes() == open_image(_written(image_bytes(2))).pixels.tobytes()
    assert sha256_of_image(one.source) == sha256_of_image(_written(image_bytes(2)))


def _written(data: bytes) -> str:
    Path("one.png").write_bytes(data)
    return "one.png"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.jpg", "a.json", "b.jpg"], ["a", "b"]),
        (["a.jpg", "a.mask.png", "a.depth.png"], ["a"]),  # parts of a sample, and not images to explain
        (["a.input.png"], ["a"]),
        (["IMG.2020.jpg", "IMG.2021.jpg"], ["IMG.2020.jpg", "IMG.2021.jpg"]),  # photos, packed by somebody else
        (["a.jpg", "a.png"], ["a.jpg", "a.png"]),
        (["cat/1.jpg", "dog/1.jpg"], ["cat/1", "dog/1"]),
        (["x.jpg", "y.jpg", "x.jpg"], ["x", "y", "x-2"]),
        (["x.jpg", "x-2.jpg", "y.jpg", "x.jpg"], ["x", "x-2", "y", "x-3"]),
        ([".hidden.jpg", "._a.jpg", "a.JPG", "noise", "b.txt"], ["a"]),
        (["../../up.jpg", "/etc/passwd.jpg", "a/../b.jpg"], ["../../up", "/etc/passwd", "a/../b"]),
    ],
)
def test_what_is_an_image_in_a_tar_file(names: list[str], expected: list[str]) -> None:
    archive = write_tar("x.tar", [(name, ONE) for name in names])
    assert keys(archive) == expected
    assert all(error is None for error in found(archive).values())
    assert len(found(archive)) == len(expected)


def test_names_that_climb_or_never_end_stay_below_the_archive() -> None:
    names = [
        "../../up",
        "/etc/passwd",
        "..",
        "../..",
        "a/../../b",
        "a\\..\\c",
        "x" * 3000,
        "x" * 3001,
        "n\0ul",
        "up",
        "/",
    ]
    places = [PurePath(Member("x.tar", name, (0, 0)).name) for name in names]
    for place in places:
        assert not place.is_absolute() and ".." not in place.parts
        assert all(0 < len(part.encode()) <= 220 and "\0" not in part for part in place.parts)
    assert len(set(places)) == len(names) - 3  # up, and two that hold nothing but dots
    deep = ["a/" * 3000 + f"{number}.png" for number in range(2)]
    named = ["../up.jpg", "up.jpg", f"{'y' * 3000}.png", *deep]
    archive = write_tar("x.tar", [(name, ONE) for name in named], format=tarfile.PAX_FORMAT)
    places = [PurePath(place) for place in found(archive)]
    assert len(places) == len(named) and max(len(str(place)) for place in places) < 1500
    for place in places:
        Path("out", place).mkdir(parents=True)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_never_followed(kind: bytes, here: Path) -> None:
    (here / "secret.png").write_bytes(ONE)
    with tarfile.open("x.tar", "w") as archive:
        for name in ("a.png", "b.png"):
            about = tarfile.TarInfo(name)
            about.type, about.linkname = (kind, str(here / "secret.png")) if name == "a.png" else (tarfile.REGTYPE, "")
            about.size = len(ONE) if name == "b.png" else 0
            archive.addfile(about, io.BytesIO(ONE) if name == "b.png" else None)
    assert list(found("x.tar")) == ["x.tar/b", "x.tar"]
    assert "links or special files" in str(found("x.tar")["x.tar"])


def test_an_archive_that_is_cut_short_gives_what_comes_before(here: Path) -> None:
    whole = Path(shard("whole.tar", 3)).read_bytes()
    sizes = [len(whole) - 10240, *random.Random(0).sample(range(1, len(whole) - 10240), 40)]
    for size in sizes:
        Path("x.tar").write_bytes(whole[:size])
        result = found("x.tar")
        assert result.pop("x.tar", None) is not None, size
        for name in result:
            with decode_image(f"x.tar#{PurePath(name).name}") as picture:
                assert picture.width == 24


def test_noise_in_an_archive_costs_no_more_than_a_line() -> None:
    whole = Path(shard("whole.tar", 3)).read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 5, 200))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        Path("x.tar").write_bytes(data)
        decode_all("x.tar")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_claims_gigabytes_is_not_read(kind: bytes) -> None:
    about = tarfile.TarInfo("a.png")
    about.type, about.size = kind, 6 << 30
    with open("x.tar", "wb") as stream:
        stream.write(about.tobuf(tarfile.GNU_FORMAT))
        stream.truncate(7 << 30)  # with a hole: no bytes on the disk
    tracemalloc.start()
    result = found("x.tar")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(result) == ["x.tar"] and result["x.tar"] is not None
    assert peak < 16 << 20


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_sizes_that_lead_back_or_nowhere_end(kind: bytes) -> None:
    """tarfile looks for the next file behind this one: with the right number, that is this one again."""
    for size in (-5, -512, -1024, -1536, -2048, -4096, 10**30):
        about = tarfile.TarInfo("x.png")
        about.type, about.pax_headers = kind, {"size": str(size)}
        with tarfile.open("odd.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(about)
        with suppress(PathxError):
            assert list(members_in("odd.tar")) == []


def test_a_member_that_claims_gigabytes_fails_by_itself() -> None:
    with open("x.tar", "wb") as stream:
        for name, size in (("a.png", len(ONE)), ("b.png", 3 << 30)):
            about = tarfile.TarInfo(name)
            about.size = size
            stream.write(about.tobuf(tarfile.GNU_FORMAT))
            stream.write(ONE if name == "a.png" else b"")
            stream.seek(-(-size // 512) * 512 - (len(ONE) if name == "a.png" else 0), io.SEEK_CUR)
        stream.write(bytes(1024))
    first, second = find_images(["x.tar"])
    with decode_image(first.source) as picture:
        assert picture.height == 16
    with pytest.raises(PathxError, match="larger than 1 GiB"), decode_image(second.source):
        pass


def test_a_compressed_archive_and_one_that_is_none() -> None:
    write_tar("x.tar", {"a.png": ONE})
    with tarfile.open("x.tar.gz", "w:gz") as archive:
        archive.add("x.tar")
    Path("none.tar").write_bytes(b"nothing of that kind" * 100)
    write_tar("empty.tar", {"readme.txt": b"hello"})
    assert "unpack it to a .tar" in str(found("x.tar.gz")["x.tar.gz"])
    assert "no tar file" in str(found("none.tar")["none.tar"])
    assert "holds no images" in str(found("empty.tar")["empty.tar"])
    assert "No such file" in str(found("gone.tar")["gone.tar"])
    assert "fetch it, and give the file" in str(found("https://example.org/x.tar"))


def test_one_image_of_an_archive_by_its_key() -> None:
    shard("x.tar", 3)
    assert list(found("x.tar#00001", "x.tar#00002", "x.tar#00001")) == ["x.tar/00001", "x.tar/00002"]
    assert list(found("x.tar", "x.tar#00002")) == ["x.tar/00000", "x.tar/00001", "x.tar/00002"]
    assert "no image 7" in str(found("x.tar#7"))
    with pytest.raises(PathxError, match="holds no image 7"):
        open_image("x.tar#7")
    Path("x.tar#00001").write_bytes(image_bytes(9, (5, 5)))  # a file of that name goes first
    assert member_of("x.tar#00001") is None
    assert open_image("x.tar#00001").width == 5


def test_archives_in_folders_count_where_there_are_no_images() -> None:
    shard("data/b/shard-001.tar", 1, 5)
    shard("data/a/shard-000.tar", 2)
    assert list(found("data")) == [
        "data/a/shard-000.tar/00000",
        "data/a/shard-000.tar/00001",
        "data/b/shard-001.tar/00005",
    ]
    assert list(found("data/*/*.tar")) == list(found("data"))
    Path("data/photo.png").write_bytes(ONE)
    assert list(found("data")) == ["data/photo.png"]


def test_the_folder_of_an_image_in_an_archive_may_be_its_label() -> None:
    write_tar("x.tar", {"cat/1.jpg": ONE, "2.jpg": ONE, "3.jpg": ONE, "3.json": json.dumps({"label": "dog"}).encode()})
    found = images_in(["x.tar"])
    assert [one.label for one in found] == ["cat", None, "dog"]
    for one in found:
        with decode_image(one.source) as image:
            assert image.label == one.label


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
def test_labels_in_a_tar_file(name: str, content: bytes, label: str | None) -> None:
    archive = write_tar("x.tar", [("1.png", ONE), (name, content)])
    assert [member.label for member in members_in(archive)] == [label]


# Parquet files


def test_a_table_of_the_datasets_library() -> None:
    images = [{"bytes": image_bytes(number), "path": f"{number}.png"} for number in range(5)]
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    file = write_parquet("x.parquet", {"image": images, "label": [0, 1, 1, 0, 1]}, names, row_group_size=2)
    members = list(members_in(file))
    assert [member.key for member in members] == [f"{number}.png" for number in range(5)]
    assert [member.label for member in members] == ["cat", "dog", "dog", "cat", "dog"]
    for number in (3, 0, 4, 1, 2, 2):
        with decode_image(f"x.parquet#{number}.png") as picture:
            assert picture.sha256 == sha256_of_image(_written(image_bytes(number)))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"jpg": [ONE, ONE], "__key__": ["a", "b"]}, ["a", "b"]),
        ({"image": [ONE, ONE], "key": [7, 8]}, ["7", "8"]),
        ({"image": [{"bytes": ONE, "path": None}] * 2}, ["row-000000", "row-000001"]),
        ({"image": [{"bytes": ONE, "path": "image.png"}] * 3}, ["image.png", "image.png-2", "image.png-3"]),
        ({"content": [ONE], "name": ["n"]}, ["row-000000"]),
        ({"image": [{"bytes": ONE}], "label": ["cat"]}, ["row-000000"]),
    ],
)
def test_columns(columns: dict[str, list[object]], expected: list[str]) -> None:
    file = write_parquet("x.parquet", columns)
    assert keys(file) == expected
    assert all(open_image(f"{file}#{key}").width == 24 for key in expected)


def test_tables_that_are_damaged_or_hold_no_images() -> None:
    write_parquet("none.parquet", {"image": [ONE, None], "key": ["a", "b"]})
    with pytest.raises(PathxError, match="no bytes of an image"):
        open_image("none.parquet#b")
    file = Path(write_parquet("x.parquet", {"image": [ONE] * 20}, row_group_size=5))
    write_parquet("text.parquet", {"title": ["a"], "body": [1]})
    assert "has no column of images (its columns: title, body)" in str(found("text.parquet")["text.parquet"])
    write_parquet("two.parquet", {"a": [ONE], "b": [ONE]})
    assert "has no column of images (its columns: a, b)" in str(found("two.parquet")["two.parquet"])
    whole, chance = file.read_bytes(), random.Random(0)
    for number in range(40):
        data = bytearray(whole)
        if number % 2:
            data = data[: chance.randrange(len(data))]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        decode_all(str(file))


WORDS = [f"images/{number % 7}/{number:05d}.jpg".encode() * (number % 5) for number in range(3000)]
ENCODINGS = ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
KINDS: list[dict[str, Any]] = [
    {"use_dictionary": True},
    *({"use_dictionary": False, "column_encoding": {"image": one, "label": "PLAIN"}} for one in ENCODINGS),
]


@pytest.mark.parametrize(("kind", "compression", "version"), list(product(KINDS, ["none", "zstd"], ["1.0", "2.0"])))
def test_rows_come_back(kind: dict[str, Any], compression: str, version: str, tmp_path: Path) -> None:
    options = {"compression": compression, "data_page_version": version, "row_group_size": 1400, "data_page_size": 4096}
    file = write_parquet(tmp_path / "x.parquet", {"image": WORDS, "label": list(range(3000))}, **options, **kind)
    table = Parquet(io.BytesIO(Path(file).read_bytes()))
    assert table.groups == [1400, 1400, 200]
    read = [
        value for group in range(3) for batch in table.batches(group, ["image"], 64) for value in batch.column("image")
    ]
    assert [value.as_py() for value in read] == WORDS


def test_a_page_that_claims_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stream(tmp_path, {"image": [bytes(100_000)]}, compression="zstd")
    table = ImageTable(file, "x.parquet")
    monkeypatch.setattr(archives, "_SMALL", 90_000)
    with pytest.raises(PathxError, match="100004 bytes, too many to expand safely"):
        table.at(0, 0)
    monkeypatch.setattr(archives, "_FEW_ROWS", 0)
    monkeypatch.setattr(archives, "_BYTES_PER_ROW", 10**6)
    with pytest.raises(PathxError, match="1 rows, too many for its size"):
        ImageTable(file, "x.parquet")


def stream(tmp_path: Path, columns: dict[str, Any], metadata: Any = None, **options: Any) -> io.BytesIO:
    return io.BytesIO(Path(write_parquet(tmp_path / "x.parquet", columns, metadata, **options)).read_bytes())


def test_rows_of_several_groups_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "HELD", 1)  # a row at a time
    monkeypatch.setattr(archives, "_KEPT", 1)
    contents = [bytes([number]) * 50 for number in range(20)]
    table = ImageTable(stream(tmp_path, {"image": contents}, row_group_size=7), "x.parquet")
    places = [place for _, place, _ in table.rows()]
    assert places[:8] == [*((0, row) for row in range(7)), (1, 0)]
    for number in (0, 19, 3, 4, 2, 18, 5, 6, 0, 7):
        assert table.at(*places[number]) == contents[number]


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = stream(tmp_path, {"image": [b"x"]})
    monkeypatch.setitem(sys.modules, "pyarrow.types", None)
    with pytest.raises(PathxError, match="which needs pyarrow: pip install"):
        ImageTable(file, "x.parquet")
