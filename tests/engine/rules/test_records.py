"""Every record against autograd: cotangents through windows and whole maps, constants, and what is really seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pulled import (
    DOUBLE,
    Above,
    Seen,
    assert_as_autograd,
    assert_boxes_go_down,
    assert_field,
    fixed,
    pictures,
    pulled,
)
from torch import Tensor
from torch.testing import assert_close

from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.record.operations import Node, Scope, Value
from pathx.engine.rules.arithmetic import last_norm
from pathx.engine.rules.table import OPERATIONS, Call, record_of
from pathx.engine.window import Window

MAP = (2, 4, 7, 6)


def places(x: Tensor, dim: int) -> Tensor:
    """Numbers of elements along a dimension, others for every picture."""
    return (torch.arange(x.numel()) * 7 % x.shape[dim]).reshape(x.shape)


def written(x: Tensor, index: Any, value: Any) -> Tensor:
    result = x * 1
    result[index] = value
    return result


def normed(x: Tensor) -> Tensor:
    return F.batch_norm(x, fixed(4), fixed(4, seed=1), fixed(4, seed=2), fixed(4, seed=3))


MAPS: dict[str, Callable[[Tensor], Any]] = {
    "convolution": lambda x: F.conv2d(x, fixed(3, 4, 3, 2), fixed(3), padding=(1, 0)),
    "convolution, with places that see padding alone": lambda x: F.conv2d(x, fixed(3, 4, 1, 2), padding=(2, 3)),
    "max_pool2d_with_indices": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d_with_indices, of padding alone": lambda x: (
        F.relu(F.max_pool2d(x[:, :, :2, :2], 2, 1, 1, dilation=3)) + x[:, :, :1, :1]
    ),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 2)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "_adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "native_batch_norm": normed,
    "mean": lambda x: x.mean(1, keepdim=True),
    "sum": lambda x: x.sum(3, keepdim=True),
    "add": lambda x: x + fixed(4, 1, 1),
    "add, broadcast": lambda x: x[:, :, :1, :1] + x,
    "add, with a factor": lambda x: torch.add(x, x[:, 1:2], alpha=3),
    "sub": lambda x: x - fixed(2, 4, 1, 1),
    "rsub": lambda x: torch.rsub(x, 3.0, alpha=2),
    "mul": lambda x: fixed(7, 1) * x,
    "div": lambda x: x / fixed(2, 1, 7, 6),
    "div, by whole numbers": lambda x: x / torch.arange(1, 8)[:, None],
    "div, by counts": lambda x: x / (1 + (x > 0.3).sum((1, 2, 3), keepdim=True)),
    "neg": lambda x: -x,
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "_to_copy": lambda x: x.to(torch.float64, copy=True),
    "addcmul": lambda x: torch.addcmul(x, x.flip(3), fixed(2, 1, 7, 6), value=2),
    "mul, by a mask that is computed again": lambda x: (x - 0.4) * ((x - 0.4) > 0),
    "where, by a mask that is computed again": lambda x: torch.where(2 * x + 0.1 > 0.9, 2 * x + 0.1, 0.9),
    "where": lambda x: torch.where(fixed(7, 6) > 0.7, x, x.flip(2)),
    "where, with a constant": lambda x: torch.where(fixed(7, 6) > 0.7, 5.0, x),
    "masked_fill": lambda x: x.masked_fill(fixed(7, 6) > 0.7, 3.0),
    "masked_fill, infinite": lambda x: x.masked_fill(fixed(7, 6) > 0.9, -torch.inf).amax(2, keepdim=True),
    "maximum": lambda x: torch.maximum(x, x.flip(3)),
    "minimum": lambda x: torch.minimum(x, x.flip(3)),
    "max": lambda x: x.max(1, keepdim=True).values,
    "min": lambda x: x.min(2, keepdim=True).values,
    "median": lambda x: x.median(1, keepdim=True).values,
    "topk": lambda x: x.topk(3, 1).values,
    "sort": lambda x: x.sort(3).values,
    "view": lambda x: x.view(2, 2, 14, 6),
    "_unsafe_view": lambda x: x @ fixed(6, 6),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "permute": lambda x: x.permute(0, 3, 1, 2),
    "permute, channels": lambda x: x.view(2, 2, 2, 7, 6).permute(0, 2, 1, 3, 4),
    "transpose": lambda x: x.transpose(2, 3),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "expand, places": lambda x: x[:, :, :1].expand(-1, -1, 3, -1),
    "flip": lambda x: x.flip(2, 3),
    "roll": lambda x: x.roll((1, -2), (2, 3)),
    "cumsum": lambda x: x.cumsum(3),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "repeat": lambda x: x.repeat(1, 1, 1, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :6], 2),
    "im2col": lambda x: F.unfold(x[:, :1], (2, 3), padding=1)[:, None],
    "col2im": lambda x: F.fold(x.view(2, 4, 42), (8, 7), (2, 2)),
    "reflection_pad2d": lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"),
    "circular padding": lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"),
    "circular padding, cut": lambda x: F.pad(x, (-1, 2, 1, -3), mode="circular"),
    "upsample_nearest2d": lambda x: F.interpolate(x, scale_factor=2),
    "_upsample_nearest_exact2d": lambda x: F.interpolate(x, size=(9, 5), mode="nearest-exact"),
    "upsample_bilinear2d": lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"),
    "upsample_bicubic2d": lambda x: F.interpolate(x, size=(9, 5), mode="bicubic"),
    "_upsample_bilinear2d_aa": lambda x: F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True),
    "_upsample_bicubic2d_aa": lambda x: F.interpolate(x, size=(4, 5), mode="bicubic", antialias=True),
    "grid_sampler_2d": lambda x: F.grid_sample(x, 2 * fixed(2, 5, 4, 2) - 1.4, align_corners=False),
    "cat": lambda x: torch.cat([x[:, :2], fixed(2, 1, 7, 6), x.flip(3)], 1),
    "cat, of places": lambda x: torch.cat([x[:, :, 2:5], fixed(2, 4, 1, 6), x], 2),
    "stack": lambda x: torch.stack([x, fixed(2, 4, 7, 6), x.flip(3)], 1),
    "slice": lambda x: x[:, :, 1:6:2, 2:-1],
    "select": lambda x: x[:, 1],
    "split": lambda x: x.split(3, 2)[1],
    "split_with_sizes": lambda x: x.split([2, 1, 1], 1)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "slice, below a padded convolution": lambda x: F.conv2d(x[:, :, 2:-1, 1:-2], fixed(3, 4, 3, 3), padding=1),
    "constant_pad_nd": lambda x: F.pad(x, (2, -1, -2, 1), value=0.5),
    "constant_pad_nd, above a convolution": lambda x: F.pad(F.conv2d(x, fixed(3, 4, 3, 3)), (3, 2, 2, 3)),
    "constant_pad_nd, above a maximum": lambda x: F.pad(F.max_pool2d(x, 3, 2, 1), (3, 2, 2, 3)),
    "constant_pad_nd, infinite": lambda x: F.max_pool2d(F.pad(x, (1, 0, 2, 0), value=-torch.inf), 3, 2),
    "slice_scatter": lambda x: written(x, (slice(None), slice(None), slice(1, 3)), x[:, :, 3:5]),
    "select_scatter": lambda x: written(x, (slice(None), 1), 2.0),
    "index_select": lambda x: x.index_select(3, torch.tensor([1, 1, 4])),
    "index": lambda x: x[:, :, torch.tensor([2, 0]), torch.tensor([1, 5])][:, :, None],
    "index_put": lambda x: written(x, (slice(None), torch.tensor([2, 0])), x[:, 1:3]),
    "gather": lambda x: x.gather(2, places(x, 2)),
    "gather, by its values": lambda x: x.gather(1, x.argsort(1)),
    "scatter": lambda x: x.scatter(1, places(x, 1)[:, :2], x[:, 2:]),
    "scatter_add": lambda x: x.scatter_add(3, places(x, 3), x.flip(2)),
    "index_add": lambda x: x.index_add(1, torch.tensor([1, 1]), x[:, :2], alpha=2),
    "bmm": lambda x: torch.bmm(x.view(2, 4, 42), fixed(2, 42, 3)),
    "bmm, second": lambda x: torch.bmm(fixed(2, 3, 4), x.view(2, 4, 42)).view(2, 3, 7, 6),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, 0, :3], x.view(2, 4, 42), fixed(2, 42, 3)),
    "matmul": lambda x: x.transpose(2, 3) @ fixed(7, 5),
    "matmul, from the left": lambda x: fixed(3, 7) @ x,
    "matmul, a matrix per channel": lambda x: x @ fixed(4, 6, 2),
    "matmul, of what was repeated": lambda x: fixed(3, 7) @ x[:, :1].expand(-1, 5, -1, -1),
    "einsum": lambda x: torch.einsum("...w,kw->...k", x, fixed(3, 6)),
    "relu": lambda x: F.relu(x - 0.4),
    "relu, twice of the same": lambda x: F.relu(x - 0.4) + F.relu(x - 0.4).flip(3),
    "relu6": lambda x: F.relu6(9 * x),
    "leaky_relu": lambda x: F.leaky_relu(x - 0.4),
    "clamp, by more bounds than there are values": lambda x: x[:, :1].clamp(fixed(3, 1, 1) - 0.2, fixed(6)),
    "maximum, of more bounds than there are values": lambda x: torch.maximum(x[:, :1], fixed(3, 1, 1)),
    "hardshrink": lambda x: F.hardshrink(x - 0.4, 0.1),
    "softshrink": lambda x: F.softshrink(x - 0.4, 0.1),
    "hardsigmoid": lambda x: F.hardsigmoid(9 * x - 4),
}
VECTORS: dict[str, Callable[[Tensor], Any]] = {
    "addmm": lambda x: F.linear(x, fixed(3, 4), fixed(3)),
    "addmm, with factors": lambda x: torch.addmm(fixed(3), x, fixed(4, 3), beta=2, alpha=3),
    "mm": lambda x: F.linear(x, fixed(3, 4)),
    "mv": lambda x: (x @ fixed(4))[:, None],
    "addmv": lambda x: torch.addmv(fixed(2), x, fixed(4))[:, None],
    "gather, rows": lambda x: x.gather(1, torch.tensor([[2, 0, 1, 3], [0, 0, 3, 2]])),
    "native_batch_norm, vectors": normed,
}
LINES: dict[str, Callable[[Tensor], Any]] = {
    "convolution, lines": lambda x: F.conv1d(x, fixed(3, 4, 3), fixed(3), 2, 1),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 4),
    "reflection_pad1d": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "replication_pad1d": lambda x: F.pad(x, (1, 2), mode="replicate"),
    "upsample_nearest1d": lambda x: F.interpolate(x, 11),
    "_upsample_nearest_exact1d": lambda x: F.interpolate(x, 11, mode="nearest-exact"),
    "upsample_linear1d": lambda x: F.interpolate(x, 11, mode="linear"),
}
VOLUMES: dict[str, Callable[[Tensor], Any]] = {
    "convolution, volumes": lambda x: F.conv3d(x, fixed(2, 2, 2, 2, 2), fixed(2), padding=1),
    "max_pool3d_with_indices": lambda x: F.max_pool3d(x, 2, 1),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2, 1),
    "_adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 2),
}
SHAPED = [(MAPS, MAP), (VECTORS, (2, 4)), (LINES, (2, 4, 9)), (VOLUMES, (2, 2, 3, 3, 3))]
CASES = {name: (function, shape) for cases, shape in SHAPED for name, function in cases.items()}

# Recorded only as what they are made of, on another device, or under a name that another case stands for.
ELSEWHERE = {
    *(
        "avg_pool1d",
        "adaptive_avg_pool1d",
        "reshape",
        "flatten",
        "unflatten",
        "chunk",
        "contiguous",
        "positive",
        "dropout",
        "linear",
        "t",
        "alias",
    ),
    *("cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit_no_training", "adaptive_avg_pool2d"),
    *("unsafe_split", "unsafe_split_with_sizes", "lift_fresh_copy", "copy"),
}


COMMON = {"relu", "add", "view", "_unsafe_view", "mul", "slice"}  # which are in most of the models


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_record_is_what_autograd_says(name: str) -> None:
    """From single elements, from whole maps, and from boxes of every kind, wherever they are and however they stick out."""
    function, shape = CASES[name]
    twin = Above(lambda x: x) if name == "detach" else None  # no less explained for being detached
    frozen = assert_as_autograd(Above(function), pictures(*shape), twin)
    if "infinite" not in name:
        assert_boxes_go_down(frozen, lambda node: node.kind not in COMMON or node.kind in name)


@pytest.mark.parametrize("kind", [torch.maximum, torch.minimum])
def test_of_equal_values_the_first_is_taken(kind: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Autograd gives half to each, which is neither's route."""
    images = torch.ones(2, 4, dtype=DOUBLE)
    for first, second in ((2, 1), (1, 2)):
        frozen = freeze(Above(lambda x, a=first, b=second: kind(a * x + 2 - a, b * x + 2 - b)), images)  # type: ignore[misc]
        weight, bias = pulled(frozen, windows=True)
        assert_close(weight, first * torch.eye(4, dtype=DOUBLE).expand(2, 4, 4))
        assert_close(bias, torch.full((2, 4), 3.0 - first, dtype=DOUBLE))


