"""Small mistakes put into the engine, one at a time, and how many of them the tests find. Not part of CI.

    python -m benchmarks.mutants STATE --sample 200 --minutes 15 --seed 0

A mistake is one operator, comparison, number or condition changed in one place; which of all that could be made are tried is
drawn with the seed. Mutants are made in a copy of the project, in the folder STATE. First every test of the engine runs
once, to see which functions it calls and how long it takes. Then each mutant runs against the tests that call the changed
function, those first that see most of the engine in little time, until one fails; it is found where one fails or never
ends. The run goes on where it stopped: call it again with the same STATE. `--again` tries those that survived once more,
against the tests as they are now; only files of tests that have changed are watched again.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
TESTS = [
    "tests/engine",
    "tests/test_arguments.py",
    "tests/test_contrast.py",
    "tests/test_decomposition.py",
    "tests/units",
]
SECONDS = 60.0
"""How long the tests of one mutant take together at most, where none fails."""
LONG = 3.0
"""Tests that take longer than this come last."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

Function = tuple[str, str]
"""The file, relative to the project, and the name of a function."""


@dataclass(frozen=True)
class Mutant:
    file: str
    number: int
    """Which of the file's mutants."""
    line: int
    function: str
    """The function that it is in; empty outside functions."""
    what: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Seen:
    """What one test did on the unchanged project."""

    seconds: float
    functions: frozenset[Function]


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every small mistake that can be made in a file."""
    tree = ast.parse(source)
    for number, node in enumerate(_places(tree)):
        line = getattr(node, "lineno", 0)
        around = [one for one in _functions(tree) if one[0] <= line <= one[1]]
        yield Mutant(file, number, line, max(around, default=(0, 0, ""))[2], _change(node))


def changed(source: str, mutant: Mutant) -> str:
    """The whole source with the one mistake in it."""
    tree = ast.parse(source)
    _change(_places(tree)[mutant.number])
    return ast.unparse(tree)


def _functions(tree: ast.AST) -> list[tuple[int, int, str]]:
    """First line, last line and name of every function, as code objects have them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    return [(node.lineno, node.end_lineno or 0, getattr(node, "name", "<lambda>")) for node in functions]


def _places(tree: ast.AST) -> list[ast.AST]:
    """The nodes that a mistake can be made in; what only types say is left out."""
    types = {
        id(inner)
        for node in ast.walk(tree)
        for said in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(said, ast.AST)
        for inner in ast.walk(said)
    }
    return [node for node in ast.walk(tree) if _changes(node) and id(node) not in types]


def _changes(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        return type(node.op) in SWAPPED
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in SWAPPED
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, bool)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub))


def _change(node: ast.AST) -> str:
    """Make the mistake; returns what it was."""
    before = ast.unparse(node)
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else int(node.value) + 1  # type: ignore[call-overload]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    return f"{before}  ->  {ast.unparse(node)}"


class OneThread:
    """A pytest plugin: networks of tests are so small that a second thread only gets in the way."""

    def pytest_collection_finish(self) -> None:
        torch.set_num_threads(1)


class Watch(OneThread):
    """A pytest plugin: how long each test takes and which functions of the engine it calls."""

    def __init__(self, folder: Path, into: Path) -> None:
        self.inside, self.into, self.folder = str(folder / "pathx" / "engine"), into, folder
        self.seen: dict[str, Any] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        called: set[Function] = set()

        def call(frame: FrameType, event: str, argument: object) -> None:
            code = frame.f_code
            if code.co_filename.startswith(self.inside):
                called.add((str(Path(code.co_filename).relative_to(self.folder)), code.co_name))

        start = time.process_time()  # other work on the machine must not count
        sys.settrace(call)
        yield
        sys.settrace(None)
        self.seen[item.nodeid] = [time.process_time() - start, sorted(called)]

    def pytest_sessionfinish(self) -> None:
        self.into.write_text(json.dumps(self.seen))


