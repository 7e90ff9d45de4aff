"""Shapes and outputs that networks have, and the models that are refused, each with what was found and where."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning"),
]


class Model(nn.Module):
    """Any forward over named parts."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def cnn(channels: int = 3, outputs: int = 4) -> nn.Sequential:
    """Two hidden layers; maps of 6 channels before the last three modules."""
    return nn.Sequential(
        nn.Conv2d(channels, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, outputs),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


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


# --- Shapes -----------------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one channel": (lambda: cnn(1), (2, 1, 10, 10)),
    "four channels": (lambda: cnn(4), (2, 4, 10, 10)),
    "taller than wide": (cnn, (2, 3, 13, 8)),
    "wider than tall": (cnn, (3, 3, 8, 15)),
    "vectors": (lambda: nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)), (4, 7)),
    "one logit": (lambda: cnn(outputs=1), (2, 3, 10, 10)),
    "one logit without a dimension": (lambda: Model(lambda m, x: m.n(x).squeeze(1), n=cnn(outputs=1)), (2, 3, 10, 10)),
    "one logit, squeezed": (lambda: Model(lambda m, x: m.n(x).squeeze(), n=cnn(outputs=1)), (3, 3, 10, 10)),
    "logits as a map": (lambda: nn.Sequential(*cnn()[:6], nn.Conv2d(6, 4, 1)), (2, 3, 10, 10)),
    "sequences": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 5, 3, stride=2), nn.ReLU(),
            nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(10, 3),
        ),
        (2, 2, 20),
    ),
    "volumes": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 3, 3), nn.BatchNorm3d(3), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(3, 4, 2), nn.ReLU(),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
        (2, 1, 8, 9, 8),
    ),
    "a linear layer along rows": (
        lambda: nn.Sequential(
            nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
        ),
        (3, 4, 5),
    ),
    "view": (lambda: Model(lambda m, x: m.c(m.n(x).view(x.size(0), -1)), n=cnn()[:5], c=nn.Linear(54, 4)), (3, 3, 10, 10)),
    "view of a known size": (
        lambda: Model(lambda m, x: m.c(m.n(x).view(-1, 54)), n=cnn()[:5], c=nn.Linear(54, 4)), (3, 3, 10, 10),
    ),
    "flatten": (
        lambda: Model(lambda m, x: m.c(torch.flatten(m.n(x), 1)), n=cnn()[:5], c=nn.Linear(54, 4)), (3, 3, 10, 10),
    ),
    "squeezed maps": (lambda: Model(lambda m, x: m.c(m.n(x).squeeze()), n=cnn()[:6], c=nn.Linear(6, 4)), (2, 3, 9, 9)),
    "global maximum": (lambda: Model(lambda m, x: m.c(m.n(x).amax((2, 3))), n=cnn()[:5], c=nn.Linear(6, 4)), (2, 3, 9, 9)),
    "maximum along a dimension": (
        lambda: Model(lambda m, x: m.c(m.n(x).max(3)[0].min(2).values), n=cnn()[:5], c=nn.Linear(6, 4)), (2, 3, 9, 9),
    ),
    "stacked": (
        lambda: Model(lambda m, x: m.c(torch.stack([F.relu(m.a(x)), m.a(x), m.a.weight.mean(1).expand(len(x), -1)], 1).sum(1)),
                      a=nn.Linear(5, 4), c=nn.Linear(4, 3)),
        (3, 5),
    ),
    "channels last": (lambda: cnn().to(memory_format=torch.channels_last), (2, 3, 10, 10)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    make, shape = SHAPES[name]
    assert_unwraps(make(), *shape)


class Holding(Model):
    """A forward with a buffer `w`."""

    def __init__(self, forward: Callable[..., Any], *shape: int, **parts: nn.Module) -> None:
        super().__init__(forward, **parts)
        self.register_buffer("w", torch.randn(*shape))


def hidden(**parts: nn.Module) -> dict[str, nn.Module]:
    return {"a": nn.Linear(5, 4), "b": nn.Linear(4, 3), **parts}


def maps(**parts: nn.Module) -> dict[str, nn.Module]:
    return {"a": nn.Conv2d(3, 4, 3), "b": nn.Linear(4, 3), **parts}


NUMBERS = torch.tensor([[2, 0, 1, 1], [0, 0, 3, 2], [1, 2, 3, 0]])
HEADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gather with fixed numbers": (
        lambda: Model(lambda m, x: m.b(F.relu(m.a(x)).gather(1, NUMBERS)), **hidden()),
        (3, 5),
    ),
    "take_along_dim": (
        lambda: Model(lambda m, x: m.b(F.relu(m.a(x)).take_along_dim(NUMBERS[:1], 1)), **hidden()),
        (3, 5),
    ),
    "bmm": (
        lambda: Holding(lambda m, x: m.b(torch.bmm(F.relu(m.a(x))[:, None], m.w)[:, 0]), 3, 4, 4, **hidden()),
        (3, 5),
    ),
    "a matrix before": (
        lambda: Holding(lambda m, x: m.b((m.w @ F.relu(m.a(x))[..., None])[..., 0]), 4, 4, **hidden()),
        (3, 5),
    ),
    "a product along the width": (
        lambda: Holding(lambda m, x: m.b((F.relu(m.a(x)) @ m.w).mean((2, 3))), 5, 2, **maps()),
        (3, 3, 7, 7),
    ),
    "padding by name": (
        lambda: Holding(
            lambda m, x: m.b((F.pad(input=F.relu(m.a(x)), pad=(0, 0, 0, 0), mode="circular") @ m.w).mean((2, 3))),
            5,
            2,
            **maps(),
        ),
        (3, 3, 7, 7),
    ),
    "einsum, vectors": (
        lambda: Holding(lambda m, x: m.b(torch.einsum("bc,dc->bd", F.relu(m.a(x)), m.w)), 4, 4, **hidden()),
        (3, 5),
    ),
    "einsum, channels": (
        lambda: Holding(
            lambda m, x: m.b(torch.einsum("bchw,cd->bdhw", F.relu(m.a(x)), m.w).mean((2, 3))), 4, 4, **maps()
        ),
        (3, 3, 7, 7),
    ),
    "einsum, of a list": (
        lambda: Holding(
            lambda m, x: m.b(torch.einsum("bchw,cd->bdhw", [F.relu(m.a(x)), m.w]).mean((2, 3))), 4, 4, **maps()
        ),
        (3, 3, 7, 7),
    ),
    "einsum, places": (
        lambda: Holding(lambda m, x: m.b(torch.einsum("bchw,hw->bc", F.relu(m.a(x)), m.w)), 5, 5, **maps()),
        (3, 3, 7, 7),
    ),
    "a factor for each picture": (lambda: Holding(lambda m, x: m.b(F.relu(m.a(x))) * m.w, 3, 3, **hidden()), (3, 5)),
    "a filter of frequencies": (
        lambda: Holding(
            lambda m, x: m.b(F.relu(torch.fft.irfft(torch.fft.rfft(m.a(x)) * torch.view_as_complex(m.w), n=4))),
            3,
            2,
            **hidden(),
        ),
        (3, 5),
    ),
    "maxout": (
        lambda: Model(lambda m, x: m.b(torch.maximum(F.relu(m.a(x)), m.c(x))), **hidden(c=nn.Linear(5, 1))),
        (3, 5),
    ),
    "the top two": (lambda: Model(lambda m, x: m.b(F.relu(m.a(x)).topk(4, 1).values), **hidden()), (3, 5)),
    "unpooled": (
        lambda: Model(
            lambda m, x: m.b(
                F.relu(m.c(F.max_unpool2d(*F.max_pool2d(m.a(x), 2, return_indices=True), 2))).mean((2, 3))
            ),
            **maps(c=nn.Conv2d(4, 4, 3)),
        ),
        (3, 3, 8, 8),
    ),
    "sampled at fixed places": (
        lambda: Holding(
            lambda m, x: m.b(F.grid_sample(F.relu(m.a(x)), m.w.tanh(), align_corners=False).mean((2, 3))),
            3,
            4,
            4,
            2,
            **maps(),
        ),
        (3, 3, 7, 7),
    ),
    "circular padding": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), *cnn(4)),
        (2, 3, 9, 9),
    ),
    "a recurrent network of ReLUs": (
        lambda: Model(
            lambda m, x: m.b(m.r(x)[0][:, -1]),
            r=nn.RNN(5, 4, 2, nonlinearity="relu", batch_first=True, bidirectional=True),
            b=nn.Linear(8, 3),
        ),
        (3, 4, 5),
    ),
    "the last state of one": (
        lambda: Model(
            lambda m, x: m.b(m.r(x)[1][-1]),
            r=nn.RNN(5, 4, nonlinearity="relu", bias=False, batch_first=True),
            b=nn.Linear(4, 3),
        ),
        (3, 4, 5),
    ),
    "an ensemble": (
        lambda: Model(lambda m, x: torch.stack([m.m(x), m.n(x)]).mean(0), m=cnn(), n=cnn()),
        (3, 3, 10, 10),
    ),
    "the largest of an ensemble": (
        lambda: Model(lambda m, x: torch.stack([m.m(x), m.n(x)]).max(0)[0], m=cnn(), n=cnn()),
        (2, 3, 9, 9),
    ),
    "instance norm with statistics of its own": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), *cnn(4)),
        (3, 3, 12, 12),
    ),
    "a transposed convolution with much padding": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, dilation=2, output_padding=1), *cnn(4)),
        (2, 3, 9, 9),
    ),
    "padded with infinity": (
        lambda: Model(
            lambda m, x: m.n(F.max_pool2d(F.pad(m.a(x), (0, 1, 0, 1), value=-torch.inf), 3, 2)),
            a=nn.Conv2d(3, 4, 3),
            n=cnn(4),
        ),
        (2, 3, 19, 19),
    ),
    "masked with infinity": (
        lambda: Model(
            lambda m, x: m.b(F.relu(m.a(x)).masked_fill(torch.eye(5) > 0, -torch.inf).amax((2, 3))), **maps()
        ),
        (3, 3, 7, 7),
    ),
    "the sign of what is taken away": (
        lambda: Holding(lambda m, x: m.b(F.relu(m.a(x) - m.w) - m.w), 4, **hidden()),
        (3, 5),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_what_real_heads_do(name: str) -> None:
    make, shape = HEADS[name]
    assert_unwraps(make(), *shape)


MADE_FOR_THREE = {"gather with fixed numbers", "bmm", "a factor for each picture", "sampled at fixed places"}
ALONE: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "gather": lambda m, x: m.b(F.relu(m.a(x)).gather(1, torch.tensor([[3, 0, 0, 1]]))),
    "take_along_dim": lambda m, x: m.b(torch.take_along_dim(F.relu(m.a(x)), torch.tensor([[3, 0, 0, 1]]), 1)),
    "index_add": lambda m, x: m.b(x.new_zeros(1, 4).index_add(1, torch.tensor([2, 2, 0, 1]), F.relu(m.a(x)))),
    "scatter_add": lambda m, x: m.b(x.new_zeros(1, 4).scatter_add(1, torch.tensor([[2, 2, 0, 1]]), F.relu(m.a(x)))),
    "bmm": lambda m, x: m.b(torch.bmm(F.relu(m.a(x))[:, None], torch.eye(4, dtype=x.dtype)[None] + 1)[:, 0]),
    "a factor": lambda m, x: m.b(F.relu(m.a(x)) * torch.tensor([[1.0, 2.0, 3.0, 4.0]])),
}


