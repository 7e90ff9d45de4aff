"""Law 7 piece by piece: whatever a forward may write into its model is put back, also after an error."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pathx.engine.record.untouched import Writes, _slots, untouched


class Slotted:
    __slots__ = ("__hidden", "count", "later")

    def __init__(self) -> None:
        self.count = 1
        self.__hidden = "before"

    def hide(self, text: str) -> None:
        self.__hidden = text

    @property
    def hidden(self) -> str:
        return self.__hidden


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number, self.empty, self.listed = 1, [], [1, {"deep": [2]}]
        self.named: OrderedDict[str, Any] = OrderedDict(first=1, second=2)
        self.queue, self.several, self.slotted = deque([1, 2]), {1, 2}, Slotted()
        self.part, self.weight = nn.ReLU(), nn.Parameter(torch.ones(2))


def change(model: Holder) -> None:
    model.number, model.added = 2, "new"
    model.empty.append(1)
    model.listed[1]["deep"].append(3)  # type: ignore[index]
    model.listed.insert(0, 0)
    model.named.move_to_end("first")
    model.queue.popleft()
    model.several.add(3)
    model.slotted.count = 5
    model.slotted.later = 6
    model.slotted.hide("after")
    model.part, model.weight = nn.Sigmoid(), nn.Parameter(torch.zeros(2))
    del model.training


def assert_as_before(model: Holder, part: nn.Module, weight: Tensor) -> None:
    assert (model.number, hasattr(model, "added"), model.empty, model.training) == (1, False, [], True)
    assert model.listed == [1, {"deep": [2]}] and [*model.named] == ["first", "second"]
    assert (model.queue, model.several) == (deque([1, 2]), {1, 2})
    assert (model.slotted.count, hasattr(model.slotted, "later"), model.slotted.hidden) == (1, False, "before")
    assert model.part is part and model.weight is weight


@pytest.mark.parametrize("fails", [False, True])
def test_attributes_and_all_that_hangs_on_them(fails: bool) -> None:
    model = Holder()
    part, weight, listed = model.part, model.weight, model.listed
    try:
        with untouched(model):
            change(model)
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert_as_before(model, part, weight)
    assert model.listed is listed  # the same list, which others may hold too


def test_things_that_hold_each_other_are_looked_at_once() -> None:
    model = Holder()
    model.listed.append(model.listed)
    model.named["model"] = model
    with untouched(model):
        model.listed.append(9)
    assert len(model.listed) == 3


def test_attributes_of_a_script_module() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.seen = 0, [0]

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.seen.append(self.count)
            return x

    model = torch.jit.script(Counting())
    with untouched(model):
        model(torch.ones(1))
        model(torch.ones(1))
        assert (model.count, model.seen) == (2, [0, 1, 2])
    assert (model.count, model.seen) == (0, [0])


def test_tensors_that_are_written_hold_what_they_held_and_count_no_change() -> None:
    tensor, writes = torch.ones(3), Writes()
    tensor.add_(0)
    version = tensor._version
    writes.note(tensor)
    tensor.mul_(5)
    writes.note(tensor[1:])  # already noted: what it held at first counts
    tensor[1:] = 7
    writes.take_back()
    assert tensor.tolist() == [1.0, 1.0, 1.0] and tensor._version == version


def test_a_tensor_that_was_given_other_memory_has_its_own_again() -> None:
    tensor, writes = torch.ones(3), Writes()
    memory = tensor.data_ptr()
    writes.note_memory(tensor)
    tensor.data = torch.zeros(3)
    writes.take_back()
    assert tensor.data_ptr() == memory and tensor.tolist() == [1.0, 1.0, 1.0]


def test_tensors_of_inference_mode_are_left_alone() -> None:
    """They count no changes and may not be written from outside."""
    with torch.inference_mode():
        tensor = torch.ones(3)
        part = tensor[1:]
    writes = Writes()
    for one in (tensor, part, tensor):
        writes.note(one)
    assert writes.memory == {tensor.untyped_storage()._cdata}
    writes.take_back()
    assert tensor.tolist() == [1.0, 1.0, 1.0]


def test_what_was_taken_back_is_noted_anew() -> None:
    tensor, other, writes = torch.ones(2), torch.ones(2), Writes()
    writes.note(tensor)
    writes.note_memory(other)
    tensor.add_(1)
    other.data = torch.zeros(2)
    writes.take_back()
    tensor.add_(5)  # by somebody else, and not to be undone
    writes.take_back()
    assert tensor.tolist() == [6.0, 6.0] and other.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "slots", ["one", ("one",), ("__one",), ("__one__",), ("__dict__", "one"), ("__weakref__", "one")]
)
def test_slots_are_found_under_their_own_names(slots: object) -> None:
    kind = type("_Kind", (), {"__slots__": slots})
    held = [name for name in vars(kind) if "one" in name]
    assert list(_slots(kind)) == held


class Emptied(nn.Module):
    """Holds containers of every kind that hold nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[Any] = [{}, OrderedDict(), [], set(), deque()]


def test_what_was_empty_is_empty_again_and_what_lost_something_has_it_again() -> None:
    model = Emptied()
    kinds = list(model.kinds)
    with untouched(model):
        for held in kinds[:2]:
            held["new"] = 1
        for held in (kinds[2], kinds[4]):
            held.append(1)
        kinds[3].add(1)
    assert kinds == [{}, {}, [], set(), deque()]
    for held, filled in zip(kinds, ({"a": 1}, OrderedDict(a=1, b=2), [1, 2], {1, 2}, deque([1, 2])), strict=True):
        getattr(held, "update" if hasattr(held, "update") else "extend")(filled)
    with untouched(model):
        for held in kinds:
            held.clear()
        kinds[1]["b"] = 2
        kinds[1]["a"] = 1
        kinds[2] += [2, 1]
        kinds[4] += [3, 4]
    assert kinds == [{"a": 1}, {"a": 1, "b": 2}, [1, 2], {1, 2}, deque([1, 2])]
    assert [*kinds[1]] == ["a", "b"]


def test_the_same_items_in_place_of_others_are_told_apart() -> None:
    """Equal is not the same: what is put back are the very objects."""
    model = Emptied()
    first, second = [1], [1]
    model.kinds = [first]
    with untouched(model):
        model.kinds[0] = second
    assert model.kinds[0] is first
