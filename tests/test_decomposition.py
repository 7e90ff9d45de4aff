"""The parts of a decision: complete, in order, and grouped by where they look."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import images, network, seeded
from torch import Tensor, nn

import pathx
from pathx import PathxError, decomposition
from pathx.decomposition import ALIKE, decompose, group_alike, patches
from pathx.drawing.figure import decomposition_remarks
from pathx.maps import overlaps


def class_maps(classes: int = 4) -> nn.Module:
    """Ends in one map per class, as SqueezeNet does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = (
            nn.Conv2d(3, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, classes, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        return nn.Sequential(*layers).eval()


# Grouping


def similarities(count: int, seed: int) -> Tensor:
    rows = torch.randn(count, 3, generator=seeded(seed), dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    return rows @ rows.T


@given(st.integers(0, 12), st.integers(0, 999))
def test_grouping_is_a_partition_in_which_any_two_of_a_group_are_alike(count: int, seed: int) -> None:
    overlap = similarities(count, seed)
    groups = group_alike(overlap)
    assert sorted(number for group in groups for number in group) == list(range(count))
    for position, group in enumerate(groups):
        assert all(overlap[one, other] >= ALIKE - 1e-12 for one in group for other in group)
        for another in groups[position + 1 :]:  # no two groups could be one
            assert min(float(overlap[one, other]) for one in group for other in another) < ALIKE


@given(st.integers(1, 12), st.integers(0, 999), st.randoms())
def test_grouping_does_not_depend_on_the_order(count: int, seed: int, random: st.DataObject) -> None:
    overlap = similarities(count, seed)
    order = list(range(count))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = group_alike(overlap[order][:, order])
    assert {frozenset(order[number] for number in group) for group in shuffled} == set(
        map(frozenset, group_alike(overlap))
    )


@given(st.integers(0, 99), st.lists(st.floats(1e-150, 1e150), min_size=4, max_size=4))
def test_overlap_is_a_cosine(seed: int, factors: list[float]) -> None:
    several = torch.randn(4, 3, 9, 7, generator=seeded(seed), dtype=torch.float64)
    found = overlaps(list(several))
    assert torch.allclose(found, found.T, atol=1e-12)
    assert torch.allclose(found.diagonal(), torch.ones(4, dtype=torch.float64))
    assert float(found.abs().max()) <= 1
    scaled = overlaps([one * factor for one, factor in zip(several, factors, strict=True)])
    assert torch.allclose(found, scaled, atol=1e-9)
    assert torch.allclose(overlaps([several[0], -several[0]])[0, 1], torch.tensor(-1.0, dtype=torch.float64))


def test_spots_count_and_not_their_grain() -> None:
    left, right = torch.zeros(3, 100, 100), torch.zeros(3, 100, 100)
    left[:, 40:60, 20:40] = torch.rand(3, 20, 20, generator=seeded(1))
    right[:, 40:60, 60:80] = torch.rand(3, 20, 20, generator=seeded(2))
    again = torch.zeros(3, 100, 100)
    again[:, 40:60, 20:40] = torch.rand(3, 20, 20, generator=seeded(3))
    assert group_alike(overlaps([left, right, again])) == [[0, 2], [1]]


# Parts and the whole


@settings(max_examples=15)
@given(st.integers(0, 99), st.integers(1, 3), st.sampled_from([1, 3, 8]), st.data())
def test_features_share_out_what_the_units_of_the_layer_send(
    seed: int, depth: int, width: int, data: st.DataObject
) -> None:
    layer = data.draw(st.integers(4 - depth, 3))
    (made,) = decompose(network(seed), images(seed=seed), from_layer=layer, depth=depth, width=width)
    assert made.layer == layer
    kept = next(one for one in made.whole.path if one.layer == layer)
    of_whole = {unit.index: unit.contribution for unit in kept.units}
    assert {unit.index: unit.contribution for unit in made.units} == pytest.approx(of_whole)
    assert made.contribution == pytest.approx(sum(of_whole.values()))
    assert [len(one.units) for one in made.features] and len(made.paths) == len(made.units)
    assert sorted(number for one in made.features for number in one.units) == list(range(len(made.units)))
    for several in (made.units, made.features):
        sent = [one.contribution for one in several]
        assert sent == sorted(sent, reverse=True)
    assert sum(one.contribution for one in made.features) == pytest.approx(made.contribution)
    shares = [one.share for one in made.features]
    assert None in shares or sum(filter(None, shares)) == pytest.approx(1)
    for one in made.features:
        paths = [made.paths[number] for number in one.units]
        torch.testing.assert_close(one.attribution, torch.stack([path.attribution for path in paths]).sum(0))
        torch.testing.assert_close(one.path_map, torch.stack([path.path_map() for path in paths]).sum(0))
    if layer == 4 - depth:  # the path ends there: law 4
        whole = sum((path.attribution for path in made.paths), torch.zeros(3, 10, 10).double())
        torch.testing.assert_close(whole, made.whole.attribution)
        assert sum(path.score for path in made.paths) == pytest.approx(made.whole.score)


def test_features_below_one_percent_are_listed_and_not_drawn() -> None:
    (made,) = decompose(network(), images(), depth=1, width=8)
    assert len(made.features) > 2
    shares = (0.6, 0.35, 0.05, 0.04, 0.007, 0.003, -0.05)
    features = tuple(replace(made.features[0], number=at, share=share) for at, share in enumerate(shares, start=1))
    assert [one.share for one in replace(made, features=features).drawn] == [0.6, 0.35, 0.05, 0.04, -0.05]
    assert [one.share for one in replace(made, features=features, most=2).drawn] == [0.6, 0.35]
    assert [one.share for one in replace(made, features=features[5:6]).drawn] == [0.003]  # never nothing
    remarks = "\n".join(decomposition_remarks(replace(made, features=features)))
    assert "Not drawn: 2 features below 1% (" in remarks and ", 1.0% together)." in remarks
    remarks = "\n".join(decomposition_remarks(replace(made, features=features, most=2)))
    assert "Not drawn: 5 features (" in remarks and ", 5.0% together)." in remarks


# Where


def test_the_top_layer_is_taken_apart_and_a_class_layer_is_none() -> None:
    assert decompose(class_maps(), images().float(), depth=1)[0].layer == 1
    assert decompose(network(), images(), depth=3)[0].layer == 3
    assert decompose(network(classes=1), images(), depth=2)[0].layer == 3
    model = pathx.load_model()
    (made,) = decompose(model.module, torch.randn(1, 3, 224, 224, generator=seeded(0)), depth=2, width=2)
    assert (made.layer, made.whole.hidden_layers) == (17, 17)


def test_an_explanation_keeps_its_image_whatever_becomes_of_the_buffer() -> None:
    net, buffer = network(), images()
    (whole,) = pathx.explain(net, buffer, depth=2, width=4)
    before = whole.decompose()
    buffer.fill_(7.0)
    after = whole.decompose()
    assert after.units == before.units
    assert torch.equal(after.whole.attribution, whole.attribution)


# From an explanation, and what is drawn


def test_an_explanation_can_be_taken_apart() -> None:
    net, image = network(), images()
    (whole,) = pathx.explain(net, image, depth=2, width=4, alpha=0.2, target=1)
    made = whole.decompose(features=2)
    (expected,) = decompose(net, image, depth=2, width=4, alpha=0.2, target=1, features=2)
    assert made.units == expected.units and len(made.drawn) <= 2
    assert [one.units for one in made.features] == [one.units for one in expected.features]
    assert torch.allclose(made.whole.attribution, whole.attribution)
    with pytest.raises(PathxError, match=r"keeps no model and no input: call pathx\.decompose"):
        replace(whole, origin=None).decompose()


def test_a_pickle_leaves_the_model_behind() -> None:
    (whole,) = pathx.explain(network(), images(), depth=2)
    again = pickle.loads(pickle.dumps(whole))
    assert again.path == whole.path and torch.equal(again.attribution, whole.attribution)
    assert again.origin is None and whole.origin is not None


def test_notebooks_show_pictures() -> None:
    (whole,) = pathx.explain(network(), images(), depth=2)
    made = whole.decompose()
    for result in (whole, made):
        data = result._repr_png_()
        assert data is not None and data.startswith(b"\x89PNG")
    assert whole.overlay().size == (520, 520)
    assert "origin" not in repr(replace(whole, attribution=torch.zeros(1), weight=torch.zeros(1)))


def test_inputs_that_are_no_pictures_have_features_and_no_places() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    (made,) = decompose(net, torch.randn(1, 6, generator=seeded(1)), depth=1)
    assert made.features and made.features[0].place is None
    assert made.features[0].path_map is None
    assert made._repr_png_() is None and made.whole._repr_png_() is None
    with pytest.raises(PathxError, match=r"the input \(6\) is no image"):
        made.figure()


# Bad input


def test_a_target_that_no_unit_supports_has_one_feature() -> None:
    (made,) = decompose(network(), images(), alpha=0.999, depth=2)
    assert made.below_alpha
    assert len(made.features) == len(made.drawn) == 1 and made.features[0].share in (None, 1.0)
    assert not decompose(network(), images(), depth=2)[0].below_alpha


@pytest.mark.parametrize("shade", [0.0, 0.5])
def test_a_picture_of_one_colour_has_finite_numbers_and_a_figure(shade: float) -> None:
    (made,) = decompose(network(), torch.full((1, 3, 10, 10), shade, dtype=torch.float64), depth=3)
    assert all(math.isfinite(one.contribution) for one in made.features)
    assert made.figure().width > 400
    if shade == 0:  # weight x 0: nothing of the score comes from the pixels, and the units still have their places
        assert all(not one.attribution.any() and one.place is not None for one in made.features)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "0 features are out of range; use 1 or more"),
        (
            {"from_layer": 1},
            "layer 1 is not on the path, which has layers 2 to 3; choose one of these, or a greater depth",
        ),
        ({"target": [1, 2]}, "target has 2 entries for 1 images; give one per image"),
        ({"width": 5}, "layer 3 keeps 5 units, and each would be followed alone; use a width of at most 4"),
    ],
)
def test_wrong_calls(options: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposition, "MOST_UNITS", 4)
    with pytest.raises(PathxError) as caught:
        decompose(network(), images(), **{"depth": 2, "width": 3, **options})
    assert str(caught.value) == message
    assert caught.value.usage


