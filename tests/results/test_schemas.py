"""JSON schemas: every document that a command writes is as its schema says, and every schema is tried."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("captum")
pytestmark = pytest.mark.usefixtures("measured", "undrawn")

ROOT = Path(__file__).resolve().parents[2]
FILES = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "pathx/schemas").glob("*.json")}
SCHEMAS: dict[str, Any] = {schema["$id"]: schema for schema in FILES.values()}
PRIVATE = {"pathx/files@1", "pathx/tensors@1"}  # which files a folder holds; the header of tensors.safetensors

CALLS: dict[str, tuple[object, ...]] = {
    "explain": ("explain", "pictures/cat", "--target", "top:2", "--save-tensors", "--removal"),
    "against": ("explain", "pictures/cat/0.png", "--target", "cat", "--against", "dog"),
    "decompose": ("decompose", "pictures/cat/0.png", "--width", 4),
    "report": ("explain", "pictures/cat/0.png", "--report"),
    "check": ("check", "pictures/cat/0.png"),
    "common": ("common", "pictures/cat"),
    "units": ("units", "pictures/cat", "--top", 2),
    "evaluate": ("evaluate", "pictures/cat", "--methods", "random"),
    "removal": ("evaluate", "pictures/cat", "--removal"),
    "grid": ("evaluate", "pictures/cat", "--grid", "1,2/3", "--methods", "random"),
}


def documents(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    texts = [(file, file.read_text(encoding="utf-8")) for file in folder.rglob("*.json")]
    lines = [(file, line) for file in folder.rglob("index.jsonl") for line in file.read_text("utf-8").splitlines()]
    return [(file, json.loads(text)) for file, text in (*texts, *lines)]


@pytest.fixture
def written(pathx_: Pathx) -> list[tuple[Path, dict[str, Any]]]:
    for name, call in CALLS.items():
        done = pathx_(*call, "--model", "model.pt", "--out", f"out/{name}", "--quiet")
        assert done.status in (0, 1), done
    return documents(Path("out"))


def test_every_document_is_as_its_schema_says(written: list[tuple[Path, dict[str, Any]]]) -> None:
    tried = set()
    for _, document in written:
        name = document.get("schema", "pathx/index")
        if name in PRIVATE:
            continue
        jsonschema.validate(document, SCHEMAS[name])
        tried.add(name)
    # tests/evaluation/test_mosaics.py tries the first of these, tests/report/test_atlas.py the other, which a page writes
    assert tried == {*SCHEMAS} - {"pathx/mosaics@1", "pathx/names@1"}


def test_every_document_has_a_schema_and_the_page_on_scripting_names_it() -> None:
    code = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "pathx").rglob("*") if file.suffix in (".py", ".js")
    )
    assert {*re.findall(r'"(pathx/\w+@\d+)"', code)} - PRIVATE == {*SCHEMAS} - {"pathx/index"}
    page = (ROOT / "docs/scripting.md").read_text(encoding="utf-8")
    named = re.findall(r"^\|.*\| `(pathx/[\w@]+)` \| `(\w+\.json)` \|$", page, re.MULTILINE)
    assert dict(named) == {schema["$id"]: name for name, schema in FILES.items()} and len(named) == len(FILES)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_sound_and_refuses_what_lacks_a_field(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert not jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid({"schema": name})
