"""Law 11: the logits are the model's own output, whatever changed since its last run; and law 7 where models write."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.modules import Function, Model, assert_gradient
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.record.recorder import record

IMAGES = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(4))


class Odd(nn.Module):
    """Reads its settings from here and there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 3)
        self.function: Callable[[Tensor], Tensor] = torch.clone
        self.tensors = [torch.ones(4, 1, 1)]
        self.hidden = [nn.Conv2d(4, 4, 1).requires_grad_(False)]  # not registered

    def forward(self, x: Tensor) -> Tensor:
        x = self.function(self.conv(x)) * self.tensors[0]
        x = torch.relu(self.second(self.hidden[0](torch.relu(x))))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


def closed_over(model: Odd) -> None:
    state = {"factor": 2.0}
    model.second.register_forward_hook(lambda module, inputs, output: output * state["factor"])
    freeze(model, IMAGES)
    state["factor"] = -3.0


# The recording is made anew at every call, so any change will do; these show in different parts of it.
CHANGES: dict[str, Callable[[Odd], Any]] = {
    "a tensor in a list, in place": lambda m: m.tensors[0].mul_(-1),
    "what a hook closes over": closed_over,
    "weights in place": lambda m: m.head.weight.data.neg_(),
    "another dtype": lambda m: m.double() and m.hidden.__setitem__(0, nn.ReLU()),
}


def odd(seed: int = 0) -> Odd:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Odd().eval()


def assert_the_models_own(model: nn.Module, images: Tensor = IMAGES) -> None:
    """They are what the model gives now."""
    weight = next(model.parameters(), images)
    assert_gradient(model, images.to(weight.dtype), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", CHANGES)
def test_law_11_one_change(name: str) -> None:
    model = odd()
    before = torch.stack([one.logits for one in pathx.explain(model, IMAGES, depth=1)])
    with torch.no_grad():
        CHANGES[name](model)
        after = model(IMAGES.to(next(model.parameters()).dtype)).to(IMAGES.dtype)
    if name != "another dtype":
        assert not torch.allclose(before, after), "the change must be one that shows"
    assert_the_models_own(model)


def test_a_swapped_use_of_two_modules_changes_the_names() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head, self.other = nn.ReLU(), nn.ReLU(), nn.Linear(5, 2), False

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head((self.second if self.other else self.first)(x))
            return result

    model, images = Two(), torch.rand(1, 5)
    assert pathx.explain(model, images, depth=1)[0].path[0].tensors[0].name == "first"
    model.other = True
    assert pathx.explain(model, images, depth=1)[0].path[0].tensors[0].name == "second"


# What is remembered


def test_a_recording_holds_on_to_no_model() -> None:
    model = odd()
    freeze(model, IMAGES)
    dead = [weakref.ref(model), weakref.ref(model.conv.weight), weakref.ref(model.tensors[0])]
    del model
    gc.collect()
    assert [one() for one in dead] == [None] * 3


def test_what_no_rule_asks_for_is_freed_while_the_model_runs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()).eval()
    model.extend([nn.Flatten(), nn.Linear(100, 70)])
    made: list[weakref.ref[Tensor]] = []
    for module in model:
        module.register_forward_hook(lambda module, inputs, output: made.append(weakref.ref(output)))
    alive: list[list[bool]] = []
    model[-1].register_forward_pre_hook(lambda *_: alive.append([one() is not None for one in made]))
    for _ in range(2):
        made.clear()
        freeze(model, IMAGES)
    assert alive == [[False, False, True, False, True, True]] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_run_waits_for_the_garbage_collector(fails: bool) -> None:
    made: list[weakref.ref[Tensor]] = []
    model = odd()
    model.second.register_forward_pre_hook(lambda module, inputs: made.append(weakref.ref(inputs[0])))
    if fails:
        model.second.register_forward_hook(lambda *_: next(iter(())))
    gc.collect()
    gc.disable()
    try:
        with suppress(PathxError):
            freeze(model, IMAGES)
        assert made and not any(one() is not None for one in made)
    finally:
        gc.enable()


