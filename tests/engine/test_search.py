"""The units that the search keeps are those of a plain ranking, and it knows where it cannot be sure."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.branching import branches, frozen_fire
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.candidates import Arrival
from pathx.engine.entries import Entries
from pathx.engine.path import PathSettings, find_paths
from pathx.engine.rows import rows_of_units
from pathx.engine.search import Choice, Strategy, search
from pathx.engine.selection import certain

pytestmark = pytest.mark.usefixtures("one_thread")


def searched(
    seed: int, width: int, slack: int, careful: bool, few: float, compact: bool = True, **strategy: Any
) -> tuple[Choice, Tensor]:
    """What is kept in the lower layer, and the margins of all its units (Q, units)."""
    _, frozen = frozen_fire(seed=seed)
    frozen.compact = compact
    asked, gates = branches([1, 3]), frozen.network.layers[0]
    above = find_paths(frozen, asked, PathSettings(1, {2: 4}, 0.0, "adjacent")).layers[0]
    rows = rows_of_units(frozen, asked, above)
    how = Strategy(few=few, **strategy)
    found = search(*(frozen, asked, [rows], 1), width=width, slack=slack, threshold=0.0, careful=careful, strategy=how)
    every = torch.arange(gates[0].units).expand(2, -1)
    columns = Arrival(rows, 1, gates, 1 << 26).columns(every)
    gain = frozen.slopes(gates[0]).gain.flatten(1)
    assert isinstance(columns, Tensor)
    z = torch.bmm(columns.transpose(1, 2), above.weights) * gain[:, :, None]
    return found, torch.stack([_margins(own, target) for own, target in zip(z, asked.target.tolist(), strict=True)])


def _margins(z: Tensor, target: int) -> Tensor:
    """(n,) how far the softmax of z (n, C) at the target is above 1 / C; -inf for a unit that makes no difference."""
    others = [number for number in range(z.shape[1]) if number != target]
    margins = z[:, target] - (z[:, others].logsumexp(1) - math.log(len(others)))
    return margins.masked_fill(~z.any(1), -math.inf)


@settings(max_examples=50)
@given(st.integers(0, 60), st.integers(1, 6), st.integers(0, 12), st.booleans(), st.sampled_from([0.0, math.inf]))
def test_where_it_is_certain_the_best_are_kept(seed: int, width: int, slack: int, careful: bool, few: float) -> None:
    found, margins = searched(seed, width, slack, careful, few)
    sure = [True, True] if found.evidence is None else certain([found.evidence], 0.0)[0].tolist()
    for branch in range(2):
        ranked = margins[branch].sort(descending=True, stable=True)
        count = max(1, min(width, int((ranked.values > 0).sum())))  # the best one in any case
        kept = found.best.valid[branch]
        if sure[branch]:
            assert torch.equal(found.units[branch][kept], ranked.indices[:count])
            assert_close(found.best.margin[branch][kept], ranked.values[:count])


@settings(max_examples=30)
@given(st.integers(0, 60), st.integers(1, 4))
def test_the_bound_of_what_was_not_looked_at_is_above_its_margins(seed: int, width: int) -> None:
    found, margins = searched(seed, width, 1, True, 0.0)
    if found.evidence is None:
        return
    bound = found.evidence.unseen
    for branch in range(2):
        hidden = margins[branch].clone()
        hidden[found.units[branch]] = -math.inf
        # One candidate more than is kept was looked at: it has the highest bound of those that are not kept.
        assert hidden.sort(descending=True).values[1] <= bound[branch] + 1e-9


@pytest.mark.parametrize("few", [0.0, math.inf])
def test_evidence_is_of_the_first_and_the_last_that_are_kept(few: float) -> None:
    found, margins = searched(3, 3, 2, True, few)
    assert found.evidence is not None
    assert torch.equal(found.evidence.first, found.best.margin[:, 0])
    assert torch.equal(found.evidence.last, found.best.margin[:, -1])
    for branch in range(2):
        assert_close(found.best.margin[branch], margins[branch, found.units[branch]])


def test_with_room_for_all_nothing_is_left_in_doubt() -> None:
    found, margins = searched(0, 75, 10, False, 0.0)
    assert found.evidence is None
    alive = (margins > 0).sum(1)
    assert torch.equal(found.best.valid.sum(1), alive) and alive.min() > 4


@pytest.mark.parametrize("few", [0.0, math.inf])
def test_columns_are_written_down_as_entries_where_products_are_large_and_shapes_may_depend_on_numbers(
    few: float,
) -> None:
    size = 4 * 4 * (3 + 2)  # rows, classes and candidates of one image, however many there are

    def entries(limit: float, part: float = math.inf, compact: bool = True) -> bool:
        (columns,) = searched(3, 3, 2, False, few, compact, sparse=(limit, part))[0].columns
        return isinstance(columns, Entries)

    assert entries(size - 1) and not entries(size)
    assert not entries(0, compact=False)
    assert not entries(0, part=0.01) and entries(0, part=0.9)
