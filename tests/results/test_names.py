"""names.json: what a page saves is what pathx reads, of the same model only, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pathx.results.files import NAMES, read_names


def names(folder: Path, given: Any, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    document = {"schema": "pathx/names@1", "model": {"sha256": "ours", "name": "x"}, "names": given}
    (folder / NAMES).write_text(json.dumps(document | changes))
    return folder


def test_the_first_folder_that_names_a_channel_counts(tmp_path: Path) -> None:
    one = names(tmp_path / "one", {"relu[1]": "eye", "relu[2]": ""})
    two = names(tmp_path / "two", {"relu[1]": "nose", "relu[2]": "ear"})
    assert read_names([one, tmp_path / "none", two], "ours") == {"relu[1]": "eye", "relu[2]": "ear"}


@pytest.mark.parametrize(
    "changes", [{"model": {"sha256": "theirs"}}, {"schema": "pathx/path@1"}, {"names": ["eye"]}, {"model": None}]
)
def test_what_is_of_others_or_damaged_adds_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_names([names(tmp_path, {"relu[1]": "eye"}, **changes)], "ours") == {}


def test_a_file_that_is_no_json_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / NAMES).write_text("{")
    assert read_names([tmp_path], "ours") == {}
