"""Archives of small images, as WebDataset and the datasets library write them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image


def image_bytes(seed: int = 0, size: tuple[int, int] = (24, 16), kind: str = "PNG") -> bytes:
    pixels = torch.randint(0, 256, (3 * size[0] * size[1],), generator=torch.Generator().manual_seed(seed))
    stream = io.BytesIO()
    Image.frombytes("RGB", size, bytes(pixels.tolist())).save(stream, kind)
    return stream.getvalue()


def write_tar(file: str | Path, members: Mapping[str, bytes] | list[tuple[str, bytes]], **options: Any) -> str:
    """A tar file of members in order; names may come twice in a list."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w", **options) as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return str(file)


def shard(file: str | Path, count: int, start: int = 0) -> str:
    """A shard of WebDataset: `00007.png` beside `00007.cls` and `00007.json`."""
    members: dict[str, bytes] = {}
    for number in range(start, start + count):
        members[f"{number:05d}.png"] = image_bytes(number)
        members[f"{number:05d}.cls"] = str(number % 3).encode()
        members[f"{number:05d}.json"] = json.dumps({"caption": "a thing"}).encode()
    return write_tar(file, members)


def write_parquet(file: str | Path, columns: Mapping[str, Any], metadata: Any = None, **options: Any) -> str:
    """A Parquet file; `metadata` as the datasets library adds it. Skips the test without pyarrow."""
    pytest.importorskip("pyarrow", reason="Parquet is an extra: pip install 'pathx-relu[parquet]'")
    import pyarrow
    import pyarrow.parquet

    Path(file).parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(dict(columns))
    if metadata is not None:
        table = table.replace_schema_metadata({b"huggingface": json.dumps(metadata).encode()})
    pyarrow.parquet.write_table(table, file, **options)
    return str(file)
