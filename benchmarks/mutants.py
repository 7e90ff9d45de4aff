"""Small mistakes put into the engine, one at a time, and how many of them the tests find. Not part of CI.

    python -m benchmarks.mutants STATE --sample 200 --minutes 15 --seed 0

A mistake is one operator, comparison, number or condition changed in one place; which of all that could be made are tried is
drawn with the seed. Mutants are made in a copy of the project, in the folder STATE. First every test of the engine runs
once, with few examples of hypothesis, to see which lines it runs and how long it takes. Then each mutant runs against the
tests that run the changed line, again with few examples, until one fails: first those that found most mutants before, then
those of the module's own file and folder, then the quickest. It is found where a test fails or never ends. A mutant starts in a
process that has imported everything but the project. The run goes on where it stopped: call it again with the same STATE.
`--again` tries those that survived once more, against the tests as they are now and then with all examples; only files of
tests that have changed are watched again. Those that turn out to change nothing are not counted: write `equivalent: why`
beside them in STATE/results.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
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
    "tests/models/test_catalogue.py",
]
LEFT_OUT = [
    "--ignore=tests/engine/test_torchvision.py",
    "--ignore=tests/engine/test_timm.py",
]  # whole networks, minutes
OPTIONS = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants", *LEFT_OUT]
IMPORT, FOUND, EQUIVALENT = "import", "found by ", "equivalent"
SECONDS = 30.0
"""How long a round of tests takes at most, where none fails; watched, which makes it twice as long."""
BEST = 8
"""How many of the tests that found most mutants come first."""
FEW = 8
"""Examples of hypothesis in the first round."""
MEMORY = 8 << 30
"""A mutant that asks for more bytes than this is found."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

Lines = dict[str, set[int]]
"""Lines by file, relative to the project."""


@dataclass(frozen=True)
class Mutant:
    file: str
    number: int
    """Which of the file's mutants."""
    lines: range
    inside: bool
    """Is it in a function? What is outside runs when the file is imported."""
    what: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.lines.start}: {self.what}  ({self.number})"


@dataclass(frozen=True)
class Seen:
    """What one test did on the unchanged project."""

    seconds: float
    lines: Lines


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every small mistake that can be made in a file."""
    tree = ast.parse(source)
    inside = _inside(tree)
    for number, node in enumerate(_places(tree)):
        lines = range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]
        yield Mutant(file, number, lines, id(node) in inside, _change(node))


def changed(source: str, mutant: Mutant) -> str:
    """The whole source with the one mistake in it."""
    tree = ast.parse(source)
    _change(_places(tree)[mutant.number])
    return ast.unparse(tree)


def _inside(tree: ast.AST) -> set[int]:
    """The nodes that run when a function is called."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    bodies = [node.body if isinstance(node.body, list) else [node.body] for node in functions]
    return {id(inner) for body in bodies for top in body for inner in ast.walk(top)}


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


class Watch:
    """A pytest plugin: how long each test takes and which lines of the engine it runs."""

    def __init__(self, folder: Path, into: Path) -> None:
        self.engine, self.into = str(folder / "pathx" / "engine"), into
        self.start = len(str(folder)) + 1
        self.lines: Lines = {}
        self.seen: dict[str, Any] = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.engine):
            return None
        add = self.lines.setdefault(name[self.start :], set()).add

        def line(frame: FrameType, event: str, argument: object) -> Any:
            add(frame.f_lineno)
            return line

        return line

    def keep(self, name: str, start: float) -> None:
        sys.settrace(None)
        lines = {file: sorted(lines) for file, lines in self.lines.items()}
        self.seen[name] = [time.process_time() - start, lines]  # other work on the machine must not count
        self.lines.clear()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        draw(items, FEW)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        start = time.process_time()
        sys.settrace(self.trace)
        yield
        self.keep(IMPORT, start)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        sys.settrace(self.trace)
        yield
        self.keep(item.nodeid, start)

    def pytest_sessionfinish(self) -> None:
        self.into.write_text(json.dumps(self.seen))


