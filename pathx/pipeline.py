"""The pipeline from image files to the network: read, batch, predict, explain. Runs, evaluations, units and Ray all use it."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pathx.engine.device import in_parts, is_out_of_memory, resolve_batch_size, resolve_device, resolve_dtype
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.network import Network
from pathx.engine.replay import Classifier
from pathx.engine.settings import check_exact, class_logits
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.images.find import ImageFile
from pathx.images.read import UserImage, decode_image
from pathx.models.labels import resolve_target
from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing

T = TypeVar("T")
R = TypeVar("R")

Note = Callable[[str], None]
Watch = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: takes the number of items, and yields a function to call with the number just done."""


def no_notes(text: str) -> None:
    pass


def once(note: Note) -> Note:
    """A note function that passes each text on only once."""
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            note(text)

    return tell


def no_progress(total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda done: None)


NOT_FINITE = "the model's output is NaN or infinite; check its weights"


# Read


@dataclass(frozen=True, eq=False)
class Input:
    """An image, the network's input made from it, and the seconds that reading took."""

    source: ImageFile
    image: UserImage
    tensor: Tensor
    seconds: float


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be used, and why."""

    source: ImageFile
    error: PathxError


Failed = Callable[[ImageFile, PathxError], None]
"""Called with each image that cannot be used, and the reason."""


def read_input(source: ImageFile, preprocessing: Preprocessing) -> Input | Unreadable:
    """Read an image and make it the network's input."""
    if source.error is not None:
        return Unreadable(source, source.error)
    start = perf_counter()
    try:
        with decode_image(source.source, web=True) as image:
            return Input(source, image.reduce(), tensor_of(image, preprocessing), perf_counter() - start)
    except PathxError as error:
        return Unreadable(source, error)
    except Exception as error:  # one odd image does not cost a run
        return Unreadable(source, unexpected_error(error))


def tensor_of(image: UserImage, preprocessing: Preprocessing) -> Tensor:
    """The network's input; with the image's transparency if the network takes a fourth channel."""
    return preprocessing(image.for_channels(preprocessing.input_size[0]))


def unexpected_error(error: Exception) -> PathxError:
    """A defect of pathx, as the reason why one image failed."""
    problem = PathxError(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)")
    problem.__cause__ = error
    return problem


# Threads that read ahead of the network and write behind it, at a lower priority than the network


