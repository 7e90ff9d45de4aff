"""Running the network on the images of a run, with as many of them at once as fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from pathx.engine.device import ALONE, is_out_of_memory, release_memory, resolve_batch_size
from pathx.engine.freeze import Frozen, freeze, network_of
from pathx.engine.settings import check_exact, class_logits
from pathx.errors import PathxError
from pathx.models.load import LoadedModel
from pathx.pipeline import Input, prepare
from pathx.results.result import Result
from pathx.runs.tasks import Batch, Job
from pathx.runs.writing import Computed


class Computer:
    """Makes of batches of images what is to be written of them, as many at once as the network takes and memory allows.

    Args:
        out: the folder that results are written to.
        note: is told when memory is short, and once where the numbers hold at the image alone.
    """

    def __init__(self, model: LoadedModel, job: Job, out: Path, note: Callable[[str], None]) -> None:
        self._prepared = prepare(model, device=job.settings.device, dtype=job.settings.dtype)
        self._job, self._out, self._note = job, out, note
        self.size = self._at_once = resolve_batch_size(job.settings.batch_size, self._prepared.device)
        self._checked = self.size == 1
        self._exactness_checked = False
        self._ambiguous: set[str] = set()

    def compute(self, inputs: Sequence[Input]) -> dict[str, tuple[Computed, float]]:
        """By name: what is to be written of each image, or why nothing is, and the image's share of the seconds."""
        made: dict[str, tuple[Computed, float]] = {}
        if not self._checked and len(inputs) > 1:
            self._checked = True
            if not self._takes_several(inputs):
                self._at_once = 1
        while inputs:
            start = perf_counter()
            batch = inputs[: self._at_once]
            outcomes = self._outcomes(batch)
            if outcomes is None:  # out of memory; outside of the handler, which holds on to the tensors
                self._at_once = len(batch) // 2
                release_memory()
                self._note(f"memory is short: going on with {self._at_once} at once instead of {len(batch)}")
                continue
            share = (perf_counter() - start) / len(batch)
            made |= {one.source.name: (outcome, share) for one, outcome in zip(batch, outcomes, strict=True)}
            inputs = inputs[len(batch) :]
        return made

    def logits(self, one: Input) -> list[float]:
        """What the network says of an image, for every class."""
        found: list[float] = class_logits(self._freeze([one]).logits)[0].tolist()
        return found

    def _outcomes(self, batch: Sequence[Input]) -> list[Computed] | None:
        """What is to be written of a batch; None where memory is short for it."""
        try:
            return self._explain(self._freeze(batch), batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) > 1:
                return None
        release_memory()
        return [_failure(one, PathxError(ALONE)) for one in batch]

    def _explain(self, frozen: Frozen, batch: Sequence[Input]) -> list[Computed]:
        """What is to be written of a batch; an image whose numbers cannot be explained costs itself alone."""
        try:
            asked = self._job.targets, self._out, self._job.settings
            several = Batch.with_targets(self._prepared.model, frozen, batch, *asked)
            for label in several.shared_labels.keys() - self._ambiguous:
                classes = " and ".join(map(str, several.shared_labels[label]))
                self._note(f"the label {label} is ambiguous, as classes {classes} have it: the likelier one counts")
                self._ambiguous.add(label)
            return list(self._job.task.batch(several))
        except PathxError as error:
            if error.usage or is_out_of_memory(error):
                raise
            if len(batch) == 1:
                return [_failure(one, error) for one in batch]
        return [outcome for one in batch for outcome in self._explain(self._freeze([one]), [one])]

    def _freeze(self, batch: Sequence[Input]) -> Frozen:
        frozen = freeze(self._prepared.module, self._prepared.stack(batch))
        if not self._exactness_checked:
            check_exact(frozen.network, self._job.settings.exact, self._note)
            self._exactness_checked = True
        return frozen

    def _takes_several(self, batch: Sequence[Input]) -> bool:
        """Whether a network runs on several images at once; a file may have been traced or exported for one."""
        try:
            network_of(self._prepared.module, self._prepared.stack(batch))
        except Exception as error:
            if is_out_of_memory(error):
                return True
            if not isinstance(error, PathxError):
                raise
            return False
        return True


def _failure(one: Input, error: PathxError) -> Computed:
    return Computed(failure=Result.failure(one.image.file, error))
