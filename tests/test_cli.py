"""The process: what it loads, how it ends, and what it says when things go wrong in ways of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import (
    ROOT,
    Finished,
    Pathx,
    document,
    network,
    picture,
    process,
    refused,
    scripted,
)

import pathx.runs.compute

pytestmark = pytest.mark.usefixtures("here")


# The process


def test_help_needs_no_torch() -> None:
    heavy = "{'torch', 'torchvision', 'PIL', 'safetensors'}"
    script = f"import sys, pathx.cli; print(sorted({heavy} & set(sys.modules)))"
    script += "\ntry: pathx.cli.run(['--show-completion', 'bash'])\nexcept SystemExit: pass"
    script += "\ntry: pathx.cli.run(['explain', '--help'])"
    script += f"\nfinally: print(sorted({heavy} & set(sys.modules)))"
    done = process("-c", script)
    assert done.status == 0
    # typer says so where it knows no shell above this process
    assert re.fullmatch(r"(Shell \w* not supported\.\n)?", done.err)
    first, *help_text, last = done.out.splitlines()
    assert first == last == "[]"
    assert "--save-tensors" in "\n".join(help_text)


def test_a_reader_that_has_seen_enough() -> None:
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pathx", "explain", picture(), "--model", scripted(network()), "--no-pictures"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment, text=True, timeout=120)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_version_and_help(pathx_: Pathx) -> None:
    assert pathx_("--version") == Finished(0, f"pathx {pathx.__version__}\n", "")
    assert pathx_() == pathx_("--help")
    done = pathx_("-h")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Usage: pathx ")


# When things go wrong in ways of their own


def test_debugging_shows_the_traceback_and_keeps_the_status(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHX_DEBUG", "1")
    model = scripted(network())
    for status, arguments in [(2, (picture(), "--depth", 9)), (1, ("no.png",)), (2, (picture(), "--frob"))]:
        done = pathx_("explain", *arguments, "--model", model)
        assert done.status == status
        assert done.err.startswith("Traceback (most recent call last)")
        assert done.err.splitlines()[-1].startswith("pathx: ")


def test_a_bug_is_one_line_too(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(pathx.runs.compute, "freeze", bug)
    done = pathx_("explain", picture(), "--model", scripted(network()))
    message = "unexpected ZeroDivisionError: by zero (set PATHX_DEBUG=1 for the traceback)"
    refused(done, f"pathx: {message}\n", status=1)


def test_an_interruption(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pathx.runs.compute, "freeze", interrupt)
    done = pathx_("explain", picture(), "--model", scripted(network()))
    refused(done, "interrupted; the explanations that have a path.json are whole", status=130)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="file names are Unicode there")
def test_a_file_name_that_is_no_text(pathx_: Pathx) -> None:
    os.rename(picture(), os.fsdecode(b"caf\xe9.png"))
    done = pathx_("explain", os.fsdecode(b"caf\xe9.png"), "--model", scripted(network()), "--target", "cat")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("caf\\udce9.png\n")
    assert document(Path(os.fsdecode(b"pathx-out/caf\xe9.png/cat")))["image"]["file"] == "caf\udce9.png"
