"""pathx: which hidden units of a ReLU network carried a decision, and what they saw in the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition, decompose
    from pathx.engine import explain
    from pathx.explanation import Explanation, PathLayer, Unit
    from pathx.models import load_model
    from pathx.render import Drawing

__version__ = "0.1.0"
__all__ = [
    "Contrast",
    "Decomposition",
    "Drawing",
    "Explanation",
    "PathLayer",
    "PathxError",
    "Unit",
    "decompose",
    "explain",
    "load_model",
]

# Names that need torch are imported when first used, so that `import pathx.cli` and `pathx --help` stay quick.
_HOMES = {
    "Contrast": "pathx.contrast",
    "decompose": "pathx.decomposition",
    "Decomposition": "pathx.decomposition",
    "Drawing": "pathx.render",
    "explain": "pathx.engine",
    "Explanation": "pathx.explanation",
    "PathLayer": "pathx.explanation",
    "Unit": "pathx.explanation",
    "load_model": "pathx.models",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pathx' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
