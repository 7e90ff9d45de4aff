"""What a sidecar says, and what is said of one that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pathx.errors import PathxError
from pathx.models.sidecar import EXAMPLE, complete, read_sidecar, sidecar_beside

WHOLE: dict[str, Any] = json.loads(EXAMPLE)


def test_the_longer_name_wins_and_none_says_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    assert sidecar_beside(model) == {}
    (tmp_path / "model.json").write_text(json.dumps({"mean": 0.1}))
    assert sidecar_beside(model) == {"mean": (0.1,)}
    (tmp_path / "model.pt.json").write_text("\ufeff" + json.dumps({"mean": [0.2]}), encoding="utf-8")
    assert sidecar_beside(model) == {"mean": (0.2,)}


def test_one_number_stands_for_all_channels() -> None:
    found = complete(read_sidecar(json.dumps(WHOLE | {"std": 0.25}), "x.json"), "x.json", "say it")
    assert (found.input_size, found.mean, found.std) == ((3, 32, 32), (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x.json is not valid JSON"),
        ("[]", "x.json must hold an object such as"),
        ('{"labls": ["a"]}', "x.json has the unknown key 'labls': did you mean 'labels'?"),
        ('{"mean": "grey"}', r"mean in x.json must be a list of numbers such as \[0.5, 0.5, 0.5\], not"),
        ('{"std": [1, null]}', "std in x.json must be a list of numbers"),
        ('{"input_size": 32}', r"input_size in x.json must be a list of numbers such as \[3, 32, 32\]"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, message: str) -> None:
    with pytest.raises(PathxError, match=message) as raised:
        read_sidecar(text, "x.json")
    assert raised.value.usage and "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["input_size", "mean", "std"])
def test_what_is_lacking_is_named_with_the_remedy(key: str) -> None:
    described = {name: value for name, value in WHOLE.items() if name not in (key, "labels")}
    with pytest.raises(PathxError, match=f"model.pt does not say its {key}: write it down"):
        complete(described, "model.pt", "write it down")
