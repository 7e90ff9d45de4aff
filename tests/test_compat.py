"""What torch offers under private names only: what it says, and what is done without it."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from pathx import compat
from pathx.errors import PathxError

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("body.2.0", "body.2.0"),
        ("", ""),
        ("L['self'].body.act", "body.act"),
        ("getattr(L['fn'], '1')", "1"),
        ("getattr(getattr(L['self'].body, '2'), '0').act", "body.2.0.act"),
    ],
)
def test_modules_of_exported_programs_have_the_names_that_people_know(text: str, name: str) -> None:
    assert compat.module_path(text) == name


def test_files_of_newer_releases_are_refused_in_one_line_that_names_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.export.pt2_archive._package", None)
    with pytest.raises(
        PathxError, match=rf"^torch {re.escape(torch.__version__)} cannot read .*: use torch 2\.9 or newer"
    ):
        compat.export_reader()


def test_without_them_operations_are_whole_and_counts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_dispatch_has_kernel_for_dispatch_key")
    monkeypatch.delattr(torch._C._autograd, "_unsafe_set_version_counter")
    tensor = torch.ones(2)
    tensor.add_(1)
    compat.reset_version(tensor, 0)
    assert tensor._version == 1
    assert not compat.is_composite.__wrapped__(aten.linear.default)
