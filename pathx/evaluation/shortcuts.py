"""Channels that are on the paths of wrong predictions significantly more often than on those of right ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, lgamma, log, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathx.evaluation.common import ImagePath

Channel = tuple[int, str, int]
"""The hidden layer, the ReLU's name and the channel."""

LEVEL = 1.959964
"""Standard errors on each side of an interval of 95 %."""


SIGNIFICANT = 0.05
"""The largest corrected probability of chance at which a channel is reported."""


def split_by_class(paths: Sequence[ImagePath]) -> dict[str, tuple[list[ImagePath], list[ImagePath]]]:
    """By predicted class, the paths of right and of wrong predictions; only classes that have both."""
    found: dict[str, tuple[list[ImagePath], list[ImagePath]]] = {}
    for path in sorted(paths, key=lambda path: path.predicted):
        found.setdefault(path.predicted, ([], []))[0 if path.is_right else 1].append(path)
    return {name: (right, wrong) for name, (right, wrong) in found.items() if right and wrong}


def suspects(paths: Sequence[ImagePath]) -> list[dict[str, Any]]:
    """Channels that are on wrong paths more often than by chance, the surest first.

    Args:
        paths: of images in folders that are named after classes.
    """
    compared = [one for name, own in split_by_class(paths).items() for one in _compare_channels(name, *own)]
    ranked = sorted(
        compared,
        key=lambda one: (
            one["chance"],
            -one["interval"][0],
            one["predicted"],
            one["layer"],
            one["tensor"],
            one["channel"],
        ),
    )
    found, highest = [], 0.0
    for place, one in enumerate(ranked):
        highest = max(highest, min(1.0, one["chance"] * (len(ranked) - place)))
        if highest > SIGNIFICANT:
            break
        found.append(one | {"corrected": highest})
    return found


def _compare_channels(
    predicted: str, right: Sequence[ImagePath], wrong: Sequence[ImagePath]
) -> Iterator[dict[str, Any]]:
    """All channels on the wrong paths of one predicted class, as common.json has them.

    `wrong` and `right` say on how many paths a channel is, of how many; `odds` how many times greater the odds are to find it on a
    wrong path, with half a count added everywhere, so that it is always a number; `chance` how probable that is by chance, or more
    (Fisher's exact test, one-sided), and `corrected` the same for the number of channels that were compared (Holm).
    """
    for channel in sorted({channel for path in wrong for channel in path.channels}):
        has = [path.image for path in wrong if channel in path.channels]
        a, c = len(has), sum(channel in path.channels for path in right)
        b, d = len(wrong) - a, len(right) - c
        odds = log((a + 0.5) * (d + 0.5) / ((b + 0.5) * (c + 0.5)))
        spread = LEVEL * sqrt(sum(1 / (count + 0.5) for count in (a, b, c, d)))
        chance = fisher(a, b, c, d)
        yield {
            **dict(zip(("layer", "tensor", "channel"), channel, strict=True)),
            "interval": [exp(odds - spread), exp(odds + spread)],
            "predicted": predicted,
            "wrong": (a, len(wrong)),
            "right": (c, len(right)),
            "odds": exp(odds),
            "chance": chance,
            "corrected": chance,
            "images": tuple(has),
        }


def fisher(a: int, b: int, c: int, d: int) -> float:
    """The probability, by chance, of at least `a` in the first cell of a table (a, b; c, d) with the same sums."""
    row, column, total = a + b, a + c, a + b + c + d

    def log_ways(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    terms = [log_ways(column, k) + log_ways(total - column, row - k) for k in range(a, min(row, column) + 1)]
    return min(1.0, sum(exp(term - log_ways(total, row)) for term in terms))