# What works along the first dimension of what it is given, whatever that is.
ALONG: dict[str, Callable[[Tensor], Any]] = {
    "roll": lambda x: x.roll(3),
    "flip": lambda x: x.flip(0),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0).values,
    "max": lambda x: x.max(0, keepdim=True).values,
    "mean": lambda x: x.mean(0, keepdim=True),
    "sum of all": lambda x: x - x.sum(),
    "transpose": lambda x: x.transpose(0, 1),
    "select": lambda x: x[0],
    "slice": lambda x: x[:1],
    "index": lambda x: x[[0]],
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "index_add": lambda x: torch.zeros_like(x).index_add(0, torch.tensor([0]), x),
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, torch.zeros_like(x, dtype=torch.long), x),
    "unbind": lambda x: x.unbind(0)[0],
    "split": lambda x: x.split(1)[0],
    "split and cat": lambda x: torch.cat([2 * part for part in x.split(16)]),
    "stack": lambda x: torch.stack([x]),
    "repeat": lambda x: x.repeat(1, *(1,) * x.dim()),
    "unfold": lambda x: x.unfold(0, 1, 1),
    "broadcast": lambda x: x + x.mean(1),
    "reshape": lambda x: x.reshape(1, 1, -1),
    "squeeze": lambda x: x.squeeze(0).unsqueeze(0),
    "pooling": lambda x: F.max_pool1d(x.reshape(1, -1), 2),
}


