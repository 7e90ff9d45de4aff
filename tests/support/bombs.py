"""Small files that expand to gigabytes. Run as a program, it reads each of them and says how much memory that took.

Each is read in a fork of a process that has everything imported, so that its peak is its own.
"""

from __future__ import annotations

import io
import json
import os
import resource
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import nn

HUGE = 1 << 30
BLOCK = 1 << 24


def write_bombs() -> dict[str, str]:
    """What to do with each file: explain it, take it as weights, or as a model."""
    files = {}
    for name, content in {**_images(), **dict(_tars())}.items():
        Path(name).write_bytes(content)
        files[name] = "image"
    for name in _tables():
        files[name] = "image"
    for name in _models():
        files[name] = "weights" if name.endswith(".pth") else "model"
    return files


@cache
def _deflated() -> tuple[bytes, int]:
    """A gigabyte of zeros, deflated, and its CRC."""
    packer, block, checksum = zlib.compressobj(6, wbits=-15), bytes(BLOCK), 0
    data = b"".join(packer.compress(block) for _ in range(HUGE // BLOCK)) + packer.flush()
    for _ in range(HUGE // BLOCK):
        checksum = zlib.crc32(block, checksum)
    return data, checksum


def _as_zlib() -> bytes:
    return b"\x78\x01" + _deflated()[0] + struct.pack(">HH", HUGE % 65521, 1)  # the Adler-32 of zeros


def _as_gzip() -> bytes:
    data, checksum = _deflated()
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + data + struct.pack("<II", checksum, HUGE)


def _deflate(source: str, file: str, record: str) -> str:
    """An archive of torch in which one record is exchanged for zeros, deflated; only the directory of the file says so."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            ours = name.endswith(record)
            info = zipfile.ZipInfo(name)
            new.writestr(info, _deflated()[0] if ours else old.read(name))
            if ours:
                info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, HUGE
                info.CRC = _deflated()[1]
    return file


def _models() -> Iterator[str]:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    image = torch.zeros(1, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(module.state_dict(), "small.pth")
        torch.jit.save(torch.jit.script(module), "small.pt")
        torch.export.save(torch.export.export(module, (image,)), "small.pt2")
    yield _deflate("small.pth", "weights.pth", "data/0")
    yield _deflate("small.pth", "pickle.pth", "data.pkl")
    yield _deflate("small.pt", "constants.pt", "data/0")
    yield _deflate("small.pt", "program.pt", ".py")
    yield _deflate("small.pt2", "export.pt2", "weight_0")
    yield _deflate("small.pt2", "graph.pt2", "model.json")
    wide = torch.zeros((), dtype=torch.float16).expand(HUGE // 4)
    torch.save(dict.fromkeys(("features.0.weight", "features.3.squeeze.weight"), wide), "expanded.pth")
    yield "expanded.pth"
    torch.save({"classifier.1.weight": wide[:, None, None, None].expand(-1, 512, 1, 1)}, "classes.pth")
    yield "classes.pth"
    header = json.dumps({"weight": {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [0, HUGE]}}).encode()
    Path("claims.pth").write_bytes(struct.pack("<Q", len(header)) + header)
    yield "claims.pth"
    Path("header.pth").write_bytes(struct.pack("<Q", HUGE) + b"{" + bytes(64))
    yield "header.pth"


def _tables() -> Iterator[str]:
    """One value, repeated; a value that is shared by keys; rows without anything in them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return

    def write(name: str, **columns: object) -> str:
        pyarrow.parquet.write_table(pyarrow.table(columns), name, compression="zstd", store_schema=False)
        return name

    def repeated(value: bytes | str, rows: int) -> object:
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array([value]))

    yield write("repeated.parquet", image=repeated(bytes(HUGE // 32), 64))
    yield write("smaller.parquet", image=repeated(bytes(BLOCK - 4096), 256))
    nested = pyarrow.StructArray.from_arrays([repeated(bytes(HUGE // 32), 64)], ["bytes"])
    yield write("nested.parquet", image=nested)
    yield write("keys.parquet", key=repeated("k" * (BLOCK // 4), 1000), image=pyarrow.array([b"x"] * 1000))
    yield write("rows.parquet", image=pyarrow.nulls(5_000_000, pyarrow.binary()))


def _images() -> dict[str, bytes]:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(width: int, height: int, *more: bytes) -> bytes:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", zeros) + chunk(b"IEND", b"")

    zeros = _as_zlib()
    gif = io.BytesIO()
    Image.new("P", (1, 1)).save(gif, "GIF")
    wide = bytearray(gif.getvalue())
    wide[6:10] = struct.pack("<HH", 65535, 65535)
    tiff = io.BytesIO()
    Image.new("L", (64, 64)).save(tiff, "TIFF", compression="tiff_adobe_deflate")
    return {
        "wide.png": png(60_000, 60_000),
        "text.png": png(8, 8, chunk(b"zTXt", b"note\0\0" + zeros)),
        "profile.png": png(8, 8, chunk(b"iCCP", b"note\0\0" + zeros)),
        "long.png": png(8, 8),
        "wide.gif": bytes(wide),
        "wide.tif": tiff.getvalue().replace(
            struct.pack("<HHIHH", 256, 3, 1, 64, 0), struct.pack("<HHII", 256, 4, 1, 1 << 30)
        ),
        "wide.ppm": b"P6 60000 60000 255\n" + bytes(64),
    }


def _tars() -> Iterator[tuple[str, bytes]]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w"):
        about = tarfile.TarInfo("a.png")
        about.size = HUGE
        buffer.write(about.tobuf())
    yield "claims.tar", buffer.getvalue()
    yield "shard.tar.gz", _as_gzip()


def _read(file: str, purpose: str) -> None:
    from pathx.errors import PathxError
    from pathx.images.find import find_images
    from pathx.images.read import decode_image
    from pathx.models.load import load_model

    try:
        if purpose == "image":
            for found in find_images([file]):
                if found.error is not None:
                    raise found.error
                with decode_image(found.source):
                    pass
        elif purpose == "weights":
            load_model("squeezenet1_1", weights=file)
        else:
            load_model(file, input_size=(3, 8, 8), mean=0.5, std=0.5)
    except PathxError as error:
        print(json.dumps([file, str(error)]), flush=True)
    else:
        print(json.dumps([file, None]), flush=True)


def _in_a_fork(call: Callable[[], None]) -> tuple[int, int]:
    """The exit status, and the peak in MB beyond what a fork that does nothing has."""
    process = os.fork()
    if process == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # seconds
        try:
            call()
        finally:
            os._exit(0)
    _, status, used = os.wait4(process, 0)
    return status, used.ru_maxrss >> 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _read("nothing.png", "image")
    _read("nothing.pth", "weights")
    _, least = _in_a_fork(lambda: None)
    for name, purpose in json.loads(sys.argv[1]).items():
        status, peak = _in_a_fork(lambda name=name, purpose=purpose: _read(name, purpose))  # type: ignore[misc]
        print(json.dumps({"file": name, "status": status, "megabytes": peak - least}), flush=True)
