"""index.jsonl: a line for every image that a run met. With it a run goes on where it was stopped, and shards are merged.

The folders of results are what counts; the index follows them. A line is appended once the files that it names are whole,
in a single write, so a crash costs the last lines at most, and their images are made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pathx.errors import PathxError, shown
from pathx.regular import read_regular, written_by_pathx
from pathx.results.files import JsonLines, Kind, Line, foreign, hold, is_held, lines_bytes, replace_file, replace_folder
from pathx.results.packs import change_results, unpack
from pathx.results.schema import misfit, read_document, shape_of
from pathx.results.store import Result, ResultStore, State, files_of, result_store, results_of

if TYPE_CHECKING:
    from pathx.images.find import ImageFile

INDEX, RUN = "index{}.jsonl", "run{}.json"
RUN_SCHEMA = "pathx/run@1"
_LISTED = 1000  # shards that have not been run; nobody reads more
_SHARD = re.compile(r"run\.(\d+)-of-(\d+)\.json")


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a run; numbers start at 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise PathxError(
                f"shard {self} is out of range; use 1/{self.count} to {self.count}/{self.count}", usage=True
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, name: str) -> bool:
        """Whether an image is in this shard: the same on every machine, whichever other images there are."""
        digest = hashlib.sha256(os.fsencode(name)).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


def parse_shard(text: str) -> Shard:
    """`3/8`: the third of eight."""
    if not re.fullmatch(r"\d{1,9}/0*[1-9]\d{0,8}", text, re.ASCII):
        raise PathxError(f"shard {text!r} is not a part of a whole; use 1/4 to 4/4 for four shards", usage=True)
    number, _, count = text.partition("/")
    return Shard(int(number), int(count))


def shard_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[Shard, str] | None:
    """The shard that a job is of a SLURM array, of torchrun's ranks, or of both; and the variables that say so."""
    task, tasks, first, step = (
        _number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "COUNT", "MIN", "STEP")
    )
    rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    place, count, sources = 0, 1, []
    if task is not None and tasks is not None:
        place, rest = divmod(task - (first or 0), step or 1)
        if rest or not 0 <= place < tasks:
            problem = f"task {task} of the SLURM array is not one of {tasks} in a row"
            remedy = "say which shard this is with `shard`, or `shard` 1/1 for everything"
            raise PathxError(f"{problem}; {remedy}", usage=True)
        count, sources = tasks, ["SLURM_ARRAY_TASK_ID"]
    if rank is not None and world is not None:
        place, count = place * world + rank, count * world
        sources.append("RANK")
    return (Shard(place + 1, count), " and ".join(sources)) if count > 1 else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def index_name(shard: Shard | None) -> str:
    """`index.jsonl`, or `index.3-of-8.jsonl` for a shard."""
    return INDEX.format(_suffix(shard))


