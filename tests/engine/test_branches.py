"""What is explained of weights, and which units a branch has kept, where a layer is several maps."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.branching import UNITS, branches, frozen_fire
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.branches import Branches, Kept, Link
from pathx.engine.selection import Best


def weights(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@given(st.integers(2, 6), st.integers(0, 99))
def test_favour_is_the_target_over_the_mean_of_the_others(classes: int, seed: int) -> None:
    target = torch.tensor([0, classes - 1, seed % classes])
    given_weights = weights(3, 5, classes, seed=seed)
    found = Branches(torch.arange(3), target, classes).sums(given_weights)[..., 0]
    for branch, own in enumerate(target.tolist()):
        others = [number for number in range(classes) if number != own]
        one = given_weights[branch]
        assert_close(found[branch], one[:, own] - one[:, others].mean(1))


def test_what_is_explained_is_one_class_or_the_difference_of_two() -> None:
    given_weights, target = weights(2, 3, 2), torch.tensor([1, 0])
    plain = Branches(torch.arange(2), target, 2)
    assert_close(plain.sums(given_weights)[..., 1], torch.stack([given_weights[0, :, 1], given_weights[1, :, 0]]))
    for pair in (
        Branches(torch.arange(2), target, 2, alone=True),
        Branches(torch.arange(2), target, 2, logits=torch.tensor([[3, 5], [2, 0]])),
    ):
        first, second = given_weights[..., 0], given_weights[..., 1]
        assert_close(pair.sums(given_weights)[..., 1], torch.stack([(second - first)[0], (first - second)[1]]))


def kept(units: Tensor) -> Kept:
    """Units of the layer that is two maps, with numbers that tell them apart."""
    _, frozen = frozen_fire(len(units))
    margins = units.double()
    best = Best(units + 1, margins, torch.ones_like(units, dtype=torch.bool))
    sent = margins / 2
    link = Link(None, margins[:, None], sent.new_ones(len(units), 1))
    weights = sent[:, :, None].expand(-1, -1, 4)
    return Kept(2, frozen.network.layers[1], units, best, weights, 3 * sent, sent, margins, (link,))


def test_every_unit_is_on_one_of_the_maps() -> None:
    units = torch.arange(UNITS[1])[None]
    (_, narrow, on_narrow), (_, wide, on_wide) = kept(units).places()
    assert on_narrow is not None and on_wide is not None
    assert narrow[on_narrow == 1].tolist() == list(range(50)) and wide[on_wide == 1].tolist() == list(range(75))
    assert torch.equal(on_narrow, 1 - on_wide)
    assert narrow.max() < 50 and wide.min() >= 0  # what is elsewhere has an index all the same


def test_branches_that_fall_apart_take_their_own_unit_along() -> None:
    whole = kept(torch.tensor([[3, 60, 7], [9, 5, 80]]))
    parent, column = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    parts = whole.of(parent, column)
    assert parts.units.tolist() == [[3], [60], [7], [9], [5], [80]]
    assert torch.equal(parts.sent, whole.sent.reshape(-1, 1)) and torch.equal(parts.best.margin, parts.gain)
    assert torch.equal(parts.favour, 3 * parts.sent)
    assert parts.weights.shape == (6, 1, 4) and torch.equal(parts.weights[:, 0, 0], parts.sent[:, 0])
    (link,) = parts.links  # read by the number of a part, it is that of the branch it came from
    place = torch.tensor([1])
    assert [float(link.through(branch, place)) for branch in range(6)] == [60.0] * 3 + [5.0] * 3
    assert whole.of(torch.tensor([1, 0])).units.tolist() == [[9, 5, 80], [3, 60, 7]]


def test_a_split_batch_remembers_where_it_came_from() -> None:
    parts = branches([2, 0]).of(torch.tensor([0, 0, 1]))
    assert (parts.image.tolist(), parts.target.tolist()) == ([0, 0, 1], [2, 2, 0])
    assert parts.parent is not None and parts.parent.tolist() == [0, 0, 1] and not parts.whole
