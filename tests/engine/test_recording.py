"""Work that is played back gives the very numbers that doing it gives, for other images and other weights too."""

from __future__ import annotations

import gc
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from support.cases import Case, cases, contrasts
from support.recorded import NEVER, OPTIONS, SOON, explained, images, recordings, small
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import pathx.engine.explain
from pathx import Explanation
from pathx.engine import recording
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.linear import LinearModel, linear_model
from pathx.engine.path import Paths
from pathx.engine.search import Strategy

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_same(some: list[Explanation], others: list[Explanation]) -> None:
    """To the last bit."""
    for one, other in zip(some, others, strict=True):
        assert one.path == other.path and one.target == other.target
        assert (one.score, one.bias) == (other.score, other.bias)
        assert torch.equal(one.attribution, other.attribution) and torch.equal(one.weight, other.weight)
        for mine, theirs in zip(one.path, other.path, strict=True):
            assert [edges.layer for edges in mine.edges] == [edges.layer for edges in theirs.edges]
            assert all(torch.equal(a.value, b.value) for a, b in zip(mine.edges, theirs.edges, strict=True))


@pytest.fixture
def fresh() -> None:
    recording._KNOWN.clear()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The recordings that were played, one entry each time."""
    times: list[object] = []
    play = recording._Recording.play

    def counted(self: Any, *given: Any) -> Any:
        times.append(self)
        return play(self, *given)

    monkeypatch.setattr(recording._Recording, "play", counted)
    return times


@settings(max_examples=60)
@given(case=cases(images=2))
def test_any_network_is_played_back_for_other_images(case: Case) -> None:
    assert_played_back(case)


@settings(max_examples=20)
@given(case=contrasts())
def test_so_is_one_class_against_another(case: Case) -> None:
    assert_played_back(case)


@settings(max_examples=30)
@given(case=cases(images=2))
def test_what_was_played_back_goes_on_as_it_does_otherwise_where_certificates_fail(case: Case) -> None:
    assert_played_back(case, slack=0)


def assert_played_back(case: Case, slack: int | None = None) -> None:
    model = case.network.module()
    options = dict(case.options)
    target = options.pop("target")
    batches = [case.network.images(len(case.images), seed).to(case.images) for seed in (1, 2)] + [case.images]
    soon, never = replace(SOON, slack=slack), replace(NEVER, slack=slack)
    found: dict[Strategy, list[Explanation]] = {soon: [], never: []}
    recording._KNOWN.clear()
    for strategy, made in found.items():
        for batch in batches:
            targets = target if isinstance(target, list) else [target] * len(batch)
            made += explain_frozen(freeze(model, batch), list(enumerate(targets)), strategy=strategy, **options)
    assert_same(found[soon], found[never])
    (seen,) = (seen for known in recording._KNOWN.values() for seen in known.values())
    assert seen.times == 3 and (
        seen.recording is not None or seen.why in ("aten::nonzero", "aten::_local_scalar_dense")
    )


@pytest.mark.usefixtures("fresh")
def test_it_is_recorded_after_some_calls_and_then_played(played: list[object]) -> None:
    model = small()
    for number in range(6):
        explained(model, images(number), Strategy(recorded=3))
        assert recordings() == (number >= 3) and len(played) == max(0, number - 3)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("depth", "size", "together"), [(1, 16, True), (1, 24, False), (2, 16, False), (2, 24, False), (6, 24, True)]
)
def test_the_linear_model_is_played_back_with_the_walk_unless_its_shapes_depend_on_numbers(
    depth: int, size: int, together: bool, played: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layers = [part for channels in (3, 4, 4, 4, 4, 4) for part in (nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * size * size, 3)).eval()
    batches = [torch.randn(1, 3, size, size) for _ in range(4)]
    calls = []

    def counted(frozen: Frozen, paths: Paths) -> LinearModel:
        calls.append(len(played))
        return linear_model(frozen, paths)

    monkeypatch.setattr(pathx.engine.explain, "linear_model", counted)
    for batch in batches:
        mine = explained(model, batch, SOON, depth=depth, width=2)
        assert_same(mine, explained(model, batch, NEVER, depth=depth, width=2))
    # Once as it is, once recorded, and then played back twice; and four times to compare.
    assert len(played) == 2 and len(calls) == 4 + (2 if together else 4)


@pytest.mark.usefixtures("fresh")
def test_weights_that_change_are_those_of_the_call(played: list[object]) -> None:
    model = small()
    for number in range(3):
        explained(model, images(number), SOON)
    with torch.no_grad():
        model[0].weight.mul_(1.5)  # in place
    assert_same(explained(model, images(5), SOON), explained(model, images(5), NEVER))
    model[4] = nn.Conv2d(6, 5, 3)  # other tensors of the same shape
    assert_same(explained(model, images(6), SOON), explained(model, images(6), NEVER))
    assert len(played) == 3


@pytest.mark.usefixtures("fresh")
def test_weights_that_are_no_longer_shared_are_told_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3 * 12 * 12, 4)
            self.two = nn.Conv2d(3, 3, 3, padding=1)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(self.one(x).relu()).relu().flatten(1))

    model = Twice().eval()
    for number in range(3):
        explained(model, images(number), SOON)
    model.two.weight = nn.Parameter(torch.randn_like(model.one.weight))
    assert_same(explained(model, images(4), SOON), explained(model, images(4), NEVER))


@pytest.mark.usefixtures("fresh")
def test_other_settings_targets_batches_and_layouts_are_other_recordings() -> None:
    model = small()
    asked: list[tuple[Tensor, dict[str, Any]]] = [
        (images(1), {"depth": 2, "width": 3}),
        (images(1), {"depth": 1, "width": 3}),
        (images(1), {"depth": 2, "width": 4}),
        (images(1), {"depth": 2, "width": 3, "alpha": 0.3}),
        (images(1), {"depth": 2, "width": 3, "against": [0, 1]}),
        (images(1, count=1), {"depth": 2, "width": 3}),
        (images(1).to(memory_format=torch.channels_last), {"depth": 2, "width": 3}),
        (images(1).double(), {"depth": 2, "width": 3}),
    ]
    for batch, options in asked:
        targets = [(n, 3) for n in range(len(batch))]
        for _ in range(3):
            mine = explain_frozen(freeze(model, batch), targets, strategy=SOON, **options)
        assert_same(mine, explain_frozen(freeze(model, batch), targets, strategy=NEVER, **options))
    assert recordings() == len(asked)


@pytest.mark.usefixtures("fresh")
def test_whoever_listens_hears_every_operation(played: list[object]) -> None:
    class Listens(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model = small()
    for number in range(3):
        explained(model, images(number), SOON)
    heard = []
    for strategy in (NEVER, SOON, NEVER):  # the first makes constants
        frozen = freeze(model, images(4))
        wanted: list[tuple[int, int | None]] = [(0, None), (1, None)]
        with Listens() as listener:
            explain_frozen(frozen, wanted, strategy=strategy, **OPTIONS)
        heard.append(listener.calls)
        with Sees():
            explain_frozen(frozen, wanted, strategy=strategy, **OPTIONS)
    assert heard[1] == heard[2] > 50 and len(played) == 1


@pytest.mark.usefixtures("fresh")
def test_a_recording_is_forgotten_with_its_model_and_the_oldest_where_there_are_many() -> None:
    model = small()
    for width in range(1, recording.MOST_RECORDINGS + 4):
        for _ in range(2):
            explained(model, images(1), SOON, depth=1, width=width)
    assert recordings() == recording.MOST_RECORDINGS
    del model
    gc.collect()
    assert not recording._KNOWN


@pytest.mark.usefixtures("fresh")
def test_large_work_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LARGEST", 100)
    model = small()
    mine = [explained(model, images(number), SOON) for number in range(3)]
    assert recordings() == 0
    for number, found in enumerate(mine):
        assert_same(found, explained(model, images(number), NEVER))
    (seen,) = (seen for known in recording._KNOWN.values() for seen in known.values())
    assert seen.why == "too many numbers"


@pytest.mark.usefixtures("fresh")
def test_what_reads_a_tensor_from_elsewhere_or_a_number_is_not_recorded() -> None:
    frozen = freeze(small(), images(1))
    ours = explain_frozen.__globals__["_branches"]([(0, 1), (1, 2)], torch.tensor([1, 2]), None, frozen)
    elsewhere = torch.ones(1)
    for name, work in {
        "a tensor from elsewhere": lambda frozen, branches: (frozen.images * elsewhere,),
        "a result from elsewhere": lambda frozen, branches: (frozen.images * 1, elsewhere),
        "aten::_local_scalar_dense": lambda frozen, branches: (frozen.images * float(frozen.images.max()),),
        "aten::nonzero": lambda frozen, branches: (frozen.images.nonzero(),),
        "aten::rand_like": lambda frozen, branches: (torch.rand_like(frozen.images),),
        "aten::promote_types gives no tensor": lambda frozen, branches: (
            frozen.images.to(torch.promote_types(torch.float32, torch.float64)),
        ),
    }.items():
        for _ in range(3):
            recording.repeated(work, frozen, ours, name, 1)
        found = {form[0]: seen for form, seen in recording._KNOWN[frozen.network].items()}[name]
        assert (found.recording, found.why) == (None, name)


@pytest.mark.usefixtures("fresh")
def test_of_what_comes_after_the_work_nothing_is_played_back_unless_all_of_it_can_be(played: list[object]) -> None:
    frozen = freeze(small(), images(1))
    ours = explain_frozen.__globals__["_branches"]([(0, 1), (1, 2)], torch.tensor([1, 2]), None, frozen)

    def work(frozen: Any, branches: Any) -> tuple[Tensor, ...]:
        return (frozen.images * 2,)

    def reads(frozen: Any, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (*made, made[0].sin() * float(made[0].max()))

    def looks_at_nothing(frozen: Any, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (*made, made[0].sin())

    for then, parts in ((reads, 1), (looks_at_nothing, 2)):
        results = [recording.repeated(work, frozen, ours, then, 1, then) for _ in range(3)]
        assert [len(each) for each in results] == [1, 2, parts]
        assert ("aten::sin" in str(played[-1].program.graph)) == (parts == 2)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fresh")
def test_what_cannot_be_played_any_more_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    expected = [explained(model, images(number), NEVER) for number in range(4)]
    for number in range(2):
        explained(model, images(number), SOON)

    def fails(*given: Any) -> Any:
        raise RuntimeError("view size is not compatible")

    monkeypatch.setattr(recording._Recording, "run", fails)
    for number in (2, 3):
        assert_same(explained(model, images(number), SOON), expected[number])
    assert recordings() == 0

    def takes_too_much(*given: Any) -> Any:
        raise RuntimeError("not enough memory")

    monkeypatch.undo()
    recording._KNOWN.clear()
    for number in range(2):
        explained(model, images(number), SOON)
    monkeypatch.setattr(recording._Recording, "run", takes_too_much)
    with pytest.raises(RuntimeError, match="memory"):  # for whoever can take fewer images at a time
        explained(model, images(2), SOON)


@pytest.mark.usefixtures("fresh")
def test_threads_share_recordings() -> None:
    model = small()
    expected = [explained(model, images(number), NEVER) for number in range(6)]
    found: dict[int, list[Explanation]] = {}

    def work(numbers: range) -> None:
        for number in numbers:
            found[number] = explained(model, images(number), SOON)

    threads = [Thread(target=work, args=(range(start, 6, 2),)) for start in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, each in enumerate(expected):
        assert_same(found[number], each)
    assert recordings() == 1


@pytest.mark.usefixtures("fresh")
def test_threads_do_not_wait_for_each_other() -> None:
    frozen = freeze(small(), images(1))
    ours = explain_frozen.__globals__["_branches"]([(0, 1), (1, 2)], torch.tensor([1, 2]), None, frozen)
    inside, go_on = Event(), Event()

    def slow(frozen: Any, branches: Any) -> None:
        inside.set()
        assert go_on.wait(20)

    for after in (5, 0):  # done as it is, and recorded
        thread = Thread(target=recording.repeated, args=(slow, frozen, ours, f"slow {after}", after))
        thread.start()
        assert inside.wait(20)
        assert recording.repeated(lambda frozen, branches: "done", frozen, ours, f"quick {after}", 5) == "done"
        assert thread.is_alive()
        go_on.set()
        thread.join()
        inside.clear()
        go_on.clear()


@pytest.mark.usefixtures("fresh")
def test_settings_of_torch_that_lay_results_out_in_another_way_are_told_apart() -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Conv2d(16, 16, 3, padding=1),
    ]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 49, 7)).eval()
    model = model.to(memory_format=torch.channels_last)
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled):
            for number in range(3):
                batch = images(number)[:, :, :7, :7]
                mine = explained(model, batch, SOON, depth=2, width="40%")
                assert_same(mine, explained(model, batch, NEVER, depth=2, width="40%"))


@pytest.mark.usefixtures("fresh")
def test_the_interpreter_is_left_as_it_was() -> None:
    model = small()
    for before in (True, False):
        torch._C._set_graph_executor_optimize(before)
        try:
            for number in range(3):
                explained(model, images(number), SOON)
            assert torch._C._get_graph_executor_optimize() is before
        finally:
            torch._C._set_graph_executor_optimize(True)