ALONE = ((1, 1, 4, 4), (1, 6))


def runs_alone(function: Callable[[Tensor], Any], shape: tuple[int, ...]) -> bool:
    """Whether there is such a call for one image."""
    try:
        made = function(pictures(1, *shape[1:]))
    except (RuntimeError, IndexError):
        return False
    return made.dim() > 1 and len(made) == 1


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, shape) for name, (function, shape) in CASES.items() if name != "detach" and runs_alone(function, shape))]
    + [(f"along, {name}", shape) for name in ALONG for shape in ALONE if runs_alone(ALONG[name], shape)],
)
def test_one_image_is_explained_as_autograd_says_or_refused(name: str, shape: tuple[int, ...]) -> None:
    """An operation may take the dimension of the batch for another one, of which there is nothing to see in a batch of one."""
    function = ALONG[name.removeprefix("along, ")] if name.startswith("along") else CASES[name][0]
    images, model = pictures(1, *shape[1:]), Above(function)
    try:
        assert_as_autograd(model, images)
    except PathxError as refusal:
        known = name.startswith("along") or name == "index_put"  # of what is written, torch drops dimensions of size 1
        if not known or not re.search("along the batch|without the batch", str(refusal)):
            raise


OTHER = torch.tensor([1, 0])
MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "index, of places too": lambda x: x[OTHER, torch.tensor([2, 3])],
    "index, apart": lambda x: x[:, OTHER, :, OTHER],
    "cat": lambda x: torch.cat([x, x])[1:3],
    "roll, of all": lambda x: x.roll(1),
    "mean, of a stack": lambda x: torch.stack([x, x.flip(1)], 1).mean(0),
    "permute": lambda x: x[:, :2].permute(1, 0, 2, 3),
    "view": lambda x: x.view(4, 2, 7, 6).transpose(0, 1)[:, :2],
    "repeat": lambda x: x.repeat(2, 1, 1, 1)[1:3],
    "convolution": lambda x: F.conv1d(x[:, :2, 0].transpose(0, 1), fixed(2, 2, 3)),
}
# The batch leaves the front, and the images stay apart.
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "bmm": lambda x: torch.bmm(x[:, :, 0].transpose(0, 1), fixed(4, 6, 3)).transpose(0, 1),
    "view": lambda x: x.reshape(-1, 7, 6).cumsum(1).reshape(-1, 4, 7, 6),
    "one after the other": lambda x: x.reshape(-1).mul(2).reshape(-1, 4, 7, 6),
}


