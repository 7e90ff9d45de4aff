"""The public names: each comes from the module that it is said to come from, for people and for type checkers."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import pathx
from pathx.cli import app
from pathx.models.catalogue import models

ROOT = Path(__file__).resolve().parents[1]


def homes() -> dict[str, str]:
    """The module that type checkers are told each public name comes from."""
    tree = ast.parse(Path(pathx.__file__).read_text(encoding="utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {
        alias.name: f"{node.module}" for node in imports for alias in node.names if f"{node.module}"[:6] == "pathx."
    }


def test_every_public_name_has_a_home() -> None:
    assert sorted(pathx.__all__) == sorted(homes())


@pytest.mark.parametrize("name", pathx.__all__)
def test_a_name_is_that_of_its_home(name: str) -> None:
    home = import_module(homes()[name])
    found = getattr(home, name)
    assert found.__name__ == name and found.__module__ == home.__name__ and name in dir(pathx)
    assert getattr(pathx, name) is (import_module(f"pathx.{name}") if name in PACKAGES else found)


PACKAGES = ("models", "report", "units")
"""Functions whose name is that of a package too, which is called in their place."""


def test_a_package_is_called_as_the_function_of_its_name() -> None:
    assert pathx.models("squeezenet1_1") == models("squeezenet1_1")
    with pytest.raises(pathx.PathxError, match="nowhere"):
        pathx.report(["nowhere"])


def test_every_command_has_a_function_of_its_name() -> None:
    assert {*get_command(app).commands} <= {*pathx.__all__}  # type: ignore[attr-defined]


def test_the_page_of_the_api_lists_every_name() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: pathx\.(\w+)$", page, re.MULTILINE)) == sorted(pathx.__all__)


def test_the_types_of_every_name_are_checked_from_outside() -> None:
    """`.ci/run` gives the file to `mypy --strict`."""
    user = ast.parse((ROOT / ".ci/outside.py").read_text(encoding="utf-8"))
    used = {
        node.attr for node in ast.walk(user) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pathx"
    }
    assert used == {*pathx.__all__}


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pathx' has no attribute 'nothing'"):
        _ = pathx.nothing
