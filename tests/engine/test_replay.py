"""The replayed network is the model, and Captum's hooks are right on it however the model is spelled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_networks import networks
from support.networks import Network
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.engine.replay import Classifier, Replay
from pathx.evaluation.choices import METHODS
from pathx.evaluation.methods import Subject


@settings(max_examples=25)
@given(network=networks(), seed=st.integers(0, 100))
def test_a_replay_computes_what_the_model_computes(network: Network, seed: int) -> None:
    module, images = network.module(), network.images(3, seed)
    logits = Classifier(module, images[0])(images)
    softmaxed = module(images)
    if network.ending == "softmax":
        assert torch.allclose(logits.softmax(1), softmaxed)
    elif network.ending == "log_softmax":
        assert torch.allclose(logits.log_softmax(1), softmaxed)
    else:
        plain = logits[:, 1:] if network.outputs == 1 else logits
        assert torch.allclose(plain.sigmoid() if network.ending == "sigmoid" else plain, softmaxed.reshape(3, -1))


class Body(nn.Module):
    """Three ReLUs around two convolutions, spelled in one of several ways; the weights are always the same."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)
            self.hidden, self.last = nn.Linear(6 * 16, 12), nn.Linear(12, 4)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.spelling == "modules":
            x = self.relu2(self.second(self.relu1(self.first(x))))
            return self.last(self.relu3(self.hidden(x.flatten(1))))
        if self.spelling == "reused":
            x = self.relu1(self.second(self.relu1(self.first(x))))
            return self.last(self.relu1(self.hidden(x.flatten(1))))
        if self.spelling == "in place":
            x = F.relu_(self.second(F.relu_(self.first(x))))
            return self.last(F.relu_(self.hidden(x.flatten(1))))
        if self.spelling == "clamped":
            x = self.second(self.first(x).clamp(min=0)).clamp_min(0)
            h = self.hidden(x.flatten(1))
            return self.last(torch.maximum(h, torch.zeros_like(h)))
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.last(F.relu(self.hidden(x.flatten(1))))


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def subject(module: nn.Module) -> Subject:
    classifier = Classifier(module.eval(), IMAGES[0])
    return Subject(classifier, IMAGES, classifier(IMAGES).argmax(1).tolist(), ["a", "b", "c"])


def captums(name: str, *arguments: Any) -> Callable[[Subject], Tensor]:
    captum = pytest.importorskip("captum.attr")

    def run(of: Subject) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = getattr(captum, name)(of.classifier.module, *arguments)
            return found.attribute(of.images.clone().requires_grad_(), target=torch.tensor(of.targets)).detach()

    return run


def test_guided_methods_are_captums_where_every_relu_is_a_module_used_once() -> None:
    model = Body("modules")
    plain = subject(model)
    assert_close(METHODS["guided_backprop"].compute(plain), captums("GuidedBackprop")(plain))
    expected = captums("GuidedGradCam", model.second)(plain)
    assert_close(METHODS["guided_gradcam"].compute(plain), expected)
    assert expected.abs().max() > 0


@pytest.mark.parametrize("spelling", ["functional", "reused", "in place", "clamped", "traced", "scripted"])
@pytest.mark.parametrize("name", ["guided_backprop", "guided_gradcam"])
def test_the_spelling_of_a_model_makes_no_difference(name: str, spelling: str) -> None:
    pytest.importorskip("captum")
    if spelling == "traced":
        other: Any = torch.jit.trace(Body("functional").eval(), IMAGES)
    elif spelling == "scripted":
        other = torch.jit.script(Body("in place").eval())
    else:
        other = Body(spelling)
    compute = METHODS[name].compute
    assert torch.allclose(compute(subject(other)), compute(subject(Body("modules"))), atol=1e-7)


class PreActivated(nn.Module):
    """The ReLU's input is also read by a shortcut, which a guided gradient must leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h + self.second(F.relu(h)))


def test_a_shortcut_around_a_relu_is_not_clamped() -> None:
    pytest.importorskip("captum")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PreActivated().eval()
    images = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    found = METHODS["guided_backprop"].compute(
        Subject(Classifier(model, images[0]), images, [0, 1, 2, 0], list("abcd"))
    )
    for image, target, row in zip(images, [0, 1, 2, 0], found, strict=True):
        above = model.last.weight[target]
        through = (above @ model.second.weight) * (model.first(image) > 0)
        assert torch.allclose(row, (above + through.clamp(min=0)) @ model.first.weight, atol=1e-6)


def test_a_model_made_for_one_picture_gets_them_one_by_one() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.linear(x.reshape(1, 4)))

    model, images = One().eval(), torch.randn(5, 4)
    classifier = Classifier(model, images[0])
    assert classifier.chunk == 1
    assert torch.allclose(classifier(images), F.relu(model.linear(images)))


def test_hooks_and_gradients_leave_the_model_alone() -> None:
    pytest.importorskip("captum")
    model = Body("modules")
    METHODS["guided_gradcam"].compute(subject(model))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_last_map_and_the_last_convolution_are_those_with_places() -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Conv2d(5, 6, 4), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    replay = Replay(model, IMAGES)
    found = {}
    for name, module in (("map", replay.last_map), ("convolution", replay.last_convolution)):
        assert module is not None
        module.register_forward_hook(lambda module, args, out, name=name: found.update({name: out.detach()}))
    logits = replay(IMAGES)
    with torch.no_grad():
        assert_close(logits.detach(), model(IMAGES))
        assert_close(found, {"convolution": model[:3](IMAGES), "map": model[:4](IMAGES)})


@pytest.mark.parametrize("kernel", [(8, 7), (7, 8)])
def test_a_map_of_two_places_is_one(kernel: tuple[int, int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, kernel), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    replay = Replay(model, IMAGES)
    assert replay.last_map is not None and replay.last_convolution is not None


def test_what_has_no_places_has_no_map() -> None:
    flat = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    lines = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)).eval()
    point = nn.Sequential(nn.Conv2d(3, 4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)).eval()
    for model, images, convolves in (
        (flat, torch.rand(1, 5), False),
        (lines, torch.rand(1, 2, 5), True),
        (point, IMAGES, False),
    ):
        replay = Replay(model, images)
        assert replay.last_map is None and (replay.last_convolution is not None) == convolves


def test_the_last_map_of_a_network_with_a_class_layer_is_that_layer() -> None:
    """Not one of several ReLUs side by side below it, which would be half of a layer."""
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers).eval()
    replay, seen = Replay(model, IMAGES), []
    assert replay.network.class_gates and replay.last_map is not None
    replay.last_map.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    replay(IMAGES)
    assert_close(seen, [model[:4](IMAGES).detach()])
