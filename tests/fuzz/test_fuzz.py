"""The fuzz, bounded and seeded. Longer: `python tests/fuzz/fuzz.py READER -max_total_time=600`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READERS = ("image", "sidecar", "labels", "model", "archive", "weights", "explanation", "index", "document")


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_bounded_fuzz_finds_nothing(tmp_path: Path, reader: str) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), reader, "-runs=2000", "-seed=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Done 2000 runs" in done.stderr