# Law 7: what a model writes


class Writing(nn.Module):
    """Writes everywhere that it can."""

    def __init__(self, fails: bool, aliasing: bool = False) -> None:
        super().__init__()
        self.aliasing = aliasing
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        self.register_buffer("ema", torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("swapped", torch.ones(2))
        self.fails = fails
        self.plain, self.same = torch.zeros(3), torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.ema.mul_(0.5)
        if self.aliasing:
            self.ema[0].add_(3)
        self.steps += 1
        self.plain.data = torch.ones(3)
        self.plain.add_(1)
        self.swapped = torch.zeros(2)
        self.same.data = self.same.data
        self.same.add_(1)
        self.layers[0].register_buffer("added", torch.ones(1))
        self.layers[2].bias = nn.Parameter(self.layers[2].bias + 1)
        F.batch_norm(torch.arange(12.0).view(4, 3), self.ema, self.plain, training=True)
        if self.fails:
            raise ValueError("in the middle")
        result: Tensor = self.layers(x) * self.ema + self.plain
        return result


def facts(model: Writing) -> dict[str, Any]:
    tensors = {
        **dict(model.named_parameters()),
        **dict(model.named_buffers()),
        "plain": model.plain,
        "same": model.same,
    }
    return {
        **{
            n: (id(t), t._version, t.data_ptr(), t.requires_grad, t.detach().flatten().tolist())
            for n, t in tensors.items()
        },
        "modes": [module.training for module in model.modules()],
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_law_7_what_a_forward_writes_is_taken_back(mode: str, fails: bool) -> None:
    model, images = Writing(fails), torch.rand(2, 4)
    model.train(mode == "train")
    before = facts(model)
    for _ in range(3):
        if fails:
            with pytest.raises(PathxError, match="in the middle"):
                pathx.explain(model, images, depth=1)
        else:
            found = pathx.explain(model, images, depth=1)
            expected = copy.deepcopy(model).eval()(images)
            assert_close(torch.stack([one.logits for one in found]), expected)
        assert facts(model) == before


def test_law_7_of_a_model_that_writes_through_views() -> None:
    model, images = Writing(False, aliasing=True), torch.rand(2, 4)
    before = facts(model)
    found = pathx.explain(model, images, depth=1)
    assert facts(model) == before
    assert_close(torch.stack([one.logits for one in found]), copy.deepcopy(model)(images))


def given_other_memory(x: Tensor) -> Tensor:
    y = x * 2
    y.data = F.relu(x)
    return y


def written_by_its_data(x: Tensor) -> Tensor:
    y = x * 2
    y.data.mul_(3)
    return y


def zeroed_in_part(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :2].zero_()
    return y


def filled_in_part(x: Tensor) -> Tensor:
    y = torch.zeros(1, 6, dtype=x.dtype)
    part = y[:, 2:]
    part[:, :3].add_(x[:, :3])
    return y


def no_longer_the_image(x: Tensor) -> Tensor:
    y = x * 2
    return y.zero_() + x + y


class Leaky(torch.autograd.Function):
    """As activations are written to save memory."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        assert not any(context.needs_input_grad)
        context.save_for_backward(x)
        return F.leaky_relu(x, 0.3)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(output)


def written_beside_functions(x: Tensor) -> Tensor:
    y = Doubled.apply(Leaky.apply(x))
    y = checkpoint(torch.neg, y, use_reentrant=True)
    y[:, :2] = y[:, 2:4]
    return y


def slopes(model: nn.Module, image: Tensor) -> Tensor:
    """Of the first logit by small steps: autograd does not see all that a model writes."""
    step = 1e-6 * torch.eye(4, dtype=torch.float64)
    with torch.no_grad():
        return torch.stack([model(image + one) - model(image - one) for one in step])[:, :, 0].T / 2e-6


def assert_steps_agree(model: nn.Module, image: Tensor) -> None:
    (found,) = pathx.explain(model, image, target=0, depth="all", width="all", alpha=0.0)
    assert_close(found.weight[None], slopes(model, image), rtol=1e-6, atol=1e-8)


WRITES = [given_other_memory, written_by_its_data, zeroed_in_part, filled_in_part, no_longer_the_image]
WRITES += [written_beside_functions]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("write", WRITES)
def test_law_11_where_tensors_are_written_under_other_names(write: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 6), nn.Linear(6, 3)
    model = nn.Sequential(first, Function(lambda x: write(x + 1)), nn.ReLU(), last).double().eval()
    apply = vars(torch.autograd.Function)["apply"]
    assert_steps_agree(model, torch.rand(1, 4, dtype=torch.float64))
    assert vars(torch.autograd.Function)["apply"] is apply


def numbered_in_part(x: Tensor) -> Tensor:
    """As shifted windows make their masks."""
    regions = torch.zeros(2, 3)
    for number, row in enumerate((slice(0, -1), slice(-1, None))):
        regions[row, 1:] = number + 1
    return x + regions.flatten()


def copied_in_part(x: Tensor) -> Tensor:
    offsets = torch.ones(6)
    offsets[:3].copy_(torch.arange(3.0))
    return x * offsets


def scaled_along_the_diagonal(x: Tensor) -> Tensor:
    matrix = torch.ones(6, 6)
    matrix.diagonal().mul_(3)
    return x @ matrix.to(x.dtype)


def filled_with_the_image(x: Tensor) -> Tensor:
    y = torch.zeros(len(x), 6)
    y[:, 1:4] = x[:, :3]
    return y.to(x.dtype)


HELD = torch.zeros(6)
"""No buffer, and in the default precision whatever its readers are converted to."""


def held_in_part(x: Tensor) -> Tensor:
    HELD[1:4] += 2.0
    HELD.view(2, 3)[1].mul_(0.5)
    made = x + HELD
    HELD[1:] = 0.0
    return made


@pytest.mark.parametrize(
    "write", [numbered_in_part, copied_in_part, scaled_along_the_diagonal, filled_with_the_image, held_in_part]
)
def test_law_11_where_parts_of_constants_in_the_default_precision_are_written(
    write: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Function(write), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    images = torch.rand(1, 4, dtype=torch.float64)
    (found,) = pathx.explain(model, images)
    assert_close(found.logits[None], model(images).detach(), rtol=1e-6, atol=1e-6)


class ScriptedWriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("ema", torch.ones(3))
        self.register_buffer("swapped", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.ema.mul_(2)
        self.swapped = self.swapped * 3
        result: Tensor = self.second(torch.relu(self.first(x))) * self.ema * self.swapped
        return result


def test_law_7_of_a_scripted_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(ScriptedWriting().eval())
    images = torch.rand(2, 4)
    for _ in range(3):
        found = pathx.explain(model, images, depth=1)
        assert (model.ema.tolist(), model.ema._version, model.swapped.tolist()) == ([1, 1, 1], 0, [1, 1, 1])
        assert_close(torch.stack([one.logits for one in found]), copy.deepcopy(model)(images))


# Values that leave torch


def stored(x: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    result: Tensor = torch.load(file)
    return result


ROUND_TRIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "data": lambda x: x.data,
    "a tensor of a tensor": lambda x: x.new_tensor(x),
    "a copy": lambda x: copy.deepcopy(x.detach()),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy().copy()),
    "an array": lambda x: torch.tensor(np.asarray(x.detach())),
    "a list": lambda x: torch.tensor(x.tolist(), dtype=x.dtype),
    "dlpack": lambda x: torch.from_dlpack(x.detach()),
    "dlpack of numpy": lambda x: torch.tensor(np.from_dlpack(x.detach())),
    "dlpack as it was": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach())),
    "a pickle": lambda x: pickle.loads(pickle.dumps(x.detach())),
    "a file": lambda x: stored(x.detach()),
    "memory": lambda x: torch.tensor(x.detach().storage().tolist(), dtype=x.dtype).view_as(x),
    "Python": lambda x: x.detach().clone().apply_(lambda number: 2 * number),
}


class RoundTrip(nn.Module):
    """Adds what it computed after that has been somewhere else."""

    def __init__(self, leave: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.leave = nn.Linear(4, 6), nn.Linear(6, 3), leave

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        result: Tensor = self.second(h + self.leave(h))
        return result


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_values_that_come_back_are_no_constants(name: str) -> None:
    """Either they are followed, or the model is refused; what it is really like, small steps tell."""
    torch.manual_seed(3)
    model, image = RoundTrip(ROUND_TRIPS[name]).double(), torch.rand(1, 4, dtype=torch.float64)
    try:
        (found,) = pathx.explain(model, image, target=0, depth=1, width="all", alpha=0.0)
    except PathxError:
        return
    assert_close(found.weight[None], slopes(model, image), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("leave", [torch.rand_like, lambda h: torch.manual_seed(0) and h], ids=["drawn", "seeded"])
def test_law_7_random_numbers_go_on_as_they_would_have(leave: Callable[[Tensor], Tensor]) -> None:
    model = RoundTrip(leave)
    images, before = torch.rand(1, 4), torch.get_rng_state()
    with suppress(PathxError):
        pathx.explain(model, images, depth=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_refusal_that_the_model_catches_is_not_lost() -> None:
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = x if x.sum() > 0 else 2 * x
            except Exception:
                x = -x
            result: Tensor = self.layers(x)
            return result

    with pytest.raises(PathxError, match="decides by the values of its input"):
        pathx.explain(Catching(), torch.rand(1, 4), depth=1)


# Interrupts


@pytest.mark.parametrize("form", ["eager", "scripted", "traced"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_signal_inside_a_model_comes_out_as_itself(form: str, error: type[BaseException]) -> None:
    """At every operation, as a signal handler raises it."""
    model: Any = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = {"eager": lambda m: m, "scripted": torch.jit.script, "traced": lambda m: torch.jit.trace(m, IMAGE)}[
            form
        ](model)
    for at in range(6):
        with pytest.raises(error), Interrupt(at, error(143)):
            pathx.explain(model, IMAGE, depth=1)
    assert pathx.explain(model, IMAGE, depth=1)


class Interrupt(TorchDispatchMode):
    """Raises an error at an operation, counted from 0."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__()
        self.left, self.error = at, error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return func(*args, **(kwargs or {}))


IMAGE = torch.rand(1, 4)

# Tensors of a model that it writes into by another name: read as they were written, or refused


def kinds(model: nn.Module, images: Tensor) -> list[str]:
    """The operations that are noted of a model."""
    return [node.kind for node in record(model, images, lambda image: lambda node, shapes: ()).graph.nodes]


class WritingUnderAnotherName(nn.Module):
    """Writes into its tensor by a name that nothing shows to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.own
        self.own.data.zero_()
        return x + self.own


def test_what_is_fixed_is_read_as_it_was_written_under_another_name_and_stays_the_models() -> None:
    model, x = WritingUnderAnotherName(), torch.rand(2, 3)
    for _ in range(2):
        assert kinds(model, x) == ["mul", "add"]
        assert model.own.tolist() == [1.0] * 3
    network = freeze(Model(lambda m, x: F.relu(m.inner(x)) @ torch.eye(3), inner=model), x)
    assert torch.equal(network.logits, x)


class Keeping(nn.Module):
    """Writes the image into its tensor by such a name."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.ones(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        own = self.own
        own.detach().copy_(x)
        return x + own


def test_what_cannot_be_sorted_out_is_refused() -> None:
    for model in (Keeping(), Model(lambda m, x: m.inner(x * 2 + 3 - 1) + 1, inner=Keeping())):
        with pytest.raises(PathxError, match="writes what it computed from the image into a tensor of its own"):
            kinds(model, torch.rand(2, 3))
