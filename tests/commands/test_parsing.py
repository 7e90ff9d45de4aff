"""What the texts of options mean, and which option is named where one means nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathx.commands import parsing
from pathx.errors import PathxError
from pathx.runs.shards import Shard


@pytest.mark.parametrize(
    ("read", "text", "meaning"),
    [
        (parsing.depth, "3", 3),
        (parsing.depth, "maps:3", "maps:3"),
        (parsing.depth, "half", "half"),
        (parsing.width, "7", 7),
        (parsing.width, "5%", "5%"),
        (parsing.alpha, "0.25", 0.25),
        (parsing.alpha, None, None),
        (parsing.size, "3,224,160", [3, 224, 160]),
        (parsing.size, "3x8x9", [3, 8, 9]),
        (parsing.batch_size, "auto", "auto"),
        (parsing.batch_size, "4", 4),
        (parsing.images_at_once, "auto", 8),
        (parsing.arguments, '{"num_classes": 10}', {"num_classes": 10}),
        (parsing.arguments, None, None),
        (parsing.every, "10", 10),
        (parsing.every, None, None),
        (parsing.several, ["a, b", "c,,", ""], ["a", "b", "c"]),
        (parsing.several, None, []),
    ],
)
def test_a_text_means(read: Callable[[Any], Any], text: Any, meaning: object) -> None:
    assert read(text) == meaning


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda: parsing.depth("deep"), "depth 'deep' is not a number of layers"),
        (lambda: parsing.depth("maps:0"), "depth 'maps:0'"),
        (lambda: parsing.alpha("x"), "alpha 'x' is not a number"),
        (lambda: parsing.size("3,wide,8"), "--input-size takes channels,height,width"),
        (lambda: parsing.numbers("0.5;0.4", "--mean"), "--mean takes numbers with commas"),
        (lambda: parsing.batch_size("many"), "--batch-size takes a number of images or auto"),
        (lambda: parsing.arguments("{"), "--model-args is not valid JSON"),
        (lambda: parsing.arguments("[1]"), "--model-args takes an object"),
        (lambda: parsing.whole_number("few", "--steps"), "--steps takes a whole number, not 'few'"),
        (lambda: parsing.every("0"), "--every takes 1 or more, not 0"),
        (lambda: parsing.number("much", "--smoothing", "0.025"), "--smoothing takes a number such as 0.025"),
    ],
)
def test_a_text_that_means_nothing_names_its_option(read: Callable[[], object], text: str) -> None:
    with pytest.raises(PathxError) as refused:
        read()
    assert text in str(refused.value) and refused.value.usage and "\n" not in str(refused.value)


def test_the_shard_is_the_one_named_or_the_schedulers_which_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    assert parsing.shard("2/3", quiet=True) == Shard(2, 3) and parsing.shard("1/1", quiet=True) is None
    assert parsing.shard(None, quiet=True) is None
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert parsing.shard(None, quiet=False) == Shard(1, 2)
    assert "this is shard 1/2, says RANK" in capsys.readouterr().err