@pytest.mark.parametrize("name", MIXED)
def test_pictures_that_are_mixed_are_refused(name: str) -> None:
    with pytest.raises(PathxError, match=r"works along the batch|without the batch of 2 in front"):
        freeze(Above(MIXED[name]), fixed(*MAP))


@pytest.mark.parametrize("name", APART)
def test_pictures_that_stay_apart_are_explained_one_by_one_wherever_the_batch_is(name: str) -> None:
    frozen = assert_as_autograd(Above(APART[name]), pictures(*MAP))
    assert len(frozen.parts) == 2
    assert_boxes_go_down(frozen)


def centred(x: Tensor, dims: Any) -> Tensor:
    """What a norm makes of its input, with the scale held."""
    rest = x - x.mean(dims, keepdim=True)
    return rest / (rest.square().mean(dims, keepdim=True) + 0.1).sqrt().detach()


def by_root(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt().detach()


NORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    # by operation, with its detached twin
    "native_layer_norm": (
        lambda x: F.layer_norm(x, (6,), fixed(6), fixed(6, seed=1), 0.1),
        lambda x: centred(x, 3) * fixed(6) + fixed(6, seed=1),
    ),
    "native_layer_norm, of maps": (lambda x: F.layer_norm(x, (7, 6), eps=0.1), lambda x: centred(x, (2, 3))),
    "native_group_norm": (
        lambda x: F.group_norm(x, 2, fixed(4), fixed(4, seed=1), 0.1),
        lambda x: centred(x.unflatten(1, (2, 2)), (2, 3, 4)).flatten(1, 2) * fixed(4, 1, 1) + fixed(4, 1, 1, seed=1),
    ),
    "native_group_norm, of one group": (lambda x: F.group_norm(x, 1, eps=0.1), lambda x: centred(x, (1, 2, 3))),
    "rms norm": (lambda x: F.rms_norm(x, (6,), fixed(6), 0.1), lambda x: by_root(x) * fixed(6)),
    "rms norm, without a weight": (lambda x: F.rms_norm(x, (6,), eps=0.1), by_root),
}


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="torch has no fused RMS norm before 2.9")
@pytest.mark.parametrize("weighted", [True, False])
def test_a_norm_by_the_root_of_the_mean_square_that_is_one_operation(weighted: bool) -> None:
    """As a GPU has it."""
    x, weight = pictures(2, 3, 6), fixed(6) if weighted else None
    source, made, scale = (Value(number) for number in range(3))
    args = (source, [6], weight, 0.1)
    node = Node(0, torch.ops.aten._fused_rms_norm.default, args, {}, (made, scale), Scope())
    saved = {scale: (x.square().mean(2, keepdim=True) + 0.1).rsqrt()}
    call = Call(node, args, {}, {source: (3, 6), made: (3, 6), scale: (3, 1)}, saved, 2)
    rows, image = fixed(4, 3, 6, seed=2), torch.tensor([0, 1, 1, 0])
    ((value, below),) = last_norm(call, 0, Window.full(rows, torch.arange(4), image))
    inputs = x[image].requires_grad_()
    expected = torch.autograd.grad(by_root(inputs) * (1 if weight is None else weight), inputs, rows)[0]
    assert value == source
    assert_close(below.dense().data, expected)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_what_autograd_says_of_its_detached_twin(name: str) -> None:
    function, twin = NORMS[name]
    frozen = assert_as_autograd(Above(function), pictures(*MAP), Above(twin))
    kind = name.partition(",")[0]
    assert kind in {*(node.kind for node in frozen.network.nodes), "rms norm"}  # which is recorded as its parts here
    assert_boxes_go_down(frozen)


