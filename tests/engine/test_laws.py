"""The laws of the design, each over random networks, through the public functions.

Half of the networks multiply by what they computed (gates, norms, attention); of the cases, one in four explains a class against
another. `support/reference.py` does the same slowly, from the definitions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import reference
from support.cases import CLOSE, Case, assert_equals_reference, cases
from support.drawn_networks import SEEDS, networks, tiny_networks
from support.modules import state_of
from support.networks import FLOAT, Network, worked_example
from support.reference import Reference
from support.twins import frozen_weight
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import Explanation, PathxError
from pathx.maps import contribution_grids, plane


@settings(max_examples=80)  # the nightly run draws others
@given(cases(), SEEDS)
def test_laws_of_an_explanation(case: Case, seed: int) -> None:
    """One batch, explained once: it is what the literal method says of each image alone, and all that laws say of it holds."""
    expected = case.reference()
    model, images = lived_in(case.network, seed), case.images.clone()
    answers = case.network.module()(images).detach()
    before = state_of(model)
    explanations = pathx.explain(model, case.images, **case.options, removal=True)
    assert torch.equal(case.images, images) and not case.images.requires_grad
    assert len(explanations) == len(expected)
    for number, (found, literal) in enumerate(zip(explanations, expected, strict=True)):
        assert_equals_reference(found, literal)
        assert_settings_are_said(found, case, number)
        law_1_completeness(found, 1e-10)
        law_9_edges(found, literal)
        law_10_path_map(found)
        law_11_the_answer_is_the_models(found, case.network, answers[number])
        law_12_fields(found, literal)
    law_13_removal(case, model, explanations)
    assert state_of(model) == before  # law 7


def assert_settings_are_said(found: Explanation, case: Case, number: int) -> None:
    layers, options = len(reference.hidden_layers(case.network)), case.options
    assert (found.hidden_layers, found.exact) == (layers, case.network.exact)
    assert found.depth == len(found.path) == (layers if options["depth"] == "all" else options["depth"])
    assert found.complete == (found.depth == layers)
    assert found.against == case.of_image(number)["against"]
    classes = case.network.classes if found.against is None else 2
    default = 0.0 if options["importance"] == "effect" else 1 / classes
    assert found.alpha == (default if options["alpha"] is None else options["alpha"])
    for name in ("width", "skips", "importance"):
        assert getattr(found, name) == options[name]


def law_1_completeness(found: Explanation, tolerance: float) -> None:
    terms = found.attribution.double()
    scale = max(float(terms.abs().sum()) + abs(found.bias), abs(found.score))
    assert abs(float(terms.sum()) + found.bias - found.score) <= tolerance * scale
    in_the_deepest_layer = sum(unit.contribution for unit in found.path[-1].units)
    if found.skips == "adjacent":
        assert abs(in_the_deepest_layer - found.score) <= tolerance * scale


def law_9_edges(found: Explanation, literal: Reference) -> None:
    """Each is that of the literal method; those of a unit sum to its contribution."""
    order: dict[int | None, list[int]] = {None: [0]}  # equal units may change places
    for layer, expected in zip(found.path, literal.path, strict=True):
        names = [tensor.name for tensor in layer.tensors]
        place = {(unit.relu, unit.index): number for number, unit in enumerate(expected.units)}
        order[layer.layer] = [place[names.index(unit.tensor), unit.index] for unit in layer.units]
        shown = {edges.layer: edges.value for edges in layer.edges}
        contributions = torch.tensor([unit.contribution for unit in layer.units], dtype=FLOAT)
        assert_close(sum(value.sum(1) for value in shown.values()), contributions, **CLOSE)
        for above, value in expected.edges.items():
            value = value[order[layer.layer]][:, order[above]]
            assert_close(shown.pop(above, torch.zeros_like(value)), value, **CLOSE)
        assert not any(value.any() for value in shown.values())


def law_10_path_map(found: Explanation) -> None:
    """Each layer's part sums to its contributions, before and after enlarging; the map is the sum of the parts."""
    if found.attribution.dim() != 3:
        assert found.mapped == ()
        return
    parts = []
    for layer in found.path:
        placed = {tensor.name for tensor in layer.tensors if tensor.places}
        assert (layer.layer in found.mapped) == bool(placed)
        own = [unit.contribution for unit in layer.units if unit.tensor in placed]
        expected = torch.tensor(own, dtype=FLOAT).sum()
        grids = [grid for _, grid in contribution_grids(layer)]
        assert_close(sum((grid.sum() for grid in grids), torch.zeros((), dtype=FLOAT)), expected, **CLOSE)
        parts.append(found.path_map(layer.layer))
        assert parts[-1].shape == found.attribution.shape[1:]
        assert_close(parts[-1].sum(), expected, **CLOSE)
    whole = torch.stack(parts).sum(0) if found.mapped else plane(found.attribution)
    assert_close(found.path_map(), whole, **CLOSE)


