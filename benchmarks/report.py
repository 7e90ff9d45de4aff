"""What becomes of the figures: tables for people, Markdown for the docs, JSON for programs, a plot of the growth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Row

RESULTS, PLOT = "results.json", "growth.png"
Results = dict[str, dict[str, Any]]
"""By part: title, date, machine and rows."""

_BEGIN, _END = "<!-- benchmark table: begin -->", "<!-- benchmark table: end -->"


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


def described(machine: Mapping[str, Any]) -> str:
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
    """results.json and, where matplotlib is there and growth was measured, growth.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).write_text(json.dumps(results, indent=2) + "\n")
    plot(results, folder / PLOT)


def markdown(results: Results, names: Iterable[str] = (), level: str = "###") -> str:
    """The tables of some parts, or of all, as Markdown: each with its date and machine."""
    blocks = []
    for name in names or results:
        if name not in results:
            continue
        part = results[name]
        lines = [
            f"{level} {part['title']}",
            "",
            "| | time or memory | ratio | target | note |",
            "|---|---|---|---|---|",
        ]
        for row in _rows(part):
            cells = (row.what, _times(row), _figure(row), _verdict(row), row.note)
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"{part['date']}: {described(part['machine'])}."]
        if name == "growth":
            lines += ["", f"![Cost over width, depth and number of classes](images/{PLOT})"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def fill(file: Path, text: str) -> None:
    """Put Markdown between the markers of a file."""
    before, begin, rest = file.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{file} has no place for the tables: put in the lines {_BEGIN} and {_END}")
    file.write_text(f"{before}{begin}\n{text}{end}{after}")


def plot(results: Results, file: Path) -> bool:
    """Cost as a multiple of Saliency over width, depth and classes; False where there is nothing to draw it with."""
    rows = [row for row in _rows(results.get("growth", {"rows": []})) if row.curve]
    if not rows:
        return False
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    curves = list(dict.fromkeys(row.curve for row in rows))
    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.4), squeeze=False, layout="constrained")
    for axis, curve in zip(axes[0], curves, strict=True):
        points = [(row.at, row.figure) for row in rows if row.curve == curve]
        axis.plot(*zip(*points, strict=True), marker="o", color="#c4161c")
        axis.axhline(1, color="grey", linewidth=0.8, linestyle="--")
        axis.set(xlabel=curve, ylabel="cost / Saliency")
        if curve != "depth":
            axis.set_xscale("log")
        if curve == "width":
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
    figure.suptitle(rows[0].what.partition(",")[0])
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    plt.close(figure)
    return True


def _rows(part: Mapping[str, Any]) -> list[Row]:
    return [Row(**{key: value for key, value in row.items() if key != "figure"}) for row in part["rows"]]
