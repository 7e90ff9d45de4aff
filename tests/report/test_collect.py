"""What folders of results hold: what is whole, what is not, what is of another version, and what channels look for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.reports import changed, data_of, only_document, reported, results
from support.small import picture

from pathx.errors import PathxError
from pathx.images.read import open_image
from pathx.report.build import report
from pathx.report.collect import References, collect


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
    with pytest.raises(PathxError, match=r"has no input.: explain the image again"):
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


def test_a_document_that_lacks_something_is_one_line(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    for key in ("layers", "target", "linear_model", "image"):
        for damage in (None, [], 3, {"a": 1}, [{"layer": 1}], "x"):
            file.write_text(json.dumps(document))
            changed(folder, **{key: damage})
            with pytest.raises(PathxError, match="damaged .the document has no" if damage is None else r"path\.json"):
                report([folder])


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


SEEN = {"input_size": (3, 10, 10), "mean": (0.5,) * 3, "std": (0.25,) * 3}


def units(photo: Path, channels: int = 1, **changes: Any) -> dict[str, Any]:
    """A units.json whose channels each have one reference, to a photo."""
    about = {"file": str(photo), "sha256": open_image(photo).sha256, "receptive_field": [0, 0, 5, 10], "label": "cat"}
    entries = [
        {"channel": number, "words": f"cat {number}", "references": [about | changes]} for number in range(channels)
    ]
    tensors = [{"name": "relu", "channels": [*entries, {"channel": 99, "words": "", "references": []}]}]
    return {"preprocessing": SEEN, "model": {"sha256": "ours"}, "layers": [{"layer": 1, "tensors": tensors}]}


def test_a_channel_has_words_and_crops_of_what_it_saw(tmp_path: Path) -> None:
    file = picture(tmp_path / "photo.png", (20, 20))
    found = References([units(file)]).of([("relu", 0), ("relu", 99), ("other", 0), ("relu", 0)], "ours")
    assert list(found) == ["relu[0]"] and found["relu[0]"]["words"] == "cat 0"
    (crop,) = found["relu[0]"]["crops"]
    assert crop["src"].startswith("data:image/") and (crop["file"], crop["label"]) == (str(file), "cat")


def test_what_is_of_another_model_is_left_out(tmp_path: Path) -> None:
    assert References([units(picture(tmp_path / "photo.png"))]).of([("relu", 0)], "theirs") == {}


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"file": "nowhere.png"}])
def test_an_image_that_is_gone_or_another_has_no_crop(tmp_path: Path, change: dict[str, str]) -> None:
    found = References([units(picture(tmp_path / "photo.png"), **change)]).of([("relu", 0)], "ours")
    assert found == {"relu[0]": {"words": "cat 0", "crops": []}}


def test_a_document_that_is_none_adds_nothing(tmp_path: Path) -> None:
    good = units(picture(tmp_path / "photo.png"))
    assert list(References([{}, {"preprocessing": 3}, good]).of([("relu", 0)], "ours")) == ["relu[0]"]