def test_every_record_is_tried() -> None:
    """A new operation needs its case here."""
    tried = set()
    for function, shape in CASES.values():
        network = freeze(Above(function), pictures(*shape)).network
        tried |= {node.kind for node in network.nodes if node.index in network.reading.linear}
    linear = {name for name, operation in OPERATIONS.items() if operation.transpose is not None}
    tried |= {name.partition(",")[0] for name in NORMS} | {"_fused_rms_norm"}
    assert linear - tried <= ELSEWHERE


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", [name for name in MAPS if name != "detach"])
def test_a_field_is_what_is_seen(name: str) -> None:
    """Nothing beside it, and nothing too much where every element of the field counts."""
    images = fixed(2, 1, 15, 7)
    nodes = freeze(Seen(MAPS[name]), images).network
    routed = len(nodes.gates) > 2 or any(record_of(node).saves not in (None, "output") for node in nodes.nodes)
    assert_field(MAPS[name], images, exact=not routed and name not in LOOSE)


# There is one field for all channels, and for all values that are put together. Elements that are found by numbers (an index,
# weights of an interpolation) see everything.
LOOSE = {
    *("addcmul", "where", "cat", "stack", "_adaptive_avg_pool2d", "cumsum"),
    *("unfold", "im2col", "col2im", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"),
    *("_upsample_bicubic2d_aa", "grid_sampler_2d", "slice_scatter", "select_scatter", "index_select", "index"),
    *("index_put", "gather", "scatter", "scatter_add", "index_add"),
}
