"""Labels of a loaded network, and the network on another device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from support.small import loaded
from torch import nn

from pathx.errors import PathxError

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


def test_what_cannot_be_copied_stays_on_the_cpu() -> None:
    with pytest.raises(
        PathxError, match=r"cannot be copied to another device \(one is enough\): use `device` cpu, or save"
    ):
        replace(loaded(), module=Alone().eval()).on(META)
