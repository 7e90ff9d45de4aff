"""What the texts of options mean: numbers, sizes, shards; PathxError names the option that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from pathx.commands.output import complain
from pathx.errors import PathxError, parse_json
from pathx.runs.index import Shard, parse_shard, shard_of_environment

T = TypeVar("T")


def parsed(text: str, parse: Callable[[str], T], problem: str) -> T:
    """The text as a number, or the problem as an error."""
    try:
        return parse(text)
    except (ValueError, OverflowError):
        raise PathxError(problem, usage=True) from None


def arguments(text: str | None) -> dict[str, Any] | None:
    """--model-args."""
    if text is None:
        return None
    try:
        found = parse_json(text)
    except ValueError as error:
        raise PathxError(f"--model-args is not valid JSON ({error}): write {_ARGUMENTS}", usage=True) from None
    if not isinstance(found, dict):
        raise PathxError(f"--model-args takes an object such as {_ARGUMENTS}", usage=True)
    return found


_ARGUMENTS = """'{"num_classes": 10}'"""


def depth(text: str) -> int | str:
    """--depth: a number, or what the library makes of maps:N, half or all."""
    problem = f"depth {text!r} is not a number of layers; use 1 or more, maps:3, half or all"
    return text if re.fullmatch(r"all|half|maps:[1-9]\d*", text) else parsed(text, int, problem)


def width(text: str) -> int | str:
    """--width: a number, or what the library makes of a share or all."""
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def numbers(text: str | None, option: str) -> list[float] | None:
    """--mean and --std."""
    problem = f"{option} takes numbers with commas between, such as 0.5,0.5,0.5, not {text!r}"
    return None if text is None else [parsed(part, float, problem) for part in text.split(",")]


def size(text: str | None) -> list[int] | None:
    """--input-size."""
    problem = f"--input-size takes channels,height,width such as 3,224,224, not {text!r}"
    return None if text is None else [parsed(part, int, problem) for part in re.split("[,x]", text)]


def batch_size(text: str) -> int | str:
    """--batch-size: a number or auto."""
    return text if text == "auto" else parsed(text, int, f"--batch-size takes a number of images or auto, not {text!r}")


def images_at_once(text: str) -> int:
    """--batch-size where auto is a fixed number."""
    size = batch_size(text)
    return 8 if isinstance(size, str) else size


def shard(text: str | None, quiet: bool) -> Shard | None:
    """--shard, or the part that a job scheduler gave to this process, which is then said."""
    if text is not None:
        chosen = parse_shard(text)
        return chosen if chosen.count > 1 else None
    found = shard_of_environment()
    if found is None:
        return None
    if not quiet:
        complain(f"note: this is shard {found[0]}, says {found[1]}; for everything use --shard 1/1")
    return found[0]


def whole_number(text: str | None, option: str) -> int | None:
    """--features, --from-layer, --steps and the like."""
    return None if text is None else parsed(text, int, f"{option} takes a whole number, not {text!r}")


def every(text: str | None) -> int | None:
    """--every: the step from frame to frame; None to take files as single images."""
    step = whole_number(text, "--every")
    if step is not None and step < 1:
        raise PathxError(f"--every takes 1 or more, not {step}: 10 is every tenth frame", usage=True)
    return step


def alpha(text: str | None) -> float | None:
    """--alpha."""
    return None if text is None else parsed(text, float, f"alpha {text!r} is not a number; use 0 to 1")


def number(text: str, option: str, example: str) -> float:
    """--smoothing and --percentile."""
    return parsed(text, float, f"{option} takes a number such as {example}, not {text!r}")


def several(texts: list[str] | None) -> list[str]:
    """The parts of an option that may be repeated and takes lists with commas."""
    return [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
