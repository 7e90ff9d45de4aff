"""The house keeps its rules: which room may import which, imports inside functions included, and who speaks of what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

import pytest
from typer.main import get_command

from pathx.cli import app
from pathx.commands.output import ARGUMENTS, with_options

PACKAGE = Path(__file__).resolve().parents[1] / "pathx"

DATA = {"explanation", "decomposition", "contrast"}
"""What people hold in their hands."""

EVERYBODY = {"errors", "regular", "stores", "defaults"}
"""What every room may import; the engine knows no files, and takes `errors` alone."""

MAY_IMPORT: dict[str, set[str]] = {
    "cluster": {"pipeline"},
    "compat": set(),
    "engine.record": {"compat"},
    "engine.window": set(),
    "engine.rules": {"engine.record", "engine.window"},
    "engine": {"compat", "engine.record", "engine.window", "engine.rules", "explanation"},
    "images": set(),
    "maps": set(),
    "models": {"compat", "images"},
    "models.catalogue": {"models", "images", "engine"},
    "models.files": {"models", "compat", "engine.rules"},
    "explanation": {"maps"},
    "pipeline": {"images", "models", "engine", "explanation"},
    "decomposition": {"engine", "maps", "explanation"},
    "contrast": {"engine", "maps", "explanation"},
    "layers": {"engine", "maps"},
    "drawing": {"maps", *DATA},
    "results": {"maps", "images", "drawing", "models.labels", *DATA},
    "report": {"maps", "images", "drawing", "models.labels", "models.preprocessing", "results", "engine", *DATA},
    "runs": {"maps", "images", "models", "engine", "drawing", "results", "pipeline", "cluster", "layers", *DATA},
    "units": {"maps", "images", "models", "engine", "drawing", "results", "runs", "pipeline", *DATA},
    "evaluation": {"maps", "images", "models", "engine", "drawing", "results", "pipeline", "cluster", "layers", *DATA},
}
"""A room, and the rooms it may import from; its own and EVERYBODY always. The longest name that fits a module is its room."""

INSIDE_FUNCTIONS: dict[str, set[str]] = {
    "explanation": {"decomposition", "drawing", "report"},
    "decomposition": {"drawing", "report"},
    "contrast": {"drawing", "report"},
}
"""What a room may import inside functions only, because it is needed only when somebody asks for it."""

FRONT_DOOR = {"__init__", "__main__", "cli"}
"""The way in: these may import everything."""


def modules() -> dict[str, Path]:
    """Modules by their name below `pathx`."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = file
    return found