def law_11_the_answer_is_the_models(found: Explanation, network: Network, answer: Tensor) -> None:
    """(Of a model that changed since the last call: record/test_recorder.py.)"""
    logits = found.logits if network.outputs > 1 else found.logits[1:]
    assert_close(ENDINGS[network.ending](logits), answer, **CLOSE)
    assert network.outputs > 1 or found.logits[0] == 0


ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "logits": lambda logits: logits,
    "softmax": lambda logits: logits.softmax(0),
    "log_softmax": lambda logits: logits.log_softmax(0),
    "sigmoid": torch.sigmoid,
}


def law_12_fields(found: Explanation, literal: Reference) -> None:
    """A unit depends on nothing outside of its receptive field."""
    frozen, shape = literal.frozen, literal.attribution.shape
    for layer, expected in zip(found.path, literal.path, strict=True):
        names = [tensor.name for tensor in layer.tensors]
        for unit in layer.units:
            if len(shape) == 1:
                assert unit.receptive_field == ()
                continue
            relu = expected.nodes[names.index(unit.tensor)]
            places = torch.arange(len(frozen.values[relu])).view(frozen.network.nodes[relu].shape)
            seen = frozen.weight[frozen.before(relu)][places[unit.index]].view(shape).abs().sum(0)
            left, top, right, bottom = unit.receptive_field
            assert 0 <= left <= right <= shape[2]  # empty where a unit sees padding alone
            assert 0 <= top <= bottom <= shape[1]
            seen[top:bottom, left:right] = 0
            assert not seen.any()


def law_13_removal(case: Case, model: nn.Module, explanations: list[Explanation]) -> None:
    """`ablate` and the proof of a path are the network run again without the units, everything else free to follow."""
    layers = reference.hidden_layers(case.network)
    for found, made, image in zip(
        pathx.ablate(model, case.images, path=explanations), explanations, case.images, strict=True
    ):
        units = set()
        for layer in made.path:
            nodes = dict(zip([tensor.name for tensor in layer.tensors], layers[layer.layer], strict=True))
            for unit in layer.units:
                shape = case.network.nodes[nodes[unit.tensor]].shape
                units.add((nodes[unit.tensor], int(torch.arange(torch.Size(shape).numel()).view(shape)[unit.index])))
        expected = reference.logits_without(case.network, image, units)
        assert_close(found.after if case.network.outputs > 1 else found.after[1:], expected, **CLOSE)
        assert (found.units, found.before.tolist()) == (len(units), made.logits.tolist())
        assert made.removal is not None and made.removal.units == len(units)
        after = found.after.softmax(0)
        assert made.removal.after == pytest.approx(float(after[made.target]))
        if made.against is not None:
            assert made.removal.against is not None
            assert made.removal.against.after == pytest.approx(float(after[made.against]))


@settings(max_examples=15)
@given(cases())
def test_law_1_completeness_in_float32(case: Case) -> None:
    for found in replace(case, images=case.images.float()).explain(case.network.module().float()):
        assert found.attribution.dtype == torch.float32
        assert found.attribution.shape == case.network.input_shape
        law_1_completeness(found, 1e-5)


