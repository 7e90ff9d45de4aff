"""Law 7: models as they come, in any state, wrapped, shared, changed between calls; each is afterwards what it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize
import torch.nn.utils.prune
from support.cases import assert_same
from support.modules import assert_gradient, state_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import pathx
from pathx import Explanation, PathxError
from pathx.engine.freeze import freeze

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),
]


def cnn() -> nn.Sequential:
    """Two hidden layers, with what behaves otherwise in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(6, 4),
        )  # fmt: skip
        model(torch.randn(9, 3, 10, 10))  # statistics that are not those of a fresh network
    return model.eval()


def images() -> Tensor:
    return torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(4))


def explained(model: nn.Module, inputs: Tensor | None = None) -> list[Explanation]:
    return pathx.explain(model, images() if inputs is None else inputs, target=2, depth=2, width=4)


def assert_alike(found: list[Explanation], expected: list[Explanation], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other, rtol=rtol, atol=atol)


# --- States -----------------------------------------------------------------------------------------------------------


def partly_training(model: nn.Sequential) -> nn.Module:
    model[1].train()
    model[8].train()
    return model


def without_gradients(model: nn.Sequential) -> nn.Module:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def with_gradients(model: nn.Sequential) -> nn.Module:
    model(images()).sum().backward()
    return model


def watched(model: nn.Sequential) -> nn.Module:
    seen: list[Tensor] = []
    model[2].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model[4].register_forward_pre_hook(lambda module, inputs: None)
    model[4].register_full_backward_hook(lambda module, inputs, outputs: None)
    return model


def pruned(model: nn.Sequential) -> nn.Module:
    torch.nn.utils.prune.identity(model[4], "weight")
    return model


def parametrised(model: nn.Sequential) -> nn.Module:
    torch.nn.utils.parametrizations.weight_norm(model[4])
    return model


def weight_norm(model: nn.Sequential) -> nn.Module:
    torch.nn.utils.weight_norm(model[4])
    return model


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("shift", torch.zeros(3, 1, 1), persistent=False)
        self.scale = torch.ones(1)  # no buffer, but a tensor all the same

    def forward(self, x: Tensor) -> Any:
        return self.model((x - self.shift) * self.scale)


STATES: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "training": lambda model: model.train(),
    "partly training": partly_training,
    "without gradients": without_gradients,
    "with gradients": with_gradients,
    "hooks": watched,
    "pruned": pruned,
    "parametrised": parametrised,
    "weight norm": weight_norm,
    "buffers and attributes": Wrapper,
    "compiled": lambda model: torch.compile(model),  # type: ignore[return-value]
    "data parallel": nn.DataParallel,
    "channels last": lambda model: model.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    "symbolically traced": torch.fx.symbolic_trace,
    "copied": copy.deepcopy,
}


@pytest.mark.parametrize("name", STATES)
def test_a_model_in_any_state_of(name: str) -> None:
    expected = explained(cnn())
    model = STATES[name](cnn())
    before = state_of(model)
    assert_alike(explained(model), expected)
    assert state_of(model) == before
    with pytest.raises(PathxError):
        pathx.explain(model, images(), depth=99)
    assert state_of(model) == before


class Opposite(nn.DataParallel):
    """Data parallelism with a forward of its own."""

    def forward(self, x: Tensor) -> Any:
        return -super().forward(x)


class Called(nn.DataParallel):
    def __call__(self, x: Tensor) -> Any:
        return -super().__call__(x)


class Renamed(nn.Module):
    """Holds a network under the name that torch.compile has for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = self.module = model

    def forward(self, x: Tensor) -> Any:
        return -self.module(x)


def patched(model: nn.Module) -> nn.Module:
    forward = model.forward
    model.forward = lambda x: -forward(x)  # type: ignore[method-assign, operator]
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "data parallel, another class": Opposite,
    "data parallel, called otherwise": Called,
    "data parallel, patched": lambda model: patched(nn.DataParallel(model)),
    "compiled, patched": lambda model: patched(torch.compile(model, backend="eager")),  # type: ignore[arg-type]
    "a name of torch's": Renamed,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_a_wrapper_does_is_part_of_the_function(name: str) -> None:
    model = WRAPPERS[name](cnn().eval())
    found = pathx.explain(model, images(), depth=1)
    with torch.no_grad():
        assert_close(torch.stack([one.logits for one in found]), model(images()))


def test_buffers_on_another_device() -> None:
    """Eager PyTorch refuses a cpu/cuda mix, as these fake tensors do; the numbers are all there, though."""
    with FakeTensorMode():
        model = cnn()
        mean = model[1].running_mean = torch.empty(5, device="cuda")
        pictures = torch.empty(2, 3, 10, 10)
        with pytest.raises(RuntimeError, match="device"):
            model(pictures)
        try:
            pictures.as_subclass(torch.Tensor)
        except RuntimeError:
            pytest.skip("this release of torch makes no plain tensor of a fake one")
        assert freeze(model, pictures).logits.device.type == "cpu"
        assert model[1].running_mean is mean


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Weights of few bits are computed with in full precision, and stay as they are."""
    model = cnn().to(dtype)
    before = state_of(model)
    for inputs in (images(), images().to(dtype)):
        expected = explained(copy.deepcopy(model).float(), inputs.float())
        found = explained(model, inputs)
        assert_alike(found, expected)
        assert found[0].weight.dtype == torch.float32
    assert state_of(model) == before


