"""Parquet files of every kind that writers make are read as they are; pages that claim too much are not expanded."""

from __future__ import annotations

import io
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.archives import write_parquet

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'pathx-relu[parquet]'")
from pathx.errors import PathxError
from pathx.images import archives
from pathx.images.archives import ImageTable, Parquet

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
