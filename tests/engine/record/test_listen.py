"""What is heard of a foreign module: its operations taken apart, its own errors, and interrupts that come out as themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pathx import PathxError
from pathx.engine.record.listen import Aliased, Departed, Listener, _plain, is_plain, raise_interrupt, run, written
from pathx.engine.record.operations import Scope

aten = torch.ops.aten


class Notes(Listener):
    """Writes down the names of what it hears, and where it was called."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__(model, images)
        self.names: list[str] = []
        self.places: list[str] = []
        self.foreign = {tensor.untyped_storage()._cdata for tensor in model.state_dict().values()}

    def heard(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.names.append(func.overloadpacket.__name__)
        self.places.append(self.place().path)
        self.protect(func, args, kwargs)
        return func(*args, **kwargs)

    def factor(self, part: Tensor, whole: Tensor) -> Any:
        return None


def notes(model: nn.Module, images: Tensor) -> Notes:
    listener = Notes(model, images)
    run(listener)
    return listener


def test_composite_operations_are_heard_as_what_they_are_made_of() -> None:
    with torch.inference_mode():
        images = torch.rand(2, 3)
    found = notes(Function(lambda x: F.linear(x, torch.ones(2, 3)).flatten(0)), images)
    assert "linear" not in found.names and "flatten" not in found.names and "mm" in found.names


def test_every_call_is_heard_in_its_module() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    found = notes(model, torch.rand(2, 3))
    heard = [(name, place) for name, place in zip(found.names, found.places, strict=True) if name != "t"]
    assert heard == [("addmm", "0"), ("relu", "1.0"), ("addmm", "1.1")]


def test_values_that_leave_torch_are_heard_as_a_number_that_is_read() -> None:
    assert "_local_scalar_dense" in notes(Function(lambda x: x * len(x.tolist())), torch.rand(2, 3)).names
    assert "_local_scalar_dense" not in notes(Function(lambda x: x * len(x)), torch.rand(2, 3)).names


def test_what_a_model_writes_into_itself_is_taken_back() -> None:
    norm = nn.BatchNorm1d(3).train()
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    versions = [tensor._version for tensor in norm.state_dict().values()]
    notes(norm, torch.rand(4, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())
    assert [tensor._version for tensor in norm.state_dict().values()] == versions


def test_the_models_own_error_is_one_line_with_a_way_out() -> None:
    with pytest.raises(
        PathxError, match=r"cannot run on an input of shape \(2, 5\): .*cannot be multiplied.*; check the size"
    ):
        notes(nn.Linear(3, 2), torch.rand(2, 5))

    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    with pytest.raises(PathxError, match="pathx explains networks of one input"):
        notes(Two(), torch.rand(2, 5))
    scripted = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(PathxError, match="cannot be multiplied"):  # TorchScript's own text, not that of the mode
        notes(scripted, torch.rand(2, 5))


class Refusing(Notes):
    def heard(self, func: Any, args: Any, kwargs: Any) -> Any:
        raise PathxError("not this one")


def test_a_refusal_that_the_model_catches_is_not_lost() -> None:
    def forward(x: Tensor) -> Tensor:
        try:
            return F.relu(x)
        except Exception:
            return x

    with pytest.raises(PathxError, match="not this one"):
        run(Refusing(Function(forward), torch.rand(2, 3)))


def test_an_interrupt_comes_out_of_whatever_it_was_wrapped_in() -> None:
    wrapped = ValueError("reading failed")
    wrapped.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        raise_interrupt(wrapped)
    with pytest.raises(KeyboardInterrupt):
        raise_interrupt(RuntimeError("\nKeyboardInterrupt: \n"))
    raise_interrupt(RuntimeError("no KeyboardInterrupt here"))  # in the middle of a sentence it is a word
    loop = ValueError()
    loop.__context__ = ValueError()
    loop.__context__.__context__ = loop
    raise_interrupt(loop)


def test_what_an_operation_writes_into() -> None:
    x, y, mean, variance = (torch.rand(3) for _ in range(4))
    assert [id(one) for one in written(aten.add_.Tensor, (x, y), {})] == [id(x)]
    assert [id(one) for one in written(aten.add.out, (x, y), {"out": mean})] == [id(mean)]
    assert not [*written(aten.add.Tensor, (x, y), {})]
    training = (x, None, None, mean, variance, True, 0.1, 1e-5)
    assert [id(one) for one in written(aten.native_batch_norm.default, training, {})] == [id(mean), id(variance)]


def test_what_is_always_heard_as_itself() -> None:
    assert is_plain(aten.convolution.default) and is_plain(aten.relu.default)
    for other in (
        *(aten.relu_.default, aten.amax.default, aten.linear.default, aten.equal.default, aten._convolution.default),
        *(aten.as_strided.default, aten.is_pinned.default, aten.is_same_size.default, torch.ops.prim.device.default),
        *(aten.add.out, aten.where.self, aten.index_put.default),
    ):
        assert not is_plain(other)


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Record:
    first: object
    second: object


@dataclass
class Mapping(dict):  # type: ignore[type-arg]
    """As some libraries return: a dict with its items as fields beside."""

    first: object = 9


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (3, 3), (None, None), ((1, None, 2), [1, 2]), ([1, [None, 2]], [1, [2]]), ({"a": 1, 2: None, 3: 4}, {"a": 1, "3": 4}),
        (Pair(1, None), {"first": 1}), (Record(1, (2, None)), {"first": 1, "second": [2]}), (Record, Record), (Mapping(), {}),
        ({"a": Pair({"b": Record(1, 2)}, 3)}, {"a": {"first": {"b": {"first": 1, "second": 2}}, "second": 3}}),
    ],
)  # fmt: skip
def test_what_a_model_returns_in_plain_containers(given: object, plain: object) -> None:
    assert _plain(given) == plain


