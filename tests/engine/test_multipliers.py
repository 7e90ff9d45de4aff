"""Frozen multipliers: the frozen network is the gradient of the model with every multiplier detached, and nothing else changes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from support.cases import assert_same
from support.modules import Function
from support.twins import frozen_weight
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze, network_of
from pathx.engine.search import Strategy

Part = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """A small network of maps with one part of interest, and an activation before and after it."""

    def __init__(self, part: Part, before: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.part, self.before = part, before
        self.stem, self.conv, self.more = (
            nn.Conv2d(2, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 12, 1),
        )
        self.squeeze, self.excite = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        self.layer_norm, self.group_norm = nn.LayerNorm(6), nn.GroupNorm(2, 6)
        self.qkv, self.out, self.attention = (
            nn.Linear(6, 18),
            nn.Linear(6, 6),
            nn.MultiheadAttention(6, 2, batch_first=True),
        )
        self.grn_weight, self.grn_bias = nn.Parameter(torch.rand(6, 1, 1)), nn.Parameter(torch.rand(6, 1, 1))
        self.up, self.down, self.gated = nn.Linear(6, 10), nn.Linear(10, 6), nn.Linear(6, 20)
        self.encoder, self.encoder_norm_first = (
            nn.TransformerEncoderLayer(6, 2, 10, 0.0, activation, batch_first=True, norm_first=activation == "relu")
            for activation in ("gelu", "relu")
        )
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(self.stem(x))
        x = x + self.part(self, self.conv(x))
        return self.head(F.gelu(x).mean((2, 3)))


def tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def maps(x: Tensor) -> Tensor:
    return x.transpose(1, 2).unflatten(2, (5, 5))


def squeeze_and_excite(net: Net, x: Tensor) -> Tensor:
    return x * net.excite(F.relu(net.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()


def fused_attention(net: Net, x: Tensor, view: bool = False) -> Tensor:
    q, k, v = net.qkv(tokens(x)).unflatten(2, (3, 2, 3)).permute(2, 0, 3, 1, 4)
    made = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    return maps(net.out(made.view(len(x), 25, 6) if view else made.flatten(2)))


def spelled_attention(net: Net, x: Tensor) -> Tensor:
    batch = len(x)
    q, k, v = (
        part.reshape(batch * 2, 25, 3) for part in net.qkv(tokens(x)).unflatten(2, (3, 2, 3)).permute(2, 0, 3, 1, 4)
    )
    mixed = (torch.bmm(q, k.transpose(1, 2)) / math.sqrt(3)).softmax(-1) @ v
    return maps(net.out(mixed.reshape(batch, 2, 25, 3).transpose(1, 2).flatten(2)))


def windows(net: Net, x: Tensor) -> Tensor:
    """Attention within rows of the map, shifted by one, as Swin's windows are."""
    batch = len(x)
    rows = x.roll(1, 2).permute(0, 2, 3, 1).reshape(batch * 5, 5, 6)
    q, k, v = net.qkv(net.layer_norm(rows)).chunk(3, 2)
    mixed = (q @ k.transpose(1, 2)).softmax(-1) @ v
    return mixed.reshape(batch, 5, 5, 6).permute(0, 3, 1, 2).roll(-1, 2)


