from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.engine.replay import Classifier
from pathx.evaluation.choices import METHODS
from pathx.evaluation.methods import Subject
from pathx.maps import enlarge, smooth

NAMES = (
    *("path_map", "pathx", "frozen", "layer_map", "grad_cam", "saliency", "input_x_gradient", "integrated_gradients"),
    *("guided_backprop", "guided_gradcam", "blur_ig", "random", "edges", "constant"),
)
IMAGES = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(5 * 5 * 3, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def subject(images: Tensor = IMAGES, names: tuple[str, ...] = ("a", "b")) -> Subject:
    module = network().to(images.dtype)
    classifier = Classifier(module, images[0])
    return Subject(classifier, images, module(images).argmax(1).tolist(), list(names))


def test_the_names_are_those_that_users_script_against() -> None:
    assert tuple(METHODS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_method_attributes_picture_by_picture(name: str) -> None:
    """A batch gives what its pictures give alone, and two calls give the same."""
    if METHODS[name].captum:
        pytest.importorskip("captum")
    compute = METHODS[name].compute
    both = compute(subject())
    assert both.shape == IMAGES.shape and not both.requires_grad
    assert_close(both, compute(subject()))
    assert torch.allclose(both[1:], compute(subject(IMAGES[1:], ("b",))), atol=1e-6)
    assert (float(both[0].std()) > 0) != (name == "constant")


def test_frozen_is_the_input_times_the_gradient_of_the_detached_network() -> None:
    everything = {"depth": "all", "width": "all", "alpha": 0.0, "skips": "all"}
    assert_close(METHODS["frozen"].compute(subject()), METHODS["pathx"].compute(subject(), **everything))
    gated = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 7 * 5, 3)).eval()
    found = METHODS["frozen"].compute(Subject(Classifier(gated, IMAGES[0]), IMAGES, [0, 2], ["a", "b"]))
    x = IMAGES.clone().requires_grad_()
    hidden = gated[0](x)
    logits = gated[3]((hidden * hidden.sigmoid().detach()).flatten(1))
    (gradient,) = torch.autograd.grad(logits[0, 0] + logits[1, 2], x)
    assert_close(found, gradient * IMAGES)


def test_the_map_of_one_layer_is_all_its_contributions_laid_evenly() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)).eval()
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    one = Subject(Classifier(model, images[0]), images, [1], ["a"])
    hidden = model[1](model[0](images))
    contributions = hidden[0] * model[3].weight[1].reshape(4, 4, 4)
    found = METHODS["layer_map"].compute(one)[0].sum(0)
    assert float(found.sum()) == pytest.approx(float(contributions.detach().sum()), rel=1e-5, abs=1e-6)
    even = ((1.0, 2.0), (1.0, 2.0))
    expected = smooth(enlarge([(even, contributions.sum(0).detach().double())], (8, 8)), 1 / 16)
    assert_close(found, expected.float())


def slow_gaussian(image: Tensor, sigma: float) -> Tensor:
    """Pixel by pixel, from the definition: normalised up to 4 sigma, zeros outside the picture."""
    if sigma == 0:
        return image
    reach = int(4 * sigma + 0.5)
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-reach, reach + 1)]
    weights = [weight / sum(weights) for weight in weights]
    for dim in (1, 2):
        size, blurred = image.shape[dim], torch.zeros_like(image)
        for place in range(size):
            for offset in range(-reach, reach + 1):
                if 0 <= place + offset < size:
                    row = image.select(dim, place + offset) * weights[offset + reach]
                    blurred.select(dim, place).add_(row)
        image = blurred
    return image


def test_blur_ig_is_the_sum_along_the_blur() -> None:
    of = subject(IMAGES[:1].double(), ("a",))
    image, target = of.images[0], of.targets[0]
    total = torch.zeros_like(image)
    for step in range(100):
        sigma = step * 50 / 100
        state = slow_gaussian(image, sigma)
        change = (slow_gaussian(image, sigma + 0.01) - state) / 0.01
        state = state.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(of.classifier.module(state[None]).softmax(1)[0, target], state)
        total -= 0.5 * change * gradient
    assert torch.allclose(METHODS["blur_ig"].compute(of)[0], total, rtol=1e-6, atol=1e-10)


def test_edges_are_steep_places() -> None:
    images = torch.zeros(1, 3, 9, 7)
    images[:, :, :, 3:] = 1
    found = METHODS["edges"].compute(subject(images, ("a",)))[0]
    assert torch.equal(found > 0, torch.tensor([False, False, True, True, False, False, False]).expand(3, 9, 7))
