"""The README keeps its word: its commands and Python run, its output is what comes out, its tables name every field.

A section (`##`) is run as a newcomer would: its blocks in order, in one folder with `examples/`. Blocks marked `sh` are
commands, `python` is run as it is, `output` is what the command above it prints. `text` is not run: it needs a network.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pathx.cli import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALL = (
    "pip install -c constraints.txt . && pathx explain examples/cat.png --depth 3 --width 5",
    "pip install -c constraints.txt '.[test]' && pytest",
)
NOT_OURS = re.compile(r"pip install .*|pytest")  # parts of a command line that this test does not run


@dataclass(frozen=True)
class Block:
    language: str
    text: str


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


def read_sections(text: str) -> list[Section]:
    sections = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        blocks = tuple(Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL))
        if blocks:
            sections.append(Section(part.splitlines()[0].strip("# "), blocks))
    return sections


SECTIONS = read_sections(README)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PATHX_DEBUG", raising=False)
    return tmp_path


def run_commands(text: str) -> str:
    """Run the lines of a block; what the last command printed."""
    printed = ""
    for line in text.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            if NOT_OURS.fullmatch(command.strip()):
                continue
            program, *arguments = shlex.split(command)
            assert program == "pathx", f"this test cannot run: {command}"
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{command}\n{result.output}"
            printed = result.stdout
    return printed


def masked(text: str) -> list[str]:
    """Lines with every number as #, as machines differ in the last digits, and without trailing or repeated spaces."""
    lines = (re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", line) for line in text.strip().splitlines())
    return [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title.lower().replace(" ", "-"))
def test_what_a_section_shows_works(section: Section, folder: Path) -> None:
    printed = ""
    for block in section.blocks:
        match block.language:
            case "sh":
                printed = run_commands(block.text)
            case "output":
                assert masked(printed) == masked(block.text)
            case "python":
                exec(compile(block.text, f"README.md, {section.title}", "exec"), {"__name__": "readme"})
            case "json":
                json.loads(block.text)
            case language:
                assert language == "text"


@pytest.mark.parametrize("command", INSTALL)
def test_set_up_is_one_command(command: str) -> None:
    assert f"\n```sh\n{command}\n```\n" in README


def test_every_field_of_path_json_is_explained(folder: Path) -> None:
    run_commands("pathx explain examples/cat.png --depth 1 --save-tensors --quiet")
    document = json.loads((folder / "pathx-out/examples/cat.png/tiger-cat/path.json").read_text())
    section = README.partition("### path.json")[2].partition("### ")[0]
    assert fields(document) - set(re.findall(r"`(\w+)`", section)) == set()


def test_every_field_of_decompositions_and_contrasts_is_explained(folder: Path) -> None:
    run_commands("pathx decompose examples/cat.png --depth 1 --width 2 --target lynx --target tabby --quiet")
    text = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    out = folder / "pathx-out/examples/cat.png"
    for name, heading in (("lynx/decomposition.json", "## decomposition.json"), ("contrast.json", "## contrast.json")):
        above, _, rest = text.partition(heading)
        section = rest.partition("\n## ")[0]
        known = set(re.findall(r"`(\w+)`", section if "as above" not in section else above + section))
        assert fields(json.loads((out / name).read_text())) - known == set()


def fields(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(fields, value.values()))
    return set().union(*map(fields, value)) if isinstance(value, list) else set()


def test_links_and_pictures_are_there() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_the_way_through_the_code_leads_past_every_module() -> None:
    named = set(re.findall(r"pathx/\w+\.py", (ROOT / "docs" / "design.md").read_text(encoding="utf-8")))
    modules = {f"pathx/{file.name}" for file in (ROOT / "pathx").glob("*.py") if not file.name.startswith("__")}
    assert named == modules
