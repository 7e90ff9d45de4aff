"""The most important units of a layer, exactly, without computing what every unit sends to every class.

Every unit gets an upper bound of its margin first. By Jensen's inequality log mean exp(z_c) >= mean z_c, so the margin is at most
z_target - mean of the other z_c, and that takes one cotangent instead of one per class. The units with the highest bounds are
multiplied out for all classes, and the best of them are kept. The choice is certified if the bound of the best unit that was not
looked at is no higher than the last margin kept; otherwise more units are looked at. Where units are ranked by effect, the bound
is the effect itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept, Link, split_by_gate
from pathx.engine.columns import push_columns
from pathx.engine.network import Gate
from pathx.engine.rows import Landed, Rows, add, join, pull_back, read_window, take_rows
from pathx.engine.window import Window, cached_arange, cached_range, remember, unravel


@dataclass(frozen=True)
class Strategy:
    """How a layer is searched. Whatever is set here, the kept units are the same and the numbers agree to rounding.

    Args:
        slack: how many candidates more than the width are looked at first; None for a number that nearly always does.
        windows: keep rows as windows; otherwise as whole maps.
        most: how many numbers an intermediate result may have.
        few: where windows cover less than this part of a layer, only the units under them are looked at.
        push: push candidates up where they are fewer than so many times the rows that are whole maps; 0 for never.
        sparse: multiply a large table of units by units without its zeros where less than this part of it is not zero; more
            than 1 for every table, 0 for never. On a CPU alone.
    """

    slack: int | None = None
    windows: bool = True
    most: int = 1 << 26
    few: float = 0.25
    push: float = 1.0
    sparse: float = 0.1

    def first_count(self, width: int) -> int:
        return width + (width // 32 + 6 if self.slack is None else self.slack)


MORE = 8
"""Times as many candidates are looked at where the first were too few."""

MANY_KEPT = 1 << 10
"""Widths above this are cut to the units that are there, on a CPU: W has a row of all classes for each."""

MOST_EFFECT_EDGES = 1 << 18
"""Rows times units for which edges are computed with effects: they take rows one by one, where effects take their sum."""


def most_important(
    inputs: Sequence[LayerInputs], branches: Branches, width: int, threshold: float, strategy: Strategy
) -> tuple[Kept, Tensor]:
    """The `width` most important units of a layer whose margin, or effect, is above the threshold, for every branch.

    Args:
        inputs: what the layers above, or the logits, send to this layer.

    Returns: the units, and W at them: (Q, K, C) what each sends to every class.
    """
    by_effect = branches.log_odds is not None
    with_edges = not by_effect or sum(one.rows.count for one in inputs) * width <= MOST_EFFECT_EDGES
    sums = None if with_edges else weighted_sums(inputs, [one.rows.both for one in inputs])
    bounds = _bounds_under_windows(inputs, strategy.few) if with_edges else None
    bounds = bounds or _bounds_of_layer(inputs, branches, None if sums is None else sums[:, 0])
    if by_effect:
        bounds = bounds.without(bounds.bound == 0)
    count, skip_unreached = strategy.first_count(width), False
    W: Tensor | None = None
    links: tuple[Link, ...] = ()
    while True:
        units, slope_times_h, bound, unseen = bounds.best(count)
        if by_effect:
            margins = bound
        else:
            W, links = _multiply_out(inputs, units, strategy)
            margins = _margins(W, slope_times_h, branches, strategy.most)
        margin, place = margins.sort(dim=1, descending=True, stable=True)  # ties go to the lower number
        margin, place = margin[:, :width], place[:, :width]
        if unseen is None:
            break
        certified, has_zero_bounds = read_certificate(margin, width, unseen, threshold)
        if certified:
            break
        if has_zero_bounds and not skip_unreached and bounds.units is None:
            bounds, skip_unreached = bounds.without(_find_unreached(inputs)), True
        else:
            count *= MORE
    valid = margin > _limits(threshold, margin)
    if width > MANY_KEPT and inputs[0].rows.frozen.compact:  # entries that are no units come last
        count = max(1, int(valid.sum(1).max()))
        margin, place, valid = margin[:, :count], place[:, :count], valid[:, :count]
    if sums is not None:
        W = sums.gather(2, units[:, None].expand(-1, 2, -1)).transpose(1, 2)
    elif W is None:
        W, links = _multiply_out(inputs, units, strategy)
    W = take_rows(W, place)
    target_minus_mean, weight = (branches.weigh(W) * valid[:, :, None]).unbind(2)
    kept = Kept(
        layer=inputs[0].layer,
        gates=inputs[0].gates,
        units=units.gather(1, place),
        place=place,
        margin=margin,
        valid=valid,
        target_minus_mean=target_minus_mean,
        weight=weight,
        slope_times_h=slope_times_h.gather(1, place),
        links=links,
    )
    return kept, W


# --- importance as a margin -------------------------------------------------------------------------------------------


def margin_of(z: Tensor, target: Tensor, others_mean: Tensor) -> Tensor:
    """The margin z_t - M - log1p(mean expm1(z_c - M)), M = max z_c over c != t: z (Q, n, C) to (Q, n).

    It orders units as softmax(z) at the target does, without saturating. It is 0 at importance 1/C, and -inf where all of z is
    0: a unit that makes no difference is no candidate. z is used up.

    Args:
        others_mean: (Q, C) 0 at the target and 1 / (C - 1) at the other classes.
    """
    at_target = target[:, None, None].expand(-1, z.shape[1], 1)
    own = z.gather(2, at_target)
    largest = z.scatter_(2, at_target, -math.inf).amax(2, keepdim=True)
    excess = torch.bmm(z.sub_(largest).expm1_(), others_mean[:, :, None])
    differs = own.logical_or(largest).logical_or_(excess)  # if the others' maximum and mean are 0, so are they all
    own.sub_(largest).sub_(excess.log1p_())
    nothing = remember(("nothing", z.dtype), z.device, lambda: torch.tensor(-math.inf, dtype=z.dtype))
    return torch.where(differs, own, nothing).squeeze(2)


def importance_of(margin: Tensor, classes: int) -> Tensor:
    """Softmax over the classes at the target, from the margin."""
    return torch.sigmoid(margin - math.log(classes - 1))


def threshold_of(alpha: float | None, classes: int) -> float:
    """The margin above which a unit's importance is above alpha; exactly 0 for alpha = 1/C."""
    if alpha is None or alpha == 1 / classes:
        return 0.0
    if alpha <= 0:
        return -math.inf
    return math.log(alpha / (1 - alpha)) + math.log(classes - 1) if alpha < 1 else math.inf


