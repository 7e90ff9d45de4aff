"""What arrived at a layer: every sum and every column is that of the whole table of rows by units."""

from __future__ import annotations

import math

import pytest
import torch
from support.branching import UNITS, branches, frozen_fire
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.candidates import Arrival
from pathx.engine.entries import Entries
from pathx.engine.freeze import Frozen
from pathx.engine.path import PathSettings, find_paths
from pathx.engine.rows import Rows, rows_of_classes, rows_of_units

pytestmark = pytest.mark.usefixtures("one_thread")
WAYS = [(1 << 26, True), (1 << 26, False), (40, True), (40, False)]  # all at once or in turns, windows or whole maps


def rows_from(frozen: Frozen, layer: int) -> Rows:
    """Rows that arrive at a layer: of the classes, or of kept units, of which two windows overlap."""
    asked = branches([1, 3])
    if layer == 2:
        return rows_of_classes(frozen, asked)
    return rows_of_units(frozen, asked, find_paths(frozen, asked, PathSettings(1, {2: 4}, 0.0, "adjacent")).layers[0])


def table(frozen: Frozen, rows: Rows, layer: int) -> Tensor:
    """(Q, K, units), from whole maps that are laid side by side."""
    landed = rows.down(1 << layer, windows=False)
    parts = []
    for gate in frozen.network.layers[layer - 1]:
        maps = torch.zeros(*rows.shape, gate.units, dtype=torch.float64)
        for window in landed[gate.output]:
            maps.reshape(-1, gate.units).index_add_(0, window.row, window.dense().data.flatten(1))
        parts.append(maps.expand(2, -1, -1))
    return torch.cat(parts, 2)


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize(("most", "windows"), WAYS)
def test_sums_and_columns_are_those_of_the_table(layer: int, most: int, windows: bool) -> None:
    _, frozen = frozen_fire()
    rows = rows_from(frozen, layer)
    arrival, whole = Arrival(rows, layer, frozen.network.layers[layer - 1], most, windows), table(frozen, rows, layer)
    units = torch.tensor([[0, 7, UNITS[layer - 1] - 1, 8], [55, 3, 20, 54]])
    at = units[:, None].expand(-1, rows.count, -1)
    assert_close(arrival.columns(units), whole.gather(2, at))
    for put in (0.0, math.inf):  # read from a table, and from what windows hold
        few = Arrival(rows, layer, frozen.network.layers[layer - 1], most, windows, put, sparse=math.inf)
        entries = few.columns(units)
        assert isinstance(entries, Entries)
        assert_close(torch.stack([entries[branch] for branch in range(2)]), whole.gather(2, at))
        assert_close(few.favour(), arrival.favour())
        assert torch.equal(few.reached(), arrival.reached())
    assert_close(arrival.favour(), (whole * rows.favour[:, :, None]).sum(1))
    assert torch.equal(arrival.reached(), (whole != 0).any(1))
    factors = torch.arange(2.0 * 3 * rows.count, dtype=torch.float64).reshape(2, 3, -1)
    assert_close(arrival.weighed(factors), factors @ whole)


def test_units_under_windows_add_up_to_what_arrived() -> None:
    _, frozen = frozen_fire()
    rows = rows_from(frozen, 1)
    arrival, whole = Arrival(rows, 1, frozen.network.layers[0], 1 << 26), table(frozen, rows, 1)
    touched = arrival.touched(math.inf)
    assert touched is not None
    units, favour = touched.units.flatten(1), touched.favour.flatten(1)
    sums = torch.zeros(2, UNITS[0], dtype=torch.float64).scatter_add_(1, units, favour)
    assert_close(sums, (whole * rows.favour[:, :, None]).sum(1))
    gain = frozen.slopes(frozen.network.layers[0][0]).gain.flatten(1)
    assert torch.equal(touched.gain.flatten(1), gain.gather(1, units))
    assert_close(torch.zeros_like(whole).scatter_add_(2, touched.units, touched.held), whole)


def test_units_are_listed_only_where_they_are_few() -> None:
    _, frozen = frozen_fire()
    gates = frozen.network.layers
    assert Arrival(rows_from(frozen, 1), 1, gates[0], 1 << 26).touched(0.01) is None
    assert Arrival(rows_from(frozen, 2), 2, gates[1], 1 << 26).touched(math.inf) is None  # classes reach everything
