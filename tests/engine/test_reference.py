"""The reference against itself: matrices, routes, autograd and the definition must say the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import reference
from support.drawn_networks import SEEDS, networks, random_network, tiny_networks
from support.networks import FLOAT, Network, worked_example
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("one_thread")


def gradient(network: Network, image: torch.Tensor, target: int) -> torch.Tensor:
    """Saliency by autograd; the negative class of a single logit y is -y."""
    x = image.clone().requires_grad_()
    logits = replace(network, ending="logits").module()(x[None])[0]
    logit = logits[target] if network.outputs > 1 else (2 * target - 1) * logits[0]
    return torch.autograd.grad(logit, x)[0]


@settings(max_examples=60)
@given(networks(), SEEDS)
def test_the_module_computes_what_the_nodes_say(network: Network, seed: int) -> None:
    images = network.images(2, seed)
    untouched = images.clone()
    outputs = replace(network, ending="logits").module()(images)
    assert torch.equal(images, untouched)
    for image, output in zip(images, outputs, strict=True):
        assert_close(reference.freeze(network, image).values[-1], output)


@settings(max_examples=8)
@given(networks(most=2), SEEDS)
def test_the_matrices_are_the_weights_multiplied_out(network: Network, seed: int) -> None:
    frozen = reference.freeze(network, network.images(1, seed)[0])
    for position in range(1, len(network.nodes)):
        inputs = network.nodes[position].inputs
        matrices = {
            source: torch.zeros_like(matrix) for source, matrix in zip(inputs, frozen.matrices[position], strict=True)
        }
        for element in range(len(frozen.values[position])):
            sources, constant = reference.edges(network, position, element, frozen.values)
            assert_close(
                torch.tensor(constant, dtype=FLOAT), frozen.constants[position][element], rtol=1e-9, atol=1e-12
            )
            for source, came_from, factor in sources:
                matrices[source][element, came_from] += factor
        for source, matrix in zip(inputs, frozen.matrices[position], strict=True):
            if "maxpool" not in network.nodes[position].op:
                assert_close(matrices[source], matrix)
            else:  # ties are routed at will: what arrives is the same
                assert_close(matrices[source] @ frozen.values[source], matrix @ frozen.values[source])


@settings(max_examples=50)
@given(networks(), SEEDS, st.data())
def test_completeness(network: Network, seed: int, data: st.DataObject) -> None:
    depth = data.draw(st.integers(1, len(reference.hidden_layers(network))))
    skips = data.draw(st.sampled_from(["adjacent", "all"]))
    result = reference.explain(network, network.images(1, seed)[0], depth=depth, width=3, skips=skips)
    scale = float(result.attribution.abs().sum()) + abs(result.bias)
    assert abs(float(result.attribution.sum()) + result.bias - result.score) <= 1e-10 * scale


@settings(max_examples=50)
@given(networks(), SEEDS)
def test_unwrapping(network: Network, seed: int) -> None:
    image = network.images(1, seed)[0]
    result = reference.explain(network, image, depth="all", width="all", alpha=0.0, skips="all")
    assert_close(result.weight, gradient(network, image, result.target), rtol=1e-9, atol=1e-10)


@settings(max_examples=40)
@given(tiny_networks(), SEEDS, st.sampled_from([1, 3, "all"]), st.sampled_from([None, 0.0]), st.data())
def test_matrices_equal_the_sum_of_one_way_paths(
    network: Network, seed: int, width: int | str, alpha: float | None, data: st.DataObject
) -> None:
    image = network.images(1, seed)[0]
    depth = data.draw(st.integers(1, len(reference.hidden_layers(network))))
    skips = data.draw(st.sampled_from(["adjacent", "all"]))
    result = reference.explain(network, image, depth=depth, width=width, alpha=alpha, skips=skips)
    weight, bias = reference.sum_of_one_way_paths(network, image, result, skips)
    assert_close(result.weight, weight, rtol=1e-9, atol=1e-10)
    assert_close(result.bias, bias, rtol=1e-9, atol=1e-10)


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 3), st.booleans(), st.sampled_from([1, 4, "all"]))
def test_full_jacobians_equal_backward_passes_from_the_logits(
    seed: int, length: int, image: bool, width: int | str
) -> None:
    drawn = random_network(seed, image=image, blocks=("chain",) * length, outputs=4)
    nodes = (replace(node, spelling="module, in place" if node.op == "relu" else node.spelling) for node in drawn.nodes)
    network = Network(tuple(nodes))
    x = network.images(1, seed)[0]
    assume(not reference.class_layer(network))  # which the paper has no network with
    literal = reference.literal_algorithm_1(network.module(), x, 1, "all", width)
    result = reference.explain(network, x, target=1, depth="all", width=width)
    assume(result.gap > 1e-9)
    assert literal.kept == [list(layer.kept) for layer in result.path] or width == "all"
    assert [set(kept) for kept in literal.kept] == [set(layer.kept) for layer in result.path]
    assert_close(literal.weight, result.weight, rtol=1e-9, atol=1e-10)
    assert_close((literal.bias, literal.score), (result.bias, result.score), rtol=1e-9, atol=1e-10)


@given(st.integers(2, 6), st.data(), SEEDS)
def test_margins_order_and_give_the_softmax(classes: int, data: st.DataObject, seed: int) -> None:
    z = 3 * torch.randn(classes, 20, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))
    z[:, 0] = 0
    target = data.draw(st.integers(0, classes - 1))
    margin = reference.margins(z, target)
    assert margin[0] == 0
    assert_close(reference.importance_of(margin, classes), z.softmax(0)[target])


def test_unequal_branches_make_layers_by_their_longest_route() -> None:
    network = random_network(0, image=False, blocks=("chain", "inception", "residual"))
    layers = reference.hidden_layers(network)
    first, inner_long, long, short, *rest = network.relus
    assert layers[1] == [first]
    assert layers[2] == [inner_long]
    assert layers[3] == [long, short]
    assert [layers[n] for n in range(4, len(layers) + 1)] == [[relu] for relu in rest]


def test_worked_example() -> None:
    image = torch.tensor([1.0, 4.0], dtype=FLOAT)
    result = reference.explain(worked_example(), image, depth=2, width=1)
    assert [[(unit.index, round(unit.importance, 3)) for unit in layer.units] for layer in result.path] == [
        [((0,), 0.982)],
        [((0,), 0.953)],
    ]
    assert result.weight.tolist() == [-1, 1]
    assert (result.bias, result.score, result.logits.tolist()) == (0, 3, [0, 3])
    wider = reference.explain(worked_example(), image, depth=2, width=2, alpha=0.0)
    assert [round(unit.importance, 3) for unit in wider.path[1].units] == [0.953, 0.269]
