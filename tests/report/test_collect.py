"""What folders of results hold: what is whole, what is not, and what is of another version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.reports import changed, data_of, reported, results

from pathx.errors import PathxError
from pathx.report.build import report
from pathx.report.collect import collect


def test_a_newer_schema_is_shown_and_said(tmp_path: Path) -> None:
    folder = results(tmp_path)
    changed(folder, schema="pathx/path@7", something={"new": [1]})
    data, notes = reported(folder)
    assert any("pathx/path@7" in note for note in data["notes"])
    assert any("pathx/path@7" in note for note in notes)
    assert data["path"]["edges"]


def test_a_document_of_an_earlier_version_is_to_be_made_again(tmp_path: Path) -> None:
    folder = results(tmp_path)
    changed(folder, input=None)
    with pytest.raises(PathxError, match=r"has no input.: make it again"):
        report([folder])


def test_half_written_folders_are_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = results(tmp_path, ["a.png", "b.png", "c.png", "d.png"])
    whole = sorted(folder.rglob("path.json"))
    whole[0].unlink()
    whole[1].write_text('{"schema": "pathx/path@1", "image":')
    notes: list[str] = []
    index = report([folder], note=notes.append)
    rows = data_of(index)["rows"]
    assert [Path(row["file"]).name for row in rows] == ["c.png", "d.png"]
    assert len(notes) == 2 and any("not whole" in note for note in notes) and any("JSON" in note for note in notes)
    assert data_of(index)["notes"] == notes
    whole[2].unlink()
    assert sum("not whole" in note for note in reported(folder)[0]["notes"]) == 2  # of a single page too


def test_the_index_tells_labels_and_best_classes(tmp_path: Path) -> None:
    folder = results(tmp_path, ["cat/a.png", "dog/b.png"])
    lines = [
        {
            "name": str(file.parent.parent.relative_to(folder)),
            "label": "cat",
            "top": [{"label": "dog", "probability": 0.75}],
        }
        for file in folder.rglob("path.json")
    ]
    lines.append({"name": "gone.png", "file": "gone.png", "error": "no such file"})
    (folder / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = collect([folder])
    assert len(found.explanations) == len(list(folder.rglob("path.json")))
    assert {(one.truth, one.top) for one in found.explanations} == {("cat", (("dog", 0.75),))}
    assert found.failures == [("gone.png", "no such file")]
