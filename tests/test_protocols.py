"""Insertion and deletion: equal to a slow, literal reading of the published procedures, and right where it is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathx.errors import PathxError
from pathx.protocols import area, blur_taps, blurred, make_protocol
from pathx.replay import Classifier

pytestmark = pytest.mark.usefixtures("one_thread")

TAPS = (0.087958, 0.088896, 0.090474, 0.092191, 0.093489, 0.093982)


def network(size: int = 6, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(5 * (size - 2) ** 2, 4)
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), head).eval()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def literal(model: nn.Module, image: Tensor, attribution: Tensor, protocol: str, step: int, mode: str) -> list[float]:
    """One picture, one forward pass per step, pixels changed one by one."""
    target = int(model(image[None]).argmax())
    pixels = image.shape[1] * image.shape[2]
    maps = [attribution.sum(0)] if protocol == "rise" else list(attribution)
    orders = [sorted(range(pixels), key=lambda p, m=m: (-float(m.flatten()[p]), p)) for m in maps]  # type: ignore[misc]
    start = blurred(image[None])[0] if mode == "insertion" else image.clone()
    finish = image if mode == "insertion" else torch.zeros_like(image)
    state = start.clone().reshape(3, pixels)
    scores = [float(model(state.reshape(image.shape)[None]).softmax(1)[0, target])]
    for first in range(0, pixels, step):
        for order in orders:
            for pixel in order[first : first + step]:
                state[:, pixel] = finish.reshape(3, pixels)[:, pixel]
        scores.append(float(model(state.reshape(image.shape)[None]).softmax(1)[0, target]))
    return scores


@pytest.mark.parametrize("protocol", ["rise", "paper"])
@pytest.mark.parametrize("step", [1, 6, 7, 36])
@torch.no_grad()
def test_batched_steps_are_the_literal_procedure(protocol: str, step: int) -> None:
    model, images, attribution = network(), noise(3, 3, 6, 6, seed=1), noise(3, 3, 6, 6, seed=2).round(decimals=1)
    classifier = Classifier(model, images[0])
    classifier.chunk = 10  # so that a picture's steps are cut in the middle
    targets = model(images).argmax(1).tolist()
    found = make_protocol(protocol, 6, 6, step_pixels=step).curves(classifier, images, targets, attribution)
    for image, one, curves in zip(images, attribution, found, strict=True):
        for mode, curve in (("insertion", curves.insertion), ("deletion", curves.deletion)):
            assert curve == pytest.approx(literal(model, image, one, protocol, step, mode), abs=1e-6)


def test_the_blur_has_the_known_taps() -> None:
    assert blur_taps().tolist() == pytest.approx([*TAPS, *TAPS[-2::-1]], abs=5e-7)
    assert float(blur_taps().sum()) == pytest.approx(1)


def test_the_blur_is_zero_padded_and_keeps_channels_apart() -> None:
    image = torch.zeros(1, 3, 20, 20)
    image[0, 1, 0, 10] = 1
    found = blurred(image)[0]
    taps = blur_taps().float()
    assert torch.allclose(found[1, 0, 5:16], taps[5] * taps)
    assert float(found[1].sum()) == pytest.approx(float(taps[5:].sum()), abs=1e-6)  # the rest fell off the edge
    assert not found[0].any() and not found[2].any()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_area_is_that_of_trapezia(curve: list[float]) -> None:
    slices = [(one + other) / 2 for one, other in pairwise(curve)]
    assert area(curve) == pytest.approx(sum(slices) / len(slices))


def test_areas_that_are_known() -> None:
    assert area([1, 1, 1]) == 1
    assert area([0, 1]) == 0.5
    assert area([0, 1, 0]) == 0.5
    assert area([1, 0, 0, 0, 0]) == 0.125


@settings(max_examples=40)
@given(seed=st.integers(0, 1000))
@torch.no_grad()
def test_on_a_linear_model_the_right_ranking_inserts_and_deletes_best(seed: int) -> None:
    """Against zero, each pixel of a linear model adds its weight times itself: that order beats any other."""
    weight, image = noise(16, seed=seed).abs(), noise(1, 1, 4, 4, seed=seed + 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).eval()
    model[1].weight.copy_(torch.stack([weight, -weight]))
    model[3].weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))  # logits +-(weight . x), which is linear
    classifier = Classifier(model, image[0])
    target = int(model(image).argmax())
    sign = 1 if target == 0 else -1
    right = (sign * weight * image.flatten()).reshape(1, 1, 4, 4)
    protocol = make_protocol("rise", 4, 4, step_pixels=1)
    (best,) = protocol.curves(classifier, image, [target], right)
    any_order = noise(1, 1, 4, 4, seed=seed + 2)
    (other,) = protocol.curves(classifier, image, [target], any_order)
    assert area(best.deletion) <= area(other.deletion) + 1e-6
    # From an empty picture, insertion is deletion in the reverse order, read backwards.
    (best,) = protocol.curves(classifier, image, [target], -right)
    (other,) = protocol.curves(classifier, image, [target], -any_order)
    assert area(best.deletion[::-1]) >= area(other.deletion[::-1]) - 1e-6


@torch.no_grad()
def test_a_constant_map_is_taken_row_by_row_and_noted() -> None:
    model, images = network(), noise(1, 3, 6, 6)
    classifier, targets = Classifier(model, images[0]), [int(model(images).argmax())]
    rows = -torch.arange(36.0).reshape(1, 1, 6, 6).expand(1, 3, 6, 6)
    for name in ("rise", "paper"):
        protocol = make_protocol(name, 6, 6)
        (flat,) = protocol.curves(classifier, images, targets, torch.full((1, 3, 6, 6), 0.5))
        (falling,) = protocol.curves(classifier, images, targets, rows)
        assert flat.tied and not falling.tied
        assert flat.insertion == falling.insertion and flat.deletion == falling.deletion


def test_a_step_is_a_row_unless_told_otherwise() -> None:
    assert make_protocol("rise", 224, 224).step_pixels == 224
    assert make_protocol("paper", 10, 32).step_pixels == 32 and make_protocol("paper", 10, 32).steps == 10
    assert make_protocol("rise", 10, 10, steps=3).step_pixels == 34


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "road"}, "there is no protocol 'road': choose rise or paper"),
        ({"name": "rise", "steps": 0}, "0 steps are out of range; use 1 to 16"),
        ({"name": "rise", "step_pixels": 17}, "17 pixels per step are out of range; use 1 to 16"),
        (
            {"name": "rise", "steps": 2, "step_pixels": 3},
            "--steps and --step-pixels say the same thing: give one of them",
        ),
    ],
)
def test_what_is_wrong_is_said(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PathxError) as raised:
        make_protocol(height=4, width=4, **arguments)  # type: ignore[arg-type]
    assert str(raised.value) == text and raised.value.usage
