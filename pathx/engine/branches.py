"""What Algorithm 1 works on: the branches that are explained, and the units that they keep in a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from pathx.engine.entries import Entries
from pathx.engine.network import Gate
from pathx.engine.selection import Best, Evidence, limits_of
from pathx.engine.window import made_once


@dataclass(frozen=True, eq=False)
class Branches:
    """What is explained, one entry per (image, target).

    Args:
        image: (Q,) number of the image in the batch.
        target: (Q,) class.
        classes: C; a single logit y counts as two classes with the logits (0, y).
        logits: (Q, 2) the two logits that the classes are, where one class is explained against another.
        alone: the network has a single logit.
        parent: (Q,) which branch each came from, where branches were split.
        parts: into how many branches each was split.
        whole: there is one for every image of the batch, in order.
    """

    image: Tensor
    target: Tensor
    classes: int
    logits: Tensor | None = None
    alone: bool = False
    parent: Tensor | None = None
    parts: int = 1
    whole: bool = False
    memory: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.image.shape[0]  # what len() asks for, in a tenth of its time

    def of(self, parent: Tensor) -> Branches:
        """One branch for each of the given ones (Q',)."""
        logits = None if self.logits is None else self.logits[parent]
        parts = self.parts * len(parent) // len(self)
        return Branches(self.image[parent], self.target[parent], self.classes, logits, self.alone, parent, parts)

    def favour(self, like: Tensor) -> Tensor:
        """(Q, C) 1 at the target and less than 0 at the others, which is 0 in all."""
        if "favour" not in self.memory:
            rest = like.new_full((len(self), self.classes), -1 / (self.classes - 1))
            self.memory["favour"] = rest.scatter_(1, self.target[:, None], 1.0)
        return self.memory["favour"]

    def explained(self, like: Tensor) -> Tensor:
        """(Q, C) what is explained: 1 at the target, and -1 at the class that it is explained against.

        The negative class of a single logit has the logit 0: there, what counts against the positive class is explained.
        """
        if "explained" not in self.memory:
            own = like.new_zeros(len(self), self.classes).scatter_(1, self.target[:, None], 1.0)
            against = self.alone or self.logits is not None
            self.memory["explained"] = own.scatter_(1, 1 - self.target[:, None], -1.0) if against else own
        return self.memory["explained"]

    def rivals(self, like: Tensor) -> Tensor:
        """(Q, C, 1) 0 at the target and 1 / (C - 1) at the others: what makes a product their mean."""
        if "rivals" not in self.memory:
            mean = like.new_full((len(self), self.classes), 1 / (self.classes - 1))
            self.memory["rivals"] = mean.scatter_(1, self.target[:, None], 0.0).unsqueeze(2)
        return self.memory["rivals"]

    def limits(self, threshold: float, width: int, like: Tensor) -> Tensor:
        """What margins must be above to be kept, as `selection.best` takes it."""
        key = f"limits {width} {threshold}"
        if key not in self.memory:
            self.memory[key] = limits_of(threshold, width, like)
        return self.memory[key]

    def sums(self, weights: Tensor) -> Tensor:
        """(Q, K, 2) the products of weights (Q, K, C) with `favour` and with `explained`."""
        if "both" not in self.memory:
            self.memory["both"] = torch.stack([self.favour(weights), self.explained(weights)], 2)
        return torch.bmm(weights, self.memory["both"])


@dataclass(frozen=True, eq=False)
class Link:
    """How rows arrived at the candidates of a layer, of which some were kept.

    Args:
        layer: that the rows came from; None for the logits.
        columns: (Q, rows, n) what the rows hold at the candidates.
        sent: (Q, rows) what the rows send of what is explained.
        parts: into how many branches each was split since.
    """

    layer: int | None
    columns: Tensor | Entries
    sent: Tensor
    parts: int = 1

    def through(self, branch: int, place: Tensor) -> Tensor:
        """(rows, K) what is sent through each row by the candidates at places (K,); (1, K) for the logits."""
        columns = self.columns[branch // self.parts].index_select(1, place)
        sent = columns * self.sent[branch // self.parts][:, None]
        return sent.sum(0, keepdim=True) if self.layer is None else sent


@dataclass(frozen=True, eq=False)
class Kept:
    """The units that the branches keep in one hidden layer, by falling importance.

    Args:
        layer: n.
        gates: the ReLUs of the layer; a unit's number counts through them in order.
        units: (Q, K) numbers of the units.
        best: their margins, and which of the entries are units at all.
        weights: (Q, K, C) what each unit's output sends to every class.
        favour: (Q, K) how much more it sends to the target than to the mean of the other classes.
        sent: (Q, K) what it sends of what is explained.
        gain: (Q, K) what the units pass on.
        links: from where each unit was reached; empty where the links would be too many.
        evidence: whether the choice is certain; None where it is by itself.
    """

    layer: int
    gates: tuple[Gate, ...]
    units: Tensor
    best: Best
    weights: Tensor
    favour: Tensor
    sent: Tensor
    gain: Tensor
    links: tuple[Link, ...] = ()
    evidence: Evidence | None = None

    @cached_property
    def real(self) -> Tensor:
        """(Q, K) 1 for units and 0 for entries that are none."""
        return self.best.valid.to(self.gain.dtype)

    def places(self) -> Iterator[tuple[Gate, Tensor, Tensor | None]]:
        """Each gate with the units' flat indices in it, (Q, K), never out of range, and which are on it; None for all.

        That is 1 for units, and 0 for those on other gates and for entries that are none.
        """
        if len(self.gates) == 1:
            yield self.gates[0], self.units, None
            return
        sizes = tuple(gate.units for gate in self.gates)
        first, low, high = made_once(("gates", sizes), self.units.device, lambda: _bounds(sizes))
        index = self.units - first
        place = index.clamp(low, high)
        here = (place == index) * self.real
        yield from zip(self.gates, place.unbind(), here.unbind(), strict=True)

    def of(self, parent: Tensor, column: Tensor | None = None) -> Kept:
        """The same for each of the given branches (Q',); or of each only the unit in one column (Q',)."""

        def pick(values: Tensor, dim: int = 1) -> Tensor:
            own = values[parent]
            if column is None:
                return own
            shape = [1] * values.dim()
            shape[0] = len(parent)
            sizes = [1 if d == dim else size for d, size in enumerate(own.shape)]
            return own.gather(dim, column.reshape(shape).expand(sizes))

        return replace(
            self,
            units=pick(self.units),
            best=Best(pick(self.best.place), pick(self.best.margin), pick(self.best.valid)),
            weights=pick(self.weights),
            favour=pick(self.favour),
            sent=pick(self.sent),
            gain=pick(self.gain),
            links=tuple(replace(link, parts=len(parent) // len(self.units)) for link in self.links),
        )


def _bounds(sizes: tuple[int, ...]) -> Tensor:
    """(3, gates, 1, 1) the number of each gate's first unit in the layer, and its first and last index."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return torch.tensor([firsts, [0] * len(sizes), [size - 1 for size in sizes]])[:, :, None, None]
