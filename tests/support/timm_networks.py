"""Every ReLU network of timm, untrained and on a small input, tried against the laws; and the table of what came out.

PYTHONPATH=.:tests python -m support.timm_networks docs/timm.md --minutes 15

goes on where the page stops. Each network has a process and a limit of time of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.twins import frozen_weight
from torch import Tensor, nn

import pathx
from pathx import PathxError

# timm's files of networks that may hold ReLUs; the others are transformers, and networks of GELU or SiLU throughout.
FILES = (
    "byobnet", "cspnet", "densenet", "dla", "dpn", "efficientnet", "fasternet", "ghostnet", "hardcorenas", "hgnet", "hrnet",
    "inception_resnet_v2", "inception_v3", "inception_v4", "levit", "mobilenetv3", "nasnet", "pnasnet", "regnet", "repghost",
    "repvit", "res2net", "resnest", "resnet", "resnetv2", "rexnet", "selecsls", "senet", "sknet", "starnet", "tresnet", "vgg",
    "vovnet", "xception", "xception_aligned",
)  # fmt: skip
GATES = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardtanh)
CLASSES = 4
SIZES = (64, 96, 160, 224)
MOST_PARAMETERS = 30_000_000
SECONDS = 180
"""How long one network takes at most."""


@dataclass(frozen=True)
class Outcome:
    """What became of one network.

    Args:
        refused: why it was refused; None where it was explained.
        broken: which law does not hold; empty where all do.
    """

    name: str
    parameters: int
    layers: int
    refused: str | None
    broken: str = ""


def _timm() -> Any:
    """timm, with torchvision first, which it imports in a way that this project does not."""
    from pathx.models.torchvision import torchvision

    assert torchvision.__name__
    import timm

    return timm


def candidates() -> tuple[list[tuple[int, str]], Counter[str]]:
    """(parameters, name) of the networks with ReLUs, the smallest first, and how many of the others there are, by reason."""
    timm = _timm()

    found, others = [], Counter[str]()
    names = [name for file in FILES for name in timm.list_models(module=file)]
    others["in files of networks without ReLUs (transformers and the like)"] = len(timm.list_models()) - len(names)
    for name in names:
        with torch.device("meta"):
            module = timm.create_model(name, pretrained=False, num_classes=CLASSES)
        parameters = sum(parameter.numel() for parameter in module.parameters())
        if not any(isinstance(part, GATES) for part in module.modules()):
            others["without a ReLU module"] += 1
        elif parameters > MOST_PARAMETERS:
            others[f"of more than {MOST_PARAMETERS // 10**6} million parameters"] += 1
        else:
            found.append((parameters, name))
    return sorted(found), others


def build(name: str) -> nn.Module:
    """A network with a small head, in float64, with statistics that do something."""
    timm = _timm()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES).eval()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.7, 1.3)
    return module.double()


def facts(model: nn.Module) -> list[Any]:
    """What an explanation could disturb."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found: list[Any] = [
        (n, id(t), t._version, t.requires_grad, id(t.grad), float(t.detach().double().sum())) for n, t in tensors
    ]
    for name, module in model.named_modules():
        hooks = [list(held) for kind, held in vars(module).items() if kind.endswith("_hooks")]
        found.append((name, module.training, hooks, sorted(vars(module))))
    return found


