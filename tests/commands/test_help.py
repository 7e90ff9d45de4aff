"""--help: options in groups, without torch; and shells can complete."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.command_line import Pathx

from pathx.commands.options import PANELS


@pytest.mark.parametrize("command", ["explain", "decompose"])
def test_options_stand_in_groups_and_each_once(pathx_: Pathx, command: str) -> None:
    text = pathx_(command, "--help").out
    places = [text.index(f"\n{panel}:\n") for panel in PANELS]
    assert places == sorted(places)
    for option in ("--target", "--detail", "--depth", "--model", "--heat", "--out", "--device"):
        assert text.count(f"\n  {option} ") == 1, option
    assert text.index("--detail") < text.index("--model NAME") < text.index("--heat") < text.index("--out ")


def test_help_and_completion_load_no_torch() -> None:
    code = (
        "import sys\n"
        "from pathx.cli import app\n"
        "for arguments in (['explain', '--help'], ['--show-completion', 'bash']):\n"
        "    try:\n        app(arguments, prog_name='pathx')\n"
        "    except SystemExit:\n        pass\n"
        "assert 'torch' not in sys.modules and 'torchvision' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--install-completion" not in done.stderr