class Index:
    """The index of a run, or of a shard of it, in an output folder.

    Args:
        store: where the results are; opened already.
        record: what the run is, for `run.json`; its entry `run` is the same for runs that would write the same.
        names: the images that the run is to do.
    """

    def __init__(self, store: ResultStore, shard: Shard | None, record: dict[str, Any], names: Sequence[str]) -> None:
        self.store, self.out = store, store.records
        self.file, self._record_file = self.out / index_name(shard), self.out / RUN.format(_suffix(shard))
        self._record = {"schema": RUN_SCHEMA, **record, "shard": None if shard is None else str(shard)}
        self._record |= {"finished": False, "images": list(names)}
        self._key = record["command"], record["run"]
        self.begun = self.distrusted = False
        self._lines = JsonLines(self.file)
        self._held: int | None = None
        _check_foreign(self._record_file, self._lines)
        self._check_others()
        self._older = _read_record(self._record_file)
        self._known = _latest(_lines_of(self.out))

    def _check_others(self) -> None:
        """Refuse a folder that another run with other settings writes to just now."""
        for file in _files(self.out, RUN):
            record = _read_record(file)
            if record and record.get("run") != self._key[1] and is_held(file):
                raise PathxError(
                    f"another run with other settings is writing to {shown(self.out)}: wait until it has ended, "
                    "or choose another folder with `out`",
                    usage=True,
                )

    @property
    def replaced(self) -> str:
        """What this run is to replace, where that was made with other settings; else nothing.

        Settings that only give results more or fewer files do not count.
        """
        old, new = self._older, json.loads(json.dumps(self._record))
        if old.get("command") != new["command"] or old.get("run") == new["run"] or "settings" not in new:
            return ""
        before, after = old.get("settings") or {}, new["settings"]
        files = ("pictures", "save_tensors", "drawing", "label")
        others = [f"{key} {before.get(key)}" for key in after if key not in files and before.get(key) != after[key]]
        others += [f"model {(old.get('model') or {}).get('name')}"] if old.get("model") != new["model"] else []
        others = others or (["other preprocessing"] if old.get("preprocessing") != new["preprocessing"] else [])
        lines = (self._known.get((self._key[0], name)) for name in self._record["images"])
        count = sum(line is not None and line["run"] == old.get("run") for line in lines)
        return f"of {count} images with {', '.join(others)}" if count and others else ""

    def line_of(self, name: str) -> Line | None:
        """What an earlier run of the same kind wrote of an image that it did, in whichever shard."""
        line = None if self.distrusted else self._known.get((self._key[0], name))
        return line if line is not None and line["run"] == self._key[1] and "error" not in line else None

    def find_kept(self, source: ImageFile) -> tuple[Result, ...] | None:
        """The results that an earlier run wrote of an image, where these are whole and the image is the same."""
        from pathx.images.read import sha256_of_image  # here, as it loads Pillow, which --help can do without

        line = self.line_of(source.name) if source.error is None else None
        if line is None:
            return None
        try:
            same = source.version and line.get("version") == source.version  # the store vouches for it, unread
            sha256 = None if same else sha256_of_image(source.source)
            results = tuple(self._read_result(source, line, made, sha256) for made in line["explanations"])
            if "contrast" in line:
                self._read_result(source, line, line["contrast"], sha256)
        except (OSError, ValueError, KeyError, TypeError, PathxError):
            return None
        return results

    def _read_result(self, source: ImageFile, line: Line, made: Line, sha256: str | None) -> Result:
        """One of these results. Raises an error where it is not whole, or of another image."""
        document = self.store.document(made)
        if sha256 is not None and document["image"]["sha256"] != sha256:
            raise ValueError("another image by now")
        top = tuple((one["label"], one["probability"]) for one in line.get("top", ()))
        about: dict[str, Any] = {"predictions": top, "truth": line.get("label"), "files": tuple(made["files"])}
        where = cast(Path, self.store.where(made))
        return Result(source.file, State.kept, Kind(made["document"]), where, document, **about)

    def begin(self) -> None:
        """Say in run.json what is to come, and mend the index: one line per image, none whose results are gone."""
        self.begun = True
        with self._report_errors(), replace_folder(self.out) as new:
            self._check_others()
            record = _record_bytes(self._record)
            if not self._record_file.is_file() or read_regular(self._record_file) != record:
                new.put(self._record_file.name, record)
                new.commit()
            self._held = hold(self._record_file)
        coming = {(self._key[0], name) for name in self._record["images"]}

        def stays(line: Line) -> bool:
            if self.distrusted and (line["command"], line["run"]) == self._key:
                return False
            if _key(line) in coming:  # whether it is whole, the run itself will see
                return "error" not in line and line["run"] == self._key[1]
            return _whole(self.store, line)

        with self._report_errors():
            self._lines.rewrite(lambda lines: filter(stays, _latest(lines).values()))
            self.store.publish([self._record_file, self.file])

    def append(self, line: Line) -> None:
        """Add the line of one image. Raises PathxError."""
        line = {**line, "command": self._key[0], "run": self._key[1]}
        with self._report_errors():
            if (older := self._known.get(_key(line))) is not None:
                self.store.forget(older, line)
            self._lines.append([line])
            self.store.log(self.file, line)

    def finish(self, *, complete: bool = True) -> None:
        """Drop lines that later ones replaced, and say in run.json whether every image of the run has its line."""
        with self._report_errors():
            if self.file.exists():
                self._lines.rewrite(lambda lines: _latest(lines).values())
            if complete:
                replace_file(self._record_file, _record_bytes({**self._record, "finished": True}))
            self.store.publish([self.file, self._record_file])

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        """What goes wrong in here is a PathxError."""
        try:
            yield
        except OSError as error:
            remedy = "mend that, then run the same command again to continue"
            raise PathxError(f"cannot write {self.file} ({error.strerror or error}): {remedy}") from error

    def close(self) -> None:
        """Let other runs have the folder."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


@dataclass(frozen=True)
class MergedIndex:
    """What an output folder holds after its shards were merged.

    Args:
        done: how many images have all of their results.
        failed: those that have not: (file, error) each.
        missing: names of images that no shard has got to.
        shards: those that have not been started, such as `3/8`; of a great many the first ones.
    """

    done: int
    failed: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    shards: tuple[str, ...]


def merge(out: str | Path) -> MergedIndex:
    """Merge the indexes of shards into index.jsonl, one line per image, and say what is missing.

    The files of the shards go once nothing is missing; until then a shard can be run again, and merged again.
    """
    with closing(result_store(out)) as store:
        store.open()
        if not _shard_records(store.records) and not (store.records / index_name(None)).is_file():
            raise PathxError(f"{store.place} holds no index to merge: give the folder that `out` named", usage=True)
        return _merge(store)


def merge_if_finished(out: str | Path) -> bool:
    """Merge the shards of a run if all of them have finished; whether they are merged now.

    Every shard calls this after its last write. The one that ends last finds all of them finished. Where two end together
    and both find that, the second waits for the first, and then finds nothing left to merge.
    """
    with closing(result_store(out)) as store:
        store.open()
        records = _shard_records(store.records)
        contents = {shard: _read_record(file) for shard, file in records.items()}
        runs = {content.get("run") for content in contents.values()}
        whole = len(runs) == 1 and all(content.get("finished") is True for content in contents.values())
        if whole := whole and not _absent(contents, _read_record(store.records / RUN.format(""))):
            _merge(store)
        return whole or not records


def _merge(store: ResultStore) -> MergedIndex:
    out, index, gone = store.records, JsonLines(store.records / index_name(None)), list[str]()
    with index.lock(), replace_folder(out) as new:  # no other run appends to the index, and nobody else merges
        records = _shard_records(out)
        contents = {shard: _record(file) for shard, file in records.items()}
        lines = _latest(line for line in _lines_of(out) if _whole(store, line))
        missing = {
            (content["command"], name): None
            for content in contents.values()
            for name in content["images"]
            if (content["command"], name) not in lines
        }
        before = _read_record(out / RUN.format(""))
        absent = _absent(contents, before)
        ordered = dict(sorted(lines.items()))
        new.put(index.file.name, lines_bytes(ordered.values()))
        if contents and not missing and not absent:
            whole = next(iter(contents.values()))
            same = [before] if before.get("run") == whole["run"] else []
            names = sorted({name for content in (*same, *contents.values()) for name in content["images"]})
            whole |= {"shard": None, "finished": True, "images": names}
            new.put(RUN.format(""), _record_bytes(whole))
            gone = [name for shard, file in records.items() for name in (index_name(shard), file.name)]
        new.commit()
        for index_file, record in zip(gone[::2], gone[1::2], strict=True):
            with suppress(OSError):  # the record stays as long as its index does: the next merge removes both
                (out / index_file).unlink(missing_ok=True)
                (out / record).unlink(missing_ok=True)
    store.publish([index.file, out / RUN.format("")], gone)
    failed = tuple((line["file"], line["error"]) for line in ordered.values() if "error" in line)
    return MergedIndex(len(ordered) - len(failed), failed, tuple(name for _, name in missing), tuple(absent))


def _absent(contents: dict[Shard, dict[str, Any]], merged: dict[str, Any]) -> list[str]:
    """The shards that have not been started; none where a run that was merged before is being done again, in part.

    Args:
        contents: of each shard's run.json.
        merged: content of the run.json without a shard.
    """
    known = {*merged.get("images", ())} if merged.get("finished") is True else set()
    if all(
        content.get("run") == merged.get("run") and known.issuperset(content["images"]) for content in contents.values()
    ):
        return []
    counts = {shard.count for shard in contents}
    every = (Shard(number, count) for count in sorted(counts) for number in range(1, count + 1))
    return list(islice((str(shard) for shard in every if shard not in contents), _LISTED))


def _shard_records(out: Path) -> dict[Shard, Path]:
    """The run.json files of shards."""
    found = ((_SHARD.fullmatch(file.name), file) for file in _files(out, RUN))
    return {Shard(*map(int, name.groups())): file for name, file in found if name}


def _record_bytes(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()


@dataclass(frozen=True)
class Unpacked:
    """What became of packed results.

    Args:
        done: how many images have all of their results.
        lost: files of those that have not: their shard is gone or damaged, or something stood in the way.
        problems: why, where that is known.
    """

    done: int
    lost: tuple[str, ...]
    problems: tuple[str, ...]


def unpack_results(out: str | Path, folder: str | Path) -> Unpacked:
    """Write packed results to folders, as a run that does not pack would have, with their index."""
    with closing(result_store(out)) as store:
        store.open()
        lines = list(_latest(_lines_of(store.records)).values())
        packed = [line for line in lines if any("pack" in made for made in results_of(line))]
        if not packed:
            raise PathxError(f"{store.place} holds no packed results: give the folder that `out` named", usage=True)
        into, plain = Path(folder), [_plain_line(line) for line in packed]
        index = JsonLines(into / index_name(None))
        _check_foreign(into / RUN.format(""), index)
        problems = unpack(store.read, packed, set().union(*map(files_of, plain)), into)
        whole = [line for line in plain if _whole(ResultStore(into), line)]
        for file in _files(store.records, RUN):
            if _read_record(file):
                replace_file(into / file.name, read_regular(file))
        index.rewrite(lambda _: whole)
    kept = {line["name"] for line in whole}
    return Unpacked(len(whole), tuple(line["file"] for line in plain if line["name"] not in kept), problems)


def _plain_line(line: Line) -> Line:
    """A line of results that are in no shard."""
    return change_results(line, lambda made: {key: made[key] for key in made if key not in ("pack", "at")})


def _check_foreign(record: Path, lines: JsonLines) -> None:
    """Refuse a folder where somebody else's files have the names of a run's."""
    if os.path.lexists(record):
        if not written_by_pathx(record):
            raise foreign(record)
    elif os.path.lexists(lines.file):
        try:
            foreign_lines = os.stat(lines.file).st_size > 0 and not _latest(lines.read())
        except OSError:
            foreign_lines = True
        if foreign_lines:
            raise foreign(lines.file)


def _suffix(shard: Shard | None) -> str:
    return "" if shard is None else f".{shard.number}-of-{shard.count}"


def _whole(store: ResultStore, line: Line) -> bool:
    """Whether all results that a line lists are whole."""
    try:
        for made in results_of(line):
            store.document(made)
    except (OSError, ValueError, KeyError, TypeError, PathxError):
        return False
    return True


def _files(out: Path, kind: str) -> list[Path]:
    """The files of a run and of its shards in a folder, by name; `kind` is INDEX or RUN."""
    pattern = re.compile(kind.replace(".", r"\.").format(r"(\.\d+-of-\d+)?"))
    try:
        return [out / name for name in sorted(os.listdir(out)) if pattern.fullmatch(name)]
    except OSError:
        return []


def _read_record(file: Path) -> dict[str, Any]:
    """What the run before was, if that can be read."""
    try:
        record = read_document(file)
    except PathxError:
        return {}
    return record if misfit(record, shape_of("run")) is None else {}


def _record(file: Path) -> dict[str, Any]:
    content = _read_record(file)
    if not content:
        raise PathxError(f"{shown(file)} is damaged: run that shard again")
    return content


def _lines_of(out: Path) -> Iterator[Line]:
    """The lines of every index in a folder, older files first."""
    for file in sorted(_files(out, INDEX), key=_time_of):
        with suppress(OSError):
            yield from JsonLines(file).read()


def _time_of(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # gone by now, or a link to nowhere
        return 0


def _key(line: Line) -> tuple[str, str]:
    return line["command"], line["name"]


def _latest(lines: Iterable[Line]) -> dict[tuple[str, str], Line]:
    """The last line of each image, in the order of these; what is no line of an index is left out."""
    latest: dict[tuple[str, str], Line] = {}
    for line in lines:
        if misfit(line, shape_of("index")) is None:
            latest.pop(_key(line), None)
            latest[_key(line)] = line
    return latest
