"""Law 5: whichever way the engine computes a step, the kept units are the same and the numbers agree to rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cases import CLOSE, Case, assert_equals_reference, cases
from support.drawn_networks import networks, random_network
from support.networks import Network
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import pathx.engine.columns
import pathx.engine.path
import pathx.engine.search
from pathx import Explanation, PathLayer
from pathx.engine.branches import Branches
from pathx.engine.explain import decompose_frozen, explain_frozen
from pathx.engine.freeze import freeze
from pathx.engine.linear import linear_model
from pathx.engine.path import PathSettings, find_paths
from pathx.engine.search import Strategy

STRATEGIES = {
    "as it comes": (Strategy(), True),
    "as on a GPU": (Strategy(), False),
    "certificates that fail": (Strategy(slack=0), True),
    "certificates that fail, as on a GPU": (Strategy(slack=0), False),
    "certificates that hold": (Strategy(slack=10**6), True),
    "full maps": (Strategy(windows=False), True),
    "units under windows alone": (Strategy(few=math.inf), True),
    "units under windows alone, certificates that fail, as on a GPU": (Strategy(few=math.inf, slack=0), False),
    "every unit of a layer": (Strategy(few=0.0), True),
    "products without zeros": (Strategy(sparse=math.inf), True),
    "rows in turns": (Strategy(most=200), True),
    "rows in turns, as on a GPU": (Strategy(most=200), False),
    "rows of classes one at a time": (Strategy(most=1), True),
    "candidates pushed up": (Strategy(push=math.inf), True),
    "candidates pushed up in turns": (Strategy(push=math.inf, most=300), True),
    "rows pulled back": (Strategy(push=0), True),
}


@pytest.mark.parametrize("turn", range(4))
@settings(max_examples=8)  # each for a quarter of the strategies; all of them try the same rules
@given(case=cases(), effects_have_edges=st.booleans())
def test_law_5_every_strategy_equals_the_literal_method(turn: int, case: Case, effects_have_edges: bool) -> None:
    expected = case.reference()
    wanted = [(image, case.of_image(image)["target"]) for image in range(len(case.images))]
    options = {key: value for key, value in case.options.items() if key != "target"}
    without_edges = options["importance"] == "effect" and not effects_have_edges
    for strategy, compact in [*STRATEGIES.values()][turn::4]:
        frozen = freeze(case.network.module(), case.images)
        frozen.compact = compact
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pathx.engine.search, "MOST_EFFECT_EDGES", (1 << 24) * effects_have_edges)
            explanations = explain_frozen(frozen, wanted, **options, strategy=strategy)
        for mine, theirs in zip(explanations, expected, strict=True):
            assert_equals_reference(mine, theirs)
            if without_edges:
                assert not any(layer.edges for layer in mine.path[1:])
            elif strategy.most > 300:  # edges are a table of units by units, which is left out where it would not fit
                assert_edges_sum_to_contributions(mine)


def assert_edges_sum_to_contributions(found: Explanation) -> None:
    """Law 9, and each edge joins two layers of the path, or one with the class."""
    units = {layer.layer: len(layer.units) for layer in found.path}
    for layer in found.path:
        names = [edges.layer for edges in layer.edges]
        assert len(set(names)) == len(names)
        assert all(above is None or above > layer.layer for above in names)
        for edges in layer.edges:
            assert edges.value.shape == (len(layer.units), 1 if edges.layer is None else units[edges.layer])
        if found.skips == "adjacent":
            assert names == [layer.layer + 1 if layer.layer < found.hidden_layers else None]
        contributions = torch.tensor([unit.contribution for unit in layer.units], dtype=torch.float64)
        assert_close(sum(edges.value.sum(1) for edges in layer.edges), contributions, **CLOSE)


@settings(max_examples=8)
@given(case=cases())
def test_edges_that_would_be_too_many_are_left_out_whatever_else_is_explained(case: Case) -> None:
    frozen = freeze(case.network.module(), case.images)
    options = {name: value for name, value in case.options.items() if name not in ("target", "against")}
    (whole,) = explain_frozen(frozen, [(0, 0)], **options)
    for limit, most in (("MOST_EDGES", 20), ("MOST_EDGES_IN_ALL", 80)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pathx.engine.path, limit, most)
            several = explain_frozen(frozen, [(0, 0)] * 3, **options)
            (less,) = explain_frozen(frozen, [(0, 0)], **options)
        assert less.path == whole.path and less.score == whole.score
        shown = [size for layer in less.path for size in pairs(layer)]
        assert max(shown, default=0) <= most and (limit == "MOST_EDGES" or sum(shown) <= most)
        for mine, theirs in zip(less.path, whole.path, strict=True):
            assert not mine.edges or len(mine.edges) == len(theirs.edges)
        for found in several:
            assert [len(layer.edges) for layer in found.path] == [len(layer.edges) for layer in less.path]


def pairs(layer: PathLayer) -> list[int]:
    """How many pairs of units a layer's edges have with each layer above it."""
    return [edges.value.numel() for edges in layer.edges if edges.layer is not None]


