"""The data of Algorithm 1: what is explained (branches), and the units that a layer keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pathx.engine.network import Gate
from pathx.engine.window import remember


@dataclass(frozen=True, eq=False)
class Branches:
    """What is explained: Q pairs of an image and a target class.

    Args:
        image: (Q,) number of the image in the batch.
        target: (Q,) class.
        classes: C; a single logit y counts as two classes with the logits (0, y).
        dtype: of the computation.
        logits: (Q, 2) the two logits that are compared, where one class is explained against another.
        single_logit: the network has one logit.
        one_per_image: there is one branch for every image of the batch, in order.
        parts: into how many branches each pair was split.
        log_odds: (Q, C) the gradient of the target's log-odds by the logits, where units are ranked by their effect on it.
    """

    image: Tensor
    target: Tensor
    classes: int
    dtype: torch.dtype = torch.float32
    logits: Tensor | None = None
    single_logit: bool = False
    one_per_image: bool = False
    parts: int = 1
    log_odds: Tensor | None = None

    def __len__(self) -> int:
        return self.image.shape[0]

    def select(self, parent: Tensor) -> Branches:
        """One branch for each of the given ones (Q',)."""
        logits = None if self.logits is None else self.logits[parent]
        parts = self.parts * len(parent) // len(self)
        return replace(
            self,
            image=self.image[parent],
            target=self.target[parent],
            logits=logits,
            one_per_image=False,
            parts=parts,
            log_odds=None if self.log_odds is None else self.log_odds[parent],
        )

    @cached_property
    def others_mean(self) -> Tensor:
        """(Q, C) 0 at the target and 1 / (C - 1) at the other classes."""
        mean = self.image.new_full((len(self), self.classes), 1 / (self.classes - 1), dtype=self.dtype)
        return mean.scatter_(1, self.target[:, None], 0.0)

    @cached_property
    def target_minus_mean(self) -> Tensor:
        """(Q, C) the target minus the mean of the other classes, or minus their mean by probability for effects."""
        if self.log_odds is not None:
            return self.log_odds
        return (-self.others_mean).scatter_(1, self.target[:, None], 1.0)

    @cached_property
    def explained(self) -> Tensor:
        """(Q, C) the logit that is explained: 1 at the target, and -1 at the class that it is explained against.

        The negative class of a single logit has the logit 0: there, what counts against the positive class is explained.
        """
        target = torch.zeros_like(self.others_mean).scatter_(1, self.target[:, None], 1.0)
        against = self.single_logit or self.logits is not None
        return target.scatter_(1, 1 - self.target[:, None], -1.0) if against else target

    @cached_property
    def both(self) -> Tensor:
        """(Q, C, 2) the target minus the mean, and what is explained."""
        return torch.stack([self.target_minus_mean, self.explained], 2)

    def weigh(self, W: Tensor) -> Tensor:
        """(Q, K, 2) the rows of W (Q, K, C) as target minus mean, and as what is explained.

        Where units are ranked by effect, W holds no more than these two.
        """
        return torch.bmm(W, self.both) if self.log_odds is None else W


@dataclass(frozen=True, eq=False)
class Link:
    """The part of the Jacobian between the units kept in one layer and the candidates of a layer below.

    Args:
        layer: of the rows; None for the logits.
        columns: (Q, rows, candidates) ∂h[row] / ∂(output of the candidate).
        weight: (Q, rows) what each row sends to the explained logit.
        parts: into how many branches each was split since.
    """

    layer: int | None
    columns: Tensor
    weight: Tensor
    parts: int = 1

    def through(self, branch: int, place: Tensor) -> Tensor:
        """(rows, K) what candidates at places (K,) send through each row; (1, K) for the logits."""
        columns = self.columns[branch // self.parts].index_select(1, place)
        sent = columns * self.weight[branch // self.parts][:, None]
        return sent.sum(0, keepdim=True) if self.layer is None else sent


@dataclass(frozen=True, eq=False)
class Kept:
    """The units that every branch keeps in one hidden layer, by falling importance.

    Args:
        layer: n.
        gates: the activations of the layer; a unit's number counts through them in order.
        units: (Q, K) numbers of the units.
        place: (Q, K) where each was among the candidates, for `links`.
        margin: (Q, K) log-odds of the importance against 1/C.
        valid: (Q, K) which entries are units; others only fill up the shape.
        target_minus_mean: (Q, K) what each sends to the target minus the mean of the other classes; 0 for entries that are none.
        weight: (Q, K) what each sends to the explained logit.
        slope_times_h: (Q, K) what the unit passes on.
        links: how the layers above reach the units; empty where the tables would be too large.
    """

    layer: int
    gates: tuple[Gate, ...]
    units: Tensor
    place: Tensor
    margin: Tensor
    valid: Tensor
    target_minus_mean: Tensor
    weight: Tensor
    slope_times_h: Tensor
    links: tuple[Link, ...] = ()

    @cached_property
    def mask(self) -> Tensor:
        """(Q, K) 1 for units and 0 for entries that are none."""
        return self.valid.to(self.slope_times_h.dtype)

    def by_gate(self) -> Iterator[tuple[Gate, Tensor, Tensor]]:
        """Each gate with the units' flat indices in it (Q, K), never out of range, and a mask of those that are on it."""
        for gate, index, here in split_by_gate(self.units, self.gates):
            yield gate, index, self.mask if here is None else self.mask * here

    def select(self, parent: Tensor, column: Tensor | None = None) -> Kept:
        """The same for each of the given branches (Q',); or of each only the unit in one column (Q',)."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor) and name != "mask"}
        if column is None:
            picked = {name: value[parent] for name, value in tensors.items()}
        else:
            picked = {name: value[parent, column].unsqueeze(1) for name, value in tensors.items()}
        links = tuple(replace(link, parts=len(parent) // len(link.columns)) for link in self.links)
        return replace(self, **picked, links=links)  # type: ignore[arg-type]


def split_by_gate(units: Tensor, gates: tuple[Gate, ...]) -> Iterator[tuple[Gate, Tensor, Tensor | None]]:
    """Each gate of a layer with the units' flat indices in it (Q, n), never out of range, and which are on it; None for all."""
    if len(gates) == 1:
        yield gates[0], units, None
        return
    sizes = tuple(gate.units for gate in gates)
    zero, first, last = remember(("gates", sizes), units.device, lambda: _ranges(sizes))
    index = units - first
    inside = torch.clamp(index, zero, last)
    yield from zip(gates, inside.unbind(), (inside == index).unbind(), strict=True)


def _ranges(sizes: tuple[int, ...]) -> Tensor:
    """(3, gates, 1, 1) zeros, the number of each gate's first unit in the layer, and its last index."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return torch.tensor([[0] * len(sizes), firsts, [size - 1 for size in sizes]])[:, :, None, None]
