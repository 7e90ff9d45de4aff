"""Any function of an image as a module, and a small convolutional network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import pathx


class Model(nn.Module):
    """Any forward over named parts, which it gets with the image."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class Function(nn.Module):
    """A forward of the image alone."""

    def __init__(self, forward: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def cnn(channels: int = 3, outputs: int = 4) -> nn.Sequential:
    """Two hidden layers; maps of 6 channels before the last three modules."""
    return nn.Sequential(
        nn.Conv2d(channels, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, outputs),
    )  # fmt: skip


def assert_unwraps(model: nn.Module, *shape: int, logits: Callable[[Any], Tensor] = lambda output: output) -> None:
    """Laws 1 and 2 for a batch, whatever the network."""
    model = model.double().eval()
    images = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    output = logits(model(images)).reshape(len(images), -1)
    if output.shape[1] == 1:
        output = torch.cat([torch.zeros_like(output), output], 1)
    (gradient,) = torch.autograd.grad(output[:, 1].sum(), images)
    options: dict[str, Any] = {"target": 1, "depth": "all", "skips": "all"}
    for found in pathx.explain(model, images, width=2, **options):
        assert found.attribution.sum().item() + found.bias == pytest.approx(found.score, rel=1e-10, abs=1e-12)
    found = pathx.explain(model, images, width="all", alpha=0.0, **options)
    assert_close(torch.stack([one.logits for one in found]), output.detach())
    assert_close(torch.stack([one.weight for one in found]), gradient)
    assert gradient.abs().max() > 0


def assert_gradient(model: nn.Module, images: Tensor, target: int = 1, **tolerance: float) -> None:
    """Laws 2 and 11: with everything kept the weight is the gradient of the logit, and the logits are the model's own."""
    x = images.detach().clone().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits[:, target].sum(), x)
    found = pathx.explain(model, images, target=target, depth="all", width="all", alpha=0.0)
    assert_close(torch.stack([one.logits for one in found]), logits.detach(), **tolerance)  # type: ignore[arg-type]
    assert_close(torch.stack([one.weight for one in found]), gradient, **tolerance)  # type: ignore[arg-type]


def mlp(function: Callable[[Any, Tensor], Any], **parts: nn.Module) -> nn.Module:
    return Model(function, a=nn.Linear(5, 6), b=nn.Linear(6, 3), **parts).eval()


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that an explanation could disturb: law 7."""
    return dict(_facts(model))


def _facts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        yield f"{name}: identity", id(tensor)
        yield f"{name}: version", tensor._version
        yield f"{name}: value", tensor.detach().flatten().tolist()
        yield f"{name}: requires_grad", tensor.requires_grad
        yield f"{name}: grad", None if tensor.grad is None else (id(tensor.grad), tensor.grad.flatten().tolist())
        yield f"{name}: hooks", len(tensor._backward_hooks or ())
    for name, module in model.named_modules():
        yield f"{name}: mode", module.training
        yield f"{name}: inplace", getattr(module, "inplace", None)
        yield f"{name}: class", type(module)
        yield f"{name}: attributes", sorted(vars(module))
        yield f"{name}: own forward", vars(module).get("forward")
        for attribute, hooks in vars(module).items():
            if attribute.endswith("_hooks"):
                yield f"{name}: {attribute}", list(hooks)
    of_all_modules = vars(torch.nn.modules.module).items()
    yield "global hooks", [len(held) for name, held in sorted(of_all_modules) if name.startswith("_global_") and held]
    yield "grad mode", (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    yield "defaults", (torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().tolist())
