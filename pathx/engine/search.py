"""The most important units of a layer, exactly, without computing what every unit sends to every class.

Every unit gets an upper bound of its margin first. By Jensen's inequality log mean exp(z_c) >= mean z_c, so the margin is at most
z_target - mean of the other z_c, and that takes one cotangent instead of one per class. The units with the highest bounds are
multiplied out for all classes, and the best of them are kept. The choice is certified if the bound of the best unit that was not
looked at is no higher than the last margin kept; otherwise more units are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept, Link
from pathx.engine.class_maps import class_columns
from pathx.engine.columns import Product, product_above, push_columns
from pathx.engine.network import Gate
from pathx.engine.rows import Landed, Rows, pull_back, read_window, sum_into
from pathx.engine.window import Window, counted, made_once, spaced, unravelled


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
        meet: pull rows back no further than to the matrix product that reads a layer of tokens, and meet the units there.
    """

    slack: int | None = None
    windows: bool = True
    most: int = 1 << 26
    few: float = 0.25
    push: float = 1.0
    sparse: float = 0.1
    meet: bool = True

    def first_slack(self, width: int) -> int:
        return width // 32 + 6 if self.slack is None else self.slack


MORE = 8
"""Times as many candidates are looked at where the first were too few."""


def most_important(
    inputs: Sequence[LayerInputs], branches: Branches, width: int, threshold: float, strategy: Strategy
) -> Kept:
    """The `width` most important units of a layer whose margin is above the threshold, for every branch.

    Args:
        inputs: what the layers above, or the logits, send to this layer.
    """
    if branches.log_odds is not None:
        return most_effective(inputs, branches, width, threshold, strategy)
    bounds = _bounds_under_windows(inputs, strategy.few) or _bounds_of_layer(inputs, branches)
    count, skip_unreached = width + strategy.first_slack(width), False
    while True:
        units, slope_times_h, unseen = bounds.best(count)
        W, links = _multiply_out(inputs, units, strategy.most)
        margins = _margins(W, slope_times_h, branches, strategy.most)
        margin, place = margins.sort(dim=1, descending=True, stable=True)  # ties go to the lower number
        margin, place = margin[:, :width], place[:, :width]
        if unseen is None:
            break
        certified, has_zero_bounds = read_certificate(margin, width, unseen, threshold)
        if certified:
            break
        if has_zero_bounds and not skip_unreached and bounds.units is None:
            bounds = bounds.without(~torch.stack([one.is_reached() for one in inputs]).any(0))
            skip_unreached = True
        count *= MORE
    return _kept(inputs, branches, threshold, (units, slope_times_h, W, links), margin, place)


MOST_EFFECT_EDGES = 1 << 18
"""Rows times units for which edges are computed with effects: they take rows one by one, where effects take their sum."""


def most_effective(
    inputs: Sequence[LayerInputs], branches: Branches, width: int, threshold: float, strategy: Strategy
) -> Kept:
    """The `width` units of a layer with the largest effect on the target's log-odds that is above the threshold.

    To first order that is one number for every unit, so what is a bound in `most_important` is exact here.
    """
    from_units = [one for one in inputs if one.rows.layer is not None]
    with_edges = all(one.rows.count * width <= MOST_EFFECT_EDGES for one in from_units)
    listed = _bounds_under_windows(inputs, strategy.few) if with_edges else None
    if listed is not None:
        units, slope_times_h = listed.largest(width)
        W, links = _multiply_out(inputs, units, strategy.most)
    else:
        sums = weighted_sums(inputs, [one.rows.both for one in inputs])
        units, slope_times_h = _bounds_of_layer(inputs, branches, sums[:, 0]).largest(width)
        W = sums.gather(2, units[:, None].expand(-1, 2, -1)).transpose(1, 2)
        links = _effect_links(inputs, units, W[:, :, 1], strategy.most) if with_edges else ()
    effect = W[:, :, 0] * slope_times_h
    effect, place = effect.masked_fill_(effect == 0, -math.inf).sort(dim=1, descending=True, stable=True)
    return _kept(inputs, branches, threshold, (units, slope_times_h, W, links), effect, place)