@pytest.mark.parametrize("name", [*ALONE, *(name for name in HEADS if name not in MADE_FOR_THREE)])
def test_one_image_by_itself(name: str) -> None:
    """A dimension of size 1 may then be the batch or not, and fixed tensors may be that image's own."""
    if name in ALONE:
        assert_unwraps(Model(ALONE[name], **hidden()), 1, 5)
        return
    make, shape = HEADS[name]
    assert_unwraps(make(), 1, *shape[1:])


def test_what_is_rounded_is_constant() -> None:
    """Integers do not change around a picture: what is made of them alone is nothing to explain, a mask is one."""
    images = torch.rand(2, 5)
    for rounded in (
        lambda x: (x * 255).to(torch.uint8).float(),
        lambda x: (x * 9).long().double().float(),
        lambda x: (x * 9).round(),
        lambda x: torch.div(x, 0.1, rounding_mode="floor"),
    ):
        model = mlp(lambda m, x, rounded=rounded: m.b(F.relu(m.a(rounded(x)))))
        with pytest.raises(PathxError, match=r"rounds|integers"):
            pathx.explain(model, images)
    mixed = Model(lambda m, x: m.b(F.relu(m.a(x)) * (m.a(x) * 9).int()), **hidden()).double()
    x = images.double().requires_grad_()
    (gradient,) = torch.autograd.grad(mixed(x)[:, 1].sum(), x)
    found = pathx.explain(mixed, x, target=1, depth="all", width="all", alpha=0.0)
    assert_close(torch.stack([one.weight for one in found]), gradient)


