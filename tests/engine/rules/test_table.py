"""What records say in a word: what only hands features on and what ends a network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Model
from support.pulled import fixed, pictures
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine import network as networks
from pathx.engine.freeze import freeze
from pathx.engine.rules.table import (
    AFTER_FINAL,
    BATCH_REMEDIES,
    CONVOLUTIONS,
    COPIES,
    FINAL,
    KEEP_FEATURES,
    MATRIX_PRODUCTS,
    NORMS,
    OPERATIONS,
    SAME_FOR_ALL_IMAGES,
    SELF_MASKS,
    SMOOTH,
    SPLITS,
    VIEWS,
)

pytestmark = pytest.mark.usefixtures("one_thread")
aten = torch.ops.aten

HANDED_ON: dict[str, Callable[[Tensor], Tensor]] = {
    # of maps (2, 4, 5, 6), by what is recorded
    "max_pool2d_with_indices": lambda x: F.max_pool2d(x, 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x, 2, (3, 3), _random_samples=fixed(2, 4, 2) / 2),
    "max_pool3d_with_indices": lambda x: F.max_pool3d(x[:, None].clone(), 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x.unsqueeze(1), 2),
    "fractional_max_pool3d": lambda x: F.fractional_max_pool3d(
        x.unsqueeze(1), 2, (2, 3, 3), _random_samples=fixed(2, 1, 3) / 2
    ),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "_adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x.unsqueeze(1), 2),
    "_adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x.unsqueeze(1), 2),
    "mean": lambda x: x.mean((2, 3)),
    "sum": lambda x: x.sum(2),
    **{
        name: (lambda x, name=name: getattr(torch, name)(x, *((2,) if name in ("topk", "kthvalue") else ()), 2)[0])
        for name in ("max", "min", "median", "nanmedian", "mode", "cummax", "cummin", "sort", "topk", "kthvalue")
    },
    "cat": lambda x: torch.cat([x, x], 2),
    "view": lambda x: x.view(2, 8, 15),
    "_unsafe_view": lambda x: aten._unsafe_view(x, [2, 8, 15]),
    "squeeze": lambda x: x.unsqueeze(2).squeeze(2),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "transpose": lambda x: x.transpose(1, 3),
    "select": lambda x: x[:, :, 1],
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "alias": lambda x: aten.alias(x),
    "_to_copy": lambda x: x.to(torch.float64, copy=True),
}
CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 1,
    "mul": lambda x: x * 2,
    "neg": lambda x: -x,
    "slice": lambda x: x[:, 1:],
    "constant_pad_nd": lambda x: F.pad(x, (1, 0)),
    "convolution": lambda x: F.conv2d(x, fixed(3, 4, 2, 2)),
    "native_batch_norm": lambda x: F.batch_norm(x, fixed(4), fixed(4)),
    "stack": lambda x: torch.stack([x, x], 1),
    "flip": lambda x: x.flip(1),
    "expand": lambda x: x[:, :, :, :1].expand(2, 4, 5, 3),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", [*HANDED_ON, *CHANGED])
def test_features_are_features_still_after_what_hands_them_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_FEATURES", 1)
    function = {**HANDED_ON, **CHANGED}[name]
    backbone = Model(lambda m, x: function(F.relu(m.body(x))).flatten(1), body=nn.Conv2d(3, 4, 3, padding=1)).double()
    if name in HANDED_ON:
        with pytest.raises(PathxError, match="ends in the features of relu, not in class logits"):
            freeze(backbone, pictures(2, 3, 5, 6))
    else:
        assert name in {node.kind for node in freeze(backbone, pictures(2, 3, 5, 6)).network.nodes}


# Under a name that another stands for here, or that is never recorded on a CPU.
UNHEARD = {"reshape", "flatten", "unflatten", "t", "contiguous", "positive", "dropout", "lift_fresh_copy"}
UNHEARD |= {"adaptive_avg_pool2d", "avg_pool1d", "adaptive_avg_pool1d"}


def test_everything_that_hands_features_on_is_tried() -> None:
    assert {*HANDED_ON, *UNHEARD} == KEEP_FEATURES


# --- endings --------------------------------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "_softmax": lambda y: y.softmax(1),
    "_log_softmax": lambda y: y.log_softmax(1),
    "sigmoid": torch.sigmoid,
    "log_sigmoid_forward": F.logsigmoid,
}
FOLLOWING: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda y: y,
    "view": lambda y: y.view(2, 3, 1),
    "_unsafe_view": lambda y: aten._unsafe_view(y, [2, 3, 1]),
    "squeeze": lambda y: y.squeeze(),
    "unsqueeze": lambda y: y.unsqueeze(1),
    "clone": lambda y: y.clone(),
    "detach": lambda y: y.detach(),
    "alias": lambda y: aten.alias(y),
    "_to_copy": lambda y: y.float(),
    "exp": torch.exp,
}
BODY = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


@pytest.mark.parametrize("after", FOLLOWING)
@pytest.mark.parametrize("final", ENDINGS)
def test_an_ending_is_stripped_with_what_follows_it(final: str, after: str) -> None:
    images = pictures(2, 4)
    model = Model(lambda m, x: FOLLOWING[after](ENDINGS[final](m.body(x))), body=BODY)
    network = freeze(model, images).network
    assert network.producers[network.logits].kind in MATRIX_PRODUCTS
    with torch.no_grad():
        assert_close(freeze(model, images).logits, BODY(images))


@pytest.mark.parametrize("final", ENDINGS)
def test_an_ending_before_the_end_is_an_activation_or_refused_for_what_it_is(final: str) -> None:
    model = Model(lambda m, x: ENDINGS[final](m.body(x)) @ fixed(3, 3), body=BODY)
    if "softmax" in final:
        message = f"{final.strip('_')} in the model itself is neither linear nor an activation, and multiplies nothing"
        with pytest.raises(PathxError, match=message):
            pathx.explain(model, pictures(2, 4))
    else:
        layers = freeze(model, pictures(2, 4)).network.layers
        assert [[gate.node.kind for gate in layer] for layer in layers] == [["relu"], [final]]


def test_what_follows_an_ending_ends_nothing_by_itself() -> None:
    for name, after in FOLLOWING.items():
        model = Model(lambda m, x, after=after: after(m.body(x)), body=BODY)
        if name == "exp":
            with pytest.raises(PathxError, match="exp in the model itself is neither linear nor an activation"):
                freeze(model, pictures(2, 4))
        else:
            with torch.no_grad():
                assert_close(freeze(model, pictures(2, 4)).logits, BODY(pictures(2, 4)), check_dtype=False)


def test_a_softmax_over_the_batch_is_none_over_classes() -> None:
    for dim, refused in ((0, True), (1, False), (-1, False)):
        model = Model(lambda m, x, dim=dim: m.body(x).softmax(dim), body=BODY)
        if refused:
            with pytest.raises(PathxError, match="softmax in the model itself is taken over the batch"):
                freeze(model, pictures(2, 4))
        else:
            assert freeze(model, pictures(2, 4)).network.outputs == 3


def test_a_record_says_one_thing() -> None:
    """An operation is linear, or an activation, or has another reading. Two are said of what is linear once more is held."""
    for name, operation in OPERATIONS.items():
        linear = operation.transpose is not None or operation.gate is not None
        if name in SMOOTH | NORMS:
            assert operation.reading == "nonlinear", name
            assert (operation.gate is not None) == (name in SMOOTH), name
        else:
            assert linear + (operation.reading is not None) <= 1, name
        assert operation.factors is None or {*operation.factors} <= {*operation.linear_in}, name


def test_named_sets_name_records() -> None:
    linear = {name for name, operation in OPERATIONS.items() if operation.transpose is not None}
    named = (COPIES, VIEWS, KEEP_FEATURES, MATRIX_PRODUCTS, CONVOLUTIONS, SPLITS, {*BATCH_REMEDIES})
    assert all(names <= linear for names in named)
    assert all(OPERATIONS[name].reading == "nonlinear" for name in FINAL | AFTER_FINAL - COPIES - VIEWS)
    assert all(OPERATIONS[name].gate is not None and name in linear for name in SELF_MASKS)
    assert OPERATIONS.keys() >= SAME_FOR_ALL_IMAGES
