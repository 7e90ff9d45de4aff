"""The one place that imports torchvision: `from pathx.models.torchvision import torchvision`.

torchvision's wheel cannot load its compiled operators beside a torch that it was not built for (one for the CPU only,
say), and its own registrations then fail with "operator torchvision::nms does not exist". Nothing in pathx calls those
operators, so declaring their missing schemas is enough to import the models.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

_MISSING = "operator torchvision::"
_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# Declarations last only as long as the library object that made them. Empty where torchvision's own operators load.
_declarations: list[torch.library.Library] = []


def _import_torchvision() -> Any:
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half-imported
    # A fragment, because the one full definition of the namespace belongs to torchvision's compiled library.
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            library.define(_SCHEMA.format(operator))
    _declarations.append(library)
    return import_module("torchvision")


torchvision: Any = _import_torchvision()