def transformer_block(net: Net, x: Tensor) -> Tensor:
    x = x + fused_attention(net, net.layer_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
    return x + maps(net.down(F.gelu(net.up(net.layer_norm(tokens(x))))))


def shifted_block(net: Net, x: Tensor) -> Tensor:
    """Two blocks of windows, as in Swin: the map's channels are last, and the second block's windows are shifted."""
    x = x + windows(net, x)
    x = x + net.down(F.gelu(net.up(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
    x = x + windows(net, x.roll((-1, -2), (2, 3))).roll((1, 2), (2, 3))
    return x + net.down(F.gelu(net.up(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


def swiglu(net: Net, x: Tensor) -> Tensor:
    gate, value = net.gated(net.layer_norm(tokens(x))).chunk(2, -1)
    return x + maps(net.down(F.silu(gate) * value))


def response_norm(net: Net, x: Tensor) -> Tensor:
    size = x.norm(dim=(2, 3), keepdim=True)
    return net.grn_weight * (x * (size / (size.mean(1, keepdim=True) + 1e-6))) + net.grn_bias + x


PARTS: dict[str, Part] = {
    "nothing": lambda net, x: x,
    "silu": lambda net, x: F.silu(x),
    "gelu": lambda net, x: F.gelu(x),
    "gelu by tanh": lambda net, x: F.gelu(x, approximate="tanh"),
    "hardswish": lambda net, x: F.hardswish(3 * x),
    "mish": lambda net, x: F.mish(x),
    "celu": lambda net, x: F.celu(x, 0.7),
    "squeeze and excite": squeeze_and_excite,
    "hard squeeze and excite": lambda net, x: (
        x * F.hardsigmoid(net.excite(F.relu(net.squeeze(x.mean((2, 3), keepdim=True)))))
    ),
    "layer norm": lambda net, x: net.layer_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "group norm": lambda net, x: net.group_norm(x),
    "instance norm": lambda net, x: F.instance_norm(x, weight=net.grn_weight.flatten(), bias=net.grn_bias.flatten()),
    "rms norm": lambda net, x: F.rms_norm(x.permute(0, 2, 3, 1), (6,), eps=1e-5).permute(0, 3, 1, 2),
    "l2 norm": lambda net, x: F.normalize(x, dim=1),
    "global response norm": response_norm,
    "glu": lambda net, x: F.glu(net.more(x), 1),
    "attention": fused_attention,
    "attention, spelled": spelled_attention,
    "attention, of torch": lambda net, x: maps(net.attention(*[tokens(x)] * 3, need_weights=False)[0]),
    "encoder layer, of torch": lambda net, x: maps(net.encoder(tokens(x))),
    "encoder layer, norm first, of torch": lambda net, x: maps(net.encoder_norm_first(tokens(x))),
    "attention with a mask of keys, of torch": lambda net, x: maps(
        net.attention(*[tokens(x)] * 3, key_padding_mask=(torch.arange(25) > 20).expand(len(x), -1))[0]
    ),
    "encoder layer with a mask, of torch": lambda net, x: maps(
        net.encoder(tokens(x), src_mask=torch.ones(25, 25).triu(1).bool())
    ),
    "attention in shifted windows": windows,
    "attention with a mask": lambda net, x: maps(
        F.scaled_dot_product_attention(*[tokens(x)] * 2, net.out(tokens(x)), attn_mask=torch.ones(25, 25).tril().bool())
    ),
    "transformer block": transformer_block,
    "two transformer blocks": lambda net, x: transformer_block(net, transformer_block(net, x)),
    "blocks of shifted windows": shifted_block,
    "swiglu": swiglu,
    "softmax over space": lambda net, x: x * net.squeeze(x)[:, :1].flatten(2).softmax(2).unflatten(2, (5, 5)),
}


def network(part: str, before: Callable[[Tensor], Tensor] = F.silu) -> Net:
    torch.manual_seed(0)
    return Net(PARTS[part], before).double().eval()


def images(count: int = 1) -> Tensor:
    return torch.randn(count, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_the_laws(part: str) -> None:
    """Law 1 for a few units; law 2: everything kept is the gradient of the detached twin; law 5: images one by one."""
    model, batch = network(part), images(2)
    for number, found in enumerate(pathx.explain(model, batch, depth="all", width=4)):
        assert float(found.attribution.sum()) + found.bias == pytest.approx(found.score, rel=1e-10, abs=1e-12)
        assert_same(found, *pathx.explain(model, batch[number : number + 1], depth="all", width=4))
    if ", of torch" not in part:  # the twin sees it as one function
        (whole,) = pathx.explain(model, batch[:1], depth="all", width="all", alpha=0.0)
        assert_close(whole.weight, frozen_weight(model, batch[0], whole.target))


def test_a_view_of_what_fused_attention_lays_out() -> None:
    """Fused, attention lays tokens before heads, so that they are a view. In parts it does not."""
    model, other, batch = network("attention"), network("attention"), images()
    other.part = partial(fused_attention, view=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forms = [other, torch.jit.trace(other, batch, check_trace=False), torch.export.export(other, (batch,)).module()]  # type: ignore[no-untyped-call]
    (expected,) = pathx.explain(model, batch)
    for form in forms:
        assert_same(expected, *pathx.explain(form, batch))


def write_view(made: Tensor, view: Tensor) -> Tensor:
    view.add_(1.0)
    return made.flatten(2)


def write_viewed(made: Tensor, view: Tensor) -> Tensor:
    made.mul_(2.0)
    return view


@pytest.mark.parametrize("write", [write_view, write_viewed])
def test_a_view_of_fused_attention_shares_its_memory(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Law 11, where one is written and the other is read."""

    def attend(net: Net, x: Tensor) -> Tensor:
        q, k, v = net.qkv(tokens(x)).unflatten(2, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return maps(net.out(write(made, made.view(len(x), 25, 6))))

    model, batch = network("attention"), images(2)
    model.part = attend
    with torch.no_grad():
        logits = model(batch)
    assert_close(torch.stack([one.logits for one in pathx.explain(model, batch)]), logits)


# What torch runs as one operation, and what law 6 of random networks does not hold.
LOADED = ["gelu by tanh", "hard squeeze and excite", "attention, of torch", "encoder layer, of torch"]
LOADED += ["encoder layer, norm first, of torch", "attention with a mask", "blocks of shifted windows", "swiglu"]
LOADED += ["attention with a mask of keys, of torch", "encoder layer with a mask, of torch", "instance norm"]


@pytest.mark.parametrize("part", LOADED)
def test_a_part_is_one_however_it_is_loaded(part: str) -> None:
    """Law 6. Without gradients, torch runs some modules as one operation, and traces them so."""
    model, batch = network(part), images()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is on its way out
        traced = torch.jit.trace(model, batch, check_trace=False)  # type: ignore[no-untyped-call]
    exported = torch.export.export(model, (batch,))
    for loaded in (traced, exported.module(), exported.run_decompositions().module()):
        (expected,), (found,) = (pathx.explain(one, batch, depth="all", width=4) for one in (model, loaded))
        for one, other in zip(expected.path, found.path, strict=True):
            ours, theirs = (sorted(unit.contribution for unit in layer.units) for layer in (one, other))
            assert ours == pytest.approx(theirs)
        assert_close(found.weight, expected.weight)


@pytest.mark.parametrize("part", ["nothing", "gelu", "squeeze and excite", "layer norm", "attention"])
def test_how_exact_a_network_is(part: str) -> None:
    class OnlyReLU(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).relu()
            return self.head((x + self.part(self, self.conv(x))).relu().mean((2, 3)))

    torch.manual_seed(0)
    model = OnlyReLU(PARTS[part]).double().eval()
    expected = "region" if part == "nothing" else "image"
    assert network_of(model, images()).reading.exact == expected
    assert pathx.explain(model, images())[0].exact == expected
    if expected == "region":
        assert pathx.explain(model, images(), exact="region")
    else:
        with pytest.raises(PathxError, match=r"is not a ReLU network: .* holds only at the image"):
            pathx.explain(model, images(), exact="region")


SPELLINGS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (F.silu, lambda x: x * torch.sigmoid(x)),
    "gelu": (F.gelu, lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2)))),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "hardswish": (F.hardswish, lambda x: x * F.relu6(x + 3) / 6),
    "mish": (F.mish, lambda x: x * F.softplus(x).tanh()),
    "silu by a quotient": (F.silu, lambda x: x / (1 + torch.exp(-x))),
    "softsign": (F.softsign, lambda x: x * (1 / (1 + x.abs()))),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_activation_is_one_however_it_is_spelled(name: str) -> None:
    own, spelled = SPELLINGS[name]
    (expected,), (found,) = (
        pathx.explain(network("nothing", before), images(), depth=2, width=9) for before in (own, spelled)
    )
    assert [[unit.index for unit in layer.units] for layer in found.path] == [
        [unit.index for unit in layer.units] for layer in expected.path
    ]
    assert_close(found.weight, expected.weight)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelled_activation_is_one_after_the_bias_of_tokens_too(name: str) -> None:
    """There, the sum with the bias is an operation of its own."""
    torch.manual_seed(0)
    first, last = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()
    image = torch.randn(1, 10, dtype=torch.float64)
    (expected,), (found,) = (
        pathx.explain(Function(lambda x, f=f: last(f(first(x.view(1, 2, 5)))).mean(1)), image, depth=1, width="all")
        for f in SPELLINGS[name]
    )
    assert (found.hidden_layers, expected.hidden_layers) == (1, 1)
    assert [unit.index for unit in found.path[0].units] == [unit.index for unit in expected.path[0].units]
    assert_close(found.weight, expected.weight)


def varied(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, 1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()


def rectified(x: Tensor) -> Tensor:
    scores = F.relu(x @ x.transpose(1, 2))
    return scores / (scores.sum(-1, keepdim=True) + 1e-6)


def size(x: Tensor) -> Tensor:
    return x.norm(dim=(2, 3), keepdim=True)


GATED_UNITS: dict[str, tuple[Part, Part]] = {
    "a norm by var_mean": (
        lambda net, x: varied(x),
        lambda net, x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt().detach(),
    ),
    "a norm by std_mean": (
        lambda net, x: (lambda spread, mean: (x - mean) / spread)(*torch.std_mean(x, 1, keepdim=True)),
        lambda net, x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True).detach(),
    ),
    "an interpolation": (
        lambda net, x: torch.lerp(x, net.conv(x), x.sigmoid()),
        lambda net, x: x + x.sigmoid().detach() * (net.conv(x) - x),
    ),
    "swiglu": (
        lambda net, x: F.silu(net.more(x)[:, :6]) * net.more(x)[:, 6:],
        lambda net, x: F.silu(net.more(x)[:, :6]).detach() * net.more(x)[:, 6:],
    ),
    "linear attention": (
        lambda net, x: x.relu() * net.conv(x).mean(1, keepdim=True),
        lambda net, x: x.relu().detach() * net.conv(x).mean(1, keepdim=True),
    ),
    "attention by rectified scores, normalised": (
        lambda net, x: maps(rectified(tokens(x)) @ tokens(net.conv(x))),
        lambda net, x: maps(rectified(tokens(x)).detach() @ tokens(net.conv(x))),
    ),
    "a unit times itself": (
        lambda net, x: (lambda h: h * h)(net.conv(x).relu()),
        lambda net, x: (lambda h: h * h.detach())(net.conv(x).relu()),
    ),
    "a norm over its least value": (
        lambda net, x: x.relu() * (size(x) / size(x).mean(1, keepdim=True).clamp(min=1e-6)),
        lambda net, x: x.relu() * (size(x) / size(x).mean(1, keepdim=True)).detach(),
    ),
    "a gate of sums of an activation that saturates": (
        lambda net, x: net.conv(x.tanh()) * net.conv(x).sigmoid(),
        lambda net, x: net.conv(x.tanh()) * net.conv(x).sigmoid().detach(),
    ),
    "a bounded gate": (
        lambda net, x: x.relu() * torch.maximum(x.sigmoid(), torch.full_like(x, 0.4)),
        lambda net, x: x.relu() * x.sigmoid().clamp(min=0.4).detach(),
    ),
    "a masked gate": (
        lambda net, x: x.relu() * (lambda gate: gate.masked_fill(gate < 0.4, 0.0))(x.sigmoid()),
        lambda net, x: x.relu() * (x.sigmoid() * (x.sigmoid() >= 0.4)).detach(),
    ),
    "a gate times itself": (
        lambda net, x: x.relu() * (lambda gate: gate * gate)(x.sigmoid()),
        lambda net, x: x.relu() * x.sigmoid().square().detach(),
    ),
    "a gate in parts": (
        lambda net, x: x.relu() * (lambda e: e / (1 + e))(x.exp()),
        lambda net, x: x.relu() * x.sigmoid().detach(),
    ),
    "an activation of a gate": (
        lambda net, x: x.relu() * net.conv(x).tanh().relu(),
        lambda net, x: x.relu() * net.conv(x).tanh().relu().detach(),
    ),
    "swiglu above an activation that saturates": (
        lambda net, x: F.silu(net.more(x.tanh())[:, :6]) * net.more(x.tanh())[:, 6:],
        lambda net, x: F.silu(net.more(x.tanh())[:, :6]).detach() * net.more(x.tanh())[:, 6:],
    ),
    "a clip and an activation": (
        lambda net, x: F.relu6(net.conv(x) + 3) / 6 * F.relu(net.conv(x)),
        lambda net, x: (F.relu6(net.conv(x) + 3) / 6).detach() * F.relu(net.conv(x)),
    ),
}


@pytest.mark.parametrize("name", GATED_UNITS)
def test_of_two_factors_the_one_out_of_an_activation_is_held(name: str) -> None:
    (model, twin) = (Net(part).double().eval() for part in GATED_UNITS[name])
    twin.load_state_dict(model.state_dict())
    (found,) = pathx.explain(model, images(), depth="all", width="all", alpha=0.0, skips="all")
    assert_close(found.weight, frozen_weight(twin, images()[0], found.target))


def test_a_product_of_a_unit_with_itself_holds_at_the_image_alone() -> None:
    first, last = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()
    model, image = Function(lambda x: last((lambda h: h * h)(F.relu(first(x))))), torch.randn(1, 5).double()
    assert pathx.explain(model, image)[0].exact == "image"


PIECES: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "unbind": lambda x: x.unflatten(2, (3, -1)).permute(2, 0, 1, 3).unbind(0),
    "unbind, behind": lambda x: x.unflatten(2, (-1, 3)).unbind(3),
    "select": lambda x: tuple(x.unflatten(2, (3, -1))[:, :, number] for number in range(3)),
    "chunk": lambda x: x.chunk(3, dim=-1),
    "sizes": lambda x: x.split([4, 4, 4], 2),
    "slices": lambda x: (x[..., :4], x[..., 4:8], x[:, :, -4:]),
    "slices with a step": lambda x: (x[..., ::3], x[..., 1::3], x[..., 2::3]),
    "tokens in front": lambda x: tuple(
        part.transpose(0, 1)
        for part in x.transpose(0, 1).unflatten(2, (3, -1)).permute(2, 0, 1, 3).contiguous().unbind(0)
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_parts_are_pushed_as_they_are_pulled(name: str) -> None:
    """Queries, keys and values are parts of one product, in several spellings; some rows see the class token alone."""
    torch.manual_seed(0)
    up, qkv, down, head = (nn.Linear(*size).double() for size in ((3, 4), (4, 12), (4, 4), (4, 3)))

    def attend(x: Tensor) -> Tensor:
        q, k, v = PIECES[name](qkv(x))
        return x + down((q @ k.transpose(1, 2)).softmax(-1) @ v)

    def classify(x: Tensor) -> Tensor:
        return cast(Tensor, head(F.gelu(attend(F.gelu(attend(F.gelu(up(x))))))[:, 0]))

    batch = torch.randn(2, 5, 3, dtype=torch.float64)
    for image in (batch, batch[:1]):
        frozen = freeze(Function(classify), image)
        pulled, pushed = (
            explain_frozen(frozen, [(0, 1), (len(image) - 1, 2)], depth="all", width=3, strategy=Strategy(push=push))
            for push in (0, math.inf)
        )
        for one, other in zip(pulled, pushed, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize(
    "take",
    [
        lambda y: y[:, 0],
        lambda y: y[:, -1, :3],
        lambda y: y.unbind(1)[1],
        lambda y: y.split(1, 1)[0].squeeze(1),
        lambda y: y.chunk(2, -1)[1][:, 0],
        lambda y: y.transpose(1, 2)[..., 2],
        lambda y: y.flatten(1)[:, 4:9],
        lambda y: y[:, 0] + y[:, 1, :],
        lambda y: y.narrow(1, 3, 1).reshape(len(y), -1),
    ],
)
@pytest.mark.parametrize("depth", [1, "all"])
def test_logits_may_be_a_part_of_what_the_head_makes(take: Part, depth: int | str) -> None:
    """A head over all tokens, of which one gives the logits: nothing but the logits reads what the head makes."""
    torch.manual_seed(0)
    head, up, down = (nn.Linear(6, 6).double(), nn.Linear(6, 8).double(), nn.Linear(8, 6).double())

    def forward(x: Tensor) -> Tensor:
        y = F.relu(x)
        return take(head(y + down(F.gelu(up(y)))))

    model, images = Function(forward), torch.randn(1, 4, 6).double()
    (explanation,) = pathx.explain(model, images, target=1, depth=depth, width="all", alpha=0.0)
    assert_close(explanation.weight, frozen_weight(model, images[0], 1), rtol=1e-9, atol=1e-12)
