"""Reading an image as the user sees it: upright and in RGB. An image that cannot be read whole is refused in one line."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition

from PIL import ExifTags, Image, ImageChops, UnidentifiedImageError

from pathx.errors import PathxError, public_address, shown
from pathx.images.archives import Member, member_bytes, member_of
from pathx.images.find import PipedImage
from pathx.images.frames import PAGED, Frame, frame_image, frame_of, is_video
from pathx.images.web import fetch, is_address
from pathx.regular import damage_errors, file_errors, read_regular
from pathx.stores import check_size, fetch_stored, is_stored

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""The supported formats, recognised by content and never by name. Pillow's other decoders are not used."""

PIXEL_LIMIT = 89_478_485
"""The most pixels that are decoded: where Pillow starts to warn, 256 MB as RGB."""

KEPT_PIXELS = 4_000_000
"""Larger images are reduced to draw on, once the network's input is made."""

BYTE_LIMIT = 1 << 30
"""Largest file that is read. Even uncompressed, an image within PIXEL_LIMIT is smaller."""

# We refuse or mend what Pillow warns about. The filter stays, because catch_warnings is not thread-safe.
warnings.filterwarnings("ignore", module=r"PIL\.")

_UPRIGHT = {  # EXIF orientation -> what brings the stored pixels upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_VIDEO = "is a video: take its frames with `every` 10, or 1 for all of them"
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second


@dataclass(frozen=True, eq=False)
class UserImage:
    """An image, decoded and upright.

    Args:
        file: the path as the user gave it; of an address, the public part.
        sha256: of the bytes that were decoded; of a frame, see `Frame.sha256`.
        pixels: RGB, transparency on white.
        layer: RGBA if the file has transparency, for networks of four channels.
        notes: how it was read, such as `animated: first frame used`.
        full: (width, height) in the file, if `pixels` are a reduced copy.
        label: the true class, if the image's archive says it.
    """

    file: str
    sha256: str
    pixels: Image.Image
    layer: Image.Image | None = None
    notes: tuple[str, ...] = ()
    full: tuple[int, int] | None = None
    label: str | None = None

    @property
    def width(self) -> int:
        return (self.full or self.pixels.size)[0]

    @property
    def height(self) -> int:
        return (self.full or self.pixels.size)[1]

    def for_channels(self, channels: int) -> Image.Image:
        """The pixels for a network; with transparency if it takes a fourth channel."""
        return self.layer if self.layer is not None and channels == 4 else self.pixels

    def reduce(self) -> UserImage:
        """The image with no more pixels than drawing needs."""
        times = math.ceil(math.sqrt(self.pixels.width * self.pixels.height / KEPT_PIXELS))
        if times <= 1:
            return self if self.layer is None else replace(self, layer=None)
        return replace(self, pixels=self.pixels.reduce(times), layer=None, full=self.full or self.pixels.size)

    def on_pixels(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """A box in pixels of the file, converted to `pixels`."""
        across, down = self.pixels.width / self.width, self.pixels.height / self.height
        return box[0] * across, box[1] * down, box[2] * across, box[3] * down


def open_image(path: str | Path) -> UserImage:
    """Read one image file. Raises PathxError for whatever is wrong with it."""
    with decode_image(path) as image:
        return image


@contextmanager
def decode_image(path: str | Path | Member | PipedImage, *, web: bool = False) -> Iterator[UserImage]:
    """A decoded image, while the context lasts: all threads together decode a bounded number of pixels.

    Raises PathxError for whatever is wrong with the file.

    Args:
        web: fetch an address. Only for addresses from a user, never for those in a document.
    """
    source = _find_source(path, web)
    name, label = str(source), source.label if isinstance(source, Member) else None
    if isinstance(source, Frame):
        sha256, pixels = source.sha256, PIXEL_LIMIT // 4  # an estimate, since the size is known only once it is decoded
    else:
        with _damage(name), Image.open(io.BytesIO(data := _read_source(source, web)), formats=FORMATS) as stored:
            sha256, pixels = hashlib.sha256(data).hexdigest(), stored.width * stored.height
            if pixels > PIXEL_LIMIT:
                raise Image.DecompressionBombError
    notes: list[str] = []
    with _ROOM.take(pixels):
        with _damage(name):
            if isinstance(source, Frame):
                image = frame_image(source, PIXEL_LIMIT)
            else:
                image = Image.open(io.BytesIO(data), formats=FORMATS)
                image.load()
            upright, layer = _upright(image, notes)
            if not isinstance(source, Frame):
                notes += _left_out(image)
        yield UserImage(public_address(name), sha256, upright, layer, tuple(notes), label=label)


def sha256_of_image(path: str | Path | Member | PipedImage) -> str:
    """`UserImage.sha256` without decoding the image. Raises PathxError."""
    source = _find_source(path, web=True)
    return source.sha256 if isinstance(source, Frame) else hashlib.sha256(_read_source(source, web=True)).hexdigest()


def _find_source(path: str | Path | Member | PipedImage, web: bool) -> str | Member | PipedImage | Frame:
    """What a path names: a file, an address, an image in an archive, or a frame."""
    if isinstance(path, PipedImage):
        return path
    return member_of(path, web=web) or frame_of(os.fspath(path)) or os.fspath(path)


def _read_source(source: str | Member | PipedImage, web: bool) -> bytes:
    """The bytes of an image, wherever it is."""
    if isinstance(source, PipedImage):
        data = source.data
    elif isinstance(source, Member):
        data = member_bytes(source, BYTE_LIMIT)
    elif web and is_address(source):
        data = fetch_stored(source, BYTE_LIMIT) if is_stored(source) else fetch(source)
    else:
        data = _read_file(source)
    check_size(str(source), len(data), BYTE_LIMIT)
    if not data:
        raise PathxError(f"{shown(str(source))} is empty (zero bytes): fetch it again")
    return data


@contextmanager
def _damage(path: str | Path) -> Iterator[None]:
    """Turn what decoders raise into a PathxError."""
    with damage_errors(path, "cut short", "fetch it again or save it again"):
        try:
            yield
        except MemoryError:
            raise PathxError(f"{shown(path)}: out of memory; scale it down first") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            problem = f"has more than {PIXEL_LIMIT // 10**6} million pixels, too many to decode safely"
            raise PathxError(f"{shown(path)} {problem}: scale it down first") from None
        except UnidentifiedImageError:
            formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            problem = _VIDEO if is_video(path) else f"is not an image that pathx reads: give it as {formats}"
            raise PathxError(f"{shown(path)} {problem}") from None


class _Room:
    """Bounds the number of pixels that are decoded at once. A larger image waits until no other is decoded."""

    def __init__(self, pixels: int) -> None:
        self._pixels, self._taken, self._changed = pixels, 0, Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._taken == 0 or self._taken + pixels <= self._pixels)
            self._taken += pixels
        try:
            yield
        finally:
            with self._changed:
                self._taken -= pixels
                self._changed.notify_all()


_ROOM = _Room(PIXEL_LIMIT)


def _read_file(path: str) -> bytes:
    with file_errors(path):
        try:
            return read_regular(path, BYTE_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            raise PathxError(f"{shown(path)}: no such file; check the path") from None
        except IsADirectoryError:
            example = shown(os.path.join(path, "*.jpg"))
            raise PathxError(f"{shown(path)} is a folder: name its images one by one, or as {example}") from None
        except OSError as error:
            if error.errno == errno.EFBIG and is_video(path):
                raise PathxError(f"{shown(path)} {_VIDEO}") from None
            if error.errno == errno.EFBIG:
                check_size(path, BYTE_LIMIT + 1, BYTE_LIMIT)
            raise


def _upright(stored: Image.Image, notes: list[str]) -> tuple[Image.Image, Image.Image | None]:
    """RGB with transparency on white; and RGBA if there is transparency."""
    image = _in_8_bits(stored, notes)
    layer = image.convert("RGBA") if image.has_transparency_data else None
    laid = image if layer is None else Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    pixels, turn = laid.convert("RGB"), _turn(stored, notes)
    if turn is None:
        return pixels, layer
    return pixels.transpose(turn), None if layer is None else layer.transpose(turn)


def _turn(image: Image.Image, notes: list[str]) -> Image.Transpose | None:
    # Not ImageOps.exif_transpose, which rewrites the EXIF block and fails if it is broken.
    try:
        return _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a broken EXIF block raises anything, but the pixels are fine
        notes.append("EXIF data is broken: taken as upright")
        return None


def _in_8_bits(image: Image.Image, notes: list[str]) -> Image.Image:
    if image.mode == "CMYK" and image.format in ("JPEG", "MPO") and "adobe" not in image.info:
        # Adobe stores CMYK inverted, with a mark. Pillow inverts every CMYK JPEG.
        image = ImageChops.invert(image)
    elif image.mode.startswith("I;16"):
        image = _to_8_bit(image, 0, 2 ** _tag(image, _BITS_PER_SAMPLE, 16) - 1)
    elif image.mode == "I" and image.format in ("PNG", "PPM"):  # PNG of 16 bits in older releases of Pillow
        image = _to_8_bit(image, 0, 2**16 - 1)
    elif image.mode in ("I", "F"):  # the file does not say which values are black and white
        image = _stretch(image, notes)
    return image


def _stretch(image: Image.Image, notes: list[str]) -> Image.Image:
    if image.mode == "F":
        import torch  # only here, for one kind of file: importing it takes a second

        pixels = bytearray(image.tobytes())
        values = torch.frombuffer(pixels, dtype=torch.float32)  # shares the memory
        finite = values[values.isfinite()]
        if len(finite) == 0:
            raise ValueError("no pixel is a finite number")
        low, high = float(finite.min()), float(finite.max())
        if len(finite) < len(values):
            notes.append("NaN and infinite pixels: taken as the darkest and the brightest")
            values.nan_to_num_(nan=low, posinf=high, neginf=low)
            image.frombytes(bytes(pixels))
    else:
        low, high = (float(value) for value in image.getextrema())  # type: ignore[arg-type]
    notes.append(f"values from {low:g} to {high:g} scaled to 0..255")
    return _to_8_bit(image, low, high)


def _to_8_bit(image: Image.Image, low: float, high: float) -> Image.Image:
    if _tag(image, _PHOTOMETRIC, 1) == _WHITE_IS_ZERO:
        low, high = high, low
    scale = 255 / (high - low) if high != low else 0.0
    offset = 0.5 - low * scale  # Pillow truncates
    return image.convert("F").point(lambda value: value * scale + offset).convert("L")


def _tag(image: Image.Image, tag: int, default: int) -> int:
    value = getattr(image, "tag_v2", {}).get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def _left_out(image: Image.Image) -> list[str]:
    """A note about further frames, if there are any."""
    if image.format not in PAGED:
        return []
    try:
        several = bool(getattr(image, "is_animated", False))
    except Exception:  # the damage comes after the frame that we use
        several = True
    text = "several pages: first one used" if image.format == "TIFF" else "animated: first frame used"
    return [text] if several else []