def test_precision_is_that_of_the_input() -> None:
    model = cnn()
    expected = explained(copy.deepcopy(model).double(), images().double())
    assert_alike(explained(model, images().double()), expected, rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert_alike(explained(model, images().double()), expected, rtol=1e-12, atol=1e-12)


def test_inference_mode() -> None:
    expected = explained(cnn())
    with torch.inference_mode():
        model, inputs = cnn(), images()
        assert_alike(explained(model, inputs), expected)
        assert_alike(explained(cnn(), inputs), expected)
    assert_alike(explained(model, inputs), expected)
    assert_alike(explained(model), expected)


def test_images_of_other_kinds() -> None:
    expected = explained(cnn())

    class Image(Tensor):
        pass

    for inputs in (images().as_subclass(Image), nn.Parameter(images()), images().requires_grad_()):
        assert_alike(explained(cnn(), inputs), expected)


def test_a_model_that_writes_into_its_input() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = cnn()

        def forward(self, x: Tensor) -> Any:
            x[:, :1] *= 2
            return self.model(x.sub_(0.5))

    inputs = images()
    found = explained(Writing(), inputs)
    assert_close(inputs, images(), rtol=0, atol=0)
    twin = images()
    twin[:, :1] *= 2
    (expected, _) = explained(cnn(), twin - 0.5)
    assert found[0].score == pytest.approx(expected.score, rel=1e-4)


def test_shared_modules_and_tied_weights() -> None:
    shared, first, second = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    relu = nn.ReLU()
    model = nn.Sequential(shared, relu, shared, relu, first, relu, second, relu, nn.Linear(5, 3))
    inputs = torch.randn(3, 5)
    assert_gradient(model, inputs)
    names = [layer.tensors[0].name for layer in pathx.explain(model, inputs, depth="all")[0].path]
    assert names == ["1_3", "1_2", "1_1", "1"]


# --- Modes ---


class MergingLinear(nn.Linear):
    """A low-rank update of a weight as loralib writes it: merged in eval mode, taken out again for training."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))
        self.merged = False

    def train(self, mode: bool = True) -> MergingLinear:
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * (self.b @ self.a).data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        update = 0 if self.merged else x @ self.a.T @ self.b.T
        return F.linear(x, self.weight, self.bias) + update


class MergingConv(nn.Conv2d):
    """Folds a scale into its weight when it is put to rest."""

    def eval(self) -> Any:
        self.weight.data *= 3
        return super().eval()


def merging() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        MergingConv(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(),
        MergingLinear(8, 4), nn.Dropout(), nn.ReLU(), nn.Linear(4, 2),
    ).train()  # fmt: skip


def test_a_model_in_training_mode_keeps_its_weights() -> None:
    model, images = merging(), torch.randn(2, 1, 4, 4)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    scores = []
    for _ in range(3):
        found = pathx.explain(model, images, target=0, depth=1)
        scores.append(torch.stack([one.logits for one in found]))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert [module.training for module in model.modules()] == modes
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])
    for module in model.modules():
        module.training = False
    assert_close(scores[0], model(images).detach())


# --- Errors ---


def test_the_models_own_error_is_one_line_with_a_way_out() -> None:
    problem = r"cannot run on an input of shape \(2, 5\): .*cannot be multiplied.*; check the size"
    for model in (nn.Linear(3, 2), torch.jit.script(nn.Linear(3, 2))):  # TorchScript's own text, not that of the mode
        with pytest.raises(PathxError, match=problem):
            freeze(model, torch.rand(2, 5))
