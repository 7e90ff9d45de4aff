"""What pictures and the screen say in words: numbers as people read them, and a class without its path. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathx.explanation import Effect, Explanation, Removal


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "-" if share is None else f"{share:.1%}"


def count_of(count: int, noun: str) -> str:
    """`1 unit`, `8,361 units`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def settings_line(explanation: Explanation) -> str:
    """How an explanation was made."""
    depth = f"depth {explanation.depth} of {explanation.hidden_layers}"
    ranked = "" if explanation.importance == "paper" else f", importance {explanation.importance}"
    return f"{depth}, width {explanation.width}, skips {explanation.skips}{ranked}"


def units_line(explanation: Explanation) -> str:
    """How many units are on the path, and where: `15 units in the 3 layers nearest the output`."""
    units = count_of(sum(len(layer.units) for layer in explanation.path), "unit")
    if explanation.complete and len(explanation.path) == 1:
        return f"{units} in the only layer"
    if explanation.complete:
        return f"{units} in all {count_of(len(explanation.path), 'layer')}"
    if len(explanation.path) == 1:
        return f"{units} in the layer nearest the output"
    return f"{units} in the {count_of(len(explanation.path), 'layer')} nearest the output"


def path_line(explanation: Explanation, label: str, other: str = "") -> str:
    """What becomes of the class without the path's units; how many there are, where nobody asked for that.

    Args:
        label, other: of the explained class, and of the one that it is explained against.
    """
    removal = explanation.removal
    return f"{units_line(explanation)}." if removal is None else removal_line(removal, label, other)


LINE = "the white line encloses the strongest half of the support, except spots below 3%"
"""What the line on overlays is."""

SAME = 0.05
"""A probability stays where it is if removal changes it by no more than this share of it."""


def removal_line(removal: Removal, label: str, other: str = "") -> str:
    """What becomes of a class without some units: `Without these 192 of 18,540 active units, cat falls from 39.3% to 4.1%.`"""
    these = "this one" if removal.units == 1 else f"these {removal.units:,}"
    without = f"Without {these} of {removal.of_active:,} active units"
    if removal.against is not None:
        ahead, before = _ahead(removal, removal.against, label, other), percent(removal.before)
        with_them = f"with them {label} {before} to {percent(removal.against.before)}"
        return f"{without}, {ahead} ({with_them}; {_at_random(removal)})."
    if _tiny(removal.before) and _tiny(removal.after):
        return f"{without}, {label} stays below 0.1%, as with them ({_at_random(removal)})."
    verb, change = change_words(removal.before, removal.after)
    they_support = "it supports" if removal.units == 1 else "they support"
    because = {"stays": ": the class has other support", "rises": f": {they_support} other classes more"}
    beside = f"with them {percent(removal.before)}; {_at_random(removal)}" if verb == "stays" else _at_random(removal)
    return f"{without}, {label} {change} ({beside}){because.get(verb, '')}."


def _tiny(probability: float) -> bool:
    """Whether a probability is printed as 0.0%."""
    return probability < 0.0005


def change_words(before: float, after: float) -> tuple[str, str]:
    """Whether a probability stays, rises or falls, and that with the numbers: `falls from 39.3% to 4.1%`."""
    if _tiny(before) and _tiny(after):
        return "stays", "stays below 0.1%"
    if abs(after - before) <= SAME * before:
        return "stays", f"stays at {percent(after)}"
    verb = "rises" if after > before else "falls"
    return verb, f"{verb} from {percent(before)} to {percent(after)}"


def brief_removal(removal: Removal | None, label: str, other: str = "") -> str:
    """What becomes of a class without its units, in a few words; nothing where nobody asked."""
    if removal is None:
        return ""
    if removal.against is None:
        return f"without its units {percent(removal.after)}"
    return f"without its units {_ahead(removal, removal.against, label, other)}"


def _at_random(removal: Removal) -> str:
    """The random draws in words, for brackets."""
    if removal.at_random is None:
        return "no other active units to compare with"
    others = (
        "as many others at random"
        if removal.random_units == removal.units
        else f"{removal.random_units:,} others at random"
    )
    against = "" if removal.against is None else f" to {percent(removal.against.at_random)}"
    return f"{others}: {percent(removal.at_random)}{against}"


def _ahead(removal: Removal, against: Effect, label: str, other: str) -> str:
    """Which of two classes is ahead without the units that tell them apart."""
    first, second = (label, other) if removal.after >= against.after else (other, label)
    still = (removal.after >= against.after) == (removal.before >= against.before)
    high, low = sorted([removal.after, against.after], reverse=True)
    return f"{first} is {'still' if still else 'now'} ahead of {second}, {percent(high)} to {percent(low)}"