def written(x: Tensor, value: Any) -> Tensor:
    x = x.clone()
    x[:, 1:3] = value
    return x


def normalised(x: Tensor) -> Tensor:
    x[:, :1] = (x[:, :1] - 0.5) / 0.2
    x[:, 1:] *= 2
    return x


def relu_of_a_part(x: Tensor) -> Tensor:
    first, _ = x.chunk(2, 1)
    first.relu_()
    return x + 1


def assembled(x: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    result[:, :2] = F.relu(x[:, :2])
    result[:, 2:] = x[:, 2:]
    return result


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: written(x, 0.5),
    "another value": lambda x: written(x, F.relu(x[:, :2])),
    "every other element": lambda x: (x.__setitem__((slice(None), slice(0, None, 2)), 3 * x[:, ::2]), x)[1],
    "normalised": normalised,
    "a ReLU in place on a part": relu_of_a_part,
    "put together": assembled,
    "changed under another name": lambda x: (y := x.view(len(x), -1), x.relu_(), y)[0],
}


@pytest.mark.parametrize("name", PARTS)
def test_writes_into_parts(name: str) -> None:
    """In-place work on parts of a tensor is what it computes. (Autograd forbids some of it, so slopes are measured.)"""
    model = Model(lambda m, x: m.b(F.relu(PARTS[name](m.a(x)))), a=nn.Linear(5, 4), b=nn.Linear(4, 3)).double()
    images = torch.randn(4, 5, dtype=torch.float64)
    steps = 1e-6 * torch.eye(5, dtype=torch.float64)
    with torch.no_grad():
        slopes = [(model(images + step)[:, 2] - model(images - step)[:, 2]) / 2e-6 for step in steps]
    found = pathx.explain(model, images, target=2, depth="all", width="all", alpha=0.0, skips="all")
    assert_close(torch.stack([one.weight for one in found]), torch.stack(slopes, 1), rtol=1e-7, atol=1e-7)
    for one in found:
        assert one.attribution.sum().item() + one.bias == pytest.approx(one.score, rel=1e-10, abs=1e-12)


