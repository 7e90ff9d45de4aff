"""Which home results have: a folder, shards, or a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathx.errors import PathxError
from pathx.results.home import Home
from pathx.results.homes import check_in_folders, home_of
from pathx.results.packed import Pack
from pathx.results.stored import Store


def test_the_name_of_an_output_says_where_it_is(tmp_path: Path) -> None:
    assert type(home_of(tmp_path)) is Home and type(home_of("s3://bucket/out")) is Store
    packed = home_of(tmp_path, "tar")
    assert isinstance(packed, Pack) and (type(packed.base), packed.records) == (Home, tmp_path)
    stored = home_of("s3://bucket/out", "tar")
    assert isinstance(stored, Pack) and type(stored.base) is Store
    with pytest.raises(PathxError, match="into tar or parquet, not into 'zip'"):
        home_of(tmp_path, "zip")


def test_some_things_are_made_of_folders_only(tmp_path: Path) -> None:
    check_in_folders(tmp_path)
    with pytest.raises(PathxError, match="is in a store: copy it to a folder"):
        check_in_folders("s3://bucket/out")
    (tmp_path / "results-20260101-000000-abcd.tar").touch()
    with pytest.raises(PathxError, match="run `pathx merge"):
        check_in_folders(tmp_path)
