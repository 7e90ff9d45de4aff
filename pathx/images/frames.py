"""Frames of videos, animations and files of several pages: images with names such as `clip.mp4#frame=30`."""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import local
from typing import Any

from PIL import Image

from pathx.errors import PathxError, shown
from pathx.regular import damage_errors, file_errors, open_regular, sha256_of
from pathx.stores import version_anywhere

PAGED = ("GIF", "PNG", "WEBP", "TIFF")
"""Formats that may hold several images. (Further images in a JPEG are previews and depth maps.)"""

_KINDS = "mp4 m4v mov mkv webm avi mpg mpeg ts mts m2ts ogv flv wmv 3gp"
VIDEOS = frozenset(f".{kind}" for kind in _KINDS.split())
"""Suffixes of videos in folders."""

INSTALL = "pip install 'pathx-relu[video]'"

_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,ogg,flv,asf"  # none of them leads to other files
_FAR = 250  # frames: beyond this distance a jump is faster than decoding
_STARTS = (b"GIF8", b"\x89PNG", b"RIFF", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_FRAME = re.compile(r"(?s)(.+)#frame=(\d{1,12})")


@dataclass(frozen=True)
class Frame:
    """One image of a file that holds several, counted from 0 in the order that they are shown."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}#frame={self.number}"

    @property
    def name(self) -> str:
        """The folder of its results, inside that of the file."""
        return f"frame-{self.number:05d}"

    @property
    def sha256(self) -> str:
        """SHA-256 of the text that names the file's SHA-256 and the frame's number. Raises PathxError."""
        whole = _file_sha256(self.file, version_anywhere(self.file))
        return hashlib.sha256(f"{whole}#frame={self.number}".encode()).hexdigest()


def frame_of(file: str | Path) -> Frame | None:
    """The frame that `clip.mp4#frame=30` names; None for other names, and if there is a file of that name."""
    found = _FRAME.fullmatch(os.fspath(file))
    return None if found is None or os.path.lexists(file) else Frame(found[1], int(found[2]))


def is_video(file: str | Path) -> bool:
    """Whether a file has the suffix of a video."""
    return os.path.splitext(file)[1].lower() in VIDEOS


def count_frames(file: str) -> int | None:
    """The number of frames in a file; None if it is a single image or holds no frames.

    Raises PathxError for a video without frames, and if PyAV is missing.
    """
    try:
        with open_regular(file) as stream:
            if _is_paged(stream):
                pages = _pages(stream)
                return pages if pages is not None and pages > 1 else None
        return len(_times(file, version_anywhere(file))) if is_video(file) else None
    except OSError:
        return None  # reported when it is opened


def frame_image(frame: Frame, limit: int) -> Image.Image:
    """The pixels of a frame, as Pillow opens it. Raises PathxError, OSError and whatever decoders raise.

    Args:
        limit: the most pixels to decode.
    """
    key = frame.file, version_anywhere(frame.file)
    frames, _OPEN.frames = _OPEN.frames if _OPEN.key == key else None, None  # closes the previous file first
    if frames is None:
        with open_regular(frame.file) as stream:
            paged = _is_paged(stream) or not is_video(frame.file)
        frames = _Pages(frame.file) if paged else _Video(*key)
    image = frames.at(frame.number, limit)
    _OPEN.key, _OPEN.frames = key, frames  # not after an error: the next frame starts afresh
    return image


class _Open(local):
    """The file that a thread reads frames from: they mostly come in order, and few formats allow access to any frame."""

    key: tuple[str, str] | None = None
    frames: _Pages | _Video | None = None


_OPEN = _Open()


class _Pages:
    """Frames of an image file."""

    def __init__(self, file: str) -> None:
        self._file, self._stream = file, open_regular(file)
        self._image = Image.open(self._stream, formats=PAGED)

    def at(self, number: int, limit: int) -> Image.Image:
        if number < self._image.tell():  # Pillow cannot seek backwards in an animated PNG
            self._image = Image.open(self._stream, formats=PAGED)
        self._check(limit)  # seeking decodes an animation
        try:
            self._image.seek(number)
        except EOFError:
            raise _no_frame(self._file, number, _pages(self._stream) or 1) from None
        self._check(limit)  # pages differ in size
        self._image.load()
        return self._image

    def _check(self, limit: int) -> None:
        if self._image.width * self._image.height > limit:
            raise Image.DecompressionBombError


class _Video:
    """Frames of a video, in order or after a jump to a key frame before them."""

    def __init__(self, file: str, version: str) -> None:
        self._file, self._times = file, _times(file, version)
        self._timed = not isinstance(self._times, range)
        self._container, self._stream = _open_video(file)
        self._decoded, self._next = self._frames(), 0

    def at(self, number: int, limit: int) -> Image.Image:
        if number >= len(self._times):
            raise _no_frame(self._file, number, len(self._times))
        if self._stream.width * self._stream.height > limit:
            raise Image.DecompressionBombError
        if not self._next <= number <= self._next + _FAR:
            self._jump(number)
        frame = self._find(number)
        if frame is None:  # some containers seek too far
            self._jump(max(0, number - _FAR))
            frame = self._find(number)
        if frame is None:
            raise PathxError(f"{shown(self._file)}: frame {number} is damaged: fetch the video again")
        return _upright_image(frame)

    def _jump(self, number: int) -> None:
        if number > 0 and self._timed:
            self._container.seek(self._times[number], stream=self._stream, backward=True)
        else:  # not all containers can seek to their start
            self._container.close()
            self._container, self._stream = _open_video(self._file)
            number = 0
        self._decoded, self._next = self._frames(), number

    def _find(self, number: int) -> Any:
        """Decode up to a frame; None if it is missing."""
        time = self._times[number]
        for frame in self._decoded:
            self._next += not self._timed
            if frame.pts == time if self._timed else self._next > number:
                self._next = number + 1
                return frame
            if self._timed and frame.pts is not None and frame.pts > time:
                return None
        return None

    def _frames(self) -> Iterator[Any]:
        damage = import_module("av").error.InvalidDataError
        for packet in self._container.demux(self._stream):
            try:
                yield from packet.decode()
            except damage:
                continue  # loses its frames; the times of the others tell which they are


@lru_cache(maxsize=4)
def _times(file: str, version: str) -> array[int] | range:
    """The time of each frame, without decoding any; eight bytes each, so that hours of video fit into memory.

    If the file has no times, the frames' numbers.
    """
    container, stream = _open_video(file)
    times, timed = array("q"), True
    with container, _damage(file):
        try:
            for packet in container.demux(stream):
                if packet.size and not packet.is_discard:
                    timed = timed and packet.pts is not None
                    times.append(packet.pts if packet.pts is not None else len(times))
        except Exception:
            if not times:
                raise
    if not times:
        raise PathxError(f"{shown(file)} holds no frames: fetch it again")
    return array("q", sorted(set(times))) if timed else range(len(times))


def _open_video(file: str) -> tuple[Any, Any]:
    """A video's container and its first stream of images. No other file that it names is opened."""
    try:
        av = import_module("av")
    except ImportError:
        raise PathxError(f"{shown(file)} is a video, which needs PyAV: {INSTALL}") from None

    def refuse(*_: Any) -> None:
        raise PermissionError("a video may not lead to other files")

    stream = open_regular(file)
    with _damage(file):
        container = av.open(
            stream,
            metadata_errors="replace",
            container_options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"},
            io_open=refuse,
        )
    if not container.streams.video:
        container.close()
        raise PathxError(f"{shown(file)} has no video in it, only sound or data: give another file")
    return container, container.streams.video[0]


def _damage(file: str) -> AbstractContextManager[None]:
    return damage_errors(file, "no video")


def _upright_image(frame: Any) -> Image.Image:
    image: Image.Image = frame.to_image()
    turn = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
    return image if frame.rotation % 360 not in turn else image.transpose(turn[frame.rotation % 360])


def _no_frame(file: str, number: int, count: int) -> PathxError:
    return PathxError(f"{shown(file)} has no frame {number}: it holds frames 0 to {count - 1}")


def _is_paged(stream: Any) -> bool:
    """Whether the content of a file begins like an image format that may hold several frames."""
    stream.seek(0)
    start: bytes = stream.read(12)
    return start.startswith(_STARTS) and start[8:] != b"AVI "


def _pages(stream: Any) -> int | None:
    """The number of frames in an image file up to any damage; None for other files."""
    stream.seek(0)
    number = 0
    try:
        with Image.open(stream, formats=PAGED) as image:
            with suppress(Exception):  # the end may be damaged, so count from the start
                return int(getattr(image, "n_frames", 1))
            try:
                for number in count(1):
                    image.seek(number)
            except EOFError:
                return number
            except Exception:
                return number + 1  # the damaged frame will fail when it is read
    except Exception:
        return None
    return None


@lru_cache(maxsize=16)
def _file_sha256(file: str, version: str) -> str:
    with file_errors(file):
        return sha256_of(file)
