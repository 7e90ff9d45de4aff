"""Every kind of picture file is read as a viewer would show it, or refused with one line that names it."""

from __future__ import annotations

import hashlib
import io
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile

from pathx import PathxError
from pathx.images import read as pictures
from pathx.images.read import open_image

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # pytest undoes the filter of pathx.images.read; the last test sees to it

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def sample(width: int = 48, height: int = 32) -> Image.Image:
    """A picture without any symmetry: white but for three corners of red, green and blue."""
    image = Image.new("RGB", (width, height), "white")
    image.paste(RED, (0, 0, width // 3, height // 4))
    image.paste(GREEN, (width - width // 3, 0, width, height // 4))
    image.paste(BLUE, (0, height - height // 4, width // 3, height))
    return image


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def noise(size: int = 64) -> Image.Image:
    return Image.frombytes("RGB", (size, size), random.Random(0).randbytes(size * size * 3))


def error_of(path: Path | str) -> str:
    with pytest.raises(PathxError) as caught:
        open_image(path)
    message = str(caught.value)
    assert "\n" not in message
    assert not caught.value.usage
    return message


def near(seen: object, wanted: tuple[int, int, int], tolerance: int = 6) -> bool:
    assert isinstance(seen, tuple)
    return all(abs(a - b) <= tolerance for a, b in zip(seen, wanted, strict=True))


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_back_their_pixels_whatever_the_file_is_called(tmp_path: Path, format: str) -> None:
    data = encoded(sample(), format)
    file = tmp_path / "misnamed.jpg"
    file.write_bytes(data)
    picture = open_image(file)
    assert picture.pixels.tobytes() == sample().tobytes()
    assert (picture.width, picture.height) == (48, 32)
    assert picture.sha256 == hashlib.sha256(data).hexdigest()
    assert picture.file == str(file)
    assert picture.notes == ()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_exif_orientation_comes_upright(tmp_path: Path, format: str, orientation: int) -> None:
    upright = sample()
    # How a camera held that way stores the scene, written out and not taken from the table under test.
    stored = {
        1: upright,
        2: upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: upright.rotate(180),
        4: upright.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT).rotate(90, expand=True),
        6: upright.rotate(90, expand=True),  # to be turned clockwise for viewing
        7: upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT).rotate(-90, expand=True),
        8: upright.rotate(-90, expand=True),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "x"
    options = {"quality": 95} if format == "JPEG" else {"lossless": True} if format == "WEBP" else {}
    file.write_bytes(encoded(stored, format, exif=exif, **options))
    picture = open_image(file)
    assert (picture.width, picture.height) == upright.size
    for place in [(4, 3), (43, 3), (4, 28), (43, 28), (24, 16)]:
        assert near(picture.pixels.getpixel(place), upright.getpixel(place)), place  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_broken_exif_is_noted_and_costs_nothing(tmp_path: Path, format: str) -> None:
    (tmp_path / "x").write_bytes(encoded(sample(), format, exif=b"neither II nor MM", lossless=True))
    picture = open_image(tmp_path / "x")
    assert picture.pixels.tobytes() == sample().tobytes()
    assert picture.notes == ("EXIF data is broken: taken as upright",)


def cmyk() -> Image.Image:
    image = Image.new("CMYK", (32, 16), (0, 255, 255, 0))  # red
    image.paste((0, 0, 0, 0), (16, 0, 32, 16))  # no ink: white
    return image


def test_cmyk_has_its_colours_with_and_without_the_mark_of_adobe(tmp_path: Path) -> None:
    adobe = encoded(cmyk(), "JPEG", quality=95)  # stored inverted, and marked so
    segment = b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00\x00"
    inverted = Image.merge("CMYK", [band.point(lambda value: 255 - value) for band in cmyk().split()])
    plain = encoded(inverted, "JPEG", quality=95).replace(segment, b"")
    assert segment in adobe and segment not in plain
    for data in (adobe, plain):
        file = tmp_path / "x.jpg"
        file.write_bytes(data)
        image = open_image(file).pixels
        assert near(image.getpixel((4, 8)), RED) and near(image.getpixel((28, 8)), WHITE)
    cmyk().save(tmp_path / "x.tif")
    image = open_image(tmp_path / "x.tif").pixels
    assert (image.getpixel((4, 8)), image.getpixel((28, 8))) == (RED, WHITE)


def deep(mode: str, values: list[float], kind: str) -> Image.Image:
    return Image.frombytes(mode, (len(values), 1), struct.pack(f"={len(values)}{kind}", *values))


def row(image: Image.Image) -> list[object]:
    grey = [image.getpixel((x, 0)) for x in range(image.width)]
    assert all(isinstance(pixel, tuple) and len(set(pixel)) == 1 for pixel in grey)
    return [pixel[0] for pixel in grey if isinstance(pixel, tuple)]


@pytest.mark.parametrize(("format", "mode", "code"), [("PNG", "I;16", "H"), ("TIFF", "I;16", "H"), ("PPM", "I", "i")])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, format: str, mode: str, code: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(encoded(deep(mode, [0, 257, 32896, 65535], code), format))
    picture = open_image(file)
    assert row(picture.pixels) == [0, 1, 128, 255]
    assert picture.notes == ()


def grey_tiff(pixels: bytes, width: int, bits: int, photometric: int = 1) -> bytes:
    """One row of an uncompressed grey TIFF, by hand: Pillow writes none of 12 bits nor with white as zero."""
    tags = {256: width, 257: 1, 258: bits, 259: 1, 262: photometric, 273: 8 + 2 + 9 * 12 + 4, 277: 1, 278: 1}
    tags[279] = len(pixels)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0) + pixels


def test_twelve_bits_and_white_as_zero(tmp_path: Path) -> None:
    file = tmp_path / "x.tif"
    file.write_bytes(grey_tiff(bytes([0x00, 0x0F, 0xFF]), width=2, bits=12))
    assert row(open_image(file).pixels) == [0, 255]
    file.write_bytes(grey_tiff(struct.pack("<2H", 0, 65535), width=2, bits=16, photometric=0))
    assert row(open_image(file).pixels) == [255, 0]


@pytest.mark.parametrize(
    ("mode", "kind", "values"), [("F", "f", [-0.5, 0.0, 0.5]), ("I", "i", [-(10**9), 0, 10**9]), ("F", "f", [3, 4, 5])]
)
def test_values_of_unknown_range_are_stretched_from_lowest_to_highest(
    tmp_path: Path, mode: str, kind: str, values: list[float]
) -> None:
    deep(mode, values, kind).save(tmp_path / "x.tif")
    picture = open_image(tmp_path / "x.tif")
    assert row(picture.pixels) == [0, 128, 255]
    assert picture.notes == (f"values from {values[0]:g} to {values[-1]:g} scaled to 0..255",)


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    deep("F", [nan, 1.0, inf, 2.0, -inf, 3.0], "f").save(tmp_path / "x.tif")
    picture = open_image(tmp_path / "x.tif")
    assert row(picture.pixels) == [0, 0, 255, 128, 0, 255]
    assert any("NaN" in note for note in picture.notes)
    deep("F", [nan, inf], "f").save(tmp_path / "x.tif")
    assert "no pixel is a finite number" in error_of(tmp_path / "x.tif")
    deep("F", [7.0, 7.0], "f").save(tmp_path / "x.tif")  # nothing to stretch
    first, second = row(open_image(tmp_path / "x.tif").pixels)
    assert first == second


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    rgba = Image.new("RGBA", (3, 1))
    for x, pixel in enumerate([(255, 0, 0, 255), (0, 0, 0, 0), (0, 0, 0, 51)]):
        rgba.putpixel((x, 0), pixel)
    palette = Image.new("P", (3, 1))
    palette.putpalette([255, 0, 0, 0, 0, 0, 0, 0, 255])
    for x in range(3):
        palette.putpixel((x, 0), x)
    grey = Image.new("LA", (2, 1))
    grey.putpixel((0, 0), (9, 255))
    grey.putpixel((1, 0), (0, 0))
    rgb = Image.new("RGB", (2, 1), BLUE)
    rgb.putpixel((1, 0), BLACK)
    cases: list[tuple[Image.Image, dict[str, Any], list[tuple[int, int, int]]]] = [
        (rgba, {}, [RED, WHITE, (204, 204, 204)]),
        (palette, {"transparency": 1}, [RED, WHITE, BLUE]),
        (palette, {"transparency": b"\xff\x00\x33"}, [RED, WHITE, (204, 204, 255)]),
        (grey, {}, [(9, 9, 9), WHITE]),
        (rgb, {"transparency": BLACK}, [BLUE, WHITE]),
    ]
    for image, options, wanted in cases:
        image.save(tmp_path / "x.png", **options)
        seen = open_image(tmp_path / "x.png").pixels
        assert [seen.getpixel((x, 0)) for x in range(seen.width)] == wanted


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_used_and_a_note_says_so(tmp_path: Path, format: str) -> None:
    second = Image.new("RGB", (48, 32), BLACK)
    options = {"lossless": True} if format == "WEBP" else {}
    (tmp_path / "x").write_bytes(encoded(sample(), format, save_all=True, append_images=[second], **options))
    picture = open_image(tmp_path / "x")
    assert picture.pixels.tobytes() == sample().tobytes()
    assert picture.notes == (("several pages: first one used" if format == "TIFF" else "animated: first frame used"),)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        *((format, {}) for format in pictures.FORMATS),
        ("JPEG", {"progressive": True}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_a_truncated_picture_is_an_error_and_never_a_grey_fill(
    tmp_path: Path, format: str, options: dict[str, object]
) -> None:
    whole = encoded(noise(), format, **options)
    file = tmp_path / "half.jpg"
    for share in (0.3, 0.6, 0.95):
        file.write_bytes(whole[: int(len(whole) * share)])
        assert str(file) in error_of(file)


def test_files_that_are_no_picture_are_named_with_the_remedy(tmp_path: Path) -> None:
    assert "no such file" in error_of(tmp_path / "none.jpg")
    sample().save(tmp_path / "file.png")
    assert "no such file" in error_of(tmp_path / "file.png" / "x.png")
    assert error_of(tmp_path) == f"{tmp_path} is a folder: name its images one by one, or as {tmp_path / '*.jpg'}"
    (tmp_path / "empty.jpg").touch()
    assert "zero bytes" in error_of(tmp_path / "empty.jpg")
    (tmp_path / "text.jpg").write_text("Dear diary")
    message = error_of(tmp_path / "text.jpg")
    assert str(tmp_path / "text.jpg") in message and "JPEG, PNG" in message
    assert "null" in error_of("a\0b.png")
    assert "cannot be read" in error_of("x" * 5000)
    for format in ("ICO", "TGA", "PCX", "EPS"):
        (tmp_path / "x.png").write_bytes(encoded(sample(), format))
        assert "is not an image that pathx reads" in error_of(tmp_path / "x.png")
    assert r"two\nlines.jpg" in error_of(tmp_path / "two\nlines.jpg")
    assert r"\udcff.jpg" in error_of(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg"))
    assert "Zoë's café.jpg" in error_of(tmp_path / "Zoë's café.jpg")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert "not a regular file" in error_of(tmp_path / "pipe.jpg")


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample().save(tmp_path / "x.png")

    def refuse(path: Path, flags: int) -> int:  # as chmod 000 does for anyone but root
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    assert "cannot be read: Permission denied" in error_of(tmp_path / "x.png")


def test_files_beyond_the_byte_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "x.png").open("wb") as file:
        file.truncate(pictures.BYTE_LIMIT + 1)  # a hole: takes no room

    def fail(self: Path) -> bytes:
        raise AssertionError("was read")

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert "larger than 1 GiB" in error_of(tmp_path / "x.png")


def bomb(side: int) -> bytes:
    data = encoded(Image.new("1", (16, 16)), "PNG")
    header = b"IHDR" + struct.pack(">2I", side, side) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize("side", [9_460, 14_000, 60_000])  # above Pillow's warning, its error, and all memory
def test_a_decompression_bomb_is_refused_undecoded(tmp_path: Path, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.png").write_bytes(bomb(side))

    def fail(self: ImageFile.ImageFile) -> None:
        raise AssertionError("was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    assert "more than 89 million pixels" in error_of(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # what other code in the process switches off stays on here
    assert "more than 89 million pixels" in error_of(tmp_path / "x.png")


@pytest.mark.parametrize("format", pictures.FORMATS)
def test_mutated_files_give_a_picture_or_a_pathx_error(tmp_path: Path, format: str) -> None:
    chance = random.Random(format)
    whole = encoded(noise(24), format)
    file = tmp_path / "x"
    read = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data)) if chance.random() < 0.5 else chance.randrange(64)] = chance.randrange(256)
        file.write_bytes(data[: chance.randrange(1, len(data))] if chance.random() < 0.2 else data)
        try:
            picture = open_image(file)
        except PathxError as error:
            assert str(file) in str(error) and "\n" not in str(error)  # noqa: PT017
        else:
            read += 1
            assert picture.pixels.mode == "RGB" and len(picture.pixels.tobytes()) == picture.width * picture.height * 3
    assert read < 60


def test_reading_needs_no_torch_and_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(encoded(sample(), "JPEG", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00"))
    (tmp_path / "bomb.png").write_bytes(bomb(9_460))
    code = """
import sys
from pathx import PathxError
from pathx.images.read import open_image
open_image(sys.argv[1])
try:
    open_image(sys.argv[2])
except PathxError:
    print("torch" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "good.jpg"), str(tmp_path / "bomb.png")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")