def walk(name: str) -> Outcome:
    """One network through completeness, unwrapping, law 11 and law 7."""
    module = build(name)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    before = facts(module)
    error: PathxError | None = None
    for size in SIZES:
        images = torch.randn(1, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        try:
            (few,) = pathx.explain(module, images, target=1, depth="all", width=3)
        except PathxError as refused:
            error = refused
            if not re.match("the model cannot run", str(refused)):
                break
        else:
            broken = "law 7 (the model is untouched)" if facts(module) != before else _broken(module, images, few)
            return Outcome(name, parameters, few.hidden_layers, None, broken)
    return Outcome(name, parameters, 0, str(error), "" if facts(module) == before else "law 7 (the model is untouched)")


def walk_in_time(name: str) -> Outcome | None:
    """The same in a process of its own; None where it takes too long."""
    here, there = (context := multiprocessing.get_context("fork")).Pipe()
    process = context.Process(target=lambda: there.send(walk(name)))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else None
    finally:
        process.kill()
        process.join()


def _broken(module: nn.Module, images: Tensor, few: pathx.Explanation) -> str:
    with torch.no_grad():
        logits = module(images)
    gradient = frozen_weight(module, images[0], 1)  # with every multiplier detached, where there is one
    (whole,) = pathx.explain(module, images, target=1, depth=1, width="all", alpha=0.0, skips="all")
    for found in (few, whole):
        largest = max(float(found.attribution.abs().sum()), abs(found.bias), abs(found.score))
        if abs(float(found.attribution.sum()) + found.bias - found.score) > 1e-10 * largest:
            return "law 1 (completeness)"
    if float((whole.logits - logits[0]).abs().max()) > 1e-9 * float(logits.abs().max()):
        return "law 11 (the answer is the model's)"
    if float((whole.weight - gradient).abs().max()) > 1e-8 * float(gradient.abs().max()):
        return "law 2 (unwrapping)"
    return ""


def reason(outcome: Outcome) -> str:
    """A refusal without the place it names, so that refusals can be counted."""
    text = re.sub(r" in [\w.]+(?= |\)|:|;)", "", outcome.refused or "")
    return re.split(r"[;:](?! (?:\w+ is not|\w+ normal))", text)[0] if len(text) > 150 else text


def table(outcomes: list[Outcome], left_out: Counter[str]) -> Iterator[str]:
    """The page of the documentation."""
    timm = _timm()

    works = [one for one in outcomes if one.refused is None and not one.broken]
    refused = [one for one in outcomes if one.refused is not None and not one.broken]
    broken = [one for one in outcomes if one.broken]
    yield "# ReLU networks of timm"
    yield ""
    yield (
        f"Every network of timm {timm.__version__} that holds a ReLU module and has at most {MOST_PARAMETERS // 10**6} million "
        "parameters, untrained, in float64, on one input of 64 x 64 (larger where it asks for that), the smallest first. "
        "*Works* means that a path of width 3 through every layer and one that keeps every unit of the top layer are complete "
        "(to 1e-10), that the weight of the latter is the gradient (to 1e-8), that the logits are the model's own, and that "
        "the model is untouched. Made by `python -m support.timm_networks`."
    )
    yield ""
    yield f"**{len(works)} work, {len(refused)} are refused, {len(broken)} break a law** of {len(outcomes)} tried."
    yield ""
    if refused:
        yield "| refused because | networks |"
        yield "|---|---|"
        for why, count in Counter(map(reason, refused)).most_common():
            yield f"| {why.replace('|', '/')} | {count} |"
        yield ""
    if broken:
        yield "| network | what does not hold |"
        yield "|---|---|"
        yield from (f"| {one.name} | {one.broken} |" for one in broken)
        yield ""
    yield "| left out | networks |"
    yield "|---|---|"
    yield from (f"| {why} | {count} |" for why, count in left_out.items())
    yield ""
    yield "| works | hidden layers | million parameters |"
    yield "|---|---|---|"
    yield from (f"| {one.name} | {one.layers} | {one.parameters / 1e6:.1f} |" for one in works)
    yield ""
    yield "| refused | why |"
    yield "|---|---|"
    yield from (f"| {one.name} | {(one.refused or '').replace('|', '/')} |" for one in refused)


def known(page: str) -> dict[str, Outcome]:
    """What a page says already, so that the next run goes on where the last one stopped; laws that broke are tried again."""
    works = re.findall(r"^\| (\w+) \| (\d+) \| ([\d.]+) \|$", page, re.MULTILINE)
    refused = re.findall(r"^\| (\w+) \| (\S.*) \|$", page.partition("| refused | why |")[2], re.MULTILINE)
    found = [Outcome(name, round(float(size) * 1e6), int(layers), None) for name, layers, size in works]
    return {one.name: one for one in [*found, *(Outcome(name, 0, 0, why) for name, why in refused)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    page = chosen.file.read_text() if chosen.file.exists() else ""
    before = known(page) if f"timm {_timm().__version__} " in page else {}
    found, left_out = candidates()
    outcomes, slow = [], 0
    for number, (parameters, name) in enumerate(found):
        if name in before:
            outcomes.append(before[name])
            continue
        if time.monotonic() > end:
            left_out[f"of more than {parameters / 1e6:.1f} million parameters, not tried"] = len(found) - number
            break
        if (outcome := walk_in_time(name)) is None:
            slow += 1
            left_out[f"that took more than {SECONDS // 60} minutes"] = slow
        else:
            outcomes.append(outcome)
        print(name, outcome, flush=True)
        rest = {f"not tried yet, of {parameters / 1e6:.1f} million parameters and more": len(found) - number - 1}
        chosen.file.write_text("\n".join(table(outcomes, left_out + Counter(rest))) + "\n")
    chosen.file.write_text("\n".join(table(outcomes, left_out)) + "\n")


if __name__ == "__main__":
    main()