def read_certificate(margin: Tensor, width: int, unseen: Tensor, threshold: float) -> tuple[bool, bool]:
    """Whether no unit that was not looked at could be kept, with a hair left for rounding. The one read of a layer.

    Args:
        margin: (Q, K) of the best candidates, falling.
        unseen: (Q,) the highest bound of a unit that was not looked at.

    Returns: that, and whether a bound of 0 is among the highest: perhaps of units at which nothing arrives.
    """
    certified, has_zero_bounds = True, False
    for first, last, other in torch.stack([margin[:, 0], margin[:, -1], unseen], 1).tolist():
        last = last if margin.shape[1] == width else -math.inf
        needed = first if first <= threshold else max(last, threshold)
        # Where only the first is kept, of those that tie it must be the one with the lowest number. (NaN is refused later.)
        tied = first <= threshold and other >= needed - 1e-6 and math.isfinite(other)
        certified &= not (tied or other > needed - 1e-4 * abs(needed))
        has_zero_bounds |= other == 0
    return certified, has_zero_bounds


def _limits(threshold: float, margin: Tensor) -> Tensor:
    """(K,) what margins must be above: the first is kept in any case, if it makes a difference at all."""
    width, dtype = margin.shape[1], margin.dtype
    key = ("limits", threshold, width, dtype)
    return remember(key, margin.device, lambda: torch.tensor([-math.inf] + [threshold] * (width - 1), dtype=dtype))