_LATER = 10
"""How much the priority of these threads is lowered (niceness)."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_THIS_THREAD = threading.local()


def stay_in_the_background() -> None:
    """Lower the priority of this thread, and compute with one thread in it.

    The threads of a network wait for each other, so one that loses its core to a reader or writer stops all of them.
    """
    torch.set_num_threads(1)  # for this thread only: torch keeps the number per thread
    if sys.platform == "linux" and not hasattr(_THIS_THREAD, "lowered"):  # Ray calls this once per task, in one thread
        _THIS_THREAD.lowered = True
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, now + _LATER))


class Workers:
    """A pool of threads, or the calling thread. Threads are enough: decoders, encoders and disks release the interpreter."""

    def __init__(self, executor: ThreadPoolExecutor | None) -> None:
        self._executor = executor

    def submit(self, work: Callable[..., R], *arguments: Any) -> Future[R]:
        if self._executor is not None:
            return self._executor.submit(work, *arguments)
        future: Future[R] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def ahead(self, batches: Sequence[Sequence[T]], work: Callable[[T], R]) -> Iterator[tuple[Sequence[T], list[R]]]:
        """Each batch with the results of `work` on its items. The next batch is worked on while the caller has this one."""
        waiting: deque[tuple[Sequence[T], list[Future[R]]]] = deque()
        try:
            for batch in batches:
                waiting.append((batch, [self.submit(work, item) for item in batch]))
                if len(waiting) > 1:
                    yield _results(*waiting.popleft())
            while waiting:
                yield _results(*waiting.popleft())
        finally:
            for _, futures in waiting:
                for future in futures:
                    future.cancel()


def _results(batch: Sequence[T], futures: Sequence[Future[R]]) -> tuple[Sequence[T], list[R]]:
    return batch, [future.result() for future in futures]


@contextmanager
def start_workers(count: int | None, *, behind: bool = True) -> Iterator[Workers]:
    """Workers that end when everything that was submitted is done.

    Args:
        count: number of threads; 0 to do the work in the calling thread, None for one per core.
        behind: whether to lower their priority.
    """
    if count == 0:
        yield Workers(None)
        return
    before = torch.get_num_threads()
    start = stay_in_the_background if behind else partial(torch.set_num_threads, 1)
    executor = ThreadPoolExecutor(count or cores(), "pathx", initializer=start)
    try:
        yield Workers(executor)
    finally:
        executor.shutdown(wait=True)
        torch.set_num_threads(before)


# In batches


def in_batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def read_batches(
    images: Sequence[ImageFile], preprocessing: Preprocessing, size: int, failed: Failed
) -> Iterator[tuple[Sequence[ImageFile], list[Input]]]:
    """Batches of images, each with the inputs read from it. The next batch is read while the caller has this one."""
    with start_workers(None if len(images) > size else 0) as workers:
        for batch, read in workers.ahead(in_batches(images, size), partial(read_input, preprocessing=preprocessing)):
            yield batch, usable(read, failed)


def usable(read: Sequence[Input | Unreadable], failed: Failed) -> list[Input]:
    """The inputs that could be read; the others are passed to `failed`."""
    for one in read:
        if isinstance(one, Unreadable):
            failed(one.source, one.error)
    return [one for one in read if isinstance(one, Input)]


# On the network


@dataclass(frozen=True, eq=False)
class SeenImage:
    """An image as the network sees it.

    Args:
        input: (C, H, W).
        target: the predicted class.
    """

    source: ImageFile
    image: UserImage
    input: Tensor
    target: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A loaded model on a device."""

    model: LoadedModel
    module: nn.Module
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def classifier(self) -> Classifier:
        size = self.model.preprocessing.input_size
        return Classifier(self.module, torch.zeros(size, dtype=self.dtype, device=self.device))

    @cached_property
    def network(self) -> Network:
        """The network at one image."""
        size = self.model.preprocessing.input_size
        return self.classifier.replay(torch.zeros(1, *size, dtype=self.dtype, device=self.device)).network

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """One per class."""
        return self.model.labels_for(self.network.outputs)

    @property
    def about(self) -> dict[str, Any]:
        """What result files say of the model."""
        return {**self.model.identity, "classes": len(self.labels)}

    def class_of(self, label: str) -> int | None:
        """The class that a folder's name means, if any."""
        try:
            return resolve_target(label, self.labels)
        except PathxError:
            return None

    def batch_size(self, asked: int | str) -> int:
        """The number of images at once: as asked for, or `auto`, but no more than the network takes."""
        return min(resolve_batch_size(asked, self.device), self.classifier.chunk)

    def stack(self, inputs: Sequence[Input]) -> Tensor:
        """(B, C, H, W) on the device."""
        return torch.stack([one.tensor for one in inputs]).to(self.device, self.dtype)

    def see(self, images: Sequence[ImageFile], batch_size: int | str, failed: Failed) -> Iterator[list[SeenImage]]:
        """Images in batches, with their predicted classes; those that cannot be used are passed to `failed`."""
        for _, batch in read_batches(images, self.model.preprocessing, self.batch_size(batch_size), failed):
            if seen := self.predict(batch, failed):
                yield seen

    def see_one(self, image: ImageFile) -> SeenImage:
        """The same for one image. Raises PathxError if it cannot be used."""

        def failed(source: ImageFile, error: PathxError) -> None:
            raise error

        ((seen,),) = self.see([image], 1, failed)
        return seen

    def predict(self, inputs: Sequence[Input], failed: Failed) -> list[SeenImage]:
        """The predicted classes of a batch; images whose logits are not finite are passed to `failed`."""

        def logits(part: Sequence[Input]) -> Tensor:
            with torch.no_grad():
                return self.classifier(self.stack(part))

        found = []
        rows = torch.cat(list(in_parts(inputs, logits))) if inputs else ()
        for read, row in zip(inputs, rows, strict=True):
            if bool(row.isfinite().all()):
                tensor = read.tensor.to(self.device, self.dtype)
                found.append(SeenImage(read.source, read.image, tensor, int(row.argmax())))
            else:
                failed(read.source, PathxError(NOT_FINITE))
        return found

    def explain_predictions(
        self, inputs: Sequence[Input], settings: Mapping[str, Any], failed: Failed
    ) -> Iterator[tuple[Sequence[Input], Frozen, list[Explanation]]]:
        """A frozen batch and the path to the predicted class of each image; in parts if memory is short.

        Images that cannot be explained are passed to `failed`. Drop a part before asking for the next: memory may not hold both.
        """

        def explain(part: Sequence[Input]) -> tuple[Sequence[Input], Frozen, list[Explanation] | PathxError]:
            frozen = freeze(self.module, self.stack(part))
            logits = class_logits(frozen.logits)
            try:
                if not bool(logits.isfinite().all()):
                    raise PathxError(NOT_FINITE)
                return part, frozen, explain_frozen(frozen, list(enumerate(logits.argmax(1).tolist())), **settings)
            except PathxError as error:
                if error.usage or is_out_of_memory(error):
                    raise
                return part, frozen, error

        for part, frozen, made in in_parts(inputs, explain) if inputs else ():
            alone = part if isinstance(made, PathxError) and len(part) > 1 else ()  # to find out which image fails
            if not isinstance(made, PathxError):
                yield part, frozen, made
            elif not alone:
                failed(part[0].source, made)
            del frozen, made
            for one in alone:
                yield from self.explain_predictions([one], settings, failed)


def prepare(
    model: LoadedModel, *, device: str = "auto", dtype: str = "float32", exact: str | None = None, note: Note = no_notes
) -> Prepared:
    """Put a model on a device; the model that was given stays where it is.

    Args:
        exact: refuse a network whose numbers are less exact; None to accept every network.
        note: told if the numbers hold at the image alone.
    """
    where = resolve_device(device)
    prepared = Prepared(model, model.on(where), where, resolve_dtype(dtype, where))
    if exact is not None:
        check_exact(prepared.network, exact, note)
    return prepared
