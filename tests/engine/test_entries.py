"""Tables of which only what is not 0 is written down: they stand for the same numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.entries import Entries


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """(Q, K, n) with a few numbers in it, or none."""
    shape = [draw(st.integers(1, size)) for size in (3, 6, 7)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    table = torch.randn(shape, generator=generator, dtype=torch.float64)
    return table * (torch.rand(shape, generator=generator) < share)


@settings(max_examples=100)
@given(table=tables(), classes=st.integers(1, 4), turned=st.booleans())
def test_entries_are_the_table_and_its_product(table: Tensor, classes: int, turned: bool) -> None:
    given_as = table.transpose(1, 2).contiguous().transpose(1, 2) if turned else table
    entries = Entries.of(given_as, math.inf)
    assert isinstance(entries, Entries) and entries.numel() == table.numel()
    for branch, own in enumerate(table):
        assert torch.equal(entries[branch], own)
    weights = torch.randn(*table.shape[:2], classes, dtype=torch.float64)
    assert_close(entries.product(weights), table.transpose(1, 2) @ weights)


@settings(max_examples=100)
@given(tables=st.tuples(tables(), tables()))
def test_what_is_there_twice_is_added_up(tables: tuple[Tensor, Tensor]) -> None:
    shape = tuple(min(sizes) for sizes in zip(*(table.shape for table in tables), strict=True))
    parts = [table[: shape[0], : shape[1], : shape[2]] for table in tables]
    known = [Entries.of(part, math.inf) for part in parts]
    found = [(entries.row, entries.column, entries.values) for entries in known if isinstance(entries, Entries)]
    both, total = Entries.by_column((shape[0], shape[1], shape[2]), found), parts[0] + parts[1]
    assert bool((both.column.diff() >= 0).all())
    for branch, own in enumerate(total):
        assert_close(both[branch], own)
    weights = torch.randn(*shape[:2], 3, dtype=torch.float64)
    assert_close(both.product(weights), total.transpose(1, 2) @ weights)


@pytest.mark.parametrize(("share", "few"), [(0.5, False), (0.51, True)])
def test_a_table_that_is_full_stays_one(share: float, few: bool) -> None:
    table = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    assert isinstance(Entries.of(table, share), Entries) is few
    assert few or Entries.of(table, share) is table
