"""From image files to files of explanations: what `pathx explain` does, for Python to call."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePath
from signal import SIGINT
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import torch

from pathx.contrast import Contrast
from pathx.decomposition import Decomposition
from pathx.drawing.page import Panel
from pathx.errors import PathxError, shown
from pathx.explanation import Explanation
from pathx.images.find import ImageFile, PipedImage, find_images
from pathx.models.labels import target_slug
from pathx.models.load import LoadedModel
from pathx.pipeline import Input, Note, in_batches, no_notes, once, read_input, start_workers, unexpected_error
from pathx.results.documents import contrast_files, decomposition_files, explanation_files
from pathx.results.files import Kind, Line, NoRoomError, ResultFiles, check_folder
from pathx.results.packs import failed_line
from pathx.results.schema import document_bytes
from pathx.results.store import Result, ResultStore, State, result_store
from pathx.runs.compute import Computed, Computer, Item, Job, Read, Settings, unfinished_batches
from pathx.runs.index import Index, Shard, merge_if_finished
from pathx.runs.stop import Stop

if TYPE_CHECKING:
    from pathx.runs.cluster import OnRay

LOOKED_AT = 64
"""How many images at once are checked for being done."""

__all__ = ["Plan", "Result", "Settings", "State", "explain_files"]


@dataclass(frozen=True)
class Plan:
    """The images of a run, and how it goes on with an earlier one.

    Args:
        indexed: keep an index, and leave images alone that are done; not for an image that is named by itself.
        overwrite: make all results again.
    """

    images: tuple[ImageFile, ...]
    shard: Shard | None = None
    indexed: bool = True
    overwrite: bool = False

    @classmethod
    def of(
        cls,
        inputs: Sequence[str | Path],
        out: str | Path,
        *,
        shard: Shard | None = None,
        overwrite: bool = False,
        every: int | None = None,
    ) -> Plan:
        """What files, folders, patterns and lists lead to (see `find_images`)."""
        found = tuple(find_images(inputs, out=out, every=every))
        named = found and (isinstance(found[0].source, PipedImage) or found[0].source == str(inputs[0]))
        if len(found) == len(inputs) == 1 and named and found[0].error is None:
            return cls(found, indexed=False, overwrite=True)
        return cls(tuple(one for one in found if shard is None or shard.holds(one.name)), shard, overwrite=overwrite)


@dataclass(frozen=True)
class Run:
    """What the steps of a run share.

    Args:
        index: None for an image that is named by itself.
    """

    model: LoadedModel
    job: Job
    plan: Plan
    store: ResultStore
    index: Index | None
    stop: Stop
    note: Note


def explain_files(
    model: LoadedModel,
    files: Sequence[str | Path] | Plan,
    out: str | Path,
    *,
    targets: Sequence[str] = (),
    settings: Settings | None = None,
    decompose: Mapping[str, Any] | None = None,
    pack: str | None = None,
    ray: OnRay | None = None,
    stop: Stop | None = None,
    note: Note = no_notes,
) -> Generator[Result]:
    """Explain images and write the files of each explanation below `out`.

    Results come as they are done: first those of an earlier run, then the others, in the order of the images. An image that
    fails costs one result that says so; what is wrong with the call or the model is raised. However a run ends, what it has
    begun to write is written, and the next one goes on from there.

    Args:
        files: images, folders, patterns and lists of images, or a plan that was made of these.
        targets: classes by label or number, or `top:K`; the predicted class by default.
        out: a folder, or the address of one in a store.
        decompose: split decisions into features instead: `from_layer` and `features` as for `pathx.decompose`, or nothing.
        pack: `tar` or `parquet`, to pack results into shards instead of a folder each.
        ray: run on a Ray cluster. Results come in any order; they do not hold the explanations themselves.
        stop: when asked, the run ends after what has been computed is written, with KeyboardInterrupt.
        note: is told what a user should know of the run, such as that memory was short.
    """
    job, stop, note = Job(targets, settings or Settings(), decompose), stop or Stop(), once(note)
    plan = files if isinstance(files, Plan) else Plan.of(files, out)
    job.check()
    check_folder(out)
    with closing(result_store(out, pack)) as store:
        store.open()
        index = None
        if plan.indexed or pack is not None or ray is not None:
            index = index_of(plan, model, job, store)
        run, done = Run(model, job, plan, store, index, stop, note), set[str]()
        here = job.settings if ray is None else replace(job.settings, device="cpu")
        computer = Computer(model, replace(job, settings=here), note)
        with commit_at_end(store, index):
            if index is not None and not plan.overwrite:
                for source, results in _kept_images(run, index, computer):
                    stop.check()
                    done.add(source.name)
                    yield from results
            items = [(image, image.name not in done) for image in plan.images]
            if ray is None or index is None or len(done) == len(items):
                made = _explain_here(run, computer, items)
            else:
                made = ray.explain(run, index, items)
            with closing(made):
                replaced = "" if index is None else index.replaced
                for result in made:
                    if index is None or not index.distrusted:
                        replaced = replaced or result.replaced
                    if replaced:
                        note(f"results {replaced} are replaced; to keep both, choose another folder with `out`")
                    yield result
                    if index is not None and isinstance(result.error, NoRoomError):
                        room = "make room, then run it again to continue"
                        raise PathxError(f"stopped, as nothing more can be written: {room}")
        if index is not None and not index.begun and (done or plan.shard is not None):  # there was nothing to do
            index.begin()
        if index is not None and index.begun:
            index.finish(complete=not stop.asked)
    stop.check()
    if plan.shard is not None and merge_if_finished(out):
        note(f"all shards have finished and are merged: {shown(out)}")


def _explain_here(run: Run, computer: Computer, items: Sequence[Item]) -> Generator[Result]:
    """The results of images that are to be done: images are read ahead of the network, and results written behind it.

    All images of a batch are computed if one is not done: the last digits of a result depend on how many images it is computed
    with and on its place among them. So a run that goes on writes, to the byte, what it would have written undisturbed.
    """
    index, behind = run.index, deque[Future[list[Result]]]()

    def read(item: Item) -> Read:
        return read_input(item[0], run.model.preprocessing), item[1]

    def write(source: ImageFile, computed: Computed) -> list[Result]:
        results, lines = write_image(source, computed, run.store)
        for line in lines if index is not None else ():
            index.append(line)  # type: ignore[union-attr]
        return results

    count = run.job.settings.workers if len(items) > computer.size else 0
    with start_workers(count, behind=torch.get_num_threads() > 1) as workers:
        batches = workers.ahead(unfinished_batches(items, computer.size), read)
        for _, batch in takewhile(lambda _: not run.stop.asked, batches):
            try:  # a network is never run twice at a time, nor copied
                made = computer.compute(batch)
            except KeyboardInterrupt:  # of a caller that has no handler of its own
                run.stop.ask(run.stop.asked or SIGINT)
                break
            if index is not None and not index.begun:
                index.begin()
            behind.extend(workers.submit(write, one.source, made[one.source.name]) for one, wanted in batch if wanted)
            while len(behind) > computer.size:
                yield from behind.popleft().result()
        while behind:
            yield from behind.popleft().result()


def _kept_images(run: Run, index: Index, computer: Computer) -> Iterator[tuple[ImageFile, Sequence[Result]]]:
    """The images that an earlier run has done, with their results; none if the network gives the first another logit by now."""
    known, checked = [image for image in run.plan.images if index.line_of(image.name)], False
    with start_workers(None if known else 0) as workers:
        for batch, found in workers.ahead(in_batches(known, LOOKED_AT), index.find_kept):
            for source, results in zip(batch, found, strict=True):
                if results is None:
                    continue
                again = None if checked or not results else read_input(source, run.model.preprocessing)
                if isinstance(again, Input):
                    checked, first = True, results[0]
                    logits, target = computer.logits(again), first.document["target"]
                    rounding = 1e-3 * max(map(abs, logits))
                    if not math.isclose(logits[target["index"]], target["logit"], abs_tol=rounding):
                        index.distrusted = True
                        problem = f"the network gives {target['label']} another logit in {first.file} than it did then"
                        run.note(f"{problem}: what is in {index.out} is made again")
                        return
                yield source, results


@contextmanager
def commit_at_end(store: ResultStore, index: Index | None) -> Iterator[None]:
    """However a run ends, what it has written is committed, and in the index; then other runs may have the folder."""
    lost: list[str] = []
    try:
        yield
    finally:
        if index is not None:
            with closing(index):
                for line in store.flush():
                    index.append(line)
                    lost += [line["error"]] if "error" in line else []
    if lost:
        raise PathxError(
            f"{len(lost)} images that were done are lost ({lost[0]}): run the same command again to continue"
        )


def index_of(plan: Plan, model: LoadedModel, job: Job, store: ResultStore) -> Index:
    """The index of a run, whose key is the same for all runs that would write the same of the same images."""
    about = {
        "command": job.command,
        "model": model.identity,
        "preprocessing": asdict(model.preprocessing),
        "targets": list(job.targets),
        "settings": job.document,
    }
    key = hashlib.sha256(json.dumps([about, model.labels]).encode()).hexdigest()[:16]
    return Index(store, plan.shard, {"run": key, **about}, [found.name for found in plan.images])


# Drawing and writing what was computed of an image, and its line for the index


_ALONE = Lock()


def write_image(source: ImageFile, computed: Computed, store: ResultStore) -> tuple[list[Result], list[Line]]:
    """Draw and write what was computed of an image: its results, and the lines of the index that are true then."""
    start = perf_counter()
    results = [Result.failure(source.file, computed.error)] if computed.error is not None else []
    contents: dict[str, bytes] = {}  # what goes to the store together
    for write in _writes(source, computed, store, contents):
        try:
            with suppress(MemoryError):
                results.append(write())
                continue
            with _ALONE:  # memory is short: once more while no other thread writes
                results.append(write())
        except PathxError as error:
            results.append(Result.failure(source.file, error))
        except Exception as error:
            results.append(Result.failure(source.file, unexpected_error(error)))
    line = _line(source, results, computed, computed.seconds + perf_counter() - start)
    try:
        place, lines = store.commit(contents, line)
    except PathxError as error:
        return [Result.failure(source.file, error)], [failed_line(line, error)]
    return [one if one.failed else replace(one, folder=cast(Any, place / one.folder)) for one in results], lines


def _writes(
    source: ImageFile, computed: Computed, store: ResultStore, contents: dict[str, bytes]
) -> Iterator[Callable[[], Result]]:
    """What draws and writes the result for every class, then their contrast where there are several."""
    subject = computed.subject
    if subject is None:
        return

    def folder_of(target: int, against: int | None = None) -> PurePath:
        name = target_slug(target, subject.labels)
        name = name if against is None else f"{name}-against-{target_slug(against, subject.labels)}"
        return result_folder(source.name, name)

    def draw(made: Explanation | Decomposition, *more: tuple[Panel, ...]) -> tuple[PurePath, ResultFiles]:
        if isinstance(made, Decomposition):
            return folder_of(made.whole.target), decomposition_files(made, subject, *more)
        return folder_of(made.target, made.against), explanation_files(made, subject, *more[:1])

    def write(made: Any, folder: PurePath, files: ResultFiles) -> Result:
        replaced = ""
        if store.in_place:
            replaced = store.write(folder, files)
        else:
            contents.update({(folder / name).as_posix(): data for name, data in files.all_bytes().items()})
        return Result(
            source.file,
            State.done,
            files.kind,
            cast(Any, folder),
            files.document,
            files.names,
            made,
            predictions=tuple((label, probability) for _, label, probability in computed.top),
            truth=_true_label(computed),
            notes=subject.image.notes,
            replaced=replaced,
        )

    def write_contrast() -> Result:
        several = [one.whole if isinstance(one, Decomposition) else one for one, *_ in computed.found]
        (predicted, label, _), reason = computed.top[0], ""
        if computed.truth not in (None, predicted):
            reason = f"The network says {label}; the label is {_true_label(computed)}."
        contrast = Contrast.of(several, differences=computed.differences, reason=reason)
        folders, between = [folder_of(one.target) for one in several], list(map(draw, computed.differences))
        names = [folder.name for folder in folders], [folder.name for folder, _ in between]
        files = contrast_files(contrast, subject, *names)
        for difference, drawn in zip(computed.differences, between, strict=True):
            write(difference, *drawn)
        return write(contrast, folders[0].parent, files)

    for made, *more in computed.found:
        yield lambda made=made, more=more: write(made, *draw(made, *more))  # type: ignore[misc]
    if computed.differences:
        yield write_contrast


def result_folder(image: str, target_slug: str) -> PurePath:
    """`<path of the image>/<target slug>`, never outside of the folder that it is below.

    Args:
        image: its path below the folder that the user named; of one that is absolute or climbs (`..`), only the file's name
            is used.
    """
    relative = PurePath(image)
    if relative.anchor or ".." in relative.parts:
        relative = PurePath(relative.name)
    for part in (relative.name, target_slug):
        if part in ("", ".", "..") or PurePath(part).name != part:
            raise PathxError(f"{shown(part)} cannot name a folder of results: give the image by its file name")
    return relative / target_slug


def _true_label(computed: Computed) -> str | None:
    return None if computed.truth is None or computed.subject is None else computed.subject.label(computed.truth)


def _line(source: ImageFile, results: list[Result], computed: Computed, seconds: float) -> Line:
    """What the index says of an image."""
    line: Line = {"file": source.file, "name": source.name}
    line |= {"version": source.version} if source.version else {}
    line["explanations"] = []
    for result in results:
        if result.kind is Kind.contrast:
            line["contrast"] = _entry(result)
        elif not result.failed:
            target = result.document["target"]
            score = (result.document["linear_model"] if result.kind is Kind.explanation else result.document)["score"]
            entry = {"target": target["index"], "label": target["label"], "probability": target["probability"]}
            entry["score"] = score
            if (removal := result.document.get("removal")) is not None:
                entry["removal"] = {key: removal[key] for key in ("before", "after", "at_random")}
            line["explanations"].append(entry | _entry(result))
    truth, top = _true_label(computed), computed.top
    line["label"] = truth
    line["correct"] = truth == top[0][1] if truth is not None and top else None
    line["top"] = [{"class": number, "label": label, "probability": probability} for number, label, probability in top]
    line["seconds"] = round(seconds, 4)
    errors = [str(result.error) for result in results if result.failed]
    return line | ({"error": "; ".join(errors)} if errors else {})


def _entry(result: Result) -> dict[str, Any]:
    """Where results are below the output folder, and the hash of the document that makes them whole."""
    return {
        "folder": str(result.folder),
        "files": list(result.files),
        "document": result.kind.value,
        "sha256": hashlib.sha256(document_bytes(result.document)).hexdigest(),  # an equal run may be writing it again
    }
