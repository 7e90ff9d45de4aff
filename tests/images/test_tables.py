"""Parquet files of images: which column is what, and rows read in any order."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from support.archives import write_parquet

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'pathx-relu[parquet]'")
from pathx.errors import PathxError
from pathx.images import parquet, tables
from pathx.images.tables import TableRows, table_rows


def stream(tmp_path: Path, columns: dict[str, Any], metadata: Any = None, **options: Any) -> io.BytesIO:
    return io.BytesIO(Path(write_parquet(tmp_path / "x.parquet", columns, metadata, **options)).read_bytes())


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"image": [b"x", b"y"]}, [("row-000000", None), ("row-000001", None)]),
        (
            {"image": [{"bytes": b"x", "path": "a.png"}, {"bytes": b"y", "path": None}]},
            [("a.png", None), ("row-000001", None)],
        ),
        ({"__key__": ["k", "l"], "jpg": [b"x", b"y"], "cls": [3, None]}, [("k", "3"), ("l", None)]),
        ({"pixels": [b"x", b"y"], "label": ["cat", "dog"]}, [("row-000000", "cat"), ("row-000001", "dog")]),
    ],
)
def test_columns_say_names_and_labels(tmp_path: Path, columns: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = list(table_rows(stream(tmp_path, columns), "x.parquet"))
    assert [(key, label) for key, _, label in found] == expected
    data = TableRows(stream(tmp_path, columns), "x.parquet")
    assert [data.at(*place) for _, place, _ in found] == [b"x", b"y"]


def test_numbers_of_labels_are_the_names_that_the_datasets_library_wrote(tmp_path: Path) -> None:
    about = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    found = table_rows(stream(tmp_path, {"image": [b"x"] * 3, "label": [1, 0, 7]}, about), "x.parquet")
    assert [label for *_, label in found] == ["dog", "cat", "7"]


def test_rows_of_several_groups_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "HELD", 1)  # a row at a time
    monkeypatch.setattr(tables, "_KEPT", 1)
    contents = [bytes([number]) * 50 for number in range(20)]
    file = stream(tmp_path, {"image": contents}, row_group_size=7)
    places = [place for _, place, _ in table_rows(file, "x.parquet")]
    assert places[:8] == [*((0, row) for row in range(7)), (1, 0)]
    data = TableRows(file, "x.parquet")
    for number in (0, 19, 3, 4, 2, 18, 5, 6, 0, 7):
        assert data.at(*places[number]) == contents[number]


def test_a_row_without_an_image_or_beyond_the_end(tmp_path: Path) -> None:
    data = TableRows(stream(tmp_path, {"image": [b"x", None]}), "x.parquet")
    with pytest.raises(PathxError, match="row 1 of group 0 has no bytes of an image"):
        data.at(0, 1)
    with pytest.raises(PathxError, match="is damaged or no Parquet file"):
        data.at(0, 9)


@pytest.mark.parametrize("columns", [{"a": [b"x"], "b": [b"y"]}, {"image": ["text"]}, {"label": [1]}])
def test_no_column_of_images_is_said_with_those_there_are(tmp_path: Path, columns: dict[str, Any]) -> None:
    with pytest.raises(PathxError, match=rf"no column of images \(its columns: {', '.join(columns)}\)"):
        next(table_rows(stream(tmp_path, columns), "x.parquet"))


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = stream(tmp_path, {"image": [b"x"]})

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(tables, "import_module", missing)
    with pytest.raises(PathxError, match="which needs pyarrow: pip install"):
        TableRows(file, "x.parquet")
