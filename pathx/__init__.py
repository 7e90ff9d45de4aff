"""pathx: which hidden units of a ReLU network carried a decision, and what they saw in the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition, decompose
    from pathx.drawing.render import Drawing
    from pathx.engine.ablate import Ablation, ablate
    from pathx.engine.explain import explain
    from pathx.explanation import Edges, Explanation, PathLayer, Unit
    from pathx.models.load import load_model
    from pathx.results.redraw import redraw
    from pathx.runs.run import explain_files
    from pathx.runs.tasks import decompose_task

__version__ = "0.2.0"
__all__ = [
    "Ablation",
    "Contrast",
    "Decomposition",
    "Drawing",
    "Edges",
    "Explanation",
    "PathLayer",
    "PathxError",
    "Unit",
    "ablate",
    "decompose",
    "decompose_task",
    "explain",
    "explain_files",
    "load_model",
    "redraw",
]

# Names that need torch are imported when first used, so that `import pathx.cli` and `pathx --help` stay quick.
_HOMES = {
    "ablate": "pathx.engine.ablate",
    "Ablation": "pathx.engine.ablate",
    "Contrast": "pathx.contrast",
    "decompose": "pathx.decomposition",
    "Decomposition": "pathx.decomposition",
    "Drawing": "pathx.drawing.render",
    "Edges": "pathx.explanation",
    "explain": "pathx.engine.explain",
    "Explanation": "pathx.explanation",
    "PathLayer": "pathx.explanation",
    "Unit": "pathx.explanation",
    "load_model": "pathx.models.load",
    "decompose_task": "pathx.runs.tasks",
    "explain_files": "pathx.runs.run",
    "redraw": "pathx.results.redraw",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pathx' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
