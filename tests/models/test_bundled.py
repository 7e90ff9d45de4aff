"""The bundled network is torchvision's, written out so that a first command need not import torchvision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.command_line import network, picture, process, scripted

from pathx.models.named import WEIGHTS, SqueezeNet
from pathx.models.torchvision import torchvision


def test_it_is_torchvisions_network() -> None:
    theirs = torchvision.models.squeezenet1_1(weights=None).eval()
    ours = SqueezeNet().eval()
    assert [(name, type(module).__name__) for name, module in ours.named_modules()] == [
        (name, type(module).__name__) for name, module in theirs.named_modules()
    ]
    for module in (ours, theirs):
        module.load_state_dict(load_file(WEIGHTS))
    image = torch.rand(2, 3, 96, 128, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(image), theirs(image))


@pytest.mark.parametrize("model", ["bundled", "torchscript"])
def test_a_first_command_imports_no_more_than_it_needs(here: Path, model: str) -> None:
    picture()
    options = ["--model", scripted(network(), "model.pt")] if model == "torchscript" else []
    heavy = ["torchvision", "torch._dynamo", "torch._inductor", "sympy", "matplotlib", "captum", "timm", "transformers"]
    script = (
        "import sys; from pathx.cli import run\n"
        f"try: run({['explain', 'photo.png', '--quiet', *options]})\n"
        f"except SystemExit as ended: print(ended.code or 0, [name for name in {heavy} if name in sys.modules])"
    )
    done = process("-c", script)
    assert done.out.splitlines()[-1] == "0 []", done.err
