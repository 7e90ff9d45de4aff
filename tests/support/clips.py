"""Videos and files of several pages whose frames tell their own number."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

SIZE = (64, 48)


def shade(number: int) -> int:
    return 5 * number % 250


def still(number: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """A frame: its shade is its number; the left upper corner is white, to tell which way is up."""
    image = Image.new("RGB", size, (shade(number),) * 3)
    image.paste((255, 255, 255), (0, 0, 16, 16))
    return image


def number_of(image: Image.Image) -> int:
    """The number of a frame, from its shade."""
    red, *_ = image.getpixel((image.width // 2, image.height // 2))  # type: ignore[misc]
    return round(red / 5)


def write_video(file: Path, count: int = 50, codec: str = "libx264", between: int = 20) -> None:
    """Args: between: frames from one that stands for itself to the next."""
    av = pytest.importorskip("av")
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=25)
        (stream.width, stream.height), stream.pix_fmt, stream.gop_size = SIZE, "yuv420p", between
        stream.bit_rate = 4_000_000  # so that shades stay what they were
        for number in range(count):
            container.mux(stream.encode(av.VideoFrame.from_image(still(number))))
        container.mux(stream.encode(None))


def write_sound(file: Path) -> None:
    """A video container with sound in it and nothing else."""
    av = pytest.importorskip("av")
    with av.open(str(file), "w") as container:
        stream = container.add_stream("aac", rate=44100, layout="mono")
        frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
        frame.sample_rate = 44100
        frame.planes[0].update(bytes(4096))
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_pages(file: Path, count: int = 12) -> None:
    first, *others = map(still, range(count))
    how = {"lossless": True} if file.suffix == ".webp" else {}
    first.save(file, save_all=True, append_images=others, **how)
