"""What a recording is found by, and what is written down in it, one thing at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.recorded import OPTIONS, SOON, images, recordings, small
from torch import Tensor

from pathx.engine import recording
from pathx.engine.branches import Branches
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze

pytestmark = pytest.mark.usefixtures("one_thread", "fresh")


@pytest.fixture
def fresh() -> None:
    recording._KNOWN.clear()


def bare() -> tuple[Frozen, Branches]:
    """A frozen network to put other tensors into, and branches."""
    frozen = freeze(small(), images(1))
    return frozen, Branches(torch.tensor([0, 1]), torch.tensor([1, 2]), 7)


def holding(frozen: Frozen, *tensors: Tensor, backwards: bool = False) -> Frozen:
    """The same network with these as its first values."""
    values = list(zip(sorted(frozen.kept, key=lambda value: value.index), tensors, strict=False))
    kept = dict(reversed(values) if backwards else values)
    return Frozen(frozen.network, frozen.images, frozen.logits, kept, compact=True)


def value(frozen: Frozen, number: int = 0) -> Tensor:
    return frozen.kept[sorted(frozen.kept, key=lambda value: value.index)[number]]


NUMBERS = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("seen", "before", "after"),
    [
        (lambda v: v.stride(0), (NUMBERS,), (NUMBERS.t().contiguous().t(),)),
        (lambda v: v.storage_offset(), (NUMBERS,), (torch.arange(13.0)[1:].reshape(3, 4),)),
        (lambda v: v.element_size(), (NUMBERS,), (NUMBERS.double(),)),
        (lambda v: len(v), (NUMBERS,), (NUMBERS.reshape(4, 3),)),
    ],
    ids=["order in memory", "place in memory", "type", "shape"],
)
def test_what_the_host_can_see_of_a_tensor_tells_recordings_apart(seen: Any, before: Any, after: Any) -> None:
    frozen, ours = bare()

    def work(frozen: Frozen, branches: Branches) -> Tensor:
        return value(frozen) * seen(value(frozen))

    for tensors in (before, before, before, after, after, after):
        given = holding(frozen, *tensors)
        assert torch.equal(recording.repeated(work, given, ours, "seen", 1), work(given, ours))
    assert recordings() == 2


def test_which_values_are_one_tensor_and_their_order_tell_recordings_apart() -> None:
    frozen, ours = bare()

    def work(frozen: Frozen, branches: Branches) -> Tensor:
        return value(frozen, 0) * 2 + value(frozen, 1)

    one, other = NUMBERS.clone(), NUMBERS + 100
    for tensors, backwards in (((one, one), False), ((one, other), False), ((one, other), True)):
        for _ in range(3):
            given = holding(frozen, *tensors, backwards=backwards)
            assert torch.equal(recording.repeated(work, given, ours, "order", 1), work(given, ours))
    assert recordings() == 3


def test_what_is_known_of_branches_tells_recordings_apart() -> None:
    frozen, ours = bare()

    def work(frozen: Frozen, branches: Branches) -> Tensor:
        known = (branches.classes, branches.parts, branches.whole, branches.alone, branches.logits is None)
        return frozen.images * sum(10**place * number for place, number in enumerate(known))

    pair = torch.tensor([[0, 1], [0, 1]])
    kinds: list[dict[str, Any]] = [{}, {"classes": 8}, {"parts": 2}, {"whole": True}, {"alone": True}, {"logits": pair}]
    for changes in kinds:
        branches = replace(ours, **changes)
        for _ in range(3):
            assert torch.equal(recording.repeated(work, frozen, branches, "about", 1), work(frozen, branches))
    assert recordings() == len(kinds)


def test_only_plain_tensors_on_a_cpu_are_played_back() -> None:
    class Own(Tensor):
        pass

    frozen, ours = bare()
    for name, other in {
        "a class of tensors": holding(frozen, NUMBERS.as_subclass(Own)),
        "another layout": holding(frozen, NUMBERS.to_sparse()),
        "as on a GPU": replace(holding(frozen, NUMBERS), compact=False),
    }.items():
        for _ in range(3):
            made = recording.repeated(lambda frozen, branches: value(frozen) * 2, other, ours, name, 1)
        assert torch.equal(made.to_dense(), NUMBERS * 2)
    assert recordings() == 0 and not recording._KNOWN


def test_what_was_worked_out_before_does_not_stand_in_the_way() -> None:
    model, wanted = small(), [(0, None), (1, None)]
    frozen = freeze(model, images(1))
    for _ in range(3):
        explain_frozen(frozen, wanted, strategy=SOON, **OPTIONS)  # with slopes that are known from the first call on
    assert recordings() == 1
    frozen, ours = bare()
    ours.favour(frozen.images)
    for _ in range(2):
        recording.repeated(lambda frozen, branches: branches.favour(frozen.images) * 2, frozen, ours, "favour", 1)
    assert recordings() == 2


def test_it_is_tried_once_and_not_used_if_it_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []
    record = recording._record

    def counted(*given: Any) -> Any:
        tries.append(given)
        return record(*given)

    monkeypatch.setattr(recording, "_record", counted)
    monkeypatch.setattr(recording, "_same", lambda one, other: False)
    frozen, ours = bare()
    for _ in range(4):
        recording.repeated(lambda frozen, branches: frozen.images * 2, frozen, ours, "other", 1)
    (seen,) = (seen for known in recording._KNOWN.values() for seen in known.values())
    assert len(tries) == 1 and (seen.recording, seen.why) == (None, "other numbers")


def test_what_counts_as_the_same() -> None:
    some = torch.tensor([[1.0, math.nan], [0.0, -1.0]])
    assert recording._same(some, some.clone())
    for other in (some + 1e-7, some.double(), some[:1], some.t().contiguous().t(), torch.zeros(2, 2)):
        assert not recording._same(some, other)


def test_the_one_used_last_is_forgotten_last() -> None:
    frozen, ours = bare()
    for number in range(recording.MOST_RECORDINGS + 3):
        for name in ("often", f"once {number}"):
            recording.repeated(lambda frozen, branches: frozen.images * 2, frozen, ours, name, 1)
    known = {form[0]: seen.times for form, seen in recording._KNOWN[frozen.network].items()}
    assert recordings() == 1 and len(known) == recording.MOST_RECORDINGS
    assert known["often"] == recording.MOST_RECORDINGS + 3


@pytest.mark.parametrize(
    "work",
    [
        lambda v: (torch.full_like(v, 0.0), torch.full_like(v, -0.0)),
        lambda v: (torch.nan_to_num(v, nan=1),),
        lambda v: (torch.full_like(v, True), v.masked_fill(v > 3, False)),
        lambda v: (v.sum((0, 1)), v.flip(0), *v.unbind(1), *v.split([1, 3], 1)),
        lambda v: (v.clone().add_(1).mul_(2), v.to(torch.float64), torch.cat([v, v], 1)),
        lambda v: (v.new_zeros(5), torch.arange(4, device=v.device), v.new_full((2,), math.inf)),
        lambda v: tuple(
            torch.ops.aten.convolution_backward.default(
                v[None, None],
                v.new_zeros(1, 1, 3, 4),
                v.new_ones(1, 1, 1, 1),
                None,
                [1, 1],
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                1,
                [True, False, False],
            )[:1]
        ),
    ],
    ids=["signs of zero", "whole numbers for others", "truths for numbers", "lists", "in place", "made", "no result"],
)
def test_what_is_given_to_operations_is_written_down(work: Any) -> None:
    frozen, ours = bare()
    for number in range(3):
        given = holding(frozen, NUMBERS + number)
        made = recording.repeated(lambda frozen, branches: work(value(frozen)), given, ours, "given", 1)
        for mine, theirs in zip(made, work(value(given)), strict=True):
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
            assert not mine.is_floating_point() or torch.equal(mine.signbit(), theirs.signbit())
    assert recordings() == 1