MODULES = modules()
parse = cache(ast.parse)


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Modules of ours that a piece of source imports, and whether it does so inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue  # names for annotations; nothing is loaded
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                yield (deeper if deeper.removeprefix("pathx.") in MODULES else str(node.module)), inside
        else:
            yield from imports(node, inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def room(module: str, rooms: set[str]) -> str:
    """The longest of the rooms that a module is in."""
    fitting = [name for name in rooms if module == name or module.startswith(f"{name}.")]
    return max(fitting, key=len, default=module.split(".")[0])


def problems(module: str, source: str) -> list[str]:
    """Imports of a module that the table does not allow."""
    own = room(module, {*MAY_IMPORT})
    found = []
    for name, inside in imports(parse(source)):
        if not name.startswith("pathx.") or name.removeprefix("pathx.") == module:
            continue
        other = name.removeprefix("pathx.")
        if own == "commands":
            shared = other.split(".")[-1] in SHARED_BY_COMMANDS
            allowed = not other.startswith("commands.") or shared or module.split(".")[-1] in SHARED_BY_COMMANDS
        else:
            shared_by_all = {"errors", "defaults"} if own.startswith("engine") else EVERYBODY
            later = INSIDE_FUNCTIONS.get(own, set()) if inside else set()
            may = {own, *shared_by_all, *MAY_IMPORT.get(own, set()), *later}
            allowed = any(other == one or other.startswith(f"{one}.") for one in may)
        if not allowed and f"{module} imports {other}" not in found:
            found.append(f"{module} imports {other}")
    return found


SHARED_BY_COMMANDS = {"command", "options", "output", "running"}
"""What commands share; a command never imports another."""


def source_of(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


def test_a_module_imports_only_what_its_room_may() -> None:
    inside = [name for name in MODULES if name not in FRONT_DOOR]
    assert not [problem for module in inside for problem in problems(module, source_of(module))]


def messages(source: str) -> Iterator[str]:
    """Texts of a module that are no docstrings."""
    for node in ast.walk(parse(source)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str) and not isinstance(node, ast.Expr):
                yield child.value


def options_in(source: str) -> list[str]:
    """Options of the command line that a module's messages speak of, but for those of a whole command to run."""
    words = (re.sub(r"`[^`]* [^`]*`", "", text) for text in messages(source) if not text.startswith("--"))
    return [option for text in words for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)]


LIBRARY = [name for name in MODULES if name not in FRONT_DOOR and not name.startswith("commands")]


def test_the_library_does_not_speak_of_options() -> None:
    assert not {module: found for module in LIBRARY if (found := options_in(source_of(module)))}


def test_the_command_line_names_the_options_of_what_the_library_asks_for() -> None:
    sources = [MODULES[name].read_text(encoding="utf-8") for name in LIBRARY]
    named = {name for source in sources for text in messages(source) for name in re.findall("`([a-z_]+)`", text)}
    assert {name for name in named if not iskeyword(name)} == {*ARGUMENTS}
    known = {name for command in get_command(app).commands.values() for one in command.params for name in one.opts}
    assert {*ARGUMENTS.values()} <= known
    assert with_options("cuda is not there: use `device` auto, not `this`") == (
        "cuda is not there: use --device auto, not `this`"
    )


# An operation is one record


SPELLINGS = {"engine.record.spellings"}
"""What brings the spellings of operations to the one that has the record, and reads the code of TorchScript."""


def operations_in(source: str) -> list[str]:
    """Operations that a module knows by name: `torch.ops.aten.relu`, `node.kind == "relu"`, `node.kind in ("relu", …)`."""
    found = []
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "aten":
            found.append(node.attr)
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).endswith((".kind", ".op_name")):
            found += [
                leaf.value for side in node.comparators for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)
            ]
    return found


ENGINE = [name for name in MODULES if name.startswith("engine") and not name.startswith("engine.rules")]


def test_only_its_record_knows_an_operation_by_name() -> None:
    others = [name for name in ENGINE if name not in SPELLINGS]
    assert not {module: found for module in others if (found := operations_in(source_of(module)))}


# Words


ROOT = PACKAGE.parent


def test_an_image_is_what_the_user_gives_and_a_picture_what_we_draw() -> None:
    rooms = [file for room in ("engine", "images", "models") for file in sorted((PACKAGE / room).rglob("*.py"))]
    lines = [line for file in rooms for line in file.read_text(encoding="utf-8").splitlines() if "icture" in line]
    assert (
        lines
        == [
            '"""Tensors in, explanations out: knows no files, no terminal, no pictures."""',
            'IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")',  # columns of other people's tables
        ]
    )


# Tests


def test_no_test_imports_another() -> None:
    wrong = re.compile(r"^\s*from (tests|benchmarks|\S*\btest_\w+)\b.* import ", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert not [file.name for file in files if wrong.search(file.read_text(encoding="utf-8"))]


def test_benchmarks_need_nothing_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    files = sorted((ROOT / "benchmarks").glob("*.py"))
    assert not [
        file.name for file in files if re.search("^ *(from|import) (support|tests)", file.read_text(), re.MULTILINE)
    ]
    for file in files:
        import_module(f"benchmarks.{file.stem}")


# The guide to the rooms


def named_in_the_guide() -> set[str]:
    """Modules that docs/design.md names: by their path, or in the row of their room."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    found = set(re.findall(r"`(pathx/[\w/]+\.py)`", text))
    for room, files in re.findall(r"^\| `(pathx/[\w/]*)` \| (.*)$", text, re.MULTILINE):
        found |= {f"{room}{name}" for name in re.findall(r"`(\w+\.py)`", files)}
    return found


def test_the_guide_names_every_module_and_no_other() -> None:
    files = {file.relative_to(ROOT).as_posix() for file in MODULES.values() if file.name != "__init__.py"}
    assert named_in_the_guide() == files