def _effect_links(inputs: Sequence[LayerInputs], units: Tensor, weight: Tensor, most: int) -> tuple[Link, ...]:
    """The columns of the Jacobian at units (Q, n); from the logits, one row for what they send to the explained one."""
    from_units = [one for one in inputs if one.rows.layer is not None]
    W, links = _multiply_out(from_units, units, most) if from_units else (None, ())
    if len(from_units) == len(inputs) or (from_units and not links):
        return links
    direct = weight if W is None else weight - W[:, :, 1]
    return (*links, Link(None, direct[:, None], torch.ones_like(direct[:, :1])))


def _kept(
    inputs: Sequence[LayerInputs],
    branches: Branches,
    threshold: float,
    candidates: tuple[Tensor, Tensor, Tensor, tuple[Link, ...]],
    margin: Tensor,
    place: Tensor,
) -> Kept:
    """The best of the candidates of a layer.

    Args:
        candidates: units, what they pass on, W, and the columns of the Jacobian.
        margin: (Q, K) falling.
        place: (Q, K) where each is among the candidates.
    """
    units, slope_times_h, W, links = candidates
    W = W.reshape(-1, W.shape[2]).index_select(0, _flat_index(place, W.shape[1])).unflatten(0, place.shape)
    valid = margin > _limits(threshold, margin)
    target_minus_mean, weight = (part * valid for part in branches.weigh(W))
    return Kept(
        layer=inputs[0].layer,
        gates=inputs[0].gates,
        units=units.gather(1, place),
        place=place,
        margin=margin,
        valid=valid,
        W=W,
        target_minus_mean=target_minus_mean,
        weight=weight,
        slope_times_h=slope_times_h.gather(1, place),
        links=links,
    )


def _flat_index(place: Tensor, size: int) -> Tensor:
    """(Q * n,) places (Q, n) in rows of `size` as places in all rows one after the other."""
    if len(place) > 1:
        place = place + spaced(len(place), size, 0, place.device)[:, None]
    return place.reshape(-1)


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
    nothing = made_once(("nothing", z.dtype), z.device, lambda: torch.tensor(-math.inf, dtype=z.dtype))
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
    first = margin[:, 0]
    last = margin[:, -1] if margin.shape[1] == width else torch.full_like(first, -math.inf)
    only_first = first <= threshold
    needed = torch.where(only_first, first, last.clamp(min=threshold))
    tied = only_first & (unseen >= needed - 1e-6) & unseen.isfinite()  # the one with the lowest number is kept
    doubtful = (unseen > needed - 1e-4 * needed.abs()) | tied  # (NaN is refused later)
    any_doubtful, any_zero = torch.stack([doubtful, unseen == 0]).any(1).tolist()
    return not any_doubtful, any_zero


def read_tie(last: Tensor) -> bool:
    """Whether the last unit that is kept ties with the first that is not, (Q, 2), in any branch. The one read of a layer."""
    return bool(((last[:, 0] == last[:, 1]) & last[:, 0].isfinite()).any())


