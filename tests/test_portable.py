"""Windows and macOS: pathx runs where the names are missing that only POSIX systems, or only Linux, have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WITHOUT = """
import importlib, os, pkgutil, signal, sys
import torch  # its own business
import pathx.models.torchvision

for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for module, names in {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fork geteuid getuid mkfifo nice sched_getaffinity setpriority PRIO_PROCESS",
    signal: "SIGALRM SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 pthread_kill pthread_sigmask sigwait",
}.items():
    for name in names.split():
        vars(module).pop(name, None)

import pathx
for found in pkgutil.walk_packages(pathx.__path__, "pathx."):
    if found.name != "pathx.__main__":
        importlib.import_module(found.name)

from pathx.cli import app
app(["explain", sys.argv[1], "--out", sys.argv[2]], standalone_mode=False)
"""


def test_every_module_imports_and_an_image_is_explained_without_posix_names(tmp_path: Path) -> None:
    call = [sys.executable, "-c", WITHOUT, str(ROOT / "examples/cat.png"), str(tmp_path)]
    run = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.rglob("path.json")), run.stdout
