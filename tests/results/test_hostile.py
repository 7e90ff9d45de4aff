"""Folders of results that somebody else made, to be read, gone on with, drawn and unpacked: nothing outside of them changes."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx, network, picture, scripted

from pathx.results import packs

pytestmark = [
    pytest.mark.usefixtures("here"),
    pytest.mark.skipif(os.name == "nt", reason="links and names are those of POSIX"),
]

RUN = ("--model", "model.pt", "--depth", "1", "--width", "2", "--no-pictures", "--quiet")
EXPLAIN = ("explain", "photos", *RUN, "--save-tensors", "--target", "top:2")
DECOMPOSE = ("decompose", "photos", *RUN, "--save-tensors")
EVALUATE = ("evaluate", "photos", "--model", "model.pt", "--methods", "saliency", "--steps", "2", "--quiet")
MADE: dict[str, tuple[str, ...]] = {
    "explained": EXPLAIN,
    "apart": DECOMPOSE,
    "packed": (*EXPLAIN, "--pack", "tar"),
    "shards": (*EXPLAIN, "--shard", "1/2"),
    "units": ("units", "photos", "--model", "model.pt", "--no-pictures", "--quiet"),
    "evaluated": EVALUATE,
    "common": ("common", "photos", "--model", "model.pt", "--quiet"),
}
READ: dict[str, list[tuple[str, ...]]] = {
    "explained/**/path.json": [("report", "explained"), ("redraw", "explained"), ("common", "explained", "--out", "c")],
    "explained/**/contrast.json": [("report", "explained"), ("redraw", "explained")],
    "explained/index.jsonl": [("report", "explained"), ("merge", "explained"), (*EXPLAIN, "--out", "explained")],
    "explained/run.json": [("merge", "explained"), (*EXPLAIN, "--alpha", "0.1", "--out", "explained")],
    "apart/**/decomposition.json": [("report", "apart"), ("redraw", "apart"), (*DECOMPOSE, "--out", "apart")],
    "packed/index.jsonl": [("merge", "packed", "--unpack", "into"), ("merge", "packed"), (*EXPLAIN, "--out", "packed")],
    "shards/run.1-of-2.json": [("merge", "shards")],
    "shards/index.1-of-2.jsonl": [("merge", "shards")],
    "units/units.json": [("report", "explained", "--units", "units"), (*EXPLAIN, "--units", "units", "--out", "with")],
    "evaluated/evaluation.json": [("report", "evaluated")],
    "evaluated/records.jsonl": [("report", "evaluated"), (*EVALUATE, "--out", "evaluated")],
    "common/common.json": [("report", "common")],
}
"""By file: the commands that read it."""

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**9, 2**63, 10**30, 10**400, 1e308, float("nan"), float("inf")),
    *("", "\0", "\x1b]0;x\x07\u202e", "../../x", "/etc/passwd", "a" * 300, "\udcff", "</script><img src=x>"),
    *([], {}, [[[]]], {"a": 1}),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of every command, made once."""
    from pathx.cli import run

    folder, before = tmp_path_factory.mktemp("made"), Path.cwd()
    os.chdir(folder)
    try:
        for number in range(2):
            picture(f"photos/{'ab'[number]}/{number}.png", (12, 9), seed=number)
        scripted(network())
        for out, arguments in MADE.items():
            with pytest.raises(SystemExit) as ended:
                run([*arguments, "--out", out])
            assert not ended.value.code, out
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def copied(results: Path, here: Path) -> Path:
    shutil.copytree(results, here, dirs_exist_ok=True)
    return here


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value of a document; of lists those of the first entry."""
    yield place
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*place, key))


def replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return changed


def snapshot(folder: Path) -> dict[str, bytes]:
    """What lies around the results."""
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("tries", "file"),
    [*((1, name) for name in READ), *(pytest.param(60, name, marks=pytest.mark.slow) for name in READ)],
)
def test_whatever_a_document_says_it_costs_itself(copied: Path, pathx_: Pathx, file: str, tries: int) -> None:
    (first, *_) = sorted(copied.glob(file))
    lines = first.read_text().splitlines() if first.suffix == ".jsonl" else [first.read_text()]
    document = json.loads(lines[0])
    everything = [(place, value) for place in places(document) for value in HOSTILE]
    # Paths first: what is named in a document is where harm is done.
    paths = [one for one in everything if one[0] and one[0][-1] in ("name", "folder", "pack", "at")]
    chance = random.Random(tries)
    for place, value in [*chance.sample(paths, min(tries, len(paths))), *chance.sample(everything, tries)]:
        what = f"{file} {place} {str(value)[:20]!r}"
        before = snapshot(copied / "photos")
        for command in READ[file]:
            first.write_text("\n".join([json.dumps(replaced(document, place, value)), *lines[1:]]) + "\n")
            done = pathx_(*command)
            assert done.status in (0, 1, 2), (what, command, done)
            assert "unexpected" not in done.err and "Traceback" not in done.err, (what, command, done.err)
            assert "\x1b" not in done.out + done.err and "\u202e" not in done.out + done.err, (what, command)
        assert snapshot(copied / "photos") == before, what


# What an index names


@pytest.mark.parametrize("folder", ["../victim", "{here}/victim", "photos/../../victim", "..", "."])
@pytest.mark.parametrize("name", ["precious.txt", "path.json"])
def test_an_index_cannot_have_files_removed_elsewhere(copied: Path, pathx_: Pathx, folder: str, name: str) -> None:
    """Older results are removed when newer ones are packed; which these are, the index says."""
    for place in (copied / "victim", copied, copied / "explained"):
        place.mkdir(exist_ok=True)
        (place / "precious.txt").write_text("mine")
    (copied / "victim" / "path.json").write_text("mine")
    index = Path("explained/index.jsonl")
    lines = [json.loads(text) for text in index.read_text().splitlines()]
    made = {"folder": folder.format(here=copied), "files": [name], "document": name, "sha256": ""}
    for line in lines:
        line |= {"run": "0", "explanations": [made, made], "contrast": made}
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert pathx_(*EXPLAIN, "--out", "explained", "--pack", "tar").status == 0
    for file in ("victim/precious.txt", "victim/path.json", "precious.txt", "explained/precious.txt"):
        assert Path(file).read_text() == "mine", file


# Links


def test_links_in_the_output_folder_lead_nowhere_else(copied: Path, pathx_: Pathx) -> None:
    outside = copied / "outside"
    (outside / "0.png").mkdir(parents=True)
    for link, target in (("linked/photos/a", outside), ("linked/photos/b/1.png", outside / "0.png")):
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, link)
    done = pathx_(*EXPLAIN, "--out", "linked")
    assert done.status == 1 and done.err.count("by a link, and is left alone") >= 2, done.err
    assert [str(file) for file in outside.rglob("*")] == [str(outside / "0.png")]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("command", "file"), [(EXPLAIN, "index.jsonl"), (EVALUATE, "records.jsonl")])
def test_lines_are_not_added_through_a_link(
    copied: Path, pathx_: Pathx, there: bool, command: tuple[str, ...], file: str
) -> None:
    victim, out = copied / "victim.txt", Path("explained" if command is EXPLAIN else "evaluated")
    (out / file).unlink()
    os.symlink(victim, out / file)
    if there:
        victim.touch()
    done = pathx_(*command, "--out", out)
    assert done.status in (0, 1, 2) and "unexpected" not in done.err
    assert victim.exists() is there and (not there or victim.read_bytes() == b"")


def test_other_results_behind_a_link_are_not_replaced(copied: Path, pathx_: Pathx) -> None:
    """Results of an image that were made in another way are removed, but not where a link leads to them."""
    (other,) = {path.parent for path in Path("apart").rglob("path.json") if "feature" not in str(path)} - {
        *Path("apart/photos/b/1.png").iterdir()
    }
    image = next(Path("explained").rglob("path.json")).parent.parent
    os.symlink(other.resolve(), image / "link")
    before = snapshot(other)
    assert pathx_(*EXPLAIN, "--out", "explained", "--depth", "2").status == 0
    assert snapshot(other) == before


# Shards


def shard(*members: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for about, data in members:
            entry = tarfile.TarInfo(about) if isinstance(about, str) else about
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, **headers: str) -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname = kind, "/etc/passwd"
    about.pax_headers = {key.replace("_", "."): value for key, value in headers.items()}
    return about


HOLES = {"GNU_sparse_major": "1", "GNU_sparse_minor": "0", "GNU_sparse_realsize": str(1 << 45)}
SHARDS: dict[str, Callable[[str], bytes]] = {
    "climbing": lambda good: shard((f"{good}/../../../../../x", b"x"), ("../x", b"x")),
    "absolute": lambda good: shard((f"{Path.cwd()}/x", b"x")),
    "windows": lambda good: shard((r"C:\x", b"x"), (r"..\x", b"x")),
    "other names": lambda good: shard((".bashrc", b"x"), (f"{os.path.dirname(good)}/.bashrc", b"x"), ("x", b"x")),
    "null": lambda good: shard((entry(good, path=f"{good}\0x"), b"x")),
    "link": lambda good: shard((entry(good, tarfile.SYMTYPE), b"")),
    "hard link": lambda good: shard((entry(good, tarfile.LNKTYPE), b"")),
    "device": lambda good: shard((entry(good, tarfile.CHRTYPE), b"")),
    "pipe": lambda good: shard((entry(good, tarfile.FIFOTYPE), b"")),
    "holes": lambda good: shard((entry(good, GNU_sparse_name=good, **HOLES), b"1\n0\n1\n".ljust(512, b"\0") + b"x")),
    "another document": lambda good: shard((good, b"{}")),
    "twice": lambda good: shard((good, b"{}"), (good, b"[]")),
    "a file as a folder": lambda good: shard((good, b"{}"), (f"{good}/path.json", b"{}")),
    "nothing": lambda good: b"",
    "zeros": lambda good: bytes(5000),
    "no tar file": lambda good: b"PK" * 5000,
}


@pytest.mark.parametrize("kind", SHARDS)
def test_a_shard_unpacks_to_its_results_or_to_nothing(copied: Path, pathx_: Pathx, kind: str) -> None:
    (file,) = Path("packed").glob("results-*.tar")
    line = json.loads(Path("packed/index.jsonl").read_text().splitlines()[0])
    file.write_bytes(SHARDS[kind](f"{line['explanations'][0]['folder']}/path.json"))
    before = {name for name in snapshot(copied) if "/into/" not in name}
    done = pathx_("merge", "packed", "--unpack", "into")
    assert done.status == 1 and "2 images could not be unpacked" in done.err and "unexpected" not in done.err, done
    assert {name for name in snapshot(copied) if "/into/" not in name} == before
    assert {Path(name).name for name in snapshot(copied / "into")} <= {"index.jsonl", "run.json", "path.json"}
    assert Path("into/index.jsonl").read_text() == ""


def test_unpacking_replaces_no_file_of_others_and_follows_no_link(copied: Path, pathx_: Pathx) -> None:
    line = json.loads(Path("packed/index.jsonl").read_text().splitlines()[0])
    folder = Path("into", line["explanations"][0]["folder"])
    folder.mkdir(parents=True)
    (folder / "path.json").write_text("mine")
    done = pathx_("merge", "packed", "--unpack", "into")
    assert done.status == 1 and f"{folder / 'path.json'} was not written by pathx" in done.err
    assert (folder / "path.json").read_text() == "mine"
    shutil.rmtree("into")
    Path("into", "photos").mkdir(parents=True)
    Path("outside").mkdir()
    for name in "ab":
        os.symlink(copied / "outside", f"into/photos/{name}")
    assert pathx_("merge", "packed", "--unpack", "into").status == 1
    assert not list(Path("outside").iterdir())


@pytest.mark.parametrize("name", ["../other.tar", "/dev/zero", "none.tar", "index.jsonl", "", "..", "a\0.tar"])
def test_only_shards_are_read(copied: Path, pathx_: Pathx, name: str) -> None:
    index = Path("packed/index.jsonl")
    lines = [json.loads(text) for text in index.read_text().splitlines()]
    for line in lines:
        for made in line["explanations"]:
            made["pack"] = name
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = pathx_("merge", "packed", "--unpack", "into")
    assert done.status == 1 and "unexpected" not in done.err and "2 images could not be unpacked" in done.err


@pytest.mark.skipif(find_spec("pyarrow") is None, reason=packs.INSTALL)
def test_names_that_are_no_text_stay_apart_in_tables(here: Path, pathx_: Pathx) -> None:
    for number, name in enumerate((b"\xfe.png", b"\xff.png")):
        picture(f"photos/{os.fsdecode(name)}", seed=number)
    scripted(network())
    assert pathx_(*EXPLAIN, "--out", "out", "--pack", "parquet").status == 0
    assert pathx_("merge", "out", "--unpack", "into").status == 0
    assert {os.fsencode(file.name) for file in Path("into/photos").iterdir()} == {b"\xfe.png", b"\xff.png"}
