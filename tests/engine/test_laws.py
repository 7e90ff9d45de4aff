"""The laws of the design, each over random networks, through the public `pathx.explain`."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support import reference
from support.cases import (
    CLOSE,
    Case,
    assert_equals_reference,
    assert_same,
    cases,
    contrasts,
)
from support.drawn_networks import SEEDS, networks, random_network, tiny_networks
from support.networks import FLOAT, Network, worked_example
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.explain import decompose_frozen
from pathx.engine.freeze import freeze
from pathx.engine.search import Strategy
from pathx.engine.settings import predictions

pytestmark = pytest.mark.usefixtures("one_thread")

# --- The method -------------------------------------------------------------------------------------------------------


@settings(max_examples=120)
@given(cases())
def test_the_engine_equals_the_literal_method(case: Case) -> None:
    expected = case.reference()
    found = case.explain()
    assert len(found) == len(case.images)
    for mine, theirs in zip(found, expected, strict=True):
        assert_equals_reference(mine, theirs)


@settings(max_examples=20)
@given(cases())
def test_an_explanation_says_how_it_was_made(case: Case) -> None:
    layers = len(reference.hidden_layers(case.network))
    for found, image in zip(case.explain(), case.images, strict=True):
        output = reference.freeze(case.network, image).values[-1]
        assert_close(found.logits, output if len(output) > 1 else torch.cat([0 * output, output]), **CLOSE)
        assert found.hidden_layers == layers
        assert found.depth == len(found.path) == (layers if case.options["depth"] == "all" else case.options["depth"])
        assert found.complete == (found.depth == layers)
        assert found.width == case.options["width"]
        default = 0.0 if case.options["importance"] == "effect" else 1 / case.network.classes
        assert found.alpha == (default if case.options["alpha"] is None else case.options["alpha"])
        assert found.skips == case.options["skips"]
        assert found.importance == case.options["importance"]


@settings(max_examples=30)
@given(cases())
def test_a_unit_depends_on_nothing_outside_its_receptive_field(case: Case) -> None:
    layers = reference.hidden_layers(case.network)
    for found, image in zip(case.explain(), case.images, strict=True):
        frozen = reference.freeze(case.network, image)
        for layer in found.path:
            names = [tensor.name for tensor in layer.tensors]
            for unit in layer.units:
                if image.ndim == 1:
                    assert unit.receptive_field == ()
                    continue
                relu = layers[layer.layer][names.index(unit.tensor)]
                places = torch.arange(len(frozen.values[relu])).view(case.network.nodes[relu].shape)
                seen = frozen.weight[frozen.before(relu)][places[unit.index]].view_as(image).abs().sum(0)
                left, top, right, bottom = unit.receptive_field
                assert 0 <= left < right <= image.shape[2]
                assert 0 <= top < bottom <= image.shape[1]
                seen[top:bottom, left:right] = 0
                assert not seen.any()


# --- Law 1: completeness ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@settings(max_examples=30)
@given(case=cases())
def test_law_1_completeness(dtype: torch.dtype, tolerance: float, case: Case) -> None:
    for found in replace(case, images=case.images.to(dtype)).explain(case.network.module().to(dtype)):
        assert found.attribution.dtype == dtype
        assert found.attribution.shape == case.network.input_shape
        terms = found.attribution.double()
        scale = max(float(terms.abs().sum()) + abs(found.bias), abs(found.score))
        assert abs(float(terms.sum()) + found.bias - found.score) <= tolerance * scale
        in_the_deepest_layer = sum(unit.contribution for unit in found.path[-1].units)
        if case.options["skips"] == "adjacent":
            assert abs(in_the_deepest_layer - found.score) <= tolerance * scale


# --- Law 2: unwrapping ------------------------------------------------------------------------------------------------


def gradient(network: Network, image: Tensor, target: int) -> Tensor:
    """Saliency by autograd; the negative class of a single logit y is -y."""
    x = image.clone().requires_grad_()
    logits = replace(network, ending="logits").module()(x[None])[0]
    logit = logits[target] if network.outputs > 1 else (2 * target - 1) * logits[0]
    return torch.autograd.grad(logit, x)[0]


@settings(max_examples=60)
@given(networks(), SEEDS, st.data())
def test_law_2_everything_kept_is_the_gradient(network: Network, seed: int, data: st.DataObject) -> None:
    images = network.images(2, seed)
    target = data.draw(st.integers(0, network.classes - 1))
    whole: dict[str, Any] = {"depth": "all", "width": "all", "alpha": 0.0, "skips": "all"}
    for found, image in zip(pathx.explain(network.module(), images, target=target, **whole), images, strict=True):
        saliency = gradient(network, image, target)
        assert_close(found.weight, saliency, **CLOSE)
        assert_close(found.attribution, saliency * image, **CLOSE)


@settings(max_examples=20)
@given(SEEDS, st.booleans(), st.integers(1, 3))
def test_law_2_in_a_chain_adjacent_routes_are_all_there_is(seed: int, image: bool, length: int) -> None:
    network = random_network(seed, image=image, blocks=("chain",) * length)
    images = network.images(1, seed)
    (found,) = pathx.explain(network.module(), images, target=2, depth="all", width="all", alpha=0.0, skips="adjacent")
    assert_close(found.weight, gradient(network, images[0], 2), **CLOSE)


# --- One class against another ----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(contrasts())
def test_against_another_class_the_engine_equals_the_literal_method(case: Case) -> None:
    others = case.options["against"]
    for mine, theirs, other in zip(case.explain(), case.reference(), others, strict=True):
        assert_equals_reference(mine, theirs)
        assert mine.against == other
        default = 0.0 if case.options["importance"] == "effect" else 0.5
        assert mine.alpha == (default if case.options["alpha"] is None else case.options["alpha"])
        terms = mine.attribution
        scale = max(float(terms.abs().sum()) + abs(mine.bias), abs(mine.score))
        assert abs(float(terms.sum()) + mine.bias - mine.score) <= 1e-10 * scale


@settings(max_examples=30)
@given(contrasts())
def test_everything_kept_against_another_class_is_the_gradient_of_the_difference(case: Case) -> None:
    whole = {**case.options, "depth": "all", "width": "all", "alpha": 0.0, "skips": "all", "importance": "paper"}
    pairs = zip(case.images, case.options["target"], case.options["against"], strict=True)
    for found, (image, target, other) in zip(replace(case, options=whole).explain(), pairs, strict=True):
        expected = gradient(case.network, image, target)
        if case.network.outputs > 1:
            expected = expected - gradient(case.network, image, other)
        assert_close(found.weight, expected, **CLOSE)


# --- Law 3: the sum of one-way paths ----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(cases(tiny_networks(), images=1))
def test_law_3_sum_of_one_way_paths(case: Case) -> None:
    (expected,) = case.reference()
    (found,) = case.explain()
    weight, bias = reference.sum_of_one_way_paths(case.network, case.images[0], expected, case.options["skips"])
    assert_close(found.weight, weight, **CLOSE)
    assert_close(found.bias, bias, **CLOSE)


# --- Law 4: decomposition at depth 1 ----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(cases(images=2), st.booleans(), st.data())
def test_law_4_a_feature_is_algorithm_1_with_one_unit(case: Case, compact: bool, data: st.DataObject) -> None:
    """At any layer, of any picture of a batch; and where the path ends there, the parts sum to the whole."""
    options = {key: value for key, value in case.options.items() if key != "target"}
    frozen = freeze(case.network.module(), case.images)
    frozen.compact = compact
    top = frozen.network.depth
    depth = top if options["depth"] == "all" else options["depth"]
    split = data.draw(st.integers(top - depth + 1, top))
    targets = predictions(frozen.logits)
    decomposed = decompose_frozen(frozen, list(enumerate(targets)), from_layer=split, **options)
    case = replace(case, options={**options, "target": targets})
    for features, whole, image, target in zip(decomposed, case.reference(), case.images, targets, strict=True):
        layer = next(layer for layer in whole.path if layer.layer == split)
        assert len(features) == len(layer.kept)
        for feature, unit in list(zip(features, layer.kept, strict=True))[:3]:
            expected = reference.explain(case.network, image, **options, target=target, only=(split, unit))
            assume(expected.gap > 1e-9)
            assert_equals_reference(feature, expected)
        if split == top - depth + 1 and options["skips"] == "adjacent":
            for number in ("attribution", "bias", "score"):
                expected_sum = torch.as_tensor(getattr(whole, number), dtype=FLOAT)
                parts = (torch.as_tensor(getattr(feature, number), dtype=FLOAT) for feature in features)
                assert_close(sum(parts, torch.zeros_like(expected_sum)), expected_sum, **CLOSE)


@settings(max_examples=30)
@given(networks(), SEEDS, st.sampled_from([8, 64, 1 << 26]))
@example(random_network(10543, blocks=("residual",), outputs=1, moves=1.0), 0, 8)  # windows that overlap
def test_law_4_a_batch_decomposes_as_its_images_do(network: Network, seed: int, most: int) -> None:
    """However large what arrives may be: several images with many units each are summed up in parts."""
    frozen = freeze(network.module(), network.images(3, seed))
    wanted = list(enumerate(predictions(frozen.logits)))
    options: dict[str, Any] = {"depth": "all", "width": 8, "alpha": 0.0}
    together = decompose_frozen(frozen, wanted, strategy=Strategy(most=most), **options)
    for features, pair in zip(together, wanted, strict=True):
        (alone,) = decompose_frozen(frozen, [pair], **options)
        assert len(features) == len(alone)
        for one, other in zip(features, alone, strict=True):
            assert_close((one.score, one.bias), (other.score, other.bias), **CLOSE)


# --- Law 5: strategies ------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(cases(images=3))
def test_law_5_a_batch_is_its_images_one_at_a_time(case: Case) -> None:
    case.reference()
    targets = case.options["target"]
    for number, found in enumerate(case.explain()):
        target = targets[number] if isinstance(targets, list) else targets
        alone = replace(case, images=case.images[number : number + 1], options={**case.options, "target": target})
        assert_same(found, *alone.explain())


# (The ways of computing a step are in test_path.py.)


# --- Law 6: loading ---------------------------------------------------------------------------------------------------


def traced(model: nn.Module, images: Tensor) -> nn.Module:
    module: nn.Module = torch.jit.trace(model, images, check_trace=False)  # type: ignore[no-untyped-call]
    return module


def scripted(model: nn.Module, images: Tensor) -> nn.Module:
    module: nn.Module = torch.jit.script(model)
    return module


def exported(model: nn.Module, images: Tensor) -> nn.Module:
    return torch.export.export(model, (images,)).module()


@pytest.mark.parametrize("load", [traced, scripted, exported])
@settings(max_examples=10)
@given(data=st.data())
def test_law_6_loading_does_not_matter(load: Callable[[nn.Module, Tensor], nn.Module], data: st.DataObject) -> None:
    case = data.draw(cases(networks(moves=load is not scripted)))  # TorchScript cannot read the lambdas of moves
    case.reference()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is on its way out, which is not our concern here
        loaded = load(case.network.module(), case.images)
    for mine, theirs in zip(case.explain(loaded), case.explain(), strict=True):
        assert_same(mine, theirs)


# --- Law 7: the model is untouched ------------------------------------------------------------------------------------


def everything_about(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """All that an explanation could disturb."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        yield f"{name}: identity", id(tensor)
        yield f"{name}: version", tensor._version
        yield f"{name}: value", tensor.detach().flatten().tolist()
        yield f"{name}: requires_grad", tensor.requires_grad
        yield f"{name}: grad", None if tensor.grad is None else (id(tensor.grad), tensor.grad.flatten().tolist())
        yield f"{name}: hooks", len(tensor._backward_hooks or ())
    for name, module in model.named_modules():
        yield f"{name}: mode", module.training
        yield f"{name}: inplace", getattr(module, "inplace", None)
        yield f"{name}: class", type(module)
        yield f"{name}: attributes", sorted(vars(module))
        yield f"{name}: own forward", vars(module).get("forward")
        for attribute, hooks in vars(module).items():
            if attribute.endswith("_hooks"):
                yield f"{name}: {attribute}", list(hooks)
    yield (
        "global hooks",
        [
            len(hooks)
            for name, hooks in sorted(vars(torch.nn.modules.module).items())
            if name.startswith("_global_") and hooks
        ],
    )
    yield "grad mode", (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    yield "defaults", (torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().tolist())


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


@settings(max_examples=30)
@given(cases(), SEEDS)
def test_law_7_the_model_is_untouched(case: Case, seed: int) -> None:
    case.reference()
    model, images = lived_in(case.network, seed), case.images.clone()
    before = dict(everything_about(model))
    found = case.explain(model)
    assert dict(everything_about(model)) == before
    assert torch.equal(case.images, images)
    assert not case.images.requires_grad
    for mine, theirs in zip(found, case.explain(), strict=True):
        assert_same(mine, theirs)
        assert not mine.attribution.requires_grad


WRONG: dict[str, dict[str, Any]] = {
    "depth beyond the network": {"depth": 99},
    "no depth": {"depth": 0},
    "no such target": {"target": 99},
    "a negative target": {"target": -1},
    "a target too many": {"target": [0, 0, 0]},
    "a class against itself": {"target": 0, "against": 0},
    "against no such class": {"target": 0, "against": 99},
    "against one class too many": {"target": 0, "against": [1, 1, 1]},
    "no width": {"width": 0},
    "alpha out of range": {"alpha": 1.5},
    "no such skips": {"skips": "some"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@settings(max_examples=3)
@given(network=networks(), seed=SEEDS)
def test_law_7_also_after_an_error(wrong: dict[str, Any], network: Network, seed: int) -> None:
    model, images = lived_in(network, seed), network.images(2, seed)
    before = dict(everything_about(model))
    with pytest.raises(PathxError):
        pathx.explain(model, images, **{"depth": 1, **wrong})
    assert dict(everything_about(model)) == before


class Failing(nn.Module):
    """Fails in the middle of a forward pass, as a model given the wrong kind of picture does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
        self.second = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


def test_law_7_also_after_a_failure_inside_the_model() -> None:
    model = Failing().double().train()
    before = dict(everything_about(model))
    with pytest.raises(Exception, match=r"shape|size|dimension"):
        pathx.explain(model, torch.randn(2, 3, dtype=FLOAT), depth=1)
    after = dict(everything_about(model))
    before.pop("defaults"), after.pop("defaults")  # the images above came from the global generator
    assert after == before


# --- Law 8: the paper's worked example --------------------------------------------------------------------------------


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


# --- Ties -------------------------------------------------------------------------------------------------------------


def integer_weights(module: nn.Module, **weights: list[Any]) -> nn.Module:
    with torch.no_grad():
        for name, value in weights.items():
            parameter = module.get_parameter(name)
            parameter.copy_(torch.tensor(value, dtype=parameter.dtype).view_as(parameter))
    return module


class TwoBranches(nn.Module):
    """Two ReLUs of one layer with the same values: the first to be executed has the lower indices."""

    def __init__(self) -> None:
        super().__init__()
        self.a = integer_weights(nn.Linear(1, 2, bias=False), weight=[1, 2])
        self.b = integer_weights(nn.Linear(1, 2, bias=False), weight=[2, 1])
        self.head = integer_weights(nn.Linear(4, 2, bias=False), weight=[1, 1, 1, 1, 0, 0, 0, 0])

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.b(x).relu(), self.a(x).relu()
        result: Tensor = self.head(torch.cat([second, first], 1))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_break_by_lower_flat_index(dtype: torch.dtype) -> None:
    flat = nn.Sequential(
        integer_weights(nn.Linear(1, 4, bias=False), weight=[1, 2, 1, 2]),
        nn.ReLU(),
        integer_weights(nn.Linear(4, 2, bias=False), weight=[1, 1, 1, 1, 0, 0, 0, 0]),
    )
    (found,) = pathx.explain(flat.to(dtype), torch.ones(1, 1, dtype=dtype), target=0, depth=1, width=3)
    assert [unit.index for unit in found.path[0].units] == [(1,), (3,), (0,)]

    maps = nn.Sequential(
        integer_weights(nn.Conv2d(1, 2, 1, bias=False), weight=[1, 1]),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        integer_weights(nn.Linear(2, 2, bias=False), weight=[1, 1, 0, 0]),
    )
    (found,) = pathx.explain(maps.to(dtype), torch.ones(1, 1, 2, 2, dtype=dtype), target=0, depth=1, width=5)
    assert [unit.index for unit in found.path[0].units] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0)]

    (found,) = pathx.explain(TwoBranches().to(dtype), torch.ones(1, 1, dtype=dtype), target=0, depth=1, width=3)
    names = [tensor.name for tensor in found.path[0].tensors]
    assert [(names.index(unit.tensor), unit.index) for unit in found.path[0].units] == [(0, (0,)), (1, (1,)), (0, (1,))]


def test_units_are_written_out_when_looked_at_and_stay() -> None:
    network = random_network(7, image=True, blocks=("chain",))
    (explanation,) = pathx.explain(network.module(), network.images(1, 0), depth="all", width="all")
    copied = pickle.loads(pickle.dumps(explanation.path))
    assert copied == explanation.path
    layer = explanation.path[0]
    assert layer.units is layer.units and type(layer.units) is tuple
    with pytest.raises(AttributeError, match="weights"):
        layer.weights  # noqa: B018
    with pytest.raises(FrozenInstanceError):
        layer.units[0].weight = 0.0  # type: ignore[misc]
