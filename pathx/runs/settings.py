"""How to explain: the settings of a run, and what they mean on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.render import Drawing
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.drawing.page import Panel
    from pathx.explanation import Explanation, Unit


class Guide(Protocol):
    """What knows what units look for; `key` is the same where the same would be shown."""

    @property
    def key(self) -> str: ...

    def panels(self, explanation: Explanation) -> Sequence[Panel]: ...

    def panels_of(self, units: Iterable[Unit]) -> Sequence[Panel]: ...


@dataclass(frozen=True)
class Settings:
    """How to explain; the defaults are those of the command line.

    Args:
        label: the true class of the images, where it is known. By default the name of an image's folder, where that
            is a label of the model and no targets are asked for. A wrong prediction is explained against it.
        batch_size: images explained at once, or `auto`.
        workers: threads that read images ahead and write results behind; None for what the machine has.
        pictures: whether to draw any.
        removal: see what becomes of the class without the path's units (`Explanation.removal`). The command line does so for
            images that are named one by one.
        guide: shows in figures what the strongest units look for elsewhere.
        against: the class, by label or number, that the targets are explained against: why these and not that one.
    """

    depth: int | str = DEPTH
    width: int | str = WIDTH
    alpha: float | None = None
    skips: str = SKIPS
    exact: str = EXACT
    importance: str = IMPORTANCE
    device: str = "auto"
    dtype: str = "float32"
    batch_size: int | str = "auto"
    save_tensors: bool = False
    label: str | None = None
    drawing: Drawing = field(default_factory=Drawing)
    workers: int | None = None
    pictures: bool = True
    against: str | None = None
    removal: bool = False
    guide: Guide | None = None

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that a result depends on; the others only say how it is computed."""
        plain = asdict(replace(self, guide=None))
        shown = {} if self.guide is None else {"guide": self.guide.key}
        return {key: plain[key] for key in plain if key not in ("device", "batch_size", "workers", "guide")} | shown


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 0:
        raise PathxError(f"workers {workers} is out of range; use 0 or more", usage=True)
