"""The public names: each comes from the module that it is said to come from, for people and for type checkers."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import pathx


@pytest.mark.parametrize("name", pathx.__all__)
def test_a_name_is_that_of_its_home(name: str) -> None:
    found = getattr(pathx, name)
    assert found.__name__ == name and name in dir(pathx)
    assert getattr(import_module(found.__module__), name) is found


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse(Path(pathx.__file__).read_text(encoding="utf-8"))
    imports = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pathx.")
    ]
    said = {alias.name: node.module for node in imports for alias in node.names}
    assert said == {"PathxError": "pathx.errors", **pathx._HOMES}
    assert sorted(pathx.__all__) == sorted(said)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pathx' has no attribute 'nothing'"):
        _ = pathx.nothing
