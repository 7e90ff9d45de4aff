"""What every test shares: a reproducible hypothesis, few threads, and the real models and pictures where they are."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # the process that only hands out tests needs no torch, which takes seconds to import
    from support.command_line import Finished, Pathx
    from torch import Tensor

_slow = [HealthCheck.too_slow]
settings.register_profile("reproducible", deadline=None, suppress_health_check=_slow, derandomize=True, max_examples=40)
settings.register_profile("explore", deadline=None, suppress_health_check=_slow)  # pytest --hypothesis-profile explore
settings.load_profile("reproducible")


os.environ.pop("COLUMNS", None)  # workers of xdist have a width that nobody has chosen


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker per core for whole folders; none for single files, which are done before workers have imported torch."""
    if all(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8) if cores > 1 else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--list-skipped", metavar="FILE", help="list skipped tests; pytest @FILE runs them again")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line at the end: how many tests were skipped, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    if file := config.getoption("--list-skipped"):
        Path(file).write_text("".join(f"{report.nodeid}\n" for report in skipped), encoding="utf-8")
    reasons = Counter(_why_skipped(report.longrepr[2]) for report in skipped)
    if reasons:
        listed = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{len(skipped)} skipped: {listed}")


def _why_skipped(text: str) -> str:
    missing = re.search(r"could not import '([\w.]+)'", text)
    return f"without {missing[1].split('.')[0]}" if missing else text.removeprefix("Skipped: ")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of small networks wait for each other. And no test writes files of the form that older releases of torch have."""
    import torch

    @cache
    def unreadable() -> str:
        from pathx.compat import export_reader
        from pathx.errors import PathxError

        try:
            export_reader()
        except PathxError as error:
            return str(error)
        return ""

    def save(*arguments: Any, **options: Any) -> None:
        if unreadable():
            pytest.skip(unreadable())
        write(*arguments, **options)

    def export(*arguments: Any, **options: Any) -> Any:
        if unreadable():  # such a torch fails after some exports of one class in one process
            torch._dynamo.reset()
        return make(*arguments, **options)

    torch.set_num_threads(1)
    write, torch.export.save = torch.export.save, save
    make, torch.export.export = torch.export.export, export


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real models and pictures that do not ship with the project: `shared/data` beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real models and pictures are not at {folder}")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that pictures and results have short relative names."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "PATHX_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def commands_made_once() -> None:
    """typer makes all commands anew for every call, which takes as long as a small network."""
    import typer.main

    typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture
def pathx_(commands_made_once: None, capsys: pytest.CaptureFixture[str]) -> Pathx:
    """The command line in this process: the imports of a new one take seconds."""
    from support.command_line import Finished

    from pathx.cli import run

    def call(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        return Finished(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lines of progress, however slow the machine is."""
    from pathx.commands import output

    monkeypatch.setattr(output, "EVERY", 1e9)


# What tests of `evaluate`, `common` and `check` share.


@pytest.fixture
def measured(here: Path) -> Path:
    """A folder with a model and six pictures in two classes."""
    from support.command_line import picture, scripted
    from support.measured import network

    scripted(network())
    for number in range(6):
        picture(f"pictures/{('cat', 'dog')[number % 2]}/{number}.png", (8, 8), number)
    return here


@pytest.fixture
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots, which take most of the time, unless a test is marked `drawn`."""
    import pathx.evaluation.plots

    if "drawn" not in request.fixturenames:
        for name in [name for name in vars(pathx.evaluation.plots) if name.startswith("plot_")]:
            monkeypatch.setattr(pathx.evaluation.plots, name, lambda *figures: None)


@pytest.fixture
def drawn() -> None:
    """Plots are drawn."""


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Tensor]], None]:
    """Put another method in the place of one, for a test."""
    import pathx.evaluation.methods

    return lambda name, compute: monkeypatch.setattr(pathx.evaluation.methods, name, compute)
