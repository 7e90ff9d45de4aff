"""Shapes, heads and outputs that networks have."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.modules import Model, assert_gradient, assert_unwraps, cnn, mlp
from support.pulled import pictures
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze, network_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


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
    "squeezed maps": (lambda: Model(lambda m, x: m.c(m.n(x).squeeze()), n=cnn()[:6], c=nn.Linear(6, 4)), (2, 3, 9, 9)),
    "channels last": (lambda: cnn().to(memory_format=torch.channels_last), (2, 3, 10, 10)),
}  # fmt: skip


class Holding(Model):
    """A forward with a buffer `w`."""

    def __init__(self, forward: Callable[..., Any], *shape: int, **parts: nn.Module) -> None:
        super().__init__(forward, **parts)
        self.register_buffer("w", torch.randn(*shape))


def hidden(**parts: nn.Module) -> dict[str, nn.Module]:
    return {"a": nn.Linear(5, 4), "b": nn.Linear(4, 3), **parts}


def maps(**parts: nn.Module) -> dict[str, nn.Module]:
    return {"a": nn.Conv2d(3, 4, 3), "b": nn.Linear(4, 3), **parts}


HEADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "padding by name": (
        lambda: Holding(
            lambda m, x: m.b((F.pad(input=F.relu(m.a(x)), pad=(0, 0, 0, 0), mode="circular") @ m.w).mean((2, 3))),
            5,
            2,
            **maps(),
        ),
        (3, 3, 7, 7),
    ),
    "einsum, of a list": (
        lambda: Holding(
            lambda m, x: m.b(torch.einsum("bchw,cd->bdhw", [F.relu(m.a(x)), m.w]).mean((2, 3))), 4, 4, **maps()
        ),
        (3, 3, 7, 7),
    ),
    "a factor for each picture": (lambda: Holding(lambda m, x: m.b(F.relu(m.a(x))) * m.w, 3, 3, **hidden()), (3, 5)),
    "an ensemble": (
        lambda: Model(lambda m, x: torch.stack([m.m(x), m.n(x)]).mean(0), m=cnn(), n=cnn()),
        (3, 3, 10, 10),
    ),
    "the classes times the pictures": (
        lambda: Holding(lambda m, x: (m.w @ m.b(F.relu(m.a(x))).t()).t(), 4, 3, **hidden()),
        (3, 5),
    ),
    "the sign of what is taken away": (
        lambda: Holding(lambda m, x: m.b(F.relu(m.a(x) - m.w) - m.w), 4, **hidden()),
        (3, 5),
    ),
}


@pytest.mark.parametrize("name", [*SHAPES, *HEADS])
def test_shapes_and_heads_that_networks_have(name: str) -> None:
    make, shape = {**SHAPES, **HEADS}[name]
    assert_unwraps(make(), *shape)


@pytest.mark.parametrize(
    "name", [*(name for name in HEADS if name != "a factor for each picture"), "one logit, squeezed", "squeezed maps"]
)
def test_one_image_by_itself(name: str) -> None:
    """A dimension of size 1 may then be the batch or not, `squeeze` drops it, and fixed tensors may be that image's own."""
    make, shape = {**SHAPES, **HEADS}[name]
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
    assert_gradient(mixed, images.double())


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
    "one of two that were the same": lambda x: (a := x * 2, b := x * 2, a.mul_(3), a + b)[3],
    "a part of what is read": lambda x: (y := x * 1, y[:, :2].mul_(3), y + 1)[2],
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


def test_a_weight_that_is_copied_and_written_into_is_what_it_is_then() -> None:
    """As Swin V2 has it, whose keys have no bias; the model's own stays as it was."""

    def forward(m: Any, x: Tensor) -> Any:
        bias = m.a.bias.clone()
        bias[1:3].zero_()
        return m.b(F.relu(F.linear(x, m.a.weight, bias)))

    model = Model(forward, a=nn.Linear(5, 4), b=nn.Linear(4, 3)).double()
    before = model.a.bias.clone()  # type: ignore[union-attr, operator]
    assert_gradient(model, torch.randn(2, 5, dtype=torch.float64), target=2)
    assert torch.equal(model.a.bias, before)  # type: ignore[union-attr, arg-type]


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
    "sigmoid, copied": lambda y: y.sigmoid().clone(),
    "exp of log_softmax": lambda y: y.log_softmax(1).exp(),
    "sigmoid, squeezed": lambda y: y.sigmoid().squeeze(1),
}


@pytest.mark.parametrize(
    ("name", "outputs"),
    [*((name, 4) for name in ENDINGS if "squeezed" not in name), *((name, 1) for name in ENDINGS if "sigmoid" in name)],
)
def test_endings_are_stripped(name: str, outputs: int) -> None:
    network, images = cnn(outputs=outputs).double(), torch.randn(2, 3, 10, 10, dtype=torch.float64)
    ended = Model(lambda m, x: ENDINGS[name](m.n(x)), n=network)
    for found, expected in zip(
        pathx.explain(ended, images, depth=2), pathx.explain(network, images, depth=2), strict=True
    ):
        assert_close(found.logits, expected.logits)
        assert_close(found.weight, expected.weight)
        assert found.hidden_layers == 2


