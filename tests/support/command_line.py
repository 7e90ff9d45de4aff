"""The command line called in this process, and the small files that it is called on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
SIDECAR: dict[str, Any] = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25], "labels": ["cat", "red fox", "dog"]}
FILES = {"figure.png", "heatmap.png", "overlay.png", "path.json"}
INDEX = {"index.jsonl", "run.json"}


@dataclass(frozen=True)
class Finished:
    status: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Pathx = Callable[..., Finished]


def refused(done: Finished, *parts: str, status: int = 2, out: str = "pathx-out") -> None:
    """The call was wrong: one line says so, and nothing was written."""
    assert (done.status, done.out) == (status, ""), done
    assert done.err.startswith("pathx: ")
    assert done.err.count("\n") == 1, done.err
    for part in parts:
        assert part in done.err
    assert not Path(out).exists()


def process(*arguments: object, seconds: float = 120) -> Finished:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=seconds,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def picture(file: str = "photo.png", size: tuple[int, int] = (24, 16), seed: int = 0, **options: Any) -> str:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", size, bytes(pixels.flatten().tolist())).save(file, **options)
    return file


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.inside(x))  # type: ignore[no-any-return]


def network(channels: int = 3, classes: int = 3) -> nn.Module:
    """Four hidden layers, with a skip connection; input 8 x 8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Residual(4)
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, classes)).eval()


_SCRIPTED: dict[tuple[object, ...], bytes] = {}


def _script(module: nn.Module) -> bytes:
    buffer = BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def scripted(module: nn.Module, file: str = "model.pt", sidecar: dict[str, Any] | None = SIDECAR) -> str:
    """Write a model and what lies beside it. Networks of the same layers and weights are compiled once."""
    parts = list(module.modules())
    if all(type(part).__module__.startswith("torch.nn.") or type(part) is Residual for part in parts):
        weights = (tensor.numpy(force=True).tobytes() for tensor in module.state_dict().values())
        key = (str(module), *(part.training for part in parts), *weights)
        Path(file).write_bytes(_SCRIPTED.get(key) or _SCRIPTED.setdefault(key, _script(module)))
    else:
        Path(file).write_bytes(_script(module))
    if sidecar is not None:
        Path(file).with_suffix(".json").write_text(json.dumps(sidecar))
    return file


def config(**values: object) -> tuple[str, str]:
    """The option that takes these settings from a file."""
    file = Path("-".join(map(str, (*values, *values.values()))) + ".toml").absolute()
    file.write_text("".join(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in values.items()))
    return "--config", str(file)


def files(folder: str | Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in Path(folder).rglob("*") if not file.is_dir()}


def document(folder: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "path.json").read_text())
    return content


def check_schema(made: dict[str, Any]) -> None:
    """A document is as its schema says, the one that ships with the package."""
    name = made["schema"].partition("/")[2].partition("@")[0]
    schema = json.loads((ROOT / "pathx" / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    pytest.importorskip("jsonschema").validate(made, schema)


def check_document(made: dict[str, Any], size: tuple[int, int] = (8, 8), tolerance: float = 1e-5) -> None:
    """Everything that every path.json of a picture must be; size is (width, height) of the model's input."""
    assert made["schema"] == "pathx/path@1"
    check_schema(made)
    assert len(made["image"]["sha256"]) == len(made["model"]["sha256"]) == 64
    hidden, depth = made["model"]["hidden_layers"], made["depth"]
    assert [layer["layer"] for layer in made["layers"]] == list(range(hidden, hidden - depth, -1))
    assert made["complete"] is (depth == hidden)
    for layer in made["layers"]:
        shapes = {tensor["name"]: tensor["shape"] for tensor in layer["tensors"]}
        units = layer["units"]
        assert 1 <= len(units) <= (made["width"] if isinstance(made["width"], int) else 10**9)
        assert len({(unit["tensor"], *unit["index"]) for unit in units}) == len(units)
        importances = [unit["importance"] for unit in units]
        assert importances == sorted(importances, reverse=True)
        assert layer["below_alpha"] is (importances[0] <= made["alpha"])
        for unit in units:
            shape = shapes[unit["tensor"]]
            assert all(0 <= at < length for at, length in zip(unit["index"], shape, strict=True))
            assert unit["contribution"] == pytest.approx(unit["weight"] * unit["activation"], rel=1e-5)
            left, top, right, bottom = unit["receptive_field"]
            assert 0 <= left < right <= size[0]
            assert 0 <= top < bottom <= size[1]
    if made["removal"] is not None:
        assert made["removal"]["units"] == sum(len(layer["units"]) for layer in made["layers"])
        assert made["removal"]["before"] == made["target"]["probability"]
    model = made["linear_model"]
    scale = max(1.0, abs(model["bias"]), abs(model["attribution_sum"]), abs(model["score"]))
    assert model["residual"] == model["score"] - model["bias"] - model["attribution_sum"]
    assert abs(model["residual"]) <= tolerance * scale
    if made["skips"] == "adjacent":
        total = sum(unit["contribution"] for unit in made["layers"][-1]["units"])
        assert total == pytest.approx(model["score"], rel=tolerance, abs=tolerance * scale)


def same(one: Any, other: Any) -> bool:
    """Equal, up to the rounding of floats."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return bool(other == pytest.approx(one, rel=1e-4, abs=1e-6))
    return bool(one == other)
