"""Where a classifier looks when it errs: channels that are on the paths of wrong predictions far more often than on right ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, sqrt

Channel = tuple[int, str, int]
"""The hidden layer, the ReLU's name and the channel."""

LEVEL = 1.959964
"""Standard errors on each side of an interval of 95 %."""


@dataclass(frozen=True)
class LabelledPath:
    """What is compared of one image: what was predicted, what it is, and the channels on the path."""

    image: str
    predicted: str
    label: str
    channels: frozenset[Channel]


@dataclass(frozen=True)
class Suspect:
    """A channel that goes with errors of one predicted class.

    Args:
        predicted: the class that was predicted, rightly and wrongly.
        wrong: on how many paths of wrong predictions the channel was, of how many.
        right: the same of right predictions.
        odds: how many times greater the odds are to find it on a wrong path than on a right one; with half a count added
            everywhere, so that it is always a number.
        low, high: the interval of 95 % around the odds.
        chance: how probable such a table is by chance, or one that is more so (Fisher's exact test, one-sided).
        corrected: the same, corrected for the number of channels that were compared (Holm).
        images: the wrong predictions that have it.
    """

    predicted: str
    channel: Channel
    wrong: tuple[int, int]
    right: tuple[int, int]
    odds: float
    low: float
    high: float
    chance: float
    corrected: float
    images: tuple[str, ...]


def suspects(paths: Iterable[LabelledPath], *, most: float = 0.05) -> list[Suspect]:
    """Channels that are on wrong paths more often than chance would have it, the surest first.

    Args:
        most: the corrected probability of chance that is still told.
    """
    by_class: dict[str, list[LabelledPath]] = {}
    for path in paths:
        by_class.setdefault(path.predicted, []).append(path)
    compared = [one for name, own in sorted(by_class.items()) for one in _of_class(name, own)]
    ranked = sorted(compared, key=lambda one: (one.chance, -one.low, one.predicted, one.channel))
    found, highest = [], 0.0
    for place, one in enumerate(ranked):
        highest = max(highest, min(1.0, one.chance * (len(ranked) - place)))
        if highest > most:
            break
        found.append(Suspect(**{**vars(one), "corrected": highest}))
    return found


def comparable(paths: Sequence[LabelledPath]) -> int:
    """How many predicted classes have both right and wrong predictions."""
    states: dict[str, set[bool]] = {}
    for path in paths:
        states.setdefault(path.predicted, set()).add(path.predicted == path.label)
    return sum(len(both) == 2 for both in states.values())


def _of_class(predicted: str, paths: Sequence[LabelledPath]) -> list[Suspect]:
    """All channels of the paths of one predicted class, compared."""
    right = [path for path in paths if path.label == predicted]
    wrong = [path for path in paths if path.label != predicted]
    if not right or not wrong:
        return []
    found = []
    for channel in sorted({channel for path in wrong for channel in path.channels}):
        has = [path.image for path in wrong if channel in path.channels]
        a, c = len(has), sum(channel in path.channels for path in right)
        b, d = len(wrong) - a, len(right) - c
        odds = log((a + 0.5) * (d + 0.5) / ((b + 0.5) * (c + 0.5)))
        spread = LEVEL * sqrt(sum(1 / (count + 0.5) for count in (a, b, c, d)))
        chance = fisher(a, b, c, d)
        found.append(
            Suspect(
                *(predicted, channel, (a, len(wrong)), (c, len(right))),
                odds=exp(odds),
                low=exp(odds - spread),
                high=exp(odds + spread),
                chance=chance,
                corrected=chance,
                images=tuple(has),
            )
        )
    return found


def fisher(a: int, b: int, c: int, d: int) -> float:
    """The probability, by chance, of at least `a` in the first cell of a table (a, b; c, d) with the same sums."""
    row, column, total = a + b, a + c, a + b + c + d

    def chosen(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    whole = chosen(total, row)
    terms = [chosen(column, k) + chosen(total - column, row - k) - whole for k in range(a, min(row, column) + 1)]
    top = max(terms, default=-math.inf)
    return min(1.0, exp(top) * sum(exp(term - top) for term in terms)) if terms else 0.0
