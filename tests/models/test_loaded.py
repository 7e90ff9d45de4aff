"""Labels of a loaded network, and the network on another device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from support.small import LABELS, loaded
from support.stateful import Remembering
from torch import nn

from pathx.errors import PathxError


def test_one_label_per_class_or_names_by_number() -> None:
    model = loaded()
    assert model.labels_for(4) == LABELS
    bare = replace(model, labels=())
    assert bare.labels_for(3) == ("class 0", "class 1", "class 2")
    assert bare.labels_for(1) == ("negative", "positive")
    assert replace(model, labels=("no", "yes")).labels_for(1) == ("no", "yes")


@pytest.mark.parametrize("classes", [1, 3, 5])
def test_labels_that_do_not_fit_are_refused(classes: int) -> None:
    expected = 2 if classes == 1 else classes
    with pytest.raises(
        PathxError, match=f"4 labels were given, but small has {expected} classes: give one label per class"
    ):
        loaded().labels_for(classes)


META = torch.device("meta")


def test_on_the_cpu_it_is_the_network_itself() -> None:
    model = loaded()
    assert model.on(torch.device("cpu")) is model.module


def normed() -> nn.Module:
    """torch's own copy refuses weights that hang on others."""
    return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(300, 4)), nn.ReLU(), nn.Linear(4, 3))


def pruned() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 3))
    torch.nn.utils.prune.l1_unstructured(network[1], "weight", 0.5)  # type: ignore[no-untyped-call]
    return network


def plain() -> nn.Module:
    return loaded().module


@pytest.mark.parametrize("make", [plain, normed, pruned])
def test_elsewhere_it_is_a_copy_and_the_network_stays_where_it_is(make: Callable[[], nn.Module]) -> None:
    model = replace(loaded(), module=make().eval())
    elsewhere = model.on(META)
    assert {one.device for one in elsewhere.parameters()} == {META}
    assert {one.device for one in model.module.parameters()} == {torch.device("cpu")}


class Alone(nn.Flatten):
    def __deepcopy__(self, memo: Any) -> None:
        raise RuntimeError("one is enough")


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (Remembering(10), "a copy of small on meta computes something else, as its code holds on to the original: use"),
        (Alone(), r"cannot be copied to another device \(one is enough\): use `device` cpu, or save it with"),
    ],
)
def test_what_cannot_be_copied_faithfully_stays_on_the_cpu(module: nn.Module, problem: str) -> None:
    model = replace(loaded(), module=module.eval())
    with pytest.raises(PathxError, match=problem):
        model.on(META)
