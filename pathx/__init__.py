"""pathx: which hidden units of a network carried a decision, and what they saw in the image."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition, decompose
    from pathx.drawing.render import Drawing
    from pathx.engine.ablate import Ablation, ablate
    from pathx.engine.explain import explain
    from pathx.evaluation.check import check
    from pathx.evaluation.common import common
    from pathx.evaluation.evaluate import evaluate
    from pathx.explanation import Edges, Explanation, PathLayer, Removal, Unit
    from pathx.models.catalogue import describe_model, models
    from pathx.models.load import load_model
    from pathx.report.build import report
    from pathx.results.redraw import redraw
    from pathx.runs.index import merge
    from pathx.runs.run import explain_files
    from pathx.units.units import units

__version__ = "0.3.0"
__all__ = [
    "Ablation",
    "Contrast",
    "Decomposition",
    "Drawing",
    "Edges",
    "Explanation",
    "PathLayer",
    "PathxError",
    "Removal",
    "Unit",
    "ablate",
    "check",
    "common",
    "decompose",
    "describe_model",
    "evaluate",
    "explain",
    "explain_files",
    "load_model",
    "merge",
    "models",
    "redraw",
    "report",
    "units",
]

# Where public names are from. They need torch, so they are imported when first used: `pathx --help` stays quick.
_HOMES = {
    "pathx.contrast": ("Contrast",),
    "pathx.decomposition": ("Decomposition", "decompose"),
    "pathx.drawing.render": ("Drawing",),
    "pathx.engine.ablate": ("Ablation", "ablate"),
    "pathx.engine.explain": ("explain",),
    "pathx.evaluation.check": ("check",),
    "pathx.evaluation.common": ("common",),
    "pathx.evaluation.evaluate": ("evaluate",),
    "pathx.explanation": ("Edges", "Explanation", "PathLayer", "Removal", "Unit"),
    "pathx.models.catalogue": ("describe_model", "models"),
    "pathx.models.load": ("load_model",),
    "pathx.report.build": ("report",),
    "pathx.results.redraw": ("redraw",),
    "pathx.runs.index": ("merge",),
    "pathx.runs.run": ("explain_files",),
    "pathx.units.units": ("units",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pathx' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class CallablePackage(ModuleType):
    """A package that is called as the function of its name: `pathx.units(…)`, beside modules such as `pathx.units.files`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_HOME_OF[name]), name)(*arguments, **options)
