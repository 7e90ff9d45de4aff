"""Which reading of a gate h·g(h) predicts best what removing a channel does: its value, its tangent, or half of both.

    python -m benchmarks.gates FOLDER NETS [silu|convnext|vit …]

For the networks of `benchmarks.cifar`, with norms, squeeze-and-excitation and attention frozen in every reading. For each hidden
activation, the predicted effect of a channel (over all places or tokens) on the predicted class's logit is its gradient in that
reading times its activation, added up. The measured one is what the logit loses without the channel in the real network.

    frozen   g(h)                   what pathx does
    tangent  g(h) + h g'(h)         the plain gradient of the activation
    half     (g(h) + h g'(h)) / 2   each factor gets half: x·g = ½ĝx + ½x̂g
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.cifar import NETWORKS, Attention, SqueezeExcite, read_images
from pathx.evaluation.statistics import bootstrap, compare

IMAGES = 40

Slope = Callable[[Tensor, Tensor], Tensor]
"""(g, tangent) -> the slope of a reading."""

READINGS: dict[str, Slope] = {
    "frozen": lambda g, tangent: g,
    "tangent": lambda g, tangent: tangent,
    "half": lambda g, tangent: tangent / 2,
}


def slopes(activation: nn.Module, h: Tensor) -> tuple[Tensor, Tensor]:
    """g(h) and the tangent of h·g(h)."""
    with torch.enable_grad():
        x = h.detach().clone().requires_grad_()
        (tangent,) = torch.autograd.grad(activation.forward(x).sum(), x)  # without hooks
    g = h.sigmoid() if isinstance(activation, nn.SiLU) else 0.5 * (1 + torch.erf(h / 2**0.5))
    return g.detach(), tangent


@contextmanager
def read_as(network: nn.Module, slope: Slope, outputs: list[Tensor]) -> Iterator[None]:
    """The network with activations linear by this slope and other multipliers frozen; collects what activations put out."""

    def gate(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        (h,) = inputs
        read = output.detach() + slope(*slopes(module, h)) * (h - h.detach())
        outputs.append(read)
        read.retain_grad()
        return read

    def norm(module: nn.LayerNorm, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        x = inputs[0] if inputs[0].dim() != 4 else inputs[0].permute(0, 2, 3, 1)
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + module.eps).rsqrt().detach()
        made = centred * scale * module.weight + module.bias
        return made if inputs[0].dim() != 4 else made.permute(0, 3, 1, 2)

    def excite(module: SqueezeExcite, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        (x,) = inputs
        return x * module.gate(module.up(module.activation(module.down(x.mean((2, 3), keepdim=True))))).detach()

    def attend(module: Attention, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        (x,) = inputs
        batch, tokens, width = x.shape
        q, k, v = module.qkv(x).reshape(batch, tokens, 3, module.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        pattern = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).detach()
        return module.out((pattern @ v).transpose(1, 2).reshape(batch, tokens, width))

    inside = {id(one) for module in network.modules() if isinstance(module, SqueezeExcite) for one in module.modules()}
    hooks = []
    for module in network.modules():
        if isinstance(module, (nn.SiLU, nn.GELU)) and id(module) not in inside:
            hooks.append(module.register_forward_hook(gate))
        for kind, hook in ((nn.LayerNorm, norm), (SqueezeExcite, excite), (Attention, attend)):
            if isinstance(module, kind):
                hooks.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def channel_sums(values: Tensor) -> Tensor:
    """(channels,) of a map (1, C, H, W), or of tokens (1, T, C)."""
    return values.sum((0, 2, 3)) if values.dim() == 4 else values.flatten(0, -2).sum(0)


def predicted(network: nn.Module, image: Tensor, target: int, slope: Slope) -> list[Tensor]:
    """Of every activation, the effect of each of its channels on the logit."""
    outputs: list[Tensor] = []
    with read_as(network, slope, outputs):
        network(image)[0, target].backward()
    return [channel_sums(output.detach() * output.grad) for output in outputs]


@torch.no_grad()
def measured(network: nn.Module, image: Tensor, target: int) -> list[Tensor]:
    """Of every activation, what the logit loses without each of its channels, in the real network."""
    inside = {id(one) for module in network.modules() if isinstance(module, SqueezeExcite) for one in module.modules()}
    gates = [m for m in network.modules() if isinstance(m, (nn.SiLU, nn.GELU)) and id(m) not in inside]
    whole, losses = network(image)[0, target], []
    for gate in gates:

        def remove(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            channels = output.shape[1] if output.dim() == 4 else output.shape[-1]
            mask = 1 - torch.eye(channels)
            shape = (channels, channels, 1, 1) if output.dim() == 4 else (channels, *[1] * (output.dim() - 2), channels)
            return output.expand(channels, *output.shape[1:]) * mask.reshape(shape)

        hook = gate.register_forward_hook(remove)
        losses.append(whole - network(image)[:, target])
        hook.remove()
    return losses


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1].nan_to_num())


def main(folder: Path, nets: Path, *names: str) -> None:
    images = read_images(folder / "test_batch.png")[:IMAGES]
    for name in names or NETWORKS:
        network = NETWORKS[name]().eval()
        network.load_state_dict(load_file(nets / f"{name}.safetensors"))
        by_reading: dict[str, list[float]] = {reading: [] for reading in READINGS}
        errors: dict[str, list[float]] = {reading: [] for reading in READINGS}
        for image in images.split(1):
            target = int(network(image)[0].argmax())
            real = measured(network, image, target)
            for reading, slope in READINGS.items():
                effects = predicted(network, image, target, slope)
                pairs = list(zip(effects, real, strict=True))
                by_reading[reading].append(sum(correlation(*pair) for pair in pairs) / len(pairs))
                off = [float((one - other).abs().sum() / other.abs().sum()) for one, other in pairs]
                errors[reading].append(sum(off) / len(off))
        rows = {
            reading: {
                "correlation": bootstrap(by_reading[reading]),
                "error": bootstrap(errors[reading]),
                "frozen minus it": compare(by_reading["frozen"], by_reading[reading]),
            }
            for reading in READINGS
        }
        print(json.dumps({"network": name, "images": len(images), "readings": rows}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