@settings(max_examples=8)
@given(networks(), st.integers(0, 99), st.sampled_from([8, 64, 1 << 26]))
@example(random_network(10543, blocks=("residual",), outputs=1, moves=1.0), 0, 8)  # windows that overlap
def test_law_4_a_batch_decomposes_as_its_images_do(network: Network, seed: int, most: int) -> None:
    """However large what arrives may be: several images with many units each are summed up in parts."""
    frozen = freeze(network.module(), network.images(3, seed))
    wanted: list[tuple[int, int | None]] = [(image, None) for image in range(3)]
    options: dict[str, Any] = {"depth": "all", "width": 8, "alpha": 0.0}
    together = decompose_frozen(frozen, wanted, strategy=Strategy(most=most), **options)
    for features, pair in zip(together, wanted, strict=True):
        (alone,) = decompose_frozen(frozen, [pair], **options)
        assert len(features) == len(alone)
        for one, other in zip(features, alone, strict=True):
            assert_close((one.score, one.bias), (other.score, other.bias), **CLOSE)
            assert_edges_sum_to_contributions(other)


@settings(max_examples=8)
@given(case=cases(images=1))
def test_several_targets_of_one_image_are_explained_in_one_pass(case: Case) -> None:
    options = {key: value for key, value in case.options.items() if key not in ("target", "against")}
    frozen = freeze(case.network.module(), case.images)
    wanted = [(0, target) for target in range(case.network.classes)]
    together = explain_frozen(frozen, wanted, **options)
    for target, found in enumerate(together):
        one = replace(case, options={**options, "target": target, "against": None})
        assert_equals_reference(found, one.reference()[0])


@settings(max_examples=4)
@given(
    case=cases(networks(region=True)), skips=st.sampled_from(["adjacent", "all"]), most=st.sampled_from([400, 1 << 26])
)
def test_on_a_gpu_nothing_depends_on_data_and_no_tensor_stays_behind(skips: str, most: int, case: Case) -> None:
    """Fake CUDA tensors raise where devices mix or a shape or a branch depends on values."""
    _skip_without_plain_fakes()
    model = case.network.module()
    with FakeTensorMode(), _Operators(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.func, "vjp", _vjp_of_shapes)
        fake = _on_cuda(model)
        images = torch.empty(case.images.shape, dtype=case.images.dtype, device="cuda")
        frozen = freeze(fake, images)
        assert not frozen.compact
        outputs = frozen.logits.shape[1]
        branches = Branches(
            image=torch.arange(len(images), device="cuda"),
            target=torch.zeros(len(images), dtype=torch.long, device="cuda"),
            classes=max(2, outputs),
            dtype=images.dtype,
            single_logit=outputs == 1,
        )
        layers = frozen.network.depth
        widths = dict.fromkeys(range(1, layers + 1), 3)
        read = ReadCertificates()
        patch.setattr(pathx.engine.search, "read_certificate", read)
        how = PathSettings(layers, widths, 0.0, skips, strategy=Strategy(slack=1, most=most))
        paths = find_paths(frozen, branches, how)
        model_of_path = linear_model(frozen, paths)
    assert read.devices <= {"cuda"}
    assert model_of_path.weight.shape == case.images.shape
    assert model_of_path.weight.device.type == "cuda"
    assert model_of_path.bias.device.type == model_of_path.score.device.type == "cuda"