# Patches of one channel


def test_units_of_tokens_are_grouped_by_their_channel_and_the_place_of_their_token() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Tokens().eval()
    (made,) = decompose(net, torch.randn(1, 3, 8, 8, generator=seeded(1)), depth=1, width="all")
    for feature in made.features:
        for (_, channel), units in made.channels(feature).items():
            assert {unit.index[-1] for unit in units} == {channel}


class Tokens(nn.Module):
    """Patches of 2 x 2 as 16 tokens, a gated layer over the channels of each, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.inner, self.head = nn.Conv2d(3, 5, 2, 2), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(torch.nn.functional.gelu(self.inner(tokens)).mean(1))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 4)), max_size=14, unique=True))
def test_patches_are_a_partition_and_no_two_of_a_channel_touch(places: list[tuple[int, int, int]]) -> None:
    found = patches([("a", channel, (y, x)) for channel, y, x in places])
    assert sorted(number for patch in found for number in patch) == list(range(len(places)))
    for one, other in itertools.combinations(found, 2):
        for first, second in itertools.product(one, other):
            (channel, y, x), (another, down, across) = places[first], places[second]
            assert channel != another or max(abs(y - down), abs(x - across)) > 1


def test_the_path_of_a_unit_is_mapped_without_the_layers_above_it() -> None:
    (whole,) = pathx.explain(network(), images(), depth=3, width=6)
    for path in whole.decompose(from_layer=2).paths:
        assert path.branch == 2 and set(path.mapped) <= {1, 2}
        torch.testing.assert_close(path.path_map(), sum(path.path_map(layer) for layer in path.mapped))