# --- Outputs ----------------------------------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda y: y.softmax(1),
    "log_softmax": lambda y: F.log_softmax(y, -1),
    "log of softmax": lambda y: y.softmax(1).log(),
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "dropout and softmax": lambda y: F.dropout(y, training=False).softmax(1),
    "softmax in another shape": lambda y: y.softmax(1).view(len(y), -1, 1),
    "softmax in another type": lambda y: y.softmax(1).float(),
}


@pytest.mark.parametrize(("name", "outputs"), [*((name, 4) for name in ENDINGS), ("sigmoid", 1), ("logsigmoid", 1)])
def test_endings_are_stripped(name: str, outputs: int) -> None:
    network, images = cnn(outputs=outputs).double(), torch.randn(2, 3, 10, 10, dtype=torch.float64)
    ended = Model(lambda m, x: ENDINGS[name](m.n(x)), n=network)
    for found, expected in zip(
        pathx.explain(ended, images, depth=2), pathx.explain(network, images, depth=2), strict=True
    ):
        assert_close(found.logits, expected.logits)
        assert_close(found.weight, expected.weight)
        assert found.hidden_layers == 2


def test_sigmoid_and_then_squeeze() -> None:
    network, images = cnn(outputs=1), torch.randn(2, 3, 10, 10)
    ended = Model(lambda m, x: torch.sigmoid(m.n(x)).squeeze(1), n=network)
    assert_close(pathx.explain(ended, images, depth=1)[0].weight, pathx.explain(network, images, depth=1)[0].weight)


