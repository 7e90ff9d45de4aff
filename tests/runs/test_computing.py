"""As many images at once as fit into memory, and errors that are none of it."""

from __future__ import annotations

import pytest
import torch
from support.command_line import Pathx, network, scripted
from support.many import lines, photos

import pathx.runs.computing
from pathx.commands import output

pytestmark = pytest.mark.usefixtures("one_thread", "here")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lines of progress, however slow the machine is."""
    monkeypatch.setattr(output, "EVERY", 1e9)


def short_of_memory(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> list[int]:
    whole, sizes = pathx.runs.computing.freeze, []

    def freeze(module: torch.nn.Module, images: torch.Tensor) -> object:
        sizes.append(len(images))
        if len(images) > most:
            raise error
        return whole(module, images)

    monkeypatch.setattr(pathx.runs.computing, "freeze", freeze)
    return sizes


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
)
def test_short_memory_halves_the_batch_and_skips_nothing(
    pathx_: Pathx, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sizes = short_of_memory(monkeypatch, 3, error)
    arguments = ("explain", photos(20), "--model", scripted(network()), "--no-pictures", "--batch-size", 8)
    done = pathx_(*arguments)
    assert done.status == 0
    assert sizes == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert done.err.splitlines()[:2] == [
        "pathx: note: memory is short: going on with 4 at once instead of 8",
        "pathx: note: memory is short: going on with 2 at once instead of 4",
    ]
    assert len(lines("pathx-out")) == 20


def test_no_memory_for_even_one_picture_is_a_failure(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, 0, torch.OutOfMemoryError("CUDA out of memory."))
    done = pathx_("explain", photos(3), "--model", scripted(network()))
    assert done.status == 1
    assert done.err.count(".png: out of memory, even for one image alone: take a smaller --width or --depth") == 3
    assert [line["explanations"] for line in lines("pathx-out")] == [[], [], []]


def test_other_errors_are_not_taken_for_it(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, 0, RuntimeError("shapes do not match"))
    done = pathx_("explain", photos(3), "--model", scripted(network()))
    assert done.err == "pathx: unexpected RuntimeError: shapes do not match (set PATHX_DEBUG=1 for the traceback)\n"
