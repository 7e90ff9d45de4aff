"""Algorithm 1 as it is published: autograd on a chain, one backward pass from the logits per layer and class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Literal:
    """Kept flat indices per layer (from the output down) and the linear model of the path."""

    kept: list[list[int]]
    weight: Tensor
    bias: float
    score: float


def literal_algorithm_1(module: nn.Module, image: Tensor, target: int, depth: int | str, width: int | str) -> Literal:
    """Algorithm 1 for a chain of modules with `nn.ReLU`s, such as VGG-16, in the module's own dtype.

    One forward pass; then for every layer and every class one backward pass from the logits, through the units kept so
    far, to all the units of the layer.
    """
    relus = [layer for layer in module.modules() if isinstance(layer, nn.ReLU)]
    in_place = [relu.inplace for relu in relus]
    hidden: list[Tensor] = []  # h⁽¹⁾ … h⁽ᴺ⁾
    masks: dict[int, Tensor] = {}  # of the layers chosen so far: 1 at kept units

    def record(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        n = len(hidden)
        hidden.append(args[0])
        args[0].register_hook(lambda gradient: gradient * masks[n] if n in masks else gradient)  # type: ignore[no-untyped-call]

    hooks = [relu.register_forward_pre_hook(record) for relu in relus]
    try:
        for relu in relus:
            relu.inplace = False
        x = image.detach().clone().requires_grad_()
        with torch.enable_grad():
            logits = module(x[None])[0]
    finally:
        for relu, was in zip(relus, in_place, strict=True):
            relu.inplace = was
        for hook in hooks:
            hook.remove()

    def backward(c: int, to: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(logits[c], to, retain_graph=True)
        return gradient

    last, chosen = len(hidden), []
    deepest = 0 if depth == "all" else last - int(depth)
    score = logits.new_zeros(())
    for n in range(last - 1, deepest - 1, -1):
        h = hidden[n].detach().flatten()
        W = torch.stack([backward(c, hidden[n]).flatten() for c in range(len(logits))])
        margin = margins(W * h, target).masked_fill(~((h > 0) & (W != 0).any(0)), -math.inf)
        ranked = margin.argsort(descending=True, stable=True)[: int((margin > -math.inf).sum())]
        passing = ranked[margin[ranked] > 0]
        kept = (passing if width == "all" else passing[: int(width)]) if len(passing) else ranked[:1]
        masks[n] = torch.zeros_like(h).index_fill(0, kept, 1).view_as(hidden[n])
        score = W[target, kept] @ h[kept]
        chosen.append(kept.tolist())
    weight = backward(target, x)
    return Literal(chosen, weight, float(score - (weight * image).sum()), float(score))


def margins(z: Tensor, target: int) -> Tensor:
    """What units are ranked by, in the order of their importances and without saturation; z is (classes, units)."""
    others = torch.cat([z[:target], z[target + 1 :]])
    most = others.max(0).values
    return z[target] - most - torch.expm1(others - most).mean(0).log1p()