@dataclass
class Chosen:
    """A pytest plugin: these tests alone, in this order; notes which one is running, and ends the process if it never ends."""

    seconds: dict[str, float]
    """How long each takes with few examples."""
    note: Path
    few: bool
    """With few examples of hypothesis; otherwise with all that a test asks for, and only tests that ask for more."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: number for number, test in enumerate(self.seconds)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
        if self.few:
            draw(items, FEW)
        else:
            times = {item.nodeid: given(item).max_examples / FEW for item in items if given(item)}
            self.seconds = {test: times[test] * self.seconds[test] for test in self.seconds if times.get(test, 0) > 1}
            kept = within(self.seconds, SECONDS)
            items[:] = [item for item in items if item.nodeid in kept]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.note.write_text(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, 5 + 5 * self.seconds[item.nodeid])  # which ends the process


def given(item: pytest.Item) -> Any:
    """hypothesis's settings of a test; None where it has none."""
    return getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)


def draw(items: list[pytest.Item], examples: int) -> None:
    """Let hypothesis give a test at most so many examples."""
    for item in items:
        if (settings := given(item)) and settings.max_examples > examples:
            few = hypothesis.settings(settings, max_examples=examples)
            item.obj._hypothesis_internal_use_settings = few  # type: ignore[attr-defined]


def within(seconds: dict[str, float], limit: float) -> dict[str, float]:
    """The tests, in their order, that take no longer together; one at least."""
    chosen: dict[str, float] = {}
    for test, took in seconds.items():
        if not chosen or sum(chosen.values()) + took <= limit:
            chosen[test] = took
    return chosen


def run_tests(folder: Path, files: list[str], plugin: object) -> int:
    """pytest's exit status, in a process of its own; negative where it was ended."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.dont_write_bytecode = True
        with open(folder.parent / "output.txt", "w") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            os._exit(int(pytest.main([*OPTIONS, "-x", "--tb=line", *files], plugins=[plugin])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm_up(folder: Path) -> None:
    """Import what the tests import, and forget the project itself: each mutant imports it again."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)  # small networks; and a process with more threads cannot be forked
    torch.set_num_threads = lambda number: None
    once = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a failure is enough: it need not be made small
    settings: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None, "report_multiple_bugs": False}
    too_slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("mutants", phases=once, suppress_health_check=too_slow, **settings)
    with open(folder.parent / "output.txt", "w") as output, contextlib.redirect_stdout(output):
        assert pytest.main([*OPTIONS, "--collect-only", *TESTS]) == 0, f"see {output.name}"
    assert (sys.modules["pathx"].__file__ or "").startswith(str(folder))
    for name in list(sys.modules):  # what torchvision needs is declared once per process
        if name.split(".")[0] in ("pathx", "support", "tests") and name != "pathx.models.torchvision":
            del sys.modules[name]


def copy_project(state: Path) -> Path:
    """The project as it is now, without what it wrote while it ran."""
    folder = state / "project"
    shutil.rmtree(folder, ignore_errors=True)
    left = shutil.ignore_patterns(".git", "*cache*", "__pycache__", "pathx-out", "build")
    shutil.copytree(ROOT, folder, ignore=left)
    return folder


def watch(state: Path, folder: Path) -> dict[str, Seen]:
    """Every test of the engine on the unchanged project; those of files that have not changed were watched before."""
    store = state / "seen.json"
    known: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    files = [file for name in TESTS for file in sorted((folder / name).rglob("test_*.py")) or [folder / name]]
    files = [file for file in files if not any(option.endswith(file.name) for option in LEFT_OUT)]
    marks = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    for file, mark in marks.items():
        if known.get(file, {}).get("mark") != mark:
            status = run_tests(folder, [file], Watch(folder, state / "watched.json"))
            assert status in (0, 5), f"the tests must pass before anything is changed: see {state / 'output.txt'}"
            known[file] = {"mark": mark, "tests": json.loads((state / "watched.json").read_text())}
            store.write_text(json.dumps(known))
    tests = {
        f"{file}:{name}" if name == IMPORT else name: seen
        for file in marks
        for name, seen in known[file]["tests"].items()
    }
    return {name: Seen(took, {file: set(lines) for file, lines in ran.items()}) for name, (took, ran) in tests.items()}