@pytest.mark.parametrize(
    ("end", "outputs"),
    [(torch.sigmoid, 1), (torch.sigmoid, 4), (lambda y: y.softmax(-1), 4), (lambda y: F.log_softmax(y, 0), 4)],
)
def test_endings_are_stripped_of_one_image_whose_batch_is_squeezed_away(
    end: Callable[[Tensor], Tensor], outputs: int
) -> None:
    network, image = cnn(outputs=outputs).double(), torch.randn(1, 3, 10, 10, dtype=torch.float64)
    ended = Model(lambda m, x: end(m.n(x).squeeze()), n=network)
    ((found,), (expected,)) = (pathx.explain(model, image, depth=2, removal=True) for model in (ended, network))
    assert_close(found.logits, expected.logits)
    assert_close(found.weight, expected.weight)
    assert found.removal == expected.removal


@pytest.mark.filterwarnings("ignore")
def test_every_relu_has_a_name() -> None:
    """Also where the modules that it was in are gone, and where it is the whole model."""
    frozen = torch.jit.freeze(torch.jit.script(cnn().eval()))  # type: ignore[no-untyped-call]
    for model, images in ((frozen, torch.randn(2, 3, 10, 10)), (nn.ReLU(), torch.randn(2, 5))):
        names = [gate.name for layer in network_of(model, images).layers for gate in layer]
        assert names == ["relu", "relu_1"][: len(names)]


def named(outputs: Callable[[Tensor, Tensor], object]) -> Model:
    def forward(m: nn.Module, x: Tensor) -> object:
        features = F.relu(m.body(x))  # type: ignore[operator]
        return outputs(features, m.head(features))  # type: ignore[operator]

    return Model(forward, body=nn.Linear(12, 5), head=nn.Linear(5, 3)).double()


Named = namedtuple("Named", "features logits")


@dataclass
class Output:
    features: Tensor
    logits: Tensor


# What a model returns beside its logits (B, 3), made of features (B, 5).
RETURNED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "by the name of logits": lambda f, y: {"logits": y, "out": 2 * y, "output": 3 * y},
    "by the name of out": lambda f, y: {"more": 2 * y, "output": 3 * y, "out": y},
    "by the name of output": lambda f, y: {"more": 2 * y, "output": y},
    "a named tuple": lambda f, y: Named(2 * f, y),
    "a dataclass": lambda f, y: Output(2 * f, y),
    "with nothing": lambda f, y: [None, y],
    "what was made last": lambda f, y: [f, y],
    "what was made last, first": lambda f, y: [y, f],
    "with whole numbers": lambda f, y: {"class": y.argmax(1), "scores": y},
    "with maps": lambda f, y: {"maps": f[:, :, None].expand(-1, -1, 2), "scores": y},
    "with what has another batch": lambda f, y: {"rows": f.t(), "scores": y},
    "with one number": lambda f, y: {"loss": f.sum(), "scores": y},
    "with one number per image as logits": lambda f, y: {"loss": f.sum(), "logits": y},
    "twice the same": lambda f, y: [y, y],
    "and its softmax": lambda f, y: [y.softmax(1), y],
    "deep": lambda f, y: {"a": [{"b": (f, y)}]},
    "dimensions of one": lambda f, y: y[:, None, :, None],
}


@pytest.mark.parametrize("name", RETURNED)
def test_the_logits_are_found_among_other_things(name: str) -> None:
    model, images = named(RETURNED[name]), pictures(2, 12)
    with torch.no_grad():
        expected = model.head(F.relu(model.body(images)))
        assert torch.equal(freeze(model, images).logits, expected)


class _LinearSkips(nn.Module):
    """Blocks x + scale * (pool(x) - x) without a gate, as PoolFormer has them: each would multiply a row's windows by three."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.pool, self.scale = nn.AvgPool2d(3, 1, 1), nn.Parameter(torch.rand(blocks, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for scale in self.scale:
            x = x + scale * (self.pool(x) - x)
        result: Tensor = self.head(self.last(x).relu().mean((2, 3)))
        return result


def test_windows_do_not_multiply_in_linear_skips() -> None:
    model, images = _LinearSkips(12).double().eval(), torch.randn(1, 3, 12, 12, dtype=torch.float64)
    assert_gradient(model, images)


# Class layers: each of their units sends to one class alone, so that they belong to the output


CLASS_HEADS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "the mean of a map per class": (lambda y: y.mean((2, 3)), True),
    "the largest of a map per class": (lambda y: y.amax((2, 3)), True),
    "adaptive pooling": (lambda y: nn.functional.adaptive_avg_pool2d(y, 1).flatten(1), True),
    "pooling, shape and scale": (lambda y: nn.functional.avg_pool2d(y, 6).squeeze(3).squeeze(2) * 2.0 + 1.0, True),
    "a product": (lambda y: y.mean((2, 3)) @ torch.ones(4, 4), False),
    "pools that overlap": (lambda y: nn.functional.avg_pool2d(y[:, :1], 4, 1).flatten(1), False),
    "a sum of two maps": (lambda y: (y + y.flip(1)).mean((2, 3)), False),
}


class Net(nn.Module):
    def __init__(self, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.maps, self.head = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.maps(self.first(x).relu()).relu())


@pytest.mark.parametrize("name", CLASS_HEADS)
def test_which_layers_are_class_layers(name: str) -> None:
    head, is_class_layer = CLASS_HEADS[name]
    torch.manual_seed(0)
    network = network_of(Net(head).eval(), torch.randn(2, 2, 6, 6))
    assert network.depth == (1 if is_class_layer else 2)


def test_a_class_layer_counts_where_it_is_the_only_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    assert network_of(model, torch.randn(1, 2, 6, 6)).depth == 1