@settings(max_examples=25)
@given(cases())
def test_law_2_unwrapping(case: Case) -> None:
    """With every multiplier detached, autograd gives the weight; in a ReLU network there is none, and it is Saliency."""
    whole = {"depth": "all", "width": "all", "alpha": 0.0, "skips": "all", "importance": "paper"}
    model = replace(case.network, ending="logits").module()

    def weight(image: Tensor, target: int) -> Tensor:
        if case.network.outputs == 1:
            return (2 * target - 1) * frozen_weight(model, image, 0)  # the negative class of one logit y is -y
        return frozen_weight(model, image, target)

    for found, image in zip(replace(case, options={**case.options, **whole}).explain(), case.images, strict=True):
        expected = weight(image, found.target)
        if found.against is not None and case.network.outputs > 1:
            expected = expected - weight(image, found.against)
        assert_close(found.weight, expected, **CLOSE)
        assert_close(found.attribution, expected * image, **CLOSE)


@settings(max_examples=40)
@given(cases(tiny_networks(), images=1))
def test_law_3_sum_of_one_way_paths(case: Case) -> None:
    case = replace(case, options={**case.options, "against": None})
    (expected,) = case.reference()
    (found,) = case.explain()
    weight, bias = reference.sum_of_one_way_paths(case.network, case.images[0], expected, case.options["skips"])
    assert_close(found.weight, weight, **CLOSE)
    assert_close(found.bias, bias, **CLOSE)


@settings(max_examples=15)
@given(cases(images=1), st.data())
def test_law_4_decomposition(case: Case, data: st.DataObject) -> None:
    """A feature is Algorithm 1 with one unit, in any layer; where the path ends there, features sum to the whole."""
    options = {key: value for key, value in case.options.items() if key != "against"}
    case = replace(case, options={**options, "against": None})
    wholes = case.reference()
    split = data.draw(st.sampled_from([layer.layer for layer in wholes[0].path]))
    decomposed = pathx.decompose(case.network.module(), case.images, from_layer=split, **options)
    for made, whole, image in zip(decomposed, wholes, case.images, strict=True):
        layer = next(layer for layer in whole.path if layer.layer == split)
        names = [tensor.name for one in made.whole.path if one.layer == split for tensor in one.tensors]
        kept = {(unit.relu, unit.index): flat for unit, flat in zip(layer.units, layer.kept, strict=True)}
        assert {(names.index(unit.tensor), unit.index) for unit in made.units} == {*kept}
        for path, unit in list(zip(made.paths, made.units, strict=True))[:3]:
            only = (split, kept[names.index(unit.tensor), unit.index])
            expected = reference.explain(case.network, image, **{**options, "target": whole.target}, only=only)
            assume(expected.gap > 1e-9)
            assert_equals_reference(path, expected)
        if layer is whole.path[-1] and options["skips"] == "adjacent":
            for number in ("attribution", "bias", "score"):
                expected_sum = torch.as_tensor(getattr(whole, number), dtype=FLOAT)
                parts = (torch.as_tensor(getattr(path, number), dtype=FLOAT) for path in made.paths)
                assert_close(sum(parts, torch.zeros_like(expected_sum)), expected_sum, **CLOSE)


def traced(model: nn.Module, images: Tensor) -> nn.Module:
    module: nn.Module = torch.jit.trace(model, images, check_trace=False)  # type: ignore[no-untyped-call]
    return module


def scripted(model: nn.Module, images: Tensor) -> nn.Module:
    module: nn.Module = torch.jit.script(model)
    return module


def exported(model: nn.Module, images: Tensor) -> nn.Module:
    return torch.export.export(model, (images,)).module()


