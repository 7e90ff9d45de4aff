"""Tables that are nearly all 0, of which only the other numbers are written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from pathx.engine.window import counted


@dataclass(frozen=True, eq=False)
class Entries:
    """A table (Q, K, n): what is not written down is 0, and what is there twice is added up.

    Args:
        row: q * K + k.
        column: q * n + the column, rising.
    """

    shape: tuple[int, int, int]
    row: Tensor
    column: Tensor
    values: Tensor

    @staticmethod
    def by_column(shape: tuple[int, int, int], parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Entries:
        """From rows, columns and values in any order."""
        row, column, values = (torch.cat(own) for own in zip(*parts, strict=True))
        column, order = column.sort(stable=True)
        return Entries(shape, row.index_select(0, order), column, values.index_select(0, order))

    @staticmethod
    def of(table: Tensor, most: float) -> Tensor | Entries:
        """What is not 0 of a table, if that is less than a part of it; otherwise the table."""
        if int(table.count_nonzero()) >= most * table.numel():
            return table
        branch, row, column = table.nonzero(as_tuple=True)
        branches, rows, columns = table.shape
        found = (row + branch * rows, column + branch * columns, table[branch, row, column])
        return Entries.by_column((branches, rows, columns), [found])

    def numel(self) -> int:
        """Of the whole table."""
        return prod(self.shape)

    def __getitem__(self, branch: int) -> Tensor:
        """(K, n) the table of one branch."""
        _, rows, columns = self.shape
        own = self.row // rows == branch
        place = self.row[own] % rows * columns + self.column[own] % columns
        return self.values.new_zeros(rows * columns).index_add_(0, place, self.values[own]).reshape(rows, columns)

    def product(self, weights: Tensor) -> Tensor:
        """(Q, n, C) the table, turned, times weights (Q, K, C)."""
        branches, _, columns = self.shape
        first = torch.searchsorted(self.column, counted(branches * columns, self.column.device))
        rows = weights.flatten(0, 1)
        sums = F.embedding_bag(self.row, rows, first, mode="sum", per_sample_weights=self.values)
        return sums.reshape(branches, columns, -1)
