"""Reports of finished results: which pages there are, and what is said of results that are old, new, damaged or half there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx, network, picture, scripted
from support.reports import data_of, only_document, results
from support.small import files

from pathx.errors import PathxError
from pathx.report.build import report
from pathx.report.page import page
from pathx.results.files import NoRoomError, Replacement

pytestmark = pytest.mark.usefixtures("one_thread")


def changed(folder: Path, **changes: Any) -> None:
    """The one path.json below a folder with other contents; None takes a key out."""
    file, document = only_document(folder)
    document |= changes
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def made(folder: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    return data_of(report([folder], note=notes.append, **options)), notes


def test_a_newer_schema_is_shown_and_said(tmp_path: Path) -> None:
    folder = results(tmp_path)
    changed(folder, schema="pathx/path@7", something={"new": [1]})
    data, notes = made(folder)
    assert any("pathx/path@7" in note for note in data["notes"])
    assert any("pathx/path@7" in note for note in notes)
    assert data["paths"][0]["edges"]


def test_an_older_schema_has_no_ribbons_and_says_so(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    for layer in document["layers"]:
        del layer["edges"], layer["edges_share"]
        for tensor in layer["tensors"]:
            del tensor["places"]
    del document["region"]
    file.write_text(json.dumps(document))
    data, notes = made(folder)
    top = document["layers"][0]["layer"]
    assert {(edge[0], edge[2]) for edge in data["paths"][0]["edges"]} == {(top, None)}  # to the class, which is known
    assert len(notes) == len(data["notes"]) == 2
    assert "no ribbons" in data["notes"][0] and "which part of the photo" in data["notes"][1]


@pytest.mark.parametrize("how", ["gone", "changed", "no picture"])
def test_a_photo_that_is_not_there_any_more_is_said(tmp_path: Path, how: str) -> None:
    folder, photo = results(tmp_path), tmp_path / "photo.png"
    photo.unlink()
    if how == "changed":
        picture(str(photo), seed=9)
    elif how == "no picture":
        photo.write_text("no picture")
    data, notes = made(folder)
    assert data["photo"] is None and len(notes) == 1 and str(photo) in notes[0]
    assert data["paths"][0]["pixels"]  # what was drawn is still there


def test_a_photo_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    document["image"]["file"] = "photo.png"  # as it was named in the folder of the run
    file.write_text(json.dumps(document))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    picture("photo.png", seed=5)  # another one of that name
    data, notes = made(folder)
    assert data["photo"] is not None and notes == []


def test_without_pictures_the_flow_is_still_there(tmp_path: Path) -> None:
    data, notes = made(results(tmp_path, pictures=False))
    assert data["paths"][0]["edges"] and not data["paths"][0]["pixels"]
    assert any("pixel map" in note for note in notes)


def test_the_pixel_map_of_tensors_is_exact(tmp_path: Path) -> None:
    (pixels,) = made(results(tmp_path, save_tensors=True))[0]["paths"][0]["pixels"].values()
    assert pixels["exact"] is True
    (pixels,) = made(results(tmp_path / "other"))[0]["paths"][0]["pixels"].values()
    assert pixels["exact"] is False


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
    assert sum("not whole" in note for note in made(folder)[0]["notes"]) == 2  # of a single page too


@pytest.mark.parametrize("key", ["layers", "target", "linear_model", "image"])
def test_a_document_that_lacks_something_is_one_line(tmp_path: Path, key: str) -> None:
    folder = results(tmp_path)
    changed(folder, **{key: None})
    with pytest.raises(PathxError, match=f"path.json is damaged .the document has no {key}"):
        report([folder])
    for damage in ([], 3, {"a": 1}, [{"layer": 1}], "x"):
        changed(folder, **{key: damage})
        with pytest.raises(PathxError, match=r"path\.json"):
            report([folder])


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results(tmp_path, ["a.png", "b.png"])
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    put = Replacement.put
    for last in range(5):  # two pages, two small pictures, the index
        count = iter(range(100))

        def full(self: Replacement, name: str, data: bytes, count: Any = count, last: int = last) -> None:
            if next(count) == last:
                raise OSError(28, "No space left on device")
            put(self, name, data)

        monkeypatch.setattr(Replacement, "put", full)
        with pytest.raises(NoRoomError):
            report([folder])
        assert {name: (folder / name).read_bytes() for name in files(folder)} == before
    monkeypatch.setattr(Replacement, "put", put)
    assert report([folder]) == folder / "report/index.html"


def test_a_page_goes_when_its_explanation_is_replaced(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file = report([folder])
    assert file.is_file()
    results(tmp_path, width=3)
    assert not file.exists()


def test_pages_of_an_earlier_report_go(tmp_path: Path) -> None:
    folder = results(tmp_path, ["a.png", "b.png", "c.png"])
    index = report([folder])
    (index.parent / "pages/mine.html").write_text("kept")
    shutil.rmtree(folder / "b.png")
    again = report([folder])
    rows = data_of(again)["rows"]
    ours = {"index.html", "pages/mine.html", "thumbnails/.pathx.json"}
    used = {*ours, *(row["page"] for row in rows), *(row["thumbnail"] for row in rows)}
    assert len(rows) == 2 and files(index.parent) == used


def test_features_and_contrasts_are_shown(tmp_path: Path) -> None:
    index = report([results(tmp_path, targets=("cat", "dog"), decompose=True)])
    pages = sorted(index.parent.glob("pages/*.html"))
    assert len(pages) == 3  # two classes, and one against the other
    for file in pages:
        data = data_of(file)
        assert {label for label, _ in data["others"]} | {data["whole"]["label"]} == {"cat", "dog", "cat and not dog"}
        assert all((file.parent / address).is_file() for _, address in data["others"])
        (contrast,) = data["contrasts"]
        assert contrast["labels"] == ["cat", "dog"] and contrast["pairs"][0]["label"] == "cat minus dog"
        if data["against"]:
            assert data["whole"]["logit"] == data["target"]["logit"] - data["against"]["logit"]
            assert "--against" in data["command"]
        else:
            assert data["features"]["items"][0]["src"].startswith("data:image/jpeg")


def test_the_verdict_of_a_check_is_beside_its_explanation(here: Path, pathx_: Pathx) -> None:
    model, photo = scripted(network()), picture()
    assert pathx_("explain", photo, "--model", model, "--out", "out").status == 0
    pathx_("check", photo, "--model", model, "--out", "out/check")
    document = json.loads(Path("out/check/check.json").read_text())
    data = data_of(report(["out"]))
    assert data["check"]["passed"] == document["passed"]
    assert [one["verdict"] for one in data["check"]["findings"]] == [
        one["verdict"] for one in document["checks"].values()
    ]


def test_the_gallery_knows_labels_predictions_and_failures(here: Path, pathx_: Pathx) -> None:
    model = scripted(network())
    for number, folder in enumerate(("cat", "red fox", "dog", "cat")):
        picture(f"photos/{folder}/{number}.png", seed=number)
    Path("photos/dog/broken.png").write_text("no picture")
    ran = pathx_("explain", "photos", "--model", model, "--out", "out", "--report")
    assert ran.status == 1 and "out/report/index.html" in ran.err
    data = data_of(Path("out/report/index.html"))
    lines = {line["file"]: line for line in map(json.loads, Path("out/index.jsonl").read_text().splitlines())}
    assert {row["file"] for row in data["rows"]} == set(lines)
    for row in data["rows"]:
        line = lines[row["file"]]
        if "error" in line:
            assert row["error"] == line["error"]
            continue
        top = line["top"]
        assert (row["truth"], row["predicted"]) == (line["label"], top[0]["label"])
        assert row["margin"] == pytest.approx(top[0]["probability"] - top[1]["probability"])
        assert row["wrong"] is (not line["correct"])
        assert (Path("out/report") / row["thumbnail"]).is_file()
        around = data_of(Path("out/report") / row["page"])["around"]
        assert Path("out/report/pages", around["index"]).resolve() == Path("out/report/index.html").resolve()
    shown = [row for row in data["rows"] if "error" not in row]
    assert [row["wrong"] for row in shown] == sorted((row["wrong"] for row in shown), reverse=True)  # wrong ones first
    chain = [data_of(Path("out/report") / row["page"])["around"] for row in shown]
    assert [one["next"] for one in chain[:-1]] == [os.path.basename(row["page"]) for row in shown[1:]]
    assert chain[0]["previous"] is None and chain[-1]["next"] is None


def test_explain_report_holds_a_grid_and_the_command_line_does_not_run_a_network(here: Path, pathx_: Pathx) -> None:
    model, photo = scripted(network()), picture()
    ran = pathx_("explain", photo, "--model", model, "--out", "out", "--report", "--format", "json")
    assert ran.status == 0 and len(ran.documents) == 1  # stdout is JSON still
    file, document = only_document(Path("out"))
    data = data_of(file.with_name("report.html"))
    assert [path["width"] for path in data["paths"]] == sorted({1, 5, 20, document["width"]})
    own = next(path for path in data["paths"] if path["width"] == document["width"])
    assert own["models"][str(document["depth"])]["score"] == document["linear_model"]["score"]
    assert data["unit_maps"]
    Path(model).unlink()
    ran = pathx_("report", "out", "--out", "other/page.html")
    assert ran.status == 0 and ran.out == "other/page.html\n" and ran.err == ""
    assert data_of(Path("other/page.html")) == data  # what took the network is taken from the page that has it
    file.with_name("report.html").unlink()
    pathx_("report", "out", "--out", "other/page.html")
    assert [path["width"] for path in data_of(Path("other/page.html"))["paths"]] == [document["width"]]


def test_a_gallery_keeps_what_took_the_network(here: Path, pathx_: Pathx) -> None:
    model = scripted(network())
    photos = [picture(f"{number}.png", seed=number) for number in range(3)]
    pathx_("explain", *photos, "--model", model, "--out", "out", "--report", "--quiet")
    before = {file.name: data_of(file) for file in Path("out/report/pages").iterdir()}
    assert all(len(data["paths"]) > 1 and data["unit_maps"] for data in before.values())
    Path(model).unlink()
    assert pathx_("report", "out", "--quiet").status == 0
    assert {file.name: data_of(file) for file in Path("out/report/pages").iterdir()} == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"alpha":', '"alpha":1,"other":'),
        lambda text: text.replace('"version":1', '"version":0'),
        lambda text: text.replace('"score":', '"score":7,"other":'),
        lambda text: text.replace('"paths":[', '"paths":[1,'),
        lambda text: text[: len(text) // 2],
        lambda text: "",
    ],
)
def test_a_page_of_something_else_adds_nothing(here: Path, pathx_: Pathx, spoil: Callable[[str], str]) -> None:
    photo = picture()
    pathx_("explain", photo, "--model", scripted(network()), "--out", "out", "--report", "--quiet")
    file, document = only_document(Path("out"))
    page = file.with_name("report.html")
    page.write_text(spoil(page.read_text()))
    assert pathx_("report", "out", "--quiet").status == 0
    assert [path["width"] for path in data_of(page)["paths"]] == [document["width"]]


def test_a_run_that_was_stopped_writes_no_report(here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted(network())
    for number in range(3):
        picture(f"photos/{number}.png", seed=number)

    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathx.commands.following._print", stopped)
    ran = pathx_("explain", "photos", "--model", model, "--out", "out", "--report")
    assert ran.status == 130 and "interrupted" in ran.err
    assert Path("out/photos").is_dir() or list(Path("out").rglob("path.json"))
    assert not list(Path("out").rglob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "no such file or folder"),
        (("empty",), "holds no results of pathx"),
        (("out", "--out", "empty"), "is a folder"),
        ((), "Missing argument"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_line(
    here: Path, pathx_: Pathx, arguments: tuple[str, ...], said: str
) -> None:
    results(here)
    Path("empty").mkdir()
    ran = pathx_("report", *arguments)
    assert ran.status == 2 and said in ran.err and ran.err.count("\n") == 1


def test_an_opened_page_is_the_one_that_was_written(here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    results(here)
    assert pathx_("report", "out", "--open").status == 0
    file, _ = only_document(here / "out")
    assert opened == [file.with_name("report.html").as_uri()]


def test_sizes_are_small(tmp_path: Path) -> None:
    assert len(page("explanation.js", "x", {})) < 100_000
    assert report([results(tmp_path)]).stat().st_size < 300_000


def test_small_pictures_of_a_report_are_no_photos(here: Path, pathx_: Pathx) -> None:
    for number in range(3):
        picture(f"photos/{number}.png", seed=number)
    assert pathx_("explain", "photos", "--model", scripted(network()), "--out", "out").status == 0
    before = pathx_("common", "out", "--out", "before")
    assert before.status == 0, before.err
    assert pathx_("report", "out").status == 0 and list(here.glob("out/report/thumbnails/*.jpg"))
    after = pathx_("common", "out", "--out", "after")
    assert after.err == before.err
    assert Path("after/common.json").read_text() == Path("before/common.json").read_text()
    assert "no image" in pathx_("explain", "out", "--model", "model.pt").err


@pytest.mark.parametrize("name", ["index.html", "pages/{page}", "thumbnails/{small}"])
def test_a_gallery_replaces_no_files_of_others(here: Path, pathx_: Pathx, name: str) -> None:
    images = [picture(f"photos/{number}.png", seed=number) for number in range(2)]
    run = ("explain", *images, "--model", scripted(network()), "--no-pictures", "--quiet")
    assert pathx_(*run).status == 0 and pathx_("report", "pathx-out").status == 0
    first = Path("pathx-out/report")
    page, small = min((first / "pages").glob("*.html")).name, min((first / "thumbnails").glob("*.jpg")).name
    others = Path("site", name.format(page=page, small=small))
    others.parent.mkdir(parents=True)
    others.write_text("mine")
    done = pathx_("report", "pathx-out", "--out", "site")
    assert done.status == 2 and f"{others} was not written by pathx and is left alone" in done.err
    assert files(Path("site")) == {str(others.relative_to("site"))} and others.read_text() == "mine"


def test_a_smaller_gallery_removes_its_own_pages_alone(here: Path, pathx_: Pathx) -> None:
    images = [picture(f"photos/{number}.png", seed=number) for number in range(3)]
    run = ("explain", *images, "--model", scripted(network()), "--no-pictures", "--quiet")
    assert pathx_(*run).status == 0 and pathx_("report", "pathx-out", "--out", "site").status == 0
    before = files(Path("site"))
    for name in ("pages/7-a-1-b.html", "thumbnails/7.jpg"):
        Path("site", name).write_text("mine")
    shutil.rmtree("pathx-out/photos/2.png")
    assert pathx_("report", "pathx-out", "--out", "site").status == 0
    gone = before - files(Path("site"))
    assert len(gone) == 2 and {Path(name).suffix for name in gone} == {".html", ".jpg"}
    assert Path("site/pages/7-a-1-b.html").read_text() == Path("site/thumbnails/7.jpg").read_text() == "mine"


def test_a_page_replaces_no_file_of_others(here: Path, pathx_: Pathx) -> None:
    assert pathx_("explain", picture(), "--model", scripted(network()), "--no-pictures", "--quiet").status == 0
    Path("mine.html").write_text("mine")
    done = pathx_("report", "pathx-out", "--out", "mine.html")
    assert done.status == 2 and Path("mine.html").read_text() == "mine"
    for _ in range(2):
        assert pathx_("report", "pathx-out", "--out", "page.html").status == 0


def test_a_table_of_figures_shows_no_pictures_from_elsewhere(here: Path, pathx_: Pathx) -> None:
    """It names images without their hashes; what lies beside the current folder is nobody else's business."""
    picture("here/a.png")
    secret = picture(str(here / "secret.png"))
    run = ("evaluate", "here", "--model", scripted(network()), "--methods", "saliency", "--steps", "2", "--quiet")
    assert pathx_(*run, "--out", "out").status == 0
    table = Path("out/pictures.csv")
    table.write_text(table.read_text().replace("here/a.png", secret) + table.read_text().splitlines()[1] + "\n")
    assert list(data_of(report(["out"]))["thumbnails"]) == ["here/a.png"]
