"""The frozen network by other means: autograd on a model whose multipliers are detached.

`detached()` is a mode under which torch's own functions are replaced by ones that say the same with every multiplier detached, as
DESIGN has them. It shares nothing with the engine: a model's gradient under it is the weight of its frozen network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    return x * torch.special.expit(x).detach()


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * (0.5 * (2 * torch.special.expit(2 * inner))).detach()
    return x * torch.special.ndtr(x).detach()


def hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    return x * ((x + 3).clamp(0, 6) / 6).detach()


def mish(x: Tensor, inplace: bool = False) -> Tensor:
    return x * F.softplus(x).tanh().detach()


def _normalise(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt().detach()


def layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    y = _normalise(x, tuple(range(-len(shape), 0)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def group_norm(x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    y = _normalise(x.reshape(len(x), groups, -1), (2,), eps).reshape(x.shape)
    shape = (1, -1, *[1] * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def instance_norm(
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    assert use_input_stats
    return group_norm(x, x.shape[1], weight, bias, eps)


def batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """By hand: in torch 2.13, the gradient of torch's own is wrong on a CPU where the one it is given is not contiguous."""
    if training or mean is None or variance is None:  # as weights are standardised
        return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
    shape = (1, -1, *[1] * (x.dim() - 2))
    y = (x - mean.reshape(shape)) * (variance + eps).rsqrt().reshape(shape)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def square(x: Tensor) -> Tensor:
    return x * x.detach()


def power(x: Tensor, exponent: Any) -> Tensor:
    if isinstance(x, Tensor) and exponent == 2:
        return square(x)
    return torch.pow(x, exponent)


def divide(x: Any, by: Any, **settings: Any) -> Tensor:
    return torch.div(x, by.detach() if isinstance(by, Tensor) else by, **settings)


def rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = x * (x.square().mean(tuple(range(-len(shape), 0)), keepdim=True) + eps).rsqrt().detach()
    return y if weight is None else y * weight


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Tensor:
    return x / x.norm(p, dim, keepdim=True).clamp_min(eps).detach()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1).detach() @ v


def glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid().detach()


def _detach(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: function(*args, **kwargs).detach()


def _named(*names: str) -> list[Any]:
    """The functions of these names, wherever torch has them."""
    holders = (F, torch, Tensor, torch._C._nn, torch.linalg)
    return [function for holder in holders for name in names if (function := getattr(holder, name, None))]


_TWINS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys(_named("silu", "silu_"), silu),
    **dict.fromkeys(_named("gelu"), gelu),
    **dict.fromkeys(_named("hardswish", "hardswish_"), hardswish),
    **dict.fromkeys(_named("mish", "mish_"), mish),
    **{F.layer_norm: layer_norm, torch.layer_norm: lambda *args: layer_norm(*args[:5])},
    **{F.group_norm: group_norm, torch.group_norm: lambda *args: group_norm(*args[:5])},
    **{F.instance_norm: instance_norm, F.normalize: normalize, F.batch_norm: batch_norm, F.glu: glu},
    **dict.fromkeys(_named("rms_norm"), rms_norm),
    **dict.fromkeys(_named("square"), square),
    **dict.fromkeys(_named("pow", "__pow__"), power),
    **dict.fromkeys(_named("div", "__truediv__"), divide),
    **dict.fromkeys(_named("scaled_dot_product_attention"), attention),
    **{
        function: _detach(function)
        for function in _named("softmax", "sigmoid", "sigmoid_", "hardsigmoid", "rsqrt", "sqrt")
    },
    **{function: _detach(function) for function in (torch.special.expit, *_named("norm", "vector_norm"))},
}
"""For every function that multiplies by what it computed, its twin."""

_CLIPS = _named("relu6", "hardtanh", "hardtanh_")
_ACTIVATIONS = _named("relu", "relu_", "silu", "silu_", "gelu", "elu", "hardswish", "hardswish_", "mish")
_MOVES = _named(
    *("view", "reshape", "permute", "transpose", "expand", "expand_as", "flatten", "unflatten", "contiguous", "clone"),
    *("unsqueeze", "squeeze", "chunk", "split", "unbind", "__getitem__", "dropout", "float", "double", "to", "type_as"),
)
_PRODUCTS = _named("mul", "__mul__", "__rmul__", "matmul", "__matmul__")


class _Detached(TorchFunctionMode):
    """Of a product, the factor that came straight out of a clip is detached, or else the one out of an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: dict[int, tuple[int, Tensor]] = {}  # by id, with the tensor, which must live on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and len(args) == 2 and all(isinstance(arg, Tensor) for arg in args):
            first, second = (self._rank(arg) if arg.requires_grad else -1 for arg in args)
            if -1 not in (first, second) and first != second:
                args = (args[0].detach(), args[1]) if first > second else (args[0], args[1].detach())
        made = _TWINS.get(func, func)(*args, **(kwargs or {}))
        rank = 2 if func in _CLIPS else 1 if func in _ACTIVATIONS else self._rank(args[0]) if func in _MOVES else 0
        for one in (made if isinstance(made, (tuple, list)) else [made]) if rank else ():
            self.ranks[id(one)] = (rank, one)
        return made

    def _rank(self, value: Any) -> int:
        return self.ranks.get(id(value), (0, None))[0]


def frozen_weight(model: nn.Module, image: Tensor, target: int) -> Tensor:
    """(…) the gradient of a logit of the model with every multiplier detached."""
    x = image[None].clone().requires_grad_()
    with _Detached(), torch.enable_grad():
        output = model(x)
    logits = output if isinstance(output, Tensor) else output["logits" if "logits" in output else "last_hidden_state"]
    return torch.autograd.grad(logits.flatten()[target], x)[0][0]