def test_lists_of_tensors_are_written_into_one_by_one() -> None:
    x, y = torch.rand(2), torch.rand(2)
    assert [id(one) for one in written(aten._foreach_add_.Scalar, ([x, y], 1), {})] == [id(x), id(y)]
    assert not [*written(aten.set_.source_Tensor, (x, y), {})]  # other memory, which is noted where it happens


@pytest.mark.parametrize(
    "leaving", [lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.clone().apply_(abs), lambda x: x.__array__()]
)
def test_values_that_leave_in_any_way_are_heard(leaving: Any) -> None:
    def forward(x: Tensor) -> Tensor:
        leaving(x)
        return x * 1

    assert "_local_scalar_dense" in notes(Function(forward), torch.rand(2, 3)).names
    assert "_local_scalar_dense" not in notes(Function(forward), torch.rand(2, 0)).names  # nothing there to leave


def test_a_tensor_that_is_given_other_memory_has_its_own_again() -> None:
    for reset in (lambda own: setattr(own, "data", torch.zeros(3)), lambda own: own.set_(torch.zeros(3))):
        model = nn.Module()
        model.own = torch.ones(3)
        model.forward = lambda x, model=model, reset=reset: (reset(model.own), x + model.own)[1]  # type: ignore[method-assign]
        own = model.own
        notes(model, torch.rand(2, 3))
        assert model.own is own and own.tolist() == [1.0] * 3


def test_a_place_is_that_of_the_innermost_module_of_the_model() -> None:
    """Modules of others, which the model calls too, are not in it."""
    outside = nn.ReLU()

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return outside(x * 2)  # type: ignore[no-any-return]

    found = notes(nn.Sequential(nn.Sequential(Inner())), torch.rand(2, 3))
    assert found.places == ["0.0", "0.0"]
    listener = Notes(outside, torch.rand(2))
    assert listener.place() == Scope()  # outside of any module
    listener.scope = Scope("given", True)
    assert listener.place() == Scope("given", True)


def test_weights_elsewhere_are_brought_to_the_images() -> None:
    with FakeTensorMode():
        listener = Notes(nn.ReLU(), torch.rand(2))
        number, weight, near = torch.tensor(1.0, device="cuda"), torch.rand(2, device="cuda"), torch.rand(2)
        assert listener.here(weight).device.type == "cpu" and listener.here(near) is near
        assert listener.here(number) is number and listener.here(3) == 3


@pytest.mark.parametrize("error", [Aliased, Departed])
def test_what_ends_a_run_from_inside_comes_out(error: type[Exception]) -> None:
    class Ending(Notes):
        def heard(self, func: Any, args: Any, kwargs: Any) -> Any:
            raise error

    with pytest.raises(error):
        run(Ending(Function(F.relu), torch.rand(2)))
