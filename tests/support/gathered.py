"""A folder of photos whose units are gathered, and what `pathx units` wrote of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.command_line import network, picture, scripted

OPTIONS = ("--model", "model.pt", "--depth", "2", "--width", "4", "--top", "3", "--batch-size", "2")


def photos() -> str:
    """Seven photos in two folders, and a network."""
    scripted(network())
    for number in range(7):
        picture(f"photos/{'cat' if number % 2 else 'dog'}/{number}.png", seed=number)
    return "photos"


def document(out: str = "out") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(out) / "units.json").read_text())
    return content


def channels(made: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(t["name"], entry) for layer in made["layers"] for t in layer["tensors"] for entry in t["channels"]]
