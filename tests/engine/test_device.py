"""Which device a name means; and full precision, whatever the process has set, and everything set back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.compat import has_fp32_precision
from pathx.engine.device import (
    engine_precision,
    is_out_of_memory,
    resolve_batch_size,
    resolve_device,
    resolve_dtype,
)

READ: dict[str, Callable[[], Any]] = {
    "products": torch.get_float32_matmul_precision,
    "everything": lambda: torch.backends.fp32_precision,
    "cuda products": lambda: torch.backends.cuda.matmul.fp32_precision,
    "cuda convolutions": lambda: torch.backends.cudnn.conv.fp32_precision,
    "cuda recurrent": lambda: torch.backends.cudnn.rnn.fp32_precision,
    "cpu products": lambda: torch.backends.mkldnn.matmul.fp32_precision,
    "cpu convolutions": lambda: torch.backends.mkldnn.conv.fp32_precision,
    "cpu recurrent": lambda: torch.backends.mkldnn.rnn.fp32_precision,
    "older switch of products": lambda: torch.backends.cuda.matmul.allow_tf32,
    "older switch of convolutions": lambda: torch.backends.cudnn.allow_tf32,
    "dtype": torch.get_default_dtype,
    "device": lambda: torch.empty(0).device,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "gradients": torch.is_grad_enabled,
}


def flags() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, read in READ.items():
        try:
            found[name] = read()
        except AttributeError:  # an older release
            found[name] = "none"
        except RuntimeError:  # torch does not answer where older and newer settings disagree
            found[name] = "mixed"
    return found


def put(holder: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(holder, name, value)


SETTINGS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "medium products": lambda: torch.set_float32_matmul_precision("medium"),
    "high products": lambda: torch.set_float32_matmul_precision("high"),
    "older switches": put(torch.backends.cuda.matmul, "allow_tf32", True),
    "older switches off": put(torch.backends.cudnn, "allow_tf32", False),
    "default float64": lambda: torch.set_default_dtype(torch.float64),
    "default float16": lambda: torch.set_default_dtype(torch.float16),
    "default device": lambda: torch.set_default_device("meta"),
    "no gradients": lambda: torch.set_grad_enabled(False),
}

if has_fp32_precision():
    SETTINGS |= {
        "everything tf32": put(torch.backends, "fp32_precision", "tf32"),
        "cuda products tf32": put(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        "cpu products bf16": put(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        "cpu convolutions bf16": put(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
    }


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    if has_fp32_precision():
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    if has_fp32_precision():
        torch.backends.mkldnn.matmul.fp32_precision = torch.backends.mkldnn.conv.fp32_precision = "none"


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_full_precision_inside_and_everything_as_it_was_after(name: str, device: str) -> None:
    SETTINGS[name]()
    before = flags()
    where = torch.device(device)
    with engine_precision(where):
        used = ["cpu products", "cpu convolutions"]
        used += ["cuda products", "cuda convolutions"] if device == "cuda" else []
        if has_fp32_precision():
            assert not {flags()[one] for one in used} & {"tf32", "bf16"}
        else:
            assert flags()["products"] == "highest"
        if device == "cuda":  # torch refuses to multiply where the older switch says otherwise
            assert flags()["older switch of products"] is False
        assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float32
        assert torch.empty(1).device.type == "cpu"
    assert flags() == before

    def fail() -> None:
        with engine_precision(where):
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert flags() == before


@pytest.mark.parametrize("name", SETTINGS)
def test_explanations_are_the_same_whatever_is_set(name: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3)
    ).eval()
    images = torch.randn(2, 3, 6, 6)
    expected = pathx.explain(model, images, depth=2, skips="all")
    SETTINGS[name]()
    before = flags()
    found = pathx.explain(model, images, depth=2, skips="all")
    with torch.autocast("cpu", torch.bfloat16):
        under = pathx.explain(model, images, depth=2, skips="all")
        assert torch.is_autocast_enabled("cpu")
    assert flags() == before
    for other in (found, under):
        for mine, theirs in zip(other, expected, strict=True):
            assert mine.weight.dtype == torch.float32 and mine.weight.device.type == "cpu"
            assert_close(mine.weight, theirs.weight, rtol=1e-5, atol=1e-7)
            assert [u.index for layer in mine.path for u in layer.units] == [
                u.index for layer in theirs.path for u in layer.units
            ]


def gpus(patch: pytest.MonkeyPatch, count: int) -> None:
    """A machine with so many."""
    patch.setattr(torch.cuda, "is_available", lambda: count > 0)
    patch.setattr(torch.cuda, "device_count", lambda: count)
    patch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 3)
    names = ("auto", "cpu", "cuda:0", "cuda:2")
    assert [str(resolve_device(name)) for name in names] == ["cuda", "cpu", "cuda:0", "cuda:2"]
    with pytest.raises(
        PathxError, match=r"^a run has one device, not cuda:0,cuda:1: use `ray` local for a process per GPU"
    ):
        resolve_device("cuda:0,cuda:1")
    assert resolve_batch_size("auto", torch.device("cuda")) > resolve_batch_size("auto", torch.device("cpu")) > 1
    with pytest.raises(PathxError, match=r"^device 'cuda:3' is not there; this machine has cuda:0 to cuda:2$"):
        resolve_device("cuda:3")
    for name in ("cuda:", "cuda:x", "gpu", "cpu:0", ""):
        with pytest.raises(PathxError, match="is unknown; use auto, cpu, cuda"):
            resolve_device(name)
    gpus(monkeypatch, 0)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(PathxError, match=r"^device 'cuda:0' is not there; this machine has cpu: use `device` auto$"):
        resolve_device("cuda:0")


def test_names_of_precisions() -> None:
    cpu, mps = torch.device("cpu"), torch.device("mps")
    assert [resolve_dtype(name, cpu) for name in ("float32", "float64")] == [torch.float32, torch.float64]
    assert resolve_dtype("float32", mps) == torch.float32
    with pytest.raises(PathxError, match=r"^mps has no float64; use float32"):
        resolve_dtype("float64", mps)
    with pytest.raises(PathxError, match=r"^dtype is float32 or float64, not 'half'$"):
        resolve_dtype("half", cpu)


def test_a_gpu_of_either_kind_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, taken in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert resolve_device("auto").type == taken and resolve_device("cpu").type == "cpu"


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


SHORT = [
    torch.OutOfMemoryError(), MemoryError(), RuntimeError("CUDA error: out of memory"), RuntimeError("not enough memory: 5"),
    RuntimeError("can't allocate memory"), chained(ValueError("reading failed"), MemoryError()),
]  # fmt: skip
OTHER = [None, ValueError("out of memory"), RuntimeError("a memory"), chained(ValueError(), RuntimeError("size"))]


@pytest.mark.parametrize("error", [*SHORT, *OTHER])
def test_how_it_is_said_that_memory_is_short(error: Exception | None) -> None:
    assert is_out_of_memory(error) == any(error is one for one in SHORT)
