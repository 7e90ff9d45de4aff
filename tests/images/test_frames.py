"""Frames are images like any other: the right ones, in any order, each with its own hash, and bad ones alone fail."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.clips import number_of, still, write_pages, write_sound, write_video

from pathx.errors import PathxError
from pathx.images.find import find_images
from pathx.images.read import open_image, sha256_of_image

VIDEOS = {
    **dict.fromkeys(("a.mp4", "a.mkv", "a.ts"), "libx264"),
    **{"a.avi": "mpeg4", "a.webm": "libvpx-vp9", "a.mpg": "mpeg2video", "a.flv": "flv"},
}
PAGES = ("a.gif", "a.webp", "a.tif", "a.png")


def written(file: str, count: int) -> Path:
    write_video(Path(file), count, VIDEOS[file]) if file in VIDEOS else write_pages(Path(file), count)
    return Path(file)


@pytest.mark.parametrize("file", [*VIDEOS, *PAGES])
def test_every_frame_is_found_in_any_order(here: Path, file: str) -> None:
    written(file, 45)
    found = find_images([file], every=1)
    assert [one.name for one in found] == [f"{file}/frame-{number:05d}" for number in range(45)]
    order = [*range(0, 45, 10), *random.Random(1).sample(range(45), 20)]
    assert [number_of(open_image(found[number].file).pixels) for number in order] == order


@pytest.mark.parametrize("file", ["a.mp4", "a.gif"])
def test_every_takes_each_so_many_th_frame(here: Path, file: str) -> None:
    written(file, 21)
    assert [one.file for one in find_images([file], every=10)] == [f"{file}#frame={number}" for number in (0, 10, 20)]
    assert [one.file for one in find_images(["."], every=10)] == [f"./{file}#frame={n}" for n in (0, 10, 20)]


def test_a_single_image_stays_one(here: Path) -> None:
    for name in ("x.png", "x.gif", "x.jpg", "x.tif"):
        still(3).save(name)
    names = ["x.gif", "x.jpg", "x.png", "x.tif"]
    assert [one.file for one in find_images(names, every=1)] == names


def test_without_every_files_are_single_images_and_folders_have_no_videos(here: Path) -> None:
    write_pages(Path("a.gif"))
    Path("b.mp4").write_bytes(b"\0")
    assert [one.name for one in find_images(["."])] == ["a.gif"]
    with pytest.raises(PathxError, match="is a video: take its frames with `every` 10"):
        open_image("b.mp4")


def test_hashes_tell_frames_and_versions_of_a_file_apart(here: Path) -> None:
    write_pages(Path("a.gif"), 5)
    first = [sha256_of_image(f"a.gif#frame={number}") for number in range(5)]
    assert len(set(first)) == 5
    assert first == [open_image(f"a.gif#frame={number}").sha256 for number in range(5)]
    write_pages(Path("a.gif"), 6)
    assert not set(first) & {sha256_of_image(f"a.gif#frame={number}") for number in range(6)}


@pytest.mark.parametrize("file", ["a.mkv", "a.avi", *PAGES])
def test_pages_are_told_by_content_and_videos_by_name(here: Path, file: str) -> None:
    written(file, 5).rename("b.mp4")
    found = find_images(["b.mp4"], every=2)
    assert [number_of(open_image(one.file).pixels) for one in found] == [0, 2, 4]


def test_a_phone_that_was_held_upright(here: Path) -> None:
    write_video(Path("a.mp4"), 3)
    data = Path("a.mp4").read_bytes()
    one, zero, minus = b"\0\1\0\0", bytes(4), b"\xff\xff\0\0"
    plain = one + zero + zero + zero + one
    start = data.index(plain, data.index(b"tkhd"))  # the track's matrix
    turned = zero + one + zero + minus + zero  # a quarter clockwise
    Path("a.mp4").write_bytes(data[:start] + turned + data[start + len(turned) :])
    image = open_image("a.mp4#frame=1").pixels
    assert image.size == (48, 64)
    assert min(image.getpixel((44, 4))) > 200 > max(image.getpixel((4, 4)))  # type: ignore[arg-type]


def errors(*inputs: str) -> list[str]:
    return [str(one.error) for one in find_images(inputs, every=10)]


def test_videos_without_frames_say_so(here: Path) -> None:
    write_sound(Path("sound.mp4"))
    Path("noise.mp4").write_bytes(random.Random(0).randbytes(5000))
    Path("empty.mp4").write_bytes(b"")
    write_video(Path("cut.mp4"), 5)
    Path("cut.mp4").write_bytes(Path("cut.mp4").read_bytes()[:700])  # without what tells where its frames are
    sound, noise, empty, cut = errors("sound.mp4", "noise.mp4", "empty.mp4", "cut.mp4")
    assert sound == "sound.mp4 has no video in it, only sound or data: give another file"
    for name, error in (("noise.mp4", noise), ("empty.mp4", empty), ("cut.mp4", cut)):
        assert error.startswith(f"{name} is damaged or no video (")
        assert error.endswith("): fetch it again")


def test_a_playlist_leads_nowhere(here: Path) -> None:
    write_video(Path("secret.ts"), 5)
    Path("list.mp4").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n")
    Path("join.mp4").write_text("ffconcat version 1.0\nfile secret.ts\n")
    assert all("is damaged or no video" in error for error in errors("list.mp4", "join.mp4"))


def test_without_the_library_one_line_says_how_to_install_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    Path("a.mp4").write_bytes(b"\0" * 100)
    assert errors("a.mp4") == ["a.mp4 is a video, which needs PyAV: pip install 'pathx-relu[video]'"]


@pytest.mark.parametrize("file", ["a.mkv", "a.ts", "a.gif", "a.tif"])
def test_damage_costs_no_frame_before_it(here: Path, file: str) -> None:
    written(file, 40)
    data = bytearray(Path(file).read_bytes())
    data[len(data) * 3 // 4 :] = b"\xff" * (len(data) - len(data) * 3 // 4)
    Path(file).write_bytes(data)
    read = []
    for one in find_images([file], every=1):
        with suppress(PathxError):
            read.append(number_of(open_image(one.file).pixels))
    assert read[:15] == list(range(15))


def test_frames_that_went_meanwhile(here: Path) -> None:
    write_pages(Path("a.gif"), 3)
    write_video(Path("a.mp4"), 3)
    for name in ("a.gif", "a.mp4"):
        with pytest.raises(PathxError, match=rf"{name} has no frame 3: it holds frames 0 to 2$"):
            open_image(f"{name}#frame=3")
    with pytest.raises(PathxError, match=r"b\.gif cannot be read: No such file"):
        open_image("b.gif#frame=3")
