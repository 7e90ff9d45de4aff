"""What every test shares: a reproducible hypothesis, few threads, and the real models and pictures where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support.command_line import Finished, Pathx

from pathx.cli import run

_slow = [HealthCheck.too_slow]
settings.register_profile("reproducible", deadline=None, suppress_health_check=_slow, derandomize=True)
settings.register_profile("explore", deadline=None, suppress_health_check=_slow)  # pytest --hypothesis-profile explore
settings.load_profile("reproducible")

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real models and pictures that do not ship with the project: `shared/data` beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real models and pictures are not at {folder}")
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For networks so small that a second thread only gets in the way (ten times slower on a busy machine)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that pictures and results have short relative names."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "PATHX_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def pathx_(capsys: pytest.CaptureFixture[str]) -> Pathx:
    """The command line in this process: the imports of a new one take seconds."""

    def call(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        return Finished(int(ended.value.code or 0), *capsys.readouterr())

    return call
