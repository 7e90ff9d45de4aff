"""The reference gives what the paper prints for its worked example. (That engine and reference agree is for test_laws.py.)"""

from __future__ import annotations

import torch
from support import reference
from support.networks import FLOAT, worked_example


def test_worked_example() -> None:
    image = torch.tensor([1.0, 4.0], dtype=FLOAT)
    result = reference.explain(worked_example(), image, depth=2, width=1)
    assert [[(unit.index, round(unit.importance, 3)) for unit in layer.units] for layer in result.path] == [
        [((0,), 0.982)],
        [((0,), 0.953)],
    ]
    assert result.weight.tolist() == [-1, 1]
    assert (result.bias, result.score, result.logits.tolist()) == (0, 3, [0, 3])
    wider = reference.explain(worked_example(), image, depth=2, width=2, alpha=0.0)
    assert [round(unit.importance, 3) for unit in wider.path[1].units] == [0.953, 0.269]
