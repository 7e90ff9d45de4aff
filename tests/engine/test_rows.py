"""Rows of Jacobians on their way down, compared with autograd's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.branching import CLASSES, branches, frozen_fire
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.branches import Branches
from pathx.engine.freeze import Frozen
from pathx.engine.path import PathSettings, find_paths
from pathx.engine.rows import Landed, Rows, merge, rows_of_classes, rows_of_units
from pathx.engine.window import Window

pytestmark = pytest.mark.usefixtures("one_thread")


def on_map(landed: Landed, frozen: Frozen, layer: int, rows: int) -> Tensor:
    """(rows, units) what landed at a layer."""
    parts = []
    for gate in frozen.network.layers[layer - 1]:
        total = torch.zeros(rows, gate.units, dtype=torch.float64)
        for window in landed.get(gate.output, ()):
            total.index_add_(0, window.row, window.dense().data.flatten(1))
        parts.append(total)
    return torch.cat(parts, 1)


def unit_rows(frozen: Frozen, width: int = 3) -> tuple[Rows, Tensor]:
    """Rows of the units that the top layer keeps, and those units (Q, K)."""
    asked = branches([1, 3])
    paths = find_paths(frozen, asked, PathSettings(1, {2: width}, 0.0, "adjacent"))
    return rows_of_units(frozen, asked, paths.layers[0]), paths.layers[0].units


def test_the_rows_of_classes_are_the_weights_of_the_head() -> None:
    model, frozen = frozen_fire()
    rows = rows_of_classes(frozen, branches([1, 3]))
    assert rows.shared and rows.shape == (1, CLASSES)  # no gate lies between: the same for every image
    assert_close(on_map(rows.down(1 << 2), frozen, 2, CLASSES), model.head.weight.detach())


@settings(max_examples=20)
@given(seed=st.integers(0, 30), windows=st.booleans())
def test_the_rows_of_units_are_their_gradients(seed: int, windows: bool) -> None:
    model, frozen = frozen_fire(seed=seed)
    rows, units = unit_rows(frozen)
    found = on_map(rows.down(1 << 1, windows=windows), frozen, 1, units.numel()).reshape(*units.shape, -1)
    below = F.relu(model.first(frozen.images)).detach()
    for branch, own in enumerate(units):
        x = below[branch : branch + 1].clone().requires_grad_()
        for number, unit in enumerate(own.tolist()):
            (gradient,) = torch.autograd.grad(model.second(x)[0, unit], x)
            assert_close(found[branch, number], gradient.flatten())


def test_sums_of_rows_are_taken_down_as_one() -> None:
    _, frozen = frozen_fire()
    rows, units = unit_rows(frozen)
    factors = torch.tensor([[[1.0, -2.0, 0.5], [0.0, 1.0, 0.0]]], dtype=torch.float64).expand(2, -1, -1)
    apart = on_map(rows.down(1 << 1), frozen, 1, units.numel()).reshape(2, 3, -1)
    together = on_map(rows.weighed(factors, 1 << 1), frozen, 1, 4).reshape(2, 2, -1)
    assert_close(together, factors @ apart)


def test_of_two_classes_the_one_is_sent_and_the_other_taken_away() -> None:
    model, frozen = frozen_fire()
    asked = Branches(torch.arange(2), torch.zeros(2, dtype=torch.long), 2, torch.tensor([[1, 3], [2, 0]]), whole=True)
    rows = rows_of_classes(frozen, asked)
    assert rows.sent.tolist() == [[1.0, -1.0]] * 2 and not rows.shared
    landed = on_map(rows.weighed(rows.sent[:, None], 1 << 2), frozen, 2, 2)
    weight = model.head.weight.detach()
    assert_close(landed, torch.stack([weight[1] - weight[3], weight[2] - weight[0]]))


def test_some_rows_are_those_of_all() -> None:
    _, frozen = frozen_fire()
    rows, _ = unit_rows(frozen)
    every = on_map(rows.down(1 << 1), frozen, 1, 6).reshape(2, 3, -1)
    assert_close(on_map(rows.down(1 << 1, slice(1, 3)), frozen, 1, 4).reshape(2, 2, -1), every[:, 1:])


def test_rows_may_be_left_out_where_they_do_not_start() -> None:
    _, frozen = frozen_fire()
    rows, units = unit_rows(frozen, 6)
    few, every = rows.down(1 << 1, without_empty=True), rows.down(1 << 1)
    assert_close(on_map(few, frozen, 1, units.numel()), on_map(every, frozen, 1, units.numel()))
    (output,) = few
    assert sum(len(window.row) for window in every[output]) == 2 * units.numel()
    assert sorted(row for window in few[output] for row in window.row.tolist()) == list(range(units.numel()))


def test_where_no_row_starts_nothing_is_taken_down() -> None:
    _, frozen = frozen_fire()
    rows, _ = unit_rows(frozen, 6)
    first, second = rows.starts
    assert first.here is not None
    nowhere = replace(first, here=torch.zeros_like(first.here))
    seeds = list(replace(rows, starts=(nowhere, second))._seeds(None, True))
    assert [value for value, _ in seeds] == [second.value]


def test_rows_reach_only_the_next_layer_down() -> None:
    _, frozen = frozen_fire()
    top, (middle, _) = rows_of_classes(frozen, branches([0, 0])), unit_rows(frozen)
    assert (top.reach(2), top.reach(1), top.reach(0)) == (True, False, False)
    assert (middle.reach(2), middle.reach(1), middle.reach(0)) == (False, True, False)
    assert not top.down(1 << 1)  # nothing lands where nothing arrives


def test_whole_maps_of_the_same_rows_become_one() -> None:
    row, image = torch.arange(2), torch.zeros(2, dtype=torch.long)
    one, other = (Window.full(torch.full((2, 3), value), row, image) for value in (1.0, 2.0))
    box = Window.one_hot(torch.ones(2), torch.tensor([0, 2]), (3,), row, image)
    elsewhere = Window.full(torch.full((2, 3), 5.0), row.flip(0), image)  # of other rows
    windows: list[Window] = []
    for window in (one, box, other, elsewhere):
        merge(windows, window)
    assert [window.data.tolist() for window in windows] == [[[3.0] * 3] * 2, [[1.0], [1.0]], [[5.0] * 3] * 2]
    assert one.data.max() == 1  # somebody else may hold it