def _limits(threshold: float, margin: Tensor) -> Tensor:
    """(K,) what margins must be above: the first is kept in any case, if it makes a difference at all."""
    width, dtype = margin.shape[1], margin.dtype
    key = ("limits", threshold, width, dtype)
    return made_once(key, margin.device, lambda: torch.tensor([-math.inf] + [threshold] * (width - 1), dtype=dtype))


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

    def best(self, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The units with the highest bounds in the order of their numbers, (Q, n), what they pass on, and the best bound left."""
        size = self.bound.shape[1]
        count = min(count, size)
        top = self.bound.topk(min(count + 1, size), dim=1)
        place = top.indices[:, :count]
        if self.units is None:
            units = place = place.sort(dim=1).values
        else:
            units, order = self.units.gather(1, place).sort(dim=1)
            place = place.gather(1, order)
        return units, self.slope_times_h.gather(1, place), top.values[:, count] if count < size else None

    def largest(self, width: int) -> tuple[Tensor, Tensor]:
        """(Q, n) the units with the largest values other than 0 in the order of their numbers, and what they pass on.

        Of units that tie, those with the lower numbers.
        """
        value = self.bound.masked_fill(self.bound == 0, -math.inf)
        width, size = min(width, value.shape[1]), value.shape[1]
        top = value.topk(min(width + 1, size), dim=1)
        place = top.indices[:, :width]
        if width < size and read_tie(top.values[:, width - 1 :]):
            numbered = None if self.units is None else self.units.argsort(dim=1)
            place = (value if numbered is None else value.gather(1, numbered)).argsort(
                dim=1, descending=True, stable=True
            )
            place = (place if numbered is None else numbered.gather(1, place))[:, :width]
        units = place if self.units is None else self.units.gather(1, place)
        units, order = units.sort(dim=1)
        return units, self.slope_times_h.gather(1, place.gather(1, order))

    def without(self, left_out: Tensor) -> _Bounds:
        return _Bounds(self.bound.masked_fill(left_out, -math.inf), self.slope_times_h, self.units)


def _bounds_of_layer(inputs: Sequence[LayerInputs], branches: Branches, sums: Tensor | None = None) -> _Bounds:
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
    listed = [one.units_under_windows(few) for one in inputs]
    if any(part is None for part in listed):
        return None
    parts = [part for part in listed if part is not None]
    units, slope_times_h, sent = (join(list(each), 1) for each in zip(*parts, strict=True))
    size = inputs[0].units
    flat = (units + spaced(len(units), size, 0, units.device)[:, None]).reshape(-1)
    number = counted(len(flat), flat.device)
    # A unit under several windows is listed several times: one entry stands for all of them.
    owner = flat.new_empty(len(units) * size).index_copy_(0, flat, number).index_select(0, flat)
    slope_times_h = slope_times_h.masked_fill((owner != number).reshape(units.shape), 0.0)
    sums = sent.new_zeros(len(flat)).index_add_(0, owner, sent.reshape(-1)).reshape(units.shape)
    bound = sums.mul_(slope_times_h).masked_fill_(slope_times_h == 0, -math.inf)
    return _Bounds(bound, slope_times_h, units)


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

    @property
    def branches(self) -> int:
        return len(self.rows.image)

    @cached_property
    def product(self) -> Product | None:
        """The matrix product that is all that reads the layer, if it may be used."""
        one_gate = self.strategy.meet and len(self.gates) == 1
        return product_above(self.rows.frozen, self.gates[0]) if one_gate else None

    @cached_property
    def is_whole(self) -> bool:
        """Whether a row is most of a map by the time that it arrives."""
        if self.rows.frozen.network.top_is_shared and self.rows.shared:
            return False  # nothing was computed but a product with the head's weights
        landed = self._pull_back(slice(0, 1))
        size = sum(window.data.numel() for windows in landed.values() for window in windows)
        return 4 * size > self.rows.sets * self._row_size

    @property
    def _row_size(self) -> int:
        """How many numbers a row has where it lands, as a whole map."""
        return self.units if self.product is None else prod(self.product.shape)

    def _pull_back(self, some: slice = slice(None)) -> Landed:
        stop_at = () if self.product is None else (self.product.value,)
        return self.rows.pull_back(self.layer, some, windows=self.strategy.windows, stop_at=stop_at)

    @cached_property
    def landed(self) -> Landed | None:
        """All rows at the layer, or at the product that reads it; None where they are too many to have at once."""
        return None if self._chunk < self.rows.count else self._pull_back()

    @cached_property
    def _chunk(self) -> int:
        """How many rows of every branch are pulled back at once."""
        rows, most = self.rows, self.strategy.most
        if rows.sets * rows.count * self._row_size <= most:
            return rows.count
        landed = self._pull_back(slice(0, 1))  # to see how large windows become
        footprint = max((sum(w.data.numel() for w in windows) for windows in landed.values()), default=1)
        return max(1, min(rows.count, most // max(1, footprint)))

    def _chunks(self) -> Iterator[tuple[int, Landed]]:
        """The rows in turns: how many of every branch, and where they landed."""
        if self.landed is not None:
            yield self.rows.count, self.landed
            return
        for start in range(0, self.rows.count, self._chunk):
            stop = min(start + self._chunk, self.rows.count)
            yield stop - start, self._pull_back(slice(start, stop))

    def is_reached(self) -> Tensor:
        """(Q, units) whether any row is other than 0 at a unit."""
        if self.product is not None:
            return replace(self, strategy=replace(self.strategy, meet=False)).is_reached()
        total = self.rows.weight.new_zeros(self.rows.sets, self.units)
        for count, landed in self._chunks():
            maps = []
            for gate in self.gates:
                reach = total.new_zeros(self.rows.sets, *gate.shape)
                for window in landed.get(gate.output, ()):
                    window = window.cleaned()
                    sum_into(reach, window.holding(window.data.abs()), window.row // count)
                maps.append(reach.flatten(1))
            total = total + join(maps, 1)
        return (total != 0).expand(self.branches, -1)

    def units_under_windows(self, few: float) -> tuple[Tensor, Tensor, Tensor] | None:
        """(Q, n) the units under windows, what they pass on, and what each window sends there to the target minus the mean.

        None where that is no small part of the layer. A unit under several windows is listed several times.
        """
        rows = self.rows
        if rows.layer is None or self.product is not None or self.landed is None:
            return None
        every = [window for gate in self.gates for window in self.landed.get(gate.output, ())]
        one_each = all(window.ordered and len(window.data) == self.branches * rows.count for window in every)
        if not every or not one_each or sum(w.data.numel() for w in every) > few * self.branches * self.units:
            return None
        units, passed, sent, offset = [], [], [], 0
        for gate in self.gates:
            for window in self.landed.get(gate.output, ()):
                index = window.index().expand_as(window.data).reshape(self.branches, -1)
                slope_times_h = rows.frozen.slopes(gate).gain
                place = index if len(slope_times_h) == 1 else index + (rows.image * gate.units)[:, None]
                passed.append(slope_times_h.reshape(-1).index_select(0, place.reshape(-1)).reshape(place.shape))
                units.append(index + offset if offset else index)
                data = window.cleaned().data.reshape(self.branches, rows.count, -1)
                sent.append((data * rows.target_minus_mean[:, :, None]).reshape(self.branches, -1))
            offset += gate.units
        return join(units, 1), join(passed, 1), join(sent, 1)

    def columns(self, units: Tensor) -> Tensor:
        """(Q, K, n) what the rows of each branch hold at its units (Q, n)."""
        if self.rows.layer is None and self.rows.frozen.network.class_gates:
            return class_columns(self.rows, list(self.on_gates(units)), self.layer)
        if self.product is not None:
            return join([self._meet_columns(landed, count, units) for count, landed in self._chunks()], 1)
        return join([self._read_columns(landed, count, units) for count, landed in self._chunks()], 1)

    def _meet_columns(self, landed: Landed, count: int, units: Tensor) -> Tensor:
        assert self.product is not None
        rows = self.rows.weight.new_zeros(self.rows.sets * count, *self.product.shape)
        for window in landed.get(self.product.value, ()):
            if window.is_full and window.ordered and len(window.data) == len(rows):
                rows = rows + window.data
            else:
                sum_into(rows, window, window.row)
        return self.product.read(rows.reshape(self.rows.sets, count, -1, self.product.shape[-1]), units)

    def on_gates(self, units: Tensor) -> Iterator[tuple[Gate, Tensor, Tensor | None]]:
        """Each gate with the units' flat indices in it (Q, n), never out of range, and which of them are on it; None for all."""
        offset = 0
        for gate in self.gates:
            local = units - offset if offset else units
            inside = local if len(self.gates) == 1 else local.clamp(0, gate.units - 1)
            yield gate, inside, None if inside is local else inside == local
            offset += gate.units

    def _read_columns(self, landed: Landed, count: int, units: Tensor) -> Tensor:
        parts = []
        for gate, index, here in self.on_gates(units):
            windows = [window for window in landed.get(gate.output, ()) if window.data.numel()]
            places = unravelled(index, gate.shape) if windows else ()
            parts += [self._read_window(window, count, places, here) for window in windows]
        return add(parts) if parts else self.rows.weight.new_zeros(self.branches, count, units.shape[1])

    def _read_window(self, window: Window, count: int, places: tuple[Tensor, ...], here: Tensor | None) -> Tensor:
        """(Q, count, n) what a window holds at places, (Q, n) for each dimension; 0 outside of the boxes.

        Args:
            here: (Q, n) which places are on this gate at all; None for all.
        """
        if self.rows.shared:
            values = read_window(window, places, here, (1, len(window.data)))
            if window.ordered and len(window.data) == count:
                return values
            return values.new_zeros(self.branches, count, values.shape[2]).index_add_(1, window.row, values)
        if window.ordered and len(window.data) == self.branches * count:  # one cotangent for every row
            return read_window(window, places, here, (self.branches, count))
        branch = window.row // count  # rows are missing or repeat: each cotangent has places of its own
        places = tuple(place.index_select(0, branch) for place in places)
        here = None if here is None else here.index_select(0, branch)
        values = read_window(window, places, here, (len(window.data), 1))
        table = values.new_zeros(self.branches * count, values.shape[2]).index_add_(0, window.row, values[:, 0])
        return table.reshape(self.branches, count, -1)


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


def _multiply_out(inputs: Sequence[LayerInputs], units: Tensor, most: int) -> tuple[Tensor, tuple[Link, ...]]:
    """W = W_prev · J at units (Q, n), as (Q, n, C), and the columns of J; none where the table of them would not fit."""
    push = [one for one in inputs if _pays_to_push(one, units.shape[1])]
    pushed = (
        push_columns([one.rows for one in push], list(inputs[0].on_gates(units)), inputs[0].product) if push else []
    )
    columns_of = dict(zip(push, pushed, strict=True))
    parts, links = [], []
    for one in inputs:
        rows = one.rows
        if one not in columns_of and rows.W is not None and rows.count * units.numel() > most:
            parts.append(_by_classes(one, rows.W, units, most))
            continue
        columns = columns_of[one] if one in columns_of else one.columns(units)
        links.append(Link(rows.layer, columns, rows.weight))
        parts.append(_times(columns, one))
    return add(parts), tuple(links) if len(links) == len(inputs) else ()


def _times(columns: Tensor, one: LayerInputs) -> Tensor:
    """(Q, n, C) columns (Q, K, n), turned, times W (Q, K, C); as they are where the rows are the classes."""
    turned, rows, sparse = columns.transpose(1, 2), one.rows, one.strategy.sparse
    if rows.W is None:
        return turned
    may_skip = rows.frozen.compact and (sparse > 1 or turned[0].numel() > LARGE)
    if may_skip and int(turned.count_nonzero()) < sparse * turned.numel():
        return torch.stack([torch.sparse.mm(own.to_sparse(), W) for own, W in zip(turned, rows.W, strict=True)])
    return torch.bmm(turned, rows.W)


LARGE = 1 << 18
"""Tables of fewer numbers are multiplied with their zeros. In wide paths most units do not reach each other."""


def _pays_to_push(one: LayerInputs, candidates: int) -> bool:
    """Whether pushing the candidates up costs less than pulling the rows back: rows are whole maps, and more of them."""
    push = one.strategy.push
    if push in (0, math.inf):
        return push > 0
    if one.rows.frozen.network.class_gates or one.rows.count * one.units < MANY or candidates >= push * one.rows.count:
        return False
    return one.is_whole


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


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenation; without a launch where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def add(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])
