"""Law 7 piece by piece: whatever a forward may write into its model is put back, also after an error."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pathx.engine.graph.untouched import Writes, untouched


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
