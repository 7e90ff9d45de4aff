"""The module that each call was made in, also in models that no Python frame shows: TorchScript and exported programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathx.engine.freeze import freeze


class Block(nn.Module):
    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.convolution, self.activation, self.functional = nn.Conv2d(2, 2, 1), nn.ReLU6(), functional

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        if self.functional:
            return F.relu(x)
        return self.activation(x)  # type: ignore[no-any-return]


class Model(nn.Module):
    """A function, a module of torch's own used twice, and branches that settings decide."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(True), Block(False))
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.blocks(x) - 1)
        return self.head(self.relu(x.flatten(1) - 1))  # type: ignore[no-any-return]


NAMES = ["blocks.0.relu", "blocks.1.activation", "relu", "relu"]


@pytest.mark.parametrize("form", ["eager", "scripted", "traced", "exported"])
def test_gates_have_the_names_of_the_modules_they_came_from(form: str) -> None:
    model, images = Model().eval(), torch.rand(2, 2, 2, 2)
    forms = {
        "eager": lambda: model,
        "scripted": lambda: torch.jit.script(model),
        "traced": lambda: torch.jit.trace(model, images),
        "exported": lambda: torch.export.export(model, (images,)).module(),
    }
    gates = [gate for layer in freeze(forms[form](), images).network.layers for gate in layer]
    assert [gate.node.name for gate in gates] == NAMES


def test_an_operation_in_a_branch_that_data_decides_has_no_module() -> None:
    """Which of its two calls was made, the code does not say."""

    class Undecided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.ReLU(), nn.ReLU(), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x) if x.shape[0] > 1 else self.second(x)
            return self.head(y)  # type: ignore[no-any-return]

    found = freeze(torch.jit.script(Undecided()), torch.rand(2, 3)).network
    assert [gate.node.scope.path for layer in found.layers for gate in layer] == [""]


@pytest.mark.parametrize(
    "form", [torch.jit.script, lambda model: torch.jit.trace(model, torch.rand(2, 3)), lambda model: model]
)
def test_a_function_in_a_module_of_ones_own_has_its_name_after_the_modules(form: Any) -> None:
    class Alone(nn.Module):
        """Without modules in it, as those of torch."""

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x)

    model = form(nn.Sequential(Alone(), nn.Linear(3, 2)).eval())
    (gate,) = freeze(model, torch.rand(2, 3)).network.layers[0]
    assert gate.name == "0.relu"


def test_a_name_is_that_of_the_innermost_module_of_the_model() -> None:
    """Modules of others, which the model calls too, are not in it."""
    outside = nn.ReLU()

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return outside(x * 2)  # type: ignore[no-any-return]

    model = nn.Sequential(nn.Sequential(Inner()), nn.Linear(3, 2))
    nodes = freeze(model, torch.rand(2, 3)).network.nodes
    assert [node.module for node in nodes if node.kind in ("mul", "relu", "addmm")] == ["0.0", "0.0", "1"]


def test_a_setting_of_a_scripted_module_that_changes_changes_the_names() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head, self.kind = nn.ReLU(), nn.ReLU(), nn.Linear(3, 2), 3

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x) if self.kind > 2 else self.b(x)
            return self.head(x)  # type: ignore[no-any-return]

    model, names = torch.jit.script(Branching()), []
    for setting in (3, 0, 3):
        model.kind = setting
        names.append(freeze(model, torch.rand(2, 3)).network.layers[0][0].name)
    assert names == ["a", "b", "a"]