def reaching(mutant: Mutant, seen: dict[str, Seen], finders: Counter[str]) -> dict[str, float]:
    """The tests that run the changed line, and how long they take; all that run lines of its file if importing it does, too."""
    lines = set(mutant.lines)
    imports = any(lines & test.lines.get(mutant.file, set()) for name, test in seen.items() if name.endswith(IMPORT))
    tests = {name: test for name, test in seen.items() if not name.endswith(IMPORT) and mutant.file in test.lines}
    if mutant.inside and not imports:
        tests = {name: test for name, test in tests.items() if lines & test.lines[mutant.file]}
    nearest = sorted(tests, key=lambda name: (_distance(name, mutant.file), tests[name].seconds))
    best = sorted(tests, key=lambda name: -finders[name])[:BEST]
    return within({name: tests[name].seconds for name in dict.fromkeys([*best, *nearest])}, SECONDS)


def _distance(test: str, file: str) -> int:
    """How near a test stands to a file: in the one that mirrors it, in the folder that does, or elsewhere."""
    mirror, path = Path("tests") / Path(file).relative_to("pathx"), Path(_file(test))
    if path == mirror.with_name(f"test_{mirror.name}"):
        return 0
    return 1 if path.parent == mirror.parent else 2


def _file(test: str) -> str:
    return test.split("::")[0]


def tried(mutant: Mutant, folder: Path, seen: dict[str, Seen], finders: Counter[str], thorough: bool) -> str:
    """`found by` a test, `survived`, or `not reached` where no test runs the line."""
    tests = reaching(mutant, seen, finders)
    if not tests:
        return "not reached"
    file, note = folder / mutant.file, folder.parent / "running.txt"
    original = file.read_text()
    file.write_text(changed(original, mutant))
    try:
        one_file = {test: took for test, took in tests.items() if _file(test) == _file(next(iter(tests)))}
        # The file of the best test first: collecting the tests of all files takes longer than running a few.
        for chosen, few in [(within(one_file, 2.0), True), (tests, True), *([(tests, False)] if thorough else [])]:
            note.write_text(IMPORT)
            if run_tests(folder, sorted({*map(_file, chosen)}), Chosen(chosen, note, few)) not in (
                0,
                5,
            ):  # 5: none to run
                finders[note.read_text()] += 1
                return FOUND + note.read_text()
        return "survived"
    finally:
        file.write_text(original)


def interval(found: int, tried: int) -> tuple[float, float]:
    """Where the share among all mutants lies, with 95 % confidence (Wilson)."""
    z, share = 1.96, found / max(tried, 1)
    centre = share + z * z / (2 * max(tried, 1))
    spread = z * math.sqrt(share * (1 - share) / max(tried, 1) + (z / (2 * max(tried, 1))) ** 2)
    return tuple((centre + sign * spread) / (1 + z * z / max(tried, 1)) for sign in (-1, 1))  # type: ignore[return-value]


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
    random.Random(asked.seed).shuffle(possible)
    sample = possible[: asked.sample]
    retried = ("survived", "not reached") if asked.again else ()
    left = [one for one in sample if outcomes.get(one.name) in (None, *retried)]
    if left:
        warm_up(folder)
        seen = watch(state, folder)
        print(f"{len(seen)} tests take {sum(test.seconds for test in seen.values()):.0f} s", flush=True)
    finders = Counter(outcome.removeprefix(FOUND) for outcome in outcomes.values() if outcome.startswith(FOUND))
    for mutant in left:
        start = time.monotonic()
        if start > end:
            break
        outcomes[mutant.name] = tried(mutant, folder, seen, finders, asked.again)
        results.write_text(json.dumps(outcomes, indent=1))
        print(f"{time.monotonic() - start:.1f} s, {outcomes[mutant.name]}: {mutant.name}", flush=True)
    counted = [outcomes[one.name] for one in sample if one.name in outcomes]
    decided = [outcome.startswith(FOUND) for outcome in counted if not outcome.startswith(EQUIVALENT)]
    low, high = interval(sum(decided), len(decided))
    print(f"{sum(decided)} of {len(decided)} were found ({low:.1%} to {high:.1%}), of {len(possible)} possible ones")
    print(f"{len(counted) - len(decided)} more were tried that change nothing")


if __name__ == "__main__":
    main()