Named = namedtuple("Named", "logits features")


@dataclass
class Output:
    features: Tensor
    logits: Tensor


def both(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    features = m.n[:-1](x)
    return features, m.n[-1](features)


OUTPUTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a tuple of one": lambda m, x: (m.n(x),),
    "a list with maps": lambda m, x: [x, m.n(x), None],
    "logits and loss": lambda m, x: {"loss": m.n(x).sum(), "scores": m.n(x)},
    "logits and probabilities": lambda m, x: (y := m.n(x), {"probabilities": y.softmax(1), "scores": y})[1],
    "features, then logits made of them": both,
    "named logits": lambda m, x: Named(m.n(x), m.n[:-1](x)),
    "a dict with logits": lambda m, x: OrderedDict(features=m.n[:-1](x), logits=m.n(x)),
    "a dict with out": lambda m, x: {"aux": m.n(x), "out": m.n(x)},
    "a dataclass": lambda m, x: Output(m.n[:-1](x), m.n(x)),
    "nested": lambda m, x: {"heads": [{"only": m.n(x)}]},
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_logits_are_found(name: str) -> None:
    network, images = cnn(), torch.randn(2, 3, 10, 10)
    found = pathx.explain(Model(OUTPUTS[name], n=network), images, depth=1)
    for one, expected in zip(found, pathx.explain(network, images, depth=1), strict=True):
        assert_close(one.logits, expected.logits)
        assert_close(one.weight, expected.weight)


NO_LOGITS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "two heads": (lambda m, x: {"age": m.n(x), "sex": m.n(x)}, "several outputs that could be logits (age of shape (2, 4), sex"),
    "a map": (lambda m, x: m.n[:2](x), "the model returns output of shape (2, 5, 10, 10), not one row of class logits"),
    "one number": (lambda m, x: m.n(x).sum(), "the model returns output of shape (), not one row"),
    "nothing": (lambda m, x: None, "the model returns output NoneType, not one row"),
    "a class": (lambda m, x: m.n(x).argmax(1), "the model returns output of shape (2,), not one row"),
    "one row for all": (lambda m, x: m.n(x[:1]).squeeze(), "the model returns output of shape (4,), not one row"),
    "batch in the softmax": (lambda m, x: m.n(x).softmax(0), "softmax in the model itself is taken over the batch"),
    "no input": (lambda m, x: m.n(torch.ones_like(x)), "does not depend on its input"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LOGITS)
def test_outputs_that_are_no_logits(name: str) -> None:
    function, message = NO_LOGITS[name]
    refuses(Model(function, n=cnn()), torch.randn(2, 3, 10, 10), message)


# --- Refusals ---------------------------------------------------------------------------------------------------------


def refuses(model: Any, images: Any, *parts: str) -> None:
    with pytest.raises(PathxError) as caught:
        pathx.explain(model, images)
    message = str(caught.value)
    assert caught.value.usage
    assert "\n" not in message
    for part in parts:
        assert part in message


def mlp(function: Callable[[Any, Tensor], Any], **parts: nn.Module) -> nn.Module:
    return Model(function, a=nn.Linear(5, 6), b=nn.Linear(6, 3), **parts).eval()


DECIDES = "the model decides by the values of its input"
NOT_LINEAR = "is not linear for a given input, so the network has no exact path"
REFUSALS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "an if": (lambda m, x: m.b(F.relu(m.a(x if x.sum() > 0 else -x))), DECIDES),
    "an item": (lambda m, x: m.b(F.relu(m.a(x))) * x.max().item(), DECIDES),
    "a list": (lambda m, x: m.b(F.relu(m.a(x))) * x.tolist()[0][0], DECIDES),
    "numpy": (lambda m, x: m.b(F.relu(m.a(x))) * float(x.numpy()[0, 0]), DECIDES),
    "an if below": (lambda m, x: m.b(F.relu(m.a(x))) if (m.a(x) > 0).any() else m.b(m.a(x)), f"{DECIDES} (.item() or `if`"),
    "elements by value": (lambda m, x: m.b(F.relu(m.a(x)))[x[:, 0] > -9], "picks elements by what it computed (index"),
    "nonzero": (lambda m, x: m.b(F.relu(m.a(x)))[x[:, 0].nonzero()[:, 0]], "nonzero in the model itself"),
    "a product": (lambda m, x: m.b(F.relu(m.a(x)) * m.a(x)), "multiplies or divides by what it computed from the image: mul"),
    "a quotient": (lambda m, x: m.b(F.relu(m.a(x)) / (m.a(x).abs() + 1)), "div in the model itself divides by what it computed"),
    "a number divided": (lambda m, x: m.b(F.relu(torch.div(torch.tensor(3.0), m.a(x)))), "div in the model itself divides"),
    "a square": (lambda m, x: m.b(F.relu(m.a(x)) ** 2), f"pow in the model itself {NOT_LINEAR}"),
    "a matrix product": (lambda m, x: (F.relu(m.a(x))[:, :, None] @ m.a(x)[:, None]).mean(1), "bmm in the model itself"),
    "a gate": (lambda m, x: m.b(F.relu(m.a(x)) * torch.sigmoid(m.a(x))), f"sigmoid in the model itself {NOT_LINEAR}"),
    "gelu": (lambda m, x: m.b(F.gelu(m.a(x))), f"gelu in the model itself {NOT_LINEAR}"),
    "a softmax inside": (lambda m, x: m.b(F.relu(m.a(x)).softmax(1)), f"softmax in the model itself {NOT_LINEAR}"),
    "no ReLU": (lambda m, x: m.b(m.a(x)), "the model has no ReLU between its input and its output"),
    "noise": (lambda m, x: m.b(F.relu(m.a(x)) + torch.randn(6)), "the model draws random numbers (randn in the model itself)"),
    "dropout that stays": (lambda m, x: m.b(F.dropout(F.relu(m.a(x)))), "the model draws random numbers (bernoulli in"),
    "random slopes": (lambda m, x: m.b(F.rrelu(m.a(x), training=True)), "the model draws random numbers (rand in"),
    "the batch's mean": (lambda m, x: m.b(F.relu(m.a(x) - m.a(x).mean(0))), "mean in the model itself works along the batch"),
    "all elements in turn": (lambda m, x: m.b(F.relu(m.a(x).roll(7))), "roll in the model itself works along the batch"),
    "the first picture": (lambda m, x: m.b(F.relu(m.a(x) + m.a(x)[0])), "select in the model itself works along the batch"),
    "other pictures after it": (
        lambda m, x: m.b(F.relu(m.a(torch.cat([x, -x])))).view(2, 2, 3).mean(0), "run the network once for each and average",
    ),
    "stacked before the batch": (lambda m, x: torch.stack([m.b(F.relu(m.a(x)))]).flatten(0, 1), "stack along dim 1"),
    "an operation without a rule": (
        lambda m, x: m.b(F.relu(torch.nn.functional.local_response_norm(m.a(x)[:, None], 2)[:, 0])), " in the model itself",
    ),
    "a trapezium": (lambda m, x: m.b(F.relu(m.a(x).logcumsumexp(1))), f"logcumsumexp in the model itself {NOT_LINEAR}"),
    "no rule": (lambda m, x: m.b(F.relu(torch.renorm(m.a(x), 2, 0, 5))), "renorm"),
    "another picture": (lambda m, x: m.b(F.relu(m.a(x).flip(0))), "flip in the model itself works along the batch"),
    "pictures in one": (lambda m, x: m.b(F.relu(m.a(x)).reshape(1, -1).reshape(2, 6)), "without the batch of 2 in front"),
    "fake quantisation": (
        lambda m, x: m.b(F.relu(torch.fake_quantize_per_tensor_affine(m.a(x), 0.1, 0, -128, 127))),
        "fake_quantize_per_tensor_affine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_no_gates_make_linear(name: str) -> None:
    function, message = REFUSALS[name]
    refuses(
        mlp(function, c=nn.Linear(5, 6)),
        torch.randn(2, 5),
        message.replace("computed (", "computed from the image ("),
    )


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_way_out_for_views_in_one_batch_is_true(batch: int) -> None:
    """Several views of an image in one batch are refused, one image or many; run one by one they are not."""
    parts, x = {"net": cnn()}, torch.randn(batch, 3, 10, 10)
    joined = Model(lambda m, x: m.net(torch.cat([x, x.flip(3)])).view(2, -1, 4).mean(0), **parts).eval()
    apart = Model(lambda m, x: torch.stack([m.net(x), m.net(x.flip(3))]).mean(0), **parts).eval()
    with pytest.raises(PathxError, match=r"; run the network once for each and average what comes out$"):
        pathx.explain(joined, x, depth=1)
    found = pathx.explain(apart, x, depth=1)
    assert_close(torch.stack([one.logits for one in found]), joined(x))


LAST = lambda m, x: m.head(F.relu(m.cell(x)[0][:, -1]))  # noqa: E731
SEQUENCES: dict[str, tuple[nn.Module, str]] = {
    "LSTM": (nn.LSTM(4, 5, batch_first=True), "in cell "),
    "GRU": (nn.GRU(4, 5, batch_first=True), "tanh in cell "),
    "two ways": (nn.GRU(4, 5, 2, batch_first=True, bidirectional=True), "tanh in cell "),
    "RNN": (nn.RNN(4, 5, batch_first=True), "tanh in cell "),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_recurrent_cells(name: str) -> None:
    cell, message = SEQUENCES[name]
    head = nn.Linear(10 if name == "two ways" else 5, 3)
    refuses(Model(LAST, cell=cell, head=head), torch.randn(2, 6, 4), message, NOT_LINEAR)


def test_attention() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    model = Model(lambda m, x: m.head(F.relu(m.attention(x, x, x)[0][:, 0])), attention=attention, head=nn.Linear(4, 3))
    for training in (False, True):
        refuses(model.train(training), torch.randn(2, 6, 4), " in attention ", NOT_LINEAR)
    model = Model(lambda m, x: m.head(F.relu(F.scaled_dot_product_attention(x, x, x)[:, 0])), head=nn.Linear(4, 3))
    refuses(model, torch.randn(2, 6, 4), " in the model itself ", NOT_LINEAR)


def test_normalisation_by_the_input_itself() -> None:
    for layer in (nn.LayerNorm([4, 8, 8]), nn.GroupNorm(2, 4)):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
        refuses(model, torch.randn(2, 3, 10, 10), "norm in 1 ", NOT_LINEAR)
    for layer in (nn.BatchNorm2d(4, track_running_stats=False), nn.InstanceNorm2d(4)):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)).eval()
        refuses(model, torch.randn(2, 3, 10, 10), "in 1 normalises by its batch's own statistics")


def test_quantised_weights() -> None:
    plain = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    refuses(
        torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}),
        torch.randn(2, 5),
        "pathx has no rule for linear_dynamic in 0: ",
    )
    model = mlp(lambda m, x: m.b(F.relu(m.a(x))) + m.extra.dequantize())
    model.register_buffer("extra", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    refuses(model, torch.randn(2, 5), "extra of the model is quantised")


def test_complex_weights() -> None:
    model = mlp(lambda m, x: m.b(F.relu(m.a(x))))
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))  # type: ignore[assignment]
    refuses(model, torch.randn(2, 5), "phase of the model is complex")


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.b(F.relu(self.a(x + y)))
        return result


