"""What became of one thing that was asked for: one type, with a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition
    from pathx.errors import PathxError
    from pathx.explanation import Explanation


class State(Enum):
    """`done`: its files are written. `kept`: an earlier run has done it in the same way. `failed`: there is nothing."""

    done = "done"
    kept = "kept"
    failed = "failed"


class Kind(Enum):
    """What was made; the value is the document that makes its files whole."""

    explanation = "path.json"
    decomposition = "decomposition.json"
    contrast = "contrast.json"
    sheet = ""


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """An explanation of one class, a decomposition, a contrast or a sheet whose files are there, or why they are not.

    Args:
        file: the image as the user gave it; of a sheet, its folder.
        folder: where the files are; nowhere if it failed.
        document: what the document in the folder says; empty if it failed.
        files: the names of all files below the folder, the document last.
        made: the explanation, decomposition or contrast, where it was computed just now.
        predictions: the best classes of the image, (label, probability) each.
        truth: the label of the image, where it is known.
        notes: what a user should know about it, such as how the image was read.
        replaced: how the results of other settings that were in its place had been made.
        error: why it failed.
    """

    file: str
    state: State
    kind: Kind = Kind.explanation
    folder: Path = Path()
    document: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    made: Explanation | Decomposition | Contrast | None = None
    predictions: tuple[tuple[str, float], ...] = ()
    truth: str | None = None
    notes: tuple[str, ...] = ()
    replaced: str = ""
    error: PathxError | None = None

    def __repr__(self) -> str:
        said = f": {self.error}" if self.error is not None else f" in {self.folder}"
        return f"<Result {self.state.value}, {self.kind.name} of {self.file}{said}>"

    @staticmethod
    def failure(file: str, error: PathxError) -> Result:
        """For what could not be done."""
        return Result(file, State.failed, error=error)

    @property
    def failed(self) -> bool:
        return self.state is State.failed

    @property
    def explanation(self) -> Explanation:
        """What was made, where that is an explanation."""
        return self._made(Kind.explanation)  # type: ignore[return-value]

    @property
    def decomposition(self) -> Decomposition:
        """What was made, where that is a decomposition."""
        return self._made(Kind.decomposition)  # type: ignore[return-value]

    @property
    def contrast(self) -> Contrast:
        """What was made, where that is a contrast."""
        return self._made(Kind.contrast)  # type: ignore[return-value]

    def _made(self, kind: Kind) -> Explanation | Decomposition | Contrast:
        if self.kind is not kind or self.made is None:
            raise AttributeError(
                f"this is a {self.kind.name} that is {self.state.value}: there is no {kind.name} in it"
            )
        return self.made
