"""What pictures and the screen say in words: numbers as people read them, and a class without its path. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathx.explanation import Effect, Explanation, Removal


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


def path_line(explanation: Explanation, label: str, other: str = "") -> str:
    """What becomes of the class without the path's units; how many there are, where nobody asked for that.

    Args:
        label, other: of the explained class, and of the one that it is explained against.
    """
    removal = explanation.removal
    return f"{units_line(explanation)}." if removal is None else removal_line(removal, label, other)


SAME = 0.05
"""A probability stays where it is if removal changes it by no more than this share of it."""


def removal_line(removal: Removal, label: str, other: str = "") -> str:
    """What becomes of a class without some units: `Without these 192 of 18,540 active units, cat falls from 39.3% to 4.1%.`"""
    these = "this one" if removal.units == 1 else f"these {removal.units:,}"
    without = f"Without {these} of {removal.of_active:,} active units"
    if removal.against is not None:
        return f"{without}, {_which_is_ahead(removal, removal.against, label, other)}."
    before, after, random = percent(removal.before), percent(removal.after), _at_random(removal)
    if abs(removal.after - removal.before) <= SAME * removal.before:
        return f"{without}, {label} stays at {after} (with them {before}; {random}): the class has other support."
    if removal.after > removal.before:
        return (
            f"{without}, {label} rises from {before} to {after} ({random}): other units more than make up for the loss."
        )
    return f"{without}, {label} falls from {before} to {after} ({random})."


def _at_random(removal: Removal) -> str:
    """The random draws in words, for brackets."""
    if removal.at_random is None:
        return "there are no others to compare with"
    others = (
        "as many others at random"
        if removal.random_units == removal.units
        else f"{removal.random_units:,} others at random"
    )
    against = "" if removal.against is None else f" to {percent(removal.against.at_random)}"
    return f"{others}: {percent(removal.at_random)}{against}"


def _which_is_ahead(removal: Removal, against: Effect, label: str, other: str) -> str:
    """Which of two classes is ahead without the units that tell them apart, and which was before."""
    first = [label, other] if removal.after >= against.after else [other, label]
    values = sorted([removal.after, against.after], reverse=True)
    still = (removal.after >= against.after) == (removal.before >= against.before)
    before = f"with them {label} {percent(removal.before)} to {percent(against.before)}"
    return (
        f"{first[0]} is {'still' if still else 'now'} ahead of {first[1]}, {percent(values[0])} to {percent(values[1])} "
        f"({before}; {_at_random(removal)})"
    )