class ReadCertificates:
    """Stands in for the one read of a layer, on tensors that hold no numbers: every other choice is in doubt."""

    def __init__(self) -> None:
        self.count, self.devices = 0, set[str]()

    def __call__(self, margin: Tensor, width: int, unseen: Tensor, threshold: float) -> tuple[bool, bool]:
        self.count += 1
        self.devices |= {margin.device.type, unseen.device.type}
        return self.count % 2 == 0, self.count % 4 == 1


def _vjp_of_shapes(apply: Any, probe: Tensor) -> tuple[Tensor, Any]:
    """Autograd aborts the process on fake CUDA tensors in a build without CUDA; the shapes are those of the probe."""
    return apply(probe), lambda cotangent: (torch.empty_like(probe),)


class _Operators(TorchFunctionMode):
    """Python's `[]` and `~` in terms of operations: a build without CUDA takes neither on fake CUDA tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            return _getitem(*args)
        if func is Tensor.__invert__:
            return torch.bitwise_not(*args)
        if func is Tensor.__setitem__:
            tensor, index, value = args
            index = list(index) if isinstance(index, tuple) else [index]
            return torch.ops.aten.index_put_.default(tensor, index, value)
        return func(*args, **(kwargs or {}))


def _getitem(tensor: Tensor, index: Any) -> Tensor:
    indices: list[Tensor | None] = []
    dim = 0
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    for at in dots:
        named = sum(part is not None and part is not Ellipsis for part in parts)
        parts[at : at + 1] = [slice(None)] * (tensor.ndim - named)
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        indices.append(part if isinstance(part, Tensor) else None)
        dim += 1
    return torch.ops.aten.index.Tensor(tensor, indices) if any(i is not None for i in indices) else tensor


class _Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.two((self.one(x) * 2.0).relu() * 3.0)
        return scores


def test_numbers_of_a_model_that_ran_on_the_cpu_are_not_left_there() -> None:
    _skip_without_plain_fakes()
    model = _Scaled().eval()
    for _ in range(2):
        explain_frozen(freeze(model, torch.randn(2, 6)), [(0, 1), (1, 2)], depth=1)
    with FakeTensorMode(), _Operators():
        frozen = freeze(_on_cuda(model), torch.empty(2, 6, device="cuda"))
        branches = Branches(torch.arange(2, device="cuda"), torch.zeros(2, dtype=torch.long, device="cuda"), 5)
        paths = find_paths(frozen, branches, PathSettings(1, {1: 2}, 0.0, "adjacent", strategy=Strategy(slack=9)))
        assert linear_model(frozen, paths).weight.device.type == "cuda"


def _skip_without_plain_fakes() -> None:
    with FakeTensorMode():
        try:
            torch.empty(1).as_subclass(Tensor)
        except RuntimeError:
            pytest.skip("this release of torch makes no plain tensor of a fake one")


def _on_cuda(model: torch.nn.Module) -> torch.nn.Module:
    """The model with fake CUDA parameters and buffers of the same shapes."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype, device="cuda")
                module._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
    return model


def test_a_relu_of_a_layer_that_keeps_no_unit_sends_nothing_down() -> None:
    class Net(nn.Module):
        """Class 0 does not read the second ReLU, whose operation below cannot do nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.below, self.one, self.other = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 4, 1)
            self.head = nn.Linear(2 * 36, 3)
            self.register_buffer("reads", torch.tensor([0.0, 1.0, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            x = self.below(x).relu()
            side = torch.pixel_shuffle(self.other(x), 2).relu().mean((1, 2, 3))
            return self.head(self.one(x).relu().flatten(1)) + side[:, None] * self.reads  # type: ignore[no-any-return]

    torch.manual_seed(0)
    frozen = freeze(Net().double().eval(), torch.randn(2, 2, 6, 6, dtype=torch.float64))
    found = explain_frozen(frozen, [(0, 0), (1, 0)], depth="all", width=4)
    other = explain_frozen(frozen, [(0, 0), (1, 0)], depth="all", width=4, strategy=Strategy(windows=False, few=0.0))
    for one, two in zip(found, other, strict=True):
        assert [layer.units for layer in one.path] == [layer.units for layer in two.path]
        assert_close(one.weight, two.weight)