@pytest.mark.parametrize("load", [traced, scripted, exported])
@settings(max_examples=5)
@given(data=st.data())
def test_law_6_loading_invariance(load: Callable[[nn.Module, Tensor], nn.Module], data: st.DataObject) -> None:
    case = data.draw(cases(networks(moves=load is not scripted)))  # TorchScript cannot read the lambdas of moves
    expected = case.reference()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is on its way out, which is not our concern here
        loaded = load(case.network.module(), case.images)
    for mine, theirs in zip(case.explain(loaded), expected, strict=True):
        assert_equals_reference(mine, theirs)


# --- Law 7 ------------------------------------------------------------------------------------------------------------


def lived_in(network: Network, seed: int) -> nn.Module:
    """A model with a past: gradients here and there, frozen parameters, a user's hooks, some modules training."""
    model = network.module()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if torch.rand((), generator=generator) < 0.5:
            parameter.grad = torch.randn(parameter.shape, dtype=FLOAT, generator=generator)
        parameter.requires_grad_(bool(torch.rand((), generator=generator) < 0.5))
    for module in model.modules():
        module.training = bool(torch.rand((), generator=generator) < 0.5)
    model.register_forward_hook(lambda module, args, output: None)
    return model


WRONG: list[dict[str, Any]] = [
    *({"depth": 99}, {"depth": 0}, {"width": 0}, {"alpha": 1.5}, {"skips": "some"}),
    *({"target": 99}, {"target": -1}, {"target": [0, 0, 0]}),
    *({"target": 0, "against": 0}, {"target": 0, "against": 99}, {"target": 0, "against": [1, 1, 1]}),
]


@pytest.mark.parametrize("wrong", WRONG)
@settings(max_examples=2)
@given(network=networks(), seed=SEEDS)
def test_law_7_also_after_an_error(wrong: dict[str, Any], network: Network, seed: int) -> None:
    model, images = lived_in(network, seed), network.images(2, seed)
    before = state_of(model)
    with pytest.raises(PathxError):
        pathx.explain(model, images, **{"depth": 1, **wrong})
    assert state_of(model) == before


# --- Law 8: the paper's worked example ---------------------------------------------------------------------------------


def test_law_8_worked_example() -> None:
    images = torch.tensor([[1.0, 4.0]], dtype=FLOAT)
    (found,) = pathx.explain(worked_example().module(), images, target=1, depth=2, width=1)
    assert [(layer.layer, [unit.index for unit in layer.units]) for layer in found.path] == [(2, [(0,)]), (1, [(0,)])]
    assert [unit.activation for layer in found.path for unit in layer.units] == [4, 3]
    assert [round(unit.importance, 3) for layer in found.path for unit in layer.units] == [0.982, 0.953]
    assert found.weight.tolist() == [-1, 1]
    assert found.attribution.tolist() == [-1, 4]
    assert (found.bias, found.score) == (0, 3)
    assert found.alpha == 0.5
    assert found.complete


def test_law_8_the_unit_that_was_left_out() -> None:
    images = torch.tensor([[1.0, 4.0]], dtype=FLOAT)
    (found,) = pathx.explain(worked_example().module(), images, target=1, depth=2, width=2, alpha=0.0)
    first = found.path[1].units
    assert [(unit.index, round(unit.importance, 3)) for unit in first] == [((0,), 0.953), ((1,), 0.269)]
    assert [(unit.activation, unit.weight, unit.contribution) for unit in first] == [(3, 1, 3), (1, -1, -1)]


def test_law_8_the_negative_class_is_explained_by_minus_y() -> None:
    images = torch.tensor([[1.0, 4.0]], dtype=FLOAT)
    (found,) = pathx.explain(worked_example().module(), images, target=0, depth=2, width=1)
    (last,), (first,) = found.path[0].units, found.path[1].units
    assert [layer.below_alpha for layer in found.path] == [True, False]
    assert (last.weight, round(last.importance, 3)) == (-1, round(1 - 0.982, 3))
    assert (first.index, first.weight, round(first.importance, 3)) == ((1,), 1, round(1 - 0.269, 3))
    assert (found.weight.tolist(), found.bias, found.score) == ([1, 1], -4, 1)
