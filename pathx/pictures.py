"""Reading a picture as the user sees it: upright, in RGB, whole, or refused with one line that says why."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags, Image, ImageChops, UnidentifiedImageError

from pathx.errors import PathxError

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""What is read, told by content and never by the file's name. Pillow's other decoders are never reached."""

PIXEL_LIMIT = 89_478_485
"""More pixels are refused before they are decoded: where Pillow starts to warn, 256 MB as RGB."""

BYTE_LIMIT = 1 << 30
"""Larger files are refused unread. Even uncompressed, a picture within PIXEL_LIMIT is smaller."""

# We refuse what Pillow warns about, or mend it. A filter for good, as catch_warnings is not safe among threads.
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
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture, decoded and upright.

    Args:
        file: the path as the user gave it.
        sha256: of the very bytes that were decoded.
        image: RGB; transparency is laid on white.
        notes: what a user should know about how it was read, such as `animated: first frame used`.
    """

    file: str
    sha256: str
    image: Image.Image
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return self.image.width

    @property
    def height(self) -> int:
        return self.image.height


def open_picture(path: str | Path) -> Picture:
    """Read one picture file; whatever is wrong with it is a PathxError."""
    data = _read(path)
    notes: list[str] = []
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as stored:
            if stored.width * stored.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            stored.load()
            image = _rgb(stored, notes)
            image = image if (turn := _turn(stored, notes)) is None else image.transpose(turn)
            notes += _left_out(stored)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PathxError(
            f"{shown(path)} has more than {PIXEL_LIMIT // 10**6} million pixels, "
            "too many to decode safely: scale it down first"
        ) from None
    except UnidentifiedImageError:
        raise PathxError(
            f"{shown(path)} is not a picture that pathx reads: give it as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        ) from None
    except Exception as error:  # broken files make decoders raise anything: struct.error, SyntaxError, MemoryError, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PathxError(f"{shown(path)} is damaged or cut short ({reason}): fetch it again or save it anew") from error
    return Picture(file=os.fspath(path), sha256=hashlib.sha256(data).hexdigest(), image=image, notes=tuple(notes))


def sha256_of(path: str | Path) -> str:
    """Of a file's bytes, as path.json says it of a picture. Raises OSError."""
    with open(path, "rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def shown(path: str | Path) -> str:
    """A path as it may stand in a one-line message: quoted where it holds newlines or bytes that are not text."""
    text = os.fspath(path)
    return text if text and text.isprintable() else repr(text)


def _read(path: str | Path) -> bytes:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            example = shown(os.path.join(path, "*.jpg"))
            raise PathxError(f"{shown(path)} is a folder: name its pictures one by one, or as {example}")
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device might never end
            raise PathxError(f"{shown(path)} is not a regular file: save the picture to a file first")
        if found.st_size > BYTE_LIMIT:
            raise PathxError(f"{shown(path)} is larger than {BYTE_LIMIT >> 30} GiB: scale the picture down first")
        data = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise PathxError(f"{shown(path)}: no such file; check the path") from None
    except PermissionError:
        raise PathxError(f"{shown(path)} cannot be read: permission denied; check who may read it") from None
    except (OSError, ValueError, MemoryError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise PathxError(f"{shown(path)} cannot be read: {reason}; check the path") from None
    if not data:
        raise PathxError(f"{shown(path)} is empty (zero bytes): fetch it again")
    return data


def _turn(image: Image.Image, notes: list[str]) -> Image.Transpose | None:
    # Not ImageOps.exif_transpose: it also rewrites the EXIF block, and trips over one that is broken.
    try:
        return _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a broken EXIF block raises anything, and does not make the pixels worse
        notes.append("EXIF data is broken: taken as upright")
        return None


def _rgb(image: Image.Image, notes: list[str]) -> Image.Image:
    if image.mode == "CMYK" and _inverted_for_nothing(image):
        image = ImageChops.invert(image)
    elif image.mode.startswith("I;16"):
        image = _to_8_bit(image, 0, 2 ** _tag(image, _BITS_PER_SAMPLE, 16) - 1)
    elif image.mode == "I" and image.format == "PPM":
        image = _to_8_bit(image, 0, 2**16 - 1)
    elif image.mode in ("I", "F"):  # nothing in the file says which values are black and white
        image = _stretched(image, notes)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _inverted_for_nothing(image: Image.Image) -> bool:
    # Adobe stores CMYK inverted and marks it. Pillow takes every CMYK JPEG for one of Adobe's.
    return image.format in ("JPEG", "MPO") and "adobe" not in image.info


def _stretched(image: Image.Image, notes: list[str]) -> Image.Image:
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
    offset = 0.5 - low * scale  # Pillow cuts the fraction off
    return image.convert("F").point(lambda value: value * scale + offset).convert("L")


def _tag(image: Image.Image, tag: int, default: int) -> int:
    value = getattr(image, "tag_v2", {}).get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def _left_out(image: Image.Image) -> list[str]:
    if image.format not in ("GIF", "PNG", "WEBP", "TIFF"):  # the further frames of a JPEG are previews and depth maps
        return []
    try:
        several = bool(getattr(image, "is_animated", False))
    except Exception:  # what is broken comes after the frame that we use
        several = True
    if not several:
        return []
    return ["several pages: first one used" if image.format == "TIFF" else "animated: first frame used"]
