"""A network that was loaded, and what belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from pathx.errors import PathxError
from pathx.models.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network ready to be explained, and what belongs to it.

    Args:
        module: in eval mode, on the CPU.
        name: torchvision's name, or the file's.
        weights: `bundled`, torchvision's name such as `IMAGENET1K_V1`, `none`, or the name of the file they are from.
        sha256: of the file; of the weights themselves where a library supplied them or there is no file.
        labels: one per class, or empty for a file that brings none; see `labels_for`.
        origin: where the weights came from: `source`, `name` and, where the source has one, `revision`; `preprocessing`, the
            torchvision weights whose preprocessing is used for those of a file.
        notes: what was taken for granted, and a user may know better.
    """

    module: nn.Module
    name: str
    weights: str
    sha256: str
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    origin: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def labels_for(self, classes: int) -> tuple[str, ...]:
        """One label per class of a network with that many outputs; one logit means two classes."""
        if not self.labels:
            return ("negative", "positive") if classes == 1 else tuple(f"class {index}" for index in range(classes))
        expected = 2 if classes == 1 else classes
        if len(self.labels) != expected:
            found = f"{len(self.labels)} labels were given, but {self.name} has {expected} classes"
            raise PathxError(f"{found}: give one label per class", usage=True)
        return self.labels
