"""Folders of many small images, runs over them in processes of their own, and the lines of their indexes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from support.command_line import ROOT


def photos(count: int, folder: str = "photos") -> str:
    """A folder of small pictures in three folders, made fast."""
    chance = random.Random(count)
    for number in range(count):
        file = Path(folder, "abc"[number % 3], f"{number // 3}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (12, 9), chance.randbytes(324)).save(file)
    return folder


def lines(out: str, name: str = "index.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for text in Path(out, name).read_text().splitlines()]


def started(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pathx", "explain", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes | options)
