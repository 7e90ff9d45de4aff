"""What pictures and the screen say in words: numbers as people read them, and what a path carries. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathx.explanation import Explanation


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "-" if share is None else f"{share:.1%}"


def counted(count: int, noun: str) -> str:
    """`1 unit`, `8,361 units`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: `1-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def settings_line(explanation: Explanation) -> str:
    """How an explanation was made."""
    depth = f"depth {explanation.depth} of {explanation.hidden_layers}"
    ranked = "" if explanation.importance == "paper" else f", importance {explanation.importance}"
    return f"{depth}, width {explanation.width}, skips {explanation.skips}{ranked}"


def units_line(explanation: Explanation) -> str:
    """How many units are on the path, and where: `15 units in the 3 layers nearest the output`."""
    units = counted(sum(len(layer.units) for layer in explanation.path), "unit")
    if explanation.complete and len(explanation.path) == 1:
        return f"{units} in the only layer"
    if explanation.complete:
        return f"{units} in all {counted(len(explanation.path), 'layer')}"
    if len(explanation.path) == 1:
        return f"{units} in the layer nearest the output"
    return f"{units} in the {counted(len(explanation.path), 'layer')} nearest the output"


def carried(score: float, logit: float) -> str:
    """What a path carries of its class's logit, to follow its subject.

    A path can carry more than all: it holds what supports the class, and leaves out much of what counts against it.
    """
    numbers = f"{score:.3g} of {logit:.3g}"
    if logit <= 0:
        return f"send {score:+.3g} to the class, whose logit is {logit:.3g}"
    if score < 0:
        return f"count against the class: {score:+.3g}, where the logit is {logit:.3g}"
    if score <= 1.005 * logit:
        return f"carry {score / logit:.1%} of the logit ({numbers})"
    return f"carry {score / logit:.0%} of the logit ({numbers}); the rest of the network counts against the class"


def carried_difference(score: float, difference: float) -> str:
    """What a path carries of the difference between two logits, to follow its subject."""
    numbers = f"{score:+.3g} of {difference:+.3g}"
    if score * difference < 0:
        return f"point the other way: {score:+.3g}, where the difference between the logits is {difference:+.3g}"
    if difference == 0:
        return f"carry {score:+.3g}, where the logits are the same"
    return f"carry {score / difference:.1%} of the difference between the logits ({numbers})"


def carried_line(explanation: Explanation) -> str:
    """How many units there are, and what they carry of the logit, or of the difference between two."""
    logits = explanation.logits.flatten()
    logit = float(logits[explanation.target])
    if explanation.against is None:
        return f"{units_line(explanation)} {carried(explanation.score, logit)}."
    difference = logit - float(logits[explanation.against])
    return f"{units_line(explanation)} {carried_difference(explanation.score, difference)}."
