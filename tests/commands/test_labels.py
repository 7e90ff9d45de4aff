"""`pathx labels`: the classes of a model, and a search that finds what people mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from support.command_line import Pathx

from pathx.models.labels import find_labels

pytestmark = pytest.mark.usefixtures("here")


def test_a_word_is_found_before_a_part_of_one(pathx_: Pathx) -> None:
    done = pathx_("labels", "cat")
    assert (done.status, done.err) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.out.splitlines()[1:]]
    words = ["cat" in label.split() for _, label in rows]
    assert words == sorted(words, reverse=True) and any(words) and not all(words)
    assert json.loads(pathx_("labels", "TIGER_CAT", "--format", "json").out) == [{"index": 282, "label": "tiger cat"}]


def test_all_labels_and_none(pathx_: Pathx) -> None:
    assert len(pathx_("labels").out.splitlines()) == 1001
    nothing = pathx_("labels", "unicorn")
    assert nothing.status == 1 and nothing.err.startswith("pathx: none of the 1000 labels has 'unicorn' in it")
    Path("own.txt").write_text("\n".join(f"thing {number}" for number in range(1000)))
    assert pathx_("labels", "thing 999", "--labels", "own.txt").out.splitlines()[1:] == ["  999  thing 999"]


def test_a_class_that_is_not_there_suggests_those_that_hold_the_word(pathx_: Pathx) -> None:
    Image.new("RGB", (64, 64), "grey").save("photo.png")
    done = pathx_("explain", "photo.png", "--target", "cat")
    assert done.status == 2
    assert done.err.startswith("pathx: no class is called 'cat': did you mean 'tiger cat', 'Persian cat', ")
    assert find_labels("b", ["abc", "b", "a b c"]) == [1, 2, 0]