class Chosen(OneThread):
    """A pytest plugin: these tests alone, in this order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


def run_tests(folder: Path, files: list[str], plugin: object, limit: float) -> int:
    """pytest's exit status, in a process of its own; negative where it took more seconds of a processor than the limit."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        for stream in (1, 2):
            os.dup2(os.open(folder.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.chdir(folder)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder))
        phases = (
            hypothesis.Phase.explicit,
            hypothesis.Phase.generate,
        )  # a failure is enough: it need not be made small
        every = [hypothesis.HealthCheck.too_slow]
        settings: dict[str, Any] = {
            "deadline": None,
            "derandomize": True,
            "database": None,
            "suppress_health_check": every,
        }
        hypothesis.settings.register_profile("mutants", phases=phases, report_multiple_bugs=False, **settings)
        options = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants"]
        os._exit(int(pytest.main([*options, *files], plugins=[plugin])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def copy_project(state: Path) -> Path:
    """The project as it is now, without what it wrote while it ran."""
    folder = state / "project"
    shutil.rmtree(folder, ignore_errors=True)
    left = shutil.ignore_patterns(".git", "*cache*", "__pycache__", "docs", "pathx-out", "build")
    shutil.copytree(ROOT, folder, ignore=left)
    return folder


def watch(state: Path, folder: Path) -> dict[str, Seen]:
    """Every test of the engine on the unchanged project; those of files that have not changed were watched before."""
    store = state / "seen.json"
    known: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    files = [file for name in TESTS for file in sorted((folder / name).rglob("test_*.py")) or [folder / name]]
    marks = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    for file, mark in marks.items():
        if known.get(file, {}).get("mark") != mark:
            status = run_tests(folder, [file], Watch(folder, state / "watched.json"), 1800)
            assert status in (0, 5), f"the tests must pass before anything is changed: see {state / 'output.txt'}"
            known[file] = {"mark": mark, "tests": json.loads((state / "watched.json").read_text())}
            store.write_text(json.dumps(known))
    tests = {name: seen for file in marks for name, seen in known[file]["tests"].items()}
    return {name: Seen(took, frozenset((file, one) for file, one in called)) for name, (took, called) in tests.items()}


def calling(mutant: Mutant, seen: dict[str, Seen]) -> list[str]:
    """The tests that call the changed function; for what is outside functions, those that call any function of that file."""

    def reaches(test: Seen) -> bool:
        if mutant.function:
            return (mutant.file, mutant.function) in test.functions
        return any(file == mutant.file for file, _ in test.functions)

    chosen, total = [], 0.0
    for name, test in sorted(seen.items(), key=lambda one: (one[1].seconds > LONG, -len(one[1].functions))):
        if reaches(test) and total + test.seconds <= SECONDS:
            chosen.append(name)
            total += test.seconds
    return chosen


def tried(mutant: Mutant, folder: Path, seen: dict[str, Seen]) -> str:
    """`found`, `survived`, or `not called` where no test calls the function."""
    tests = calling(mutant, seen)
    if not tests:
        return "not called"
    file = folder / mutant.file
    original = file.read_text()
    file.write_text(changed(original, mutant))
    try:
        files = sorted({test.split("::")[0] for test in tests})
        limit = 3 * sum(seen[test].seconds for test in tests) + 60
        return "survived" if run_tests(folder, files, Chosen(tests), limit) == 0 else "found"
    finally:
        file.write_text(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state", type=Path, help="a folder for the copy and what was found so far")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="those that survived once more, with the tests of now")
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    state: Path = asked.state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    results = state / "results.json"
    outcomes: dict[str, str] = json.loads(results.read_text()) if results.exists() else {}
    folder = copy_project(state)
    files = sorted(str(file.relative_to(folder)) for file in folder.glob("pathx/engine/**/*.py"))
    possible = [mutant for file in files for mutant in mutants(file, (folder / file).read_text())]
    sample = random.Random(asked.seed).sample(possible, asked.sample)
    open_ = [
        one
        for one in sample
        if (outcomes.get(one.name, "survived") != "found" if asked.again else one.name not in outcomes)
    ]
    if open_:
        seen = watch(state, folder)
        print(f"{len(seen)} tests take {sum(test.seconds for test in seen.values()):.0f} s", flush=True)
    for mutant in open_:
        if time.monotonic() > end:
            break
        outcomes[mutant.name] = tried(mutant, folder, seen)
        results.write_text(json.dumps(outcomes, indent=1))
        if outcomes[mutant.name] != "found":
            print(f"{outcomes[mutant.name]}: {mutant.name}", flush=True)
    decided = [outcomes[one.name] for one in sample if one.name in outcomes]
    print(f"{decided.count('found')} of {len(decided)} were found, of a sample of {len(sample)} out of {len(possible)}")


if __name__ == "__main__":
    main()
