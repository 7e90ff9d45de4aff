"""Folders of many small images, and the lines of the indexes of runs over them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image


def photos(count: int, folder: str = "photos", classes: Sequence[str] = "abc") -> str:
    """A folder of small pictures in folders by class, made fast."""
    chance = random.Random(count)
    for number in range(count):
        file = Path(folder, classes[number % len(classes)], f"{number // len(classes)}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (12, 9), chance.randbytes(324)).save(file)
    return folder


def labelled(count: int) -> str:
    """The same in folders that are called as classes of the network."""
    return photos(count, classes=("cat", "dog"))


def lines(out: str, name: str = "index.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for text in Path(out, name).read_text().splitlines()]


def by_name(out: str = "pathx-out") -> dict[str, dict[str, Any]]:
    """The lines of an index by the names of their images, which are in it once each."""
    found = {line["name"]: line for line in lines(out)}
    assert len(found) == len(lines(out))
    return dict(sorted(found.items()))
