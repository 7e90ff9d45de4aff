"""The README and the pages keep their word: commands and Python run, output is what comes out, tables name every field.

A page is run as a newcomer would: its blocks in order, in one folder with `examples/`. Blocks marked `sh` are commands, `python`
is run as it is, `output` is what the command above it prints. `text` and plain blocks are not run: they need more than this.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat
from typer.testing import CliRunner

from pathx.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    page.name: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
INSTALL = (
    "pip install -c constraints.txt . && pathx explain examples/cat.png",
    "pip install -c constraints.txt '.[test]' && pytest",
)
NOT_OURS = re.compile(r"pip install .*|pytest")  # parts of a command line that this test does not run


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


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
        if "jq " in line:
            printed = run_in_a_shell(line)
            continue
        for command in line.split("&&"):
            if NOT_OURS.fullmatch(command.strip()):
                continue
            program, *arguments = shlex.split(command)
            assert program == "pathx", f"this test cannot run: {command}"
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{command}\n{result.output}"
            printed = result.stdout
    return printed


def run_in_a_shell(line: str) -> str:
    if shutil.which("jq") is None or shutil.which("bash") is None:
        pytest.skip("jq or bash is not installed")
    program = f'pathx() {{ "{sys.executable}" -m pathx "$@"; }}; set -o pipefail; {line}'
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0 and (done.stdout.strip() or "select(.error)" in line), f"{line}\n{done.stderr}"
    return done.stdout


def masked(text: str) -> list[str]:
    """Lines with every number as #, as machines differ in the last digits, and without trailing or repeated spaces."""
    lines = (re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", line) for line in text.strip().splitlines())
    return [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=[] if name in ("README.md", "index.md") else pytest.mark.slow)
        for name, text in PAGES.items()
        if any(block.language in ("sh", "python") for block in blocks(text))
    ],
)
def test_what_a_page_shows_works(page: str, folder: Path) -> None:
    printed = ""
    for block in blocks(PAGES[page]):
        match block.language:
            case "sh":
                printed = run_commands(block.text)
            case "output":
                assert masked(printed) == masked(block.text)
            case "python":
                exec(compile(block.text, page, "exec"), {"__name__": "page"})
            case "json":
                json.loads(block.text)
            case language:
                assert language == "text"


def test_the_first_picture_is_what_the_first_command_makes(folder: Path) -> None:
    run_commands("pathx explain examples/cat.png --quiet")
    with (
        Image.open(folder / "pathx-out/examples/cat.png/tiger-cat/figure.png") as made,
        Image.open(ROOT / "docs/images/cat.jpg") as shown,
    ):
        assert README.partition("](")[2].startswith("docs/images/cat.jpg)")
        assert made.size == shown.size
        assert max(ImageStat.Stat(ImageChops.difference(made, shown.convert("RGB"))).mean) < 4.0  # of 255: it is a JPEG


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("command", INSTALL)
def test_set_up_is_one_command(command: str) -> None:
    assert f"\n```sh\n{command}\n```\n" in README


def test_every_field_of_path_json_is_explained(folder: Path) -> None:
    run_commands("pathx explain examples/cat.png --target 'tiger cat' --against lynx --save-tensors --quiet")
    document = json.loads((folder / "pathx-out/examples/cat.png/tiger-cat-against-lynx/path.json").read_text())
    section = PAGES["results.md"].partition("## path.json")[2].partition("\n## ")[0]
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


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_are_there(page: str) -> None:
    home = ROOT if page == "README.md" else ROOT / "docs"
    targets = re.findall(r"\]\(([^)#]+)\)", PAGES[page])
    assert [target for target in targets if "://" not in target and not (home / target).exists()] == []


def test_every_page_is_on_the_site() -> None:
    listed = re.findall(r"\w+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(set(PAGES) - {"README.md"})


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html"))
    assert "fonts.googleapis" not in pages and "<script async src=" not in pages


def messages() -> list[str]:
    """Every text in the package, with … for what is filled in."""
    found = []
    for file in (ROOT / "pathx").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_page_on_troubleshooting_quotes_messages_that_there_are() -> None:
    texts = "\n".join(messages())
    quoted = re.findall(r"^\| `(.+?)` \|", PAGES["troubleshooting.md"], re.MULTILINE)
    missing = [one for one in quoted if not re.search(".*".join(map(re.escape, one.strip("… ").split("…"))), texts)]
    assert len(quoted) > 30 and not missing


def test_the_first_look_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT / "docs/notebooks")
    cells = json.loads(Path("first-look.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "tiger cat" in printed and "image (" in printed and names["seen"]
