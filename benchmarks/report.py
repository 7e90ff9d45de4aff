"""What becomes of the figures: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Row

RESULTS = "results.json"
Results = dict[str, dict[str, Any]]
"""By part: title, date, machine and rows."""


def line(row: Row) -> str:
    """A row of the table in the terminal."""
    return f"  {row.what:<34} {_times(row):<34} {_figure(row):>9}  {_verdict(row):<18} {row.note}".rstrip()


def _times(row: Row) -> str:
    if row.reference is None:
        return _amount(row.value, row.unit)
    return f"{_amount(row.value, row.unit)} : {_amount(row.reference, row.unit)} {row.against}"


def _amount(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.0f} {unit}"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _figure(row: Row) -> str:
    return "" if row.reference is None else f"{row.figure:.3g} x"


def _verdict(row: Row) -> str:
    if row.limit is None:
        return ""
    limit = f"{row.limit:.3g} x" if row.reference is not None else _amount(row.limit, row.unit)
    return f"{'within' if row.figure <= row.limit else 'above'} {limit}"


def describe(machine: Mapping[str, Any]) -> str:
    """The machine in a sentence."""
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "torchvision", "captum"))
    hardware = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"
    return (
        f"{hardware}; {machine['threads']} threads; Python {machine['python']}, {versions}; commit {machine['commit']}"
    )


def read(folder: Path) -> Results:
    """Results of earlier runs; parts that are measured again replace theirs."""
    file = folder / RESULTS
    found: Results = json.loads(file.read_text()) if file.is_file() else {}
    return found


def entry(title: str, date: str, machine: Mapping[str, Any], rows: Iterable[Row]) -> dict[str, Any]:
    return {
        "title": title,
        "date": date,
        "machine": dict(machine),
        "rows": [{**asdict(row), "figure": row.figure} for row in rows],
    }


def write(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).write_text(json.dumps(results, indent=2) + "\n")
