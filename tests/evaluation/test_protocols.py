"""Insertion and deletion: equal to a slow, literal reading of the published procedures, and right where it is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pathx.engine.replay import Classifier
from pathx.errors import PathxError
from pathx.evaluation.choices import DRAWS
from pathx.evaluation.protocols import RANKED, area, blur, blur_taps, make_protocol, tied_share
from pathx.evaluation.statistics import generator_of

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
    start = blur(image[None])[0] if mode == "insertion" else image.clone()
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
    rows = make_protocol(protocol, 6, 6, step_pixels=step, ties="rows")
    found = rows.curves(classifier, images, targets, attribution, ["a", "b", "c"])
    for image, one, curves in zip(images, attribution, found, strict=True):
        for mode, curve in (("insertion", curves.insertion), ("deletion", curves.deletion)):
            assert curve == pytest.approx(literal(model, image, one, protocol, step, mode), abs=1e-6)


def test_the_blur_has_the_known_taps() -> None:
    assert blur_taps().tolist() == pytest.approx([*TAPS, *TAPS[-2::-1]], abs=5e-7)
    assert float(blur_taps().sum()) == pytest.approx(1)


def test_the_blur_is_zero_padded_and_keeps_channels_apart() -> None:
    image = torch.zeros(1, 3, 20, 20)
    image[0, 1, 0, 10] = 1
    found = blur(image)[0]
    taps = blur_taps().float()
    assert torch.allclose(found[1, 0, 5:16], taps[5] * taps)
    assert float(found[1].sum()) == pytest.approx(float(taps[5:].sum()), abs=1e-6)  # the rest fell off the edge
    assert not found[0].any() and not found[2].any()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_area_is_that_of_trapezia(curve: list[float]) -> None:
    slices = [(one + other) / 2 for one, other in pairwise(curve)]
    assert area(curve) == pytest.approx(sum(slices) / len(slices))


@pytest.mark.parametrize("name", RANKED)
@torch.no_grad()
def test_ties_are_the_mean_of_seeded_random_orders(name: str) -> None:
    """A map that ties in parts is what a literal reading gives for each draw of an order, on average."""
    model, images = network(), noise(1, 3, 6, 6)
    classifier, targets = Classifier(model, images[0]), [int(model(images).argmax())]
    attribution = noise(1, 3, 6, 6, seed=5).round(decimals=0)
    (found,) = make_protocol(name, 6, 6, step_pixels=5).curves(classifier, images, targets, attribution, ["a"])
    curves = []
    for draw in range(DRAWS):
        order = torch.randperm(36, generator=generator_of("a", str(draw)))
        place = torch.empty(36)
        place[order] = torch.arange(36.0)
        apart = attribution - 1e-3 * place.reshape(6, 6)  # no ties any more, and no other order
        curves.append(literal(model, images[0], apart[0], name, 5, "insertion"))
    assert found.insertion == pytest.approx(torch.tensor(curves).mean(0).tolist(), abs=1e-6)
    again = make_protocol(name, 6, 6, step_pixels=5).curves(classifier, images, targets, attribution, ["b"])
    assert again[0].insertion != found.insertion  # another picture, another order


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_the_share_of_ties_is_that_of_values_that_others_equal(values: list[int]) -> None:
    expected = sum(values.count(value) > 1 for value in values) / len(values)
    assert tied_share(torch.tensor(values, dtype=torch.float32)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "rise", "steps": 0}, "0 steps are out of range; use 1 to 16"),
        ({"name": "rise", "step_pixels": 17}, "17 pixels per step are out of range; use 1 to 16"),
    ],
)
def test_what_is_wrong_is_said(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PathxError) as raised:
        make_protocol(height=4, width=4, **arguments)  # type: ignore[arg-type]
    assert str(raised.value) == text and raised.value.usage
