"""Archives from the command line to the index: results by key, and runs that go on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.archives import image_bytes, shard, write_parquet, write_tar
from support.command_line import Pathx, network, scripted
from support.many import by_name

pytestmark = pytest.mark.usefixtures("here")
QUICK = ("--no-pictures", "--depth", 2, "--width", 3, "--batch-size", 2)


def documents(out: str) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in Path(out).rglob("path.json")}


def test_shards_are_explained_by_key_and_labelled(pathx_: Pathx) -> None:
    shard("shard-000.tar", 3)
    shard("shard-001.tar", 2, 3)
    ended = pathx_("explain", "shard-*.tar", "--model", scripted(network()), *QUICK)
    assert ended.status == 0, ended.err
    lines = by_name()
    assert list(lines) == [f"shard-{number // 3:03d}.tar/{number:05d}" for number in range(5)]
    assert [line["label"] for line in lines.values()] == ["cat", "red fox", "dog", "cat", "red fox"]
    assert [line["file"] for line in lines.values()][-1] == "shard-001.tar#00004"
    for name, line in lines.items():
        folder = Path("pathx-out", line["explanations"][0]["folder"])
        assert folder.parent == Path("pathx-out", name)
        assert json.loads((folder / "path.json").read_bytes())["image"]["file"] == line["file"]


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_the_numbers_are_those_of_the_files_themselves_and_a_run_goes_on(pathx_: Pathx, kind: str) -> None:
    images = {f"{number}": image_bytes(number) for number in range(4)}
    for key, data in images.items():
        Path("photos").mkdir(exist_ok=True)
        Path(f"photos/{key}.png").write_bytes(data)
    if kind == "tar":
        archive = write_tar("x.tar", {f"{key}.png": data for key, data in images.items()})
    else:
        archive = write_parquet("x.parquet", {"key": list(images), "image": list(images.values())})
    model = scripted(network())
    assert pathx_("explain", archive, "--model", model, *QUICK).status == 0
    assert pathx_("explain", "photos", "--model", model, *QUICK, "--out", "plain").status == 0
    packed, plain = documents("pathx-out"), documents("plain")
    for key in images:
        one = next(json.loads(data) for name, data in packed.items() if name.startswith(f"{archive}/{key}/"))
        other = next(json.loads(data) for name, data in plain.items() if name.startswith(f"photos/{key}.png/"))
        assert one["image"].pop("file") == f"{archive}#{key}"
        assert other["image"].pop("file") == f"photos/{key}.png"
        assert one == other

    gone = next(Path("pathx-out").glob(f"{archive}/2/*/path.json"))
    gone.unlink()
    os.utime(archive)  # copied again: what counts are the bytes of each image
    ended = pathx_("explain", archive, "--model", model, *QUICK)
    assert ended.status == 0 and "1 explained, 3 done before" in ended.err
    assert documents("pathx-out") == packed


def test_an_image_that_was_replaced_in_an_archive_is_made_again(pathx_: Pathx) -> None:
    model = scripted(network())
    write_tar("x.tar", {f"{number}.png": image_bytes(number) for number in range(3)})
    assert pathx_("explain", "x.tar", "--model", model, *QUICK).status == 0
    write_tar("x.tar", {f"{number}.png": image_bytes(number + 10 * (number == 1)) for number in range(3)})
    assert "1 explained, 2 done before" in pathx_("explain", "x.tar", "--model", model, *QUICK).err


def test_a_damaged_archive_costs_itself(pathx_: Pathx) -> None:
    model = scripted(network())
    Path("a.tar").write_bytes(Path(shard("whole.tar", 3)).read_bytes()[:5000])
    write_tar("b.tar", {"good.png": image_bytes(1), "bad.png": b"no image"})
    shard("c.tar", 1)
    ended = pathx_("explain", "a.tar", "b.tar", "c.tar", "--model", model, *QUICK)
    assert ended.status == 1
    errors = {name: line["error"] for name, line in by_name().items() if "error" in line}
    assert set(errors) == {"a.tar", "b.tar/bad"}
    assert "cut short" in errors["a.tar"] and "fetch it again" in errors["a.tar"]
    assert {"a.tar/00000", "b.tar/good", "c.tar/00000"} < set(by_name())


def test_reports_and_sheets_find_the_image_in_its_archive(pathx_: Pathx) -> None:
    shard("x.tar", 2)
    ended = pathx_("explain", "x.tar", "--model", scripted(network()), "--depth", 2, "--save-tensors")
    assert ended.status == 0, ended.err
    ended = pathx_("redraw", "pathx-out", "--colours", "orange-purple")
    assert ended.status == 0 and "note" not in ended.err, ended.err
    ended = pathx_("report", "pathx-out")
    assert ended.status == 0 and not ended.err, ended.err


@pytest.mark.usefixtures("undrawn")
def test_evaluation_takes_archives(pathx_: Pathx) -> None:
    shard("x.tar", 2)
    arguments = ("--model", scripted(network()), "--methods", "random", "--steps", 3, "--batch-size", 2)
    ended = pathx_("evaluate", "x.tar", *arguments, "--out", "table")
    assert ended.status == 0, ended.err
    assert "x.tar/00001" in Path("table/images.csv").read_text()