def test_two_inputs() -> None:
    example = (torch.ones(2, 5), torch.ones(2, 5))
    forms = [TwoInputs(), torch.jit.script(TwoInputs()), torch.export.export(TwoInputs(), example).module()]
    for model in forms:
        refuses(model, torch.randn(2, 5), "'y'", "wrap it so that its forward takes the image alone")


def test_inputs_that_are_no_pictures() -> None:
    words = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 2))
    refuses(
        words, torch.randint(0, 10, (2, 5)), "images must be a dense tensor of real numbers, not int64", "embedding"
    )
    refuses(words, torch.rand(2, 5), "the model cannot run on an input of shape (2, 5): ")
    plain = mlp(lambda m, x: m.b(F.relu(m.a(x))))
    refuses(plain, torch.ones(2, 5, dtype=torch.complex64), "not complex64")
    refuses(plain, torch.ones(2, 5).to_sparse(), "not sparse")
    for images in (torch.ones(5), torch.ones(0, 5), [[1.0] * 5], None):
        refuses(plain, images, "images must be a tensor with the images along its first dimension, (B, …)")
    refuses(plain, torch.ones(2, 7), "the model cannot run on an input of shape (2, 7): ", "check the size and number")


def test_models_that_are_none() -> None:
    images = torch.ones(2, 5)
    refuses(lambda x: x, images, "the model must be a torch.nn.Module, not function")
    refuses(nn.Linear, images, "the model must be a torch.nn.Module, not the class Linear itself")
    refuses(
        nn.Sequential(nn.LazyLinear(4), nn.ReLU()), images, "0.weight of the model has no shape yet; run the model once"
    )
    refuses(nn.Linear(5, 3).to("meta"), images, "weight of the model holds no numbers")


