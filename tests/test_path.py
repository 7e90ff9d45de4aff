"""Law 5: whichever way the engine computes a step, the kept units are the same and the numbers agree to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from test_laws import Case, assert_equals_reference, cases
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from pathx.engine import explain_frozen, predictions
from pathx.frozen import freeze
from pathx.linear import linear_model
from pathx.path import Branches, Strategy, find_paths

pytestmark = pytest.mark.usefixtures("one_thread")

STRATEGIES = {
    "search by bounds": (Strategy(prune=True), True),
    "exact margins for all": (Strategy(prune=False), True),
    "fixed shapes": (Strategy(prune=False), False),
    "fixed shapes, full maps": (Strategy(prune=False, windows=False), False),
    "full maps": (Strategy(prune=True, windows=False), True),
    "a row per unit": (Strategy(prune=True, basis="unit"), True),
    "a row per class": (Strategy(prune=True, basis="class"), True),
    "a row per class, fixed shapes": (Strategy(prune=False, basis="class"), False),
    "classes one at a time": (Strategy(prune=True, basis="class", chunk=1), True),
    "columns one at a time": (Strategy(prune=False, basis="unit", chunk=1), True),
}


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=12)
@given(case=cases())
def test_every_strategy_equals_the_literal_method(name: str, case: Case) -> None:
    strategy, compact = STRATEGIES[name]
    expected = case.reference()
    options = dict(case.options)
    target = options.pop("target")
    frozen = freeze(case.network.module(), case.images)
    frozen.compact = compact
    targets = predictions(frozen.logits) if target is None else target
    wanted = list(enumerate(targets if isinstance(targets, list) else [targets] * len(case.images)))
    for mine, theirs in zip(explain_frozen(frozen, wanted, **options, strategy=strategy), expected, strict=True):
        assert_equals_reference(mine, theirs)


@settings(max_examples=20)
@given(case=cases(images=1))
def test_several_targets_of_one_picture_are_explained_in_one_pass(case: Case) -> None:
    options = {key: value for key, value in case.options.items() if key != "target"}
    frozen = freeze(case.network.module(), case.images)
    wanted = [(0, target) for target in range(case.network.classes)]
    together = explain_frozen(frozen, wanted, **options)
    for target, found in enumerate(together):
        one = replace(case, options={**options, "target": target})
        assert_equals_reference(found, one.reference()[0])


@pytest.mark.parametrize("skips", ["adjacent", "all"])
@pytest.mark.parametrize("basis", ["unit", "class"])
@settings(max_examples=6)
@given(case=cases())
def test_on_a_gpu_nothing_depends_on_data_and_no_tensor_stays_behind(skips: str, basis: str, case: Case) -> None:
    """Fake CUDA tensors raise where devices mix or a shape or a branch depends on values."""
    model = case.network.module()
    with FakeTensorMode(), _Operators():
        fake = _on_cuda(model)
        images = torch.empty(case.images.shape, dtype=case.images.dtype, device="cuda")
        frozen = freeze(fake, images)
        assert not frozen.compact
        branches = Branches(
            image=torch.arange(len(images), device="cuda"),
            target=torch.zeros(len(images), dtype=torch.long, device="cuda"),
            classes=max(2, frozen.logits.shape[1]),
        )
        layers = frozen.network.depth
        paths = find_paths(
            frozen,
            branches,
            depth=layers,
            widths=dict.fromkeys(range(1, layers + 1), 3),
            alpha=None,
            skips=skips,
            strategy=Strategy(prune=False, basis=basis),  # type: ignore[arg-type]
        )
        model_of_path = linear_model(frozen, paths)
    assert model_of_path.weight.shape == case.images.shape
    assert model_of_path.weight.device.type == "cuda"
    assert model_of_path.bias.device.type == model_of_path.score.device.type == "cuda"


class _Operators(TorchFunctionMode):
    """Python's `[]` and `~` in terms of operations: a build without CUDA takes neither on fake CUDA tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            return _getitem(*args)
        if func is Tensor.__invert__:
            return torch.bitwise_not(*args)
        if func is Tensor.__setitem__:
            tensor, index, value = args
            index = list(index) if isinstance(index, tuple) else [index]
            return torch.ops.aten.index_put_.default(tensor, index, value)
        return func(*args, **(kwargs or {}))


def _getitem(tensor: Tensor, index: Any) -> Tensor:
    indices: list[Tensor | None] = []
    dim = 0
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        raise NotImplementedError("ellipsis")
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        indices.append(part if isinstance(part, Tensor) else None)
        dim += 1
    return torch.ops.aten.index.Tensor(tensor, indices) if any(i is not None for i in indices) else tensor


def _on_cuda(model: torch.nn.Module) -> torch.nn.Module:
    """The model with fake CUDA parameters and buffers of the same shapes."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype, device="cuda")
                module._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
    return model
