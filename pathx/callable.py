"""Packages that can be called: `pathx.units(…)` is a function, and `pathx.units.files` a module."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package whose module `home` has a function of the package's name."""

    home: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(import_module(self.home), self.__name__.rpartition(".")[2])(*arguments, **options)


def make_callable(package: str, home: str) -> None:
    """Let a package be called.

    Args:
        home: the module that the function is in.
    """
    module = sys.modules[package]
    module.__class__ = CallablePackage
    vars(module)["home"] = home
