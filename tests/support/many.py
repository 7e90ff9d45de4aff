"""Folders of many small images, and the lines of their indexes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from PIL import Image


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
