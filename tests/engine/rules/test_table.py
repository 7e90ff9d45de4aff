"""Records are filled in by decorators, each with its own part, and none takes another's back."""

from __future__ import annotations

import pytest

from pathx.engine.rules import table
from pathx.engine.rules.table import Operation


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "OPERATIONS", {})


def test_parts_of_a_record_come_together() -> None:
    def rule(*_: object) -> list[object]:
        return []

    table.record("a", "b", final=True)
    table.linear("a", varies=(1,))(rule)  # type: ignore[arg-type]
    table.constant("a")(rule)  # type: ignore[arg-type]
    table.gate("b")(rule)  # type: ignore[arg-type]
    a, b = table.OPERATIONS["a"], table.OPERATIONS["b"]
    assert (a.final, a.transpose, a.varies, a.constant, a.gate) == (True, rule, (1,), rule, None)
    assert (b.final, b.transpose, b.gate) == (True, None, rule)


def test_what_has_no_record_is_known_by_an_empty_one() -> None:
    class Node:
        kind = "nobody_knows"

    assert table.known(Node()) == Operation()  # type: ignore[arg-type]
