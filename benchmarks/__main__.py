"""`python -m benchmarks [PART…]`: measure, print the tables, write JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch

from benchmarks import cluster as _cluster  # noqa: F401  its parts
from benchmarks import folders as _folders  # noqa: F401  its parts
from benchmarks import work as _work  # noqa: F401  its parts
from benchmarks.measure import ROOT, THREADS, Effort, Row, limit_memory, machine
from benchmarks.parts import PARTS

MAIN = ("path", "others", "first", "command", "work")
"""What is measured where no part is named: the tables of docs/benchmarks.md, in some ten minutes."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure how fast pathx is.")
    listing = "; ".join(f"{name}: {part.title}" for name, part in PARTS.items())
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to measure, by default {', '.join(MAIN)}. {listing}"
    )
    parser.add_argument("--quick", action="store_true", help="small models and few runs: does it work at all?")
    parser.add_argument("--repeats", type=int, help="timed runs of each call (default 9, 3 with --quick)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks", help="folder for the JSON")
    options = parser.parse_args()
    names = options.parts or list(MAIN)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}: choose from {', '.join(PARTS)}")
    if options.repeats is not None and options.repeats < 1:
        parser.error("--repeats must be 1 or more")
    try:
        import captum  # noqa: F401
    except ImportError:
        parser.error("captum is not installed: pip install -c constraints.txt '.[bench]'")

    torch.set_num_threads(THREADS)
    limit_memory()
    effort = Effort(options.repeats or (3 if options.quick else 9), options.quick)
    here, file = machine(), options.out / "results.json"
    print("; ".join(f"{key} {value}" for key, value in here.items()))
    failed: list[str] = []
    for name in names:
        part = PARTS[name]
        print(f"\n{name}: {part.title}", flush=True)
        rows = []
        try:
            for row in part.rows(effort):
                rows.append(row)
                print(line(row), flush=True)
        except (RuntimeError, MemoryError) as error:
            failed.append(name)
            print(f"  failed: {str(error).strip().splitlines()[-1]}", flush=True)
            continue
        # After each part, so that an interrupted run keeps what it measured, and read again, as others may have added theirs.
        results = json.loads(file.read_text()) if file.is_file() else {}
        measured = [{**asdict(row), "figure": row.figure} for row in rows]
        results[name] = {"title": part.title, "date": date.today().isoformat(), "machine": here, "rows": measured}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\n{file}", file=sys.stderr)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def line(row: Row) -> str:
    """A row of the table in the terminal."""
    times, figure, verdict = amount(row.value, row.unit), "", ""
    if row.reference is not None:
        times, figure = f"{times} : {amount(row.reference, row.unit)} {row.against}", f"{row.figure:.3g} x"
    if row.limit is not None:
        limit = f"{row.limit:.3g} x" if row.reference is not None else amount(row.limit, row.unit)
        verdict = f"{'within' if row.figure <= row.limit else 'above'} {limit}"
    return f"  {row.what:<34} {times:<34} {figure:>9}  {verdict:<18} {row.note}".rstrip()


def amount(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.0f} {unit}"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


if __name__ == "__main__":
    main()