def _margins(W: Tensor, slope_times_h: Tensor, branches: Branches, most: int) -> Tensor:
    """(Q, n) exact margins of candidates."""
    step = max(1, most // (len(branches) * branches.classes))
    pairs = zip(W.split(step, dim=1), slope_times_h.split(step, dim=1), strict=True)
    return join([margin_of(w * h[:, :, None], branches.target, branches.others_mean) for w, h in pairs], 1)


# --- bounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Upper bounds of margins, (Q, m): -inf where there is nothing to keep.

    Args:
        slope_times_h: (Q, m) what the units pass on; 0 where there is nothing to keep.
        units: (Q, m) the numbers of the units; None for all units of the layer in order.
    """

    bound: Tensor
    slope_times_h: Tensor
    units: Tensor | None = None

    def best(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The units with the highest bounds in the order of their numbers, (Q, n), what they pass on, their bounds, and the best
        bound left."""
        size = self.bound.shape[1]
        count = min(count, size)
        top = self.bound.topk(min(count + 1, size), dim=1)
        place = top.indices[:, :count]
        if self.units is None:
            units = place = place.sort(dim=1).values
        else:
            units, order = self.units.gather(1, place).sort(dim=1)
            place = place.gather(1, order)
        unseen = top.values[:, count] if count < size else None
        return units, self.slope_times_h.gather(1, place), self.bound.gather(1, place), unseen

    def without(self, left_out: Tensor) -> _Bounds:
        return _Bounds(self.bound.masked_fill(left_out, -math.inf), self.slope_times_h, self.units)


def _bounds_of_layer(inputs: Sequence[LayerInputs], branches: Branches, sums: Tensor | None) -> _Bounds:
    """Bounds of all units of a layer.

    Args:
        sums: (Q, units) what they send to the target minus the mean of the other classes, where that is known.
    """
    frozen = inputs[0].rows.frozen
    slope_times_h = join([frozen.slopes(gate).gain.flatten(1) for gate in inputs[0].gates], 1)
    if not branches.one_per_image:
        slope_times_h = slope_times_h.index_select(0, branches.image)
    if sums is None:
        sums = weighted_sums(inputs, [one.rows.target_minus_mean[:, None] for one in inputs])[:, 0]
    bound = (sums * slope_times_h).masked_fill_(slope_times_h == 0, -math.inf)
    return _Bounds(bound, slope_times_h)


def _bounds_under_windows(inputs: Sequence[LayerInputs], few: float) -> _Bounds | None:
    """Bounds of the units that lie under windows, where these are few: nothing arrives at any other.

    Nothing here is as large as the layer but memory that is neither cleared nor read outside of the list.
    """
    if any(one.rows.layer is None or one.landed is None for one in inputs):
        return None
    windows = [(one, window) for one in inputs for _, _, window in one.windows()]
    covered = sum(window.data.numel() for _, window in windows)
    one_each = all(window.ordered and len(window.data) == one.rows.sets * one.rows.count for one, window in windows)
    if not windows or not one_each or covered > few * inputs[0].rows.sets * inputs[0].units:
        return None
    parts = [part for one in inputs for part in one.units_under_windows()]
    units, slope_times_h, sent = (join(same, 1) for same in zip(*parts, strict=True))
    size = inputs[0].units
    flat = (units + cached_range(len(units), size, 0, units.device)[:, None]).reshape(-1)
    number = cached_arange(len(flat), flat.device)
    # A unit under several windows is listed several times: one entry stands for all of them.
    owner = flat.new_empty(len(units) * size).index_copy_(0, flat, number).index_select(0, flat)
    slope_times_h = slope_times_h.masked_fill((owner != number).reshape(units.shape), 0.0)
    sums = sent.new_zeros(len(flat)).index_add_(0, owner, sent.reshape(-1)).reshape(units.shape)
    bound = sums.mul_(slope_times_h).masked_fill_(slope_times_h == 0, -math.inf)
    return _Bounds(bound, slope_times_h, units)


def _find_unreached(inputs: Sequence[LayerInputs]) -> Tensor:
    """(Q, units) at which units nothing arrives: sums of rows with factors drawn at random are 0 there, twice."""
    generator = torch.Generator().manual_seed(0)
    weights = [one.rows.target_minus_mean for one in inputs]
    drawn = [1 + torch.rand(len(w), 2, w.shape[1], dtype=torch.float64, generator=generator) for w in weights]
    return ~weighted_sums(inputs, [d.to(w) for d, w in zip(drawn, weights, strict=True)]).any(1)


# --- what arrives at a layer ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """What rows from above send to the units of one layer, which are numbered through its gates in order."""

    rows: Rows
    layer: int
    strategy: Strategy

    @property
    def gates(self) -> tuple[Gate, ...]:
        return self.rows.frozen.network.layers[self.layer - 1]

    @cached_property
    def units(self) -> int:
        return sum(gate.units for gate in self.gates)

    @cached_property
    def is_whole(self) -> bool:
        """Whether a row is most of a map by the time that it arrives."""
        if self.rows.frozen.network.top_is_shared and self.rows.shared:
            return False  # nothing was computed but a product with the head's weights
        return 4 * self._size_of_one > self.rows.sets * self.units

    @cached_property
    def _size_of_one(self) -> int:
        """How many numbers the first row of every branch has where it lands."""
        landed = self._pull_back(slice(0, 1))
        return sum(window.data.numel() for windows in landed.values() for window in windows)

    def _pull_back(self, some: slice = slice(None)) -> Landed:
        return self.rows.pull_back(self.layer, some, windows=self.strategy.windows)

    @cached_property
    def landed(self) -> Landed | None:
        """All rows at the layer; None where they are too many to have at once."""
        return None if self._chunk < self.rows.count else self._pull_back()

    @cached_property
    def _chunk(self) -> int:
        """How many rows of every branch are pulled back at once."""
        rows, most = self.rows, self.strategy.most
        if rows.sets * rows.count * self.units <= most:
            return rows.count
        return max(1, min(rows.count, most // max(1, self._size_of_one)))

    def _chunks(self) -> Iterator[tuple[int, Landed]]:
        """The rows in turns: how many of every branch, and where they landed."""
        if self.landed is not None:
            yield self.rows.count, self.landed
            return
        for start in range(0, self.rows.count, self._chunk):
            stop = min(start + self._chunk, self.rows.count)
            yield stop - start, self._pull_back(slice(start, stop))

    def windows(self) -> Iterator[tuple[Gate, int, Window]]:
        """The windows that all rows landed as, each with its gate and the number of that gate's first unit."""
        assert self.landed is not None
        first = 0
        for gate in self.gates:
            for window in self.landed.get(gate.output, ()):
                yield gate, first, window
            first += gate.units

    def units_under_windows(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """By window, (Q, n) the units under it, what they pass on, and what it sends there to the target minus the mean."""
        rows, branches = self.rows, len(self.rows.image)
        for gate, first, window in self.windows():
            index = window.index().expand_as(window.data).reshape(branches, -1)
            slope_times_h = rows.frozen.slopes(gate).gain
            place = index if len(slope_times_h) == 1 else index + (rows.image * gate.units)[:, None]
            passed = slope_times_h.reshape(-1).index_select(0, place.reshape(-1)).reshape(place.shape)
            data = window.clear_outside().data.reshape(branches, rows.count, -1)
            sent = (data * rows.target_minus_mean[:, :, None]).reshape(branches, -1)
            yield index + first if first else index, passed, sent

    def columns(self, units: Tensor) -> Tensor:
        """(Q, K, n) what the rows of each branch hold at its units (Q, n)."""
        return join([self._read_columns(landed, count, units) for count, landed in self._chunks()], 1)

    def _read_columns(self, landed: Landed, count: int, units: Tensor) -> Tensor:
        parts = []
        for gate, index, here in split_by_gate(units, self.gates):
            windows = [window for window in landed.get(gate.output, ()) if window.data.numel()]
            places = unravel(index, gate.shape) if windows else ()
            parts += [self._read_window(window, count, places, here) for window in windows]
        return add(parts) if parts else self.rows.weight.new_zeros(len(units), count, units.shape[1])

    def _read_window(self, window: Window, count: int, places: tuple[Tensor, ...], here: Tensor | None) -> Tensor:
        """(Q, count, n) what a window holds at places, (Q, n) for each dimension; 0 outside of the boxes.

        Args:
            here: (Q, n) which places are on this gate at all; None for all.
        """
        branches = len(self.rows.image)
        if self.rows.shared:
            values = read_window(window, places, here, (1, len(window.data)))
            if window.ordered and len(window.data) == count:
                return values
            return values.new_zeros(branches, count, values.shape[2]).index_add_(1, window.row, values)
        if window.ordered and len(window.data) == branches * count:  # one cotangent for every row
            return read_window(window, places, here, (branches, count))
        branch = window.row // count  # rows are missing or repeat: each cotangent has places of its own
        places = tuple(place.index_select(0, branch) for place in places)
        here = None if here is None else here.index_select(0, branch)
        values = read_window(window, places, here, (len(window.data), 1))
        table = values.new_zeros(branches * count, values.shape[2]).index_add_(0, window.row, values[:, 0])
        return table.reshape(branches, count, -1)


def weighted_sums(inputs: Sequence[LayerInputs], factors: Sequence[Tensor]) -> Tensor:
    """(Q, c, units) the rows of every branch times factors (Q, c, K), added up over all sets of rows, in one pull."""
    seeds = [seed for one, own in zip(inputs, factors, strict=True) for seed in one.rows.seeds_of_sums(own)]
    branches, count, _ = factors[0].shape
    landed = pull_back(inputs[0].rows.frozen, seeds, 1 << inputs[0].layer, windows=False)
    maps = []
    for gate in inputs[0].gates:
        parts = [window.data.reshape(branches, count, -1) for window in landed.get(gate.output, ())]
        maps.append(add(parts) if parts else factors[0].new_zeros(branches, count, gate.units))
    return join(maps, 2)


# --- W = W_prev · J ---------------------------------------------------------------------------------------------------


def _multiply_out(inputs: Sequence[LayerInputs], units: Tensor, strategy: Strategy) -> tuple[Tensor, tuple[Link, ...]]:
    """W = W_prev · J at units (Q, n), as (Q, n, C), and the columns of J; none where the table of them would not fit."""
    pushed = None
    if _pays_to_push(inputs, units.shape[1], strategy.push):
        pushed = push_columns([one.rows for one in inputs], inputs[0].gates, units, strategy.most)
    parts, links = [], []
    for number, one in enumerate(inputs):
        rows = one.rows
        if pushed is None and rows.W is not None and rows.count * units.numel() > strategy.most:
            parts.append(_by_classes(one, rows.W, units, strategy.most))
            continue
        columns = one.columns(units) if pushed is None else pushed[number]
        links.append(Link(rows.layer, columns, rows.weight))
        parts.append(_times(columns, rows, strategy.sparse))
    return add(parts), tuple(links) if len(links) == len(inputs) else ()


def _times(columns: Tensor, rows: Rows, sparse: float) -> Tensor:
    """(Q, n, C) columns (Q, K, n), turned, times W (Q, K, C); as they are where the rows are the classes."""
    turned = columns.transpose(1, 2)
    if rows.W is None:
        return turned
    may_skip = rows.frozen.compact and (sparse > 1 or turned[0].numel() > LARGE)
    if may_skip and int(turned.count_nonzero()) < sparse * turned.numel():
        return torch.stack([torch.sparse.mm(own.to_sparse(), W) for own, W in zip(turned, rows.W, strict=True)])
    return torch.bmm(turned, rows.W)


LARGE = 1 << 18
"""Tables of fewer numbers are multiplied with their zeros. In wide paths most units do not reach each other."""


def _pays_to_push(inputs: Sequence[LayerInputs], candidates: int, push: float) -> bool:
    """Whether pushing the candidates up costs less than pulling rows back: some are whole maps, and more than the candidates.

    One push serves all rows.
    """
    if push in (0, math.inf):
        return push > 0
    classes = [one.rows for one in inputs if one.rows.layer is None]
    if classes and classes[0].frozen.network.class_gates and classes[0].starts[0].seed is None:
        return True  # one row per class, and each is a whole map
    many = [one for one in inputs if one.rows.count * one.units >= MANY and candidates < push * one.rows.count]
    return any(one.is_whole for one in many)


MANY = 1 << 24
"""Numbers that rows may have as whole maps before it is asked whether pushing candidates up costs less."""


def _by_classes(one: LayerInputs, W_prev: Tensor, units: Tensor, most: int) -> Tensor:
    """The same with rows of classes, some at a time, where the table of rows by units would not fit."""
    step = max(1, most // (len(W_prev) * one.units))
    parts = []
    for some in W_prev.transpose(1, 2).split(step, dim=1):
        maps = weighted_sums([one], [some])
        parts.append(maps.gather(2, units[:, None].expand(-1, maps.shape[1], -1)))
    return torch.cat(parts, 1).transpose(1, 2)
