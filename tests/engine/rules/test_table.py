"""What records say in a word: what only hands features on and what ends a network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Model
from support.pulled import fixed, pictures
from torch import Tensor, nn

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze

HANDED_ON: dict[str, Callable[[Tensor], Tensor]] = {
    "pooled": lambda x: F.max_pool2d(x, 2),
    "averaged": lambda x: x.mean((2, 3)),
    "picked": lambda x: x.topk(2, 2)[0],
    "joined": lambda x: torch.cat([x, x], 2),
    "in another shape": lambda x: x.view(2, 8, -1).unsqueeze(2).transpose(1, 3),
    "a part": lambda x: x[:, :, 1],
    "copied": lambda x: x.detach().clone(),
}
CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 1,
    "mul": lambda x: x * 2,
    "convolution": lambda x: F.conv2d(x, fixed(3, 64, 2, 2)),
    "native_batch_norm": lambda x: F.batch_norm(x, fixed(64), fixed(64)),
}


@pytest.mark.parametrize("name", [*HANDED_ON, *CHANGED])
def test_features_are_features_still_after_what_hands_them_on(name: str) -> None:
    function = {**HANDED_ON, **CHANGED}[name]
    backbone = Model(lambda m, x: function(F.relu(m.body(x))).flatten(1), body=nn.Conv2d(3, 64, 3, padding=1)).double()
    if name in HANDED_ON:
        with pytest.raises(PathxError, match="ends in the features of relu, not in class logits"):
            freeze(backbone, pictures(2, 3, 5, 6))
    else:
        assert name in {node.kind for node in freeze(backbone, pictures(2, 3, 5, 6)).network.nodes}


# --- endings --------------------------------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "_softmax": lambda y: y.softmax(1),
    "_log_softmax": lambda y: y.log_softmax(1),
    "sigmoid": torch.sigmoid,
    "log_sigmoid_forward": F.logsigmoid,
}
BODY = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


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