# What a model is for


def test_a_detector_is_called_a_detector() -> None:
    from pathx.models.torchvision import torchvision

    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    with pytest.raises(PathxError, match=r"the model is a detector \(SSD\): it finds boxes"):
        pathx.explain(model, torch.rand(1, 3, 64, 64))


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "densenet121", "mobilenet_v2", "googlenet"])
def test_a_backbone_is_not_explained_as_if_its_features_were_classes(name: str) -> None:
    from pathx.models.torchvision import torchvision

    extra = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, **extra).eval()
    setattr(model, "fc" if hasattr(model, "fc") else "classifier", nn.Identity())
    with pytest.raises(PathxError, match=r"the model ends in the features of .*; give it with its head"):
        pathx.explain(model, torch.rand(1, 3, 64, 64), depth=1)


def test_one_map_per_class_is_a_head() -> None:
    from pathx.models.torchvision import torchvision

    model = torchvision.models.squeezenet1_1(weights=None).eval()
    (found,) = pathx.explain(model, torch.rand(1, 3, 64, 64), depth=1)
    assert len(found.logits) == 1000


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [63, 64])
def test_a_matrix_before_the_last_relu_is_a_head_and_a_convolution_with_places_is_none(
    outputs: int, bias: bool
) -> None:
    convolved = nn.Sequential(nn.Conv2d(3, outputs, 3, bias=bias), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    ends_in_a_matrix = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs, bias), nn.ReLU()
    )
    images = torch.rand(1, 3, 6, 6)
    assert len(pathx.explain(ends_in_a_matrix.eval(), images, depth=1)[0].logits) == outputs
    if outputs < 64:  # so few may be classes
        assert len(pathx.explain(convolved.eval(), images, depth=1)[0].logits) == outputs
    else:
        with pytest.raises(PathxError, match=r"the model ends in the features of 1, not in class logits"):
            pathx.explain(convolved.eval(), images, depth=1)


def test_programs_and_frozen_modules() -> None:
    """Exported programs as they come; frozen TorchScript; what was made for one processor says so."""
    model, images = cnn().eval(), torch.rand(2, 3, 10, 10)
    with torch.no_grad():
        expected = model(images)
    program = torch.export.export(model, (images,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(model)
        frozen, fast = torch.jit.freeze(script), torch.jit.optimize_for_inference(torch.jit.script(model))
    for form in (program, program, frozen, frozen):
        found = pathx.explain(form, images, depth=1)
        assert_close(torch.stack([one.logits for one in found]), expected)
    with pytest.raises(PathxError, match="give the module it was made from"):
        pathx.explain(fast, images, depth=1)
