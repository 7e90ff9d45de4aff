"""Plots of evaluations, grids, common paths and checks, as PNG and SVG. They need matplotlib, which is an extra."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pathx.results.files import replace_own

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

MISSING = "matplotlib is not installed, so there are no plots: pip install 'pathx-relu[evaluate]'"

# Okabe and Ito's colours, which are distinct to any colour vision. The first is for pathx.
_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6bb1", "#999999")
_DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))


def plots_are_missing() -> bool:
    return find_spec("matplotlib") is None


def can_plot(note: Callable[[str], None]) -> bool:
    """Whether matplotlib is installed; if not, a note says so."""
    if plots_are_missing():
        note(MISSING)
    return not plots_are_missing()


@contextmanager
def _figure(file: Path, columns: int, rows: int, size: tuple[float, float]) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `columns` x `rows` axes of that size in inches, written as PNG and SVG when done."""
    import matplotlib
    from matplotlib.figure import Figure

    # Equal figures give equal bytes; text stays text, and dollar signs in labels do not start formulas.
    plain = {"svg.hashsalt": "pathx", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
    with matplotlib.rc_context(cast("dict[Any, Any]", plain)):
        figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)
        for kind, options in (
            ("png", {"dpi": 150, "metadata": {"Software": None}}),
            ("svg", {"metadata": {"Date": None}}),
        ):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=kind, **options)
            # Not with_suffix: tensors have dots in their names.
            replace_own(file.with_name(f"{file.name}.{kind}"), drawn.getvalue())


def _style(number: int, ours: bool) -> dict[str, Any]:
    colour = _COLOURS[number % len(_COLOURS)]
    return {"color": colour, "linewidth": 2.4 if ours else 1.3, "linestyle": _DASHES[0 if ours else number % 4]}


def plot_curves(file: Path, panels: Mapping[str, Mapping[str, tuple[Tensor, float]]], first: str) -> None:
    """Mean probability against the share of steps, a panel for each measure, a line for each method.

    Args:
        panels: title -> method -> (curve, area).
        first: the method to emphasise.
    """
    with _figure(file, len(panels), 1, (5.6, 4.8)) as (_, axes):
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            ordered = sorted(lines.items(), key=lambda line: line[0] != first)
            for number, (name, (curve, area)) in enumerate(ordered):
                share = [100 * step / (len(curve) - 1) for step in range(len(curve))]
                axis.plot(share, curve.tolist(), label=f"{name}  {area:.3f}", **_style(number, name == first))
            axis.set(
                title=title, xlabel="steps taken, %", ylabel="probability of the class", ylim=(0, 1), xlim=(0, 100)
            )
            axis.grid(alpha=0.25)
            axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=3, frameon=False)


def plot_grid(
    file: Path,
    panels: Mapping[str, tuple[Mapping[str, Sequence[float]], Mapping[str, float]]],
    widths: Sequence[str],
) -> None:
    """Measures against the width of the path, one line per depth, other methods as dashed lines.

    Args:
        panels: title -> (depth -> a figure for every width, method -> its figure).
        widths: the labels of the ticks.
    """
    with _figure(file, len(panels), 1, (5.6, 4.4)) as (figure, axes):
        places = list(range(len(widths)))
        for axis, (title, (lines, others)) in zip(axes, panels.items(), strict=True):
            shades = _shades(len(lines))
            for (name, figures), colour in zip(lines.items(), shades, strict=True):
                axis.plot(places, figures, marker="o", markersize=3.5, color=colour, label=f"depth {name}")
            for number, (name, value) in enumerate(others.items(), start=1):
                axis.axhline(value, label=name, color=_COLOURS[number % len(_COLOURS)], linestyle="--", linewidth=1)
            axis.set(title=title, xlabel="width", xticks=places, xticklabels=widths)
            axis.grid(alpha=0.25)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)


def _shades(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * place / max(1, count - 1)) for place in range(count)]


def plot_frequencies(file: Path, title: str, lines: Mapping[str, Sequence[float]], xlabel: str) -> None:
    """How often each unit or channel is on the path, a row of bars for each class."""
    with _figure(file, 1, len(lines), (9, 1.3)) as (figure, axes):
        for number, (axis, (name, shares)) in enumerate(zip(axes, lines.items(), strict=True)):
            axis.stairs(shares, fill=True, color=_COLOURS[number % len(_COLOURS)])  # one shape, however many units
            axis.set(ylim=(0, 1), xlim=(0, max(1, len(shares))))
            axis.set_ylabel(name, rotation=0, ha="right", va="center")
            axis.tick_params(labelbottom=axis is axes[-1])
        axes[-1].set_xlabel(xlabel)
        figure.suptitle(title, fontsize=10)


def plot_places(file: Path, title: str, maps: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """How often the path passes through each place of a feature map, a map for each class."""
    columns = min(5, len(maps))
    with _figure(file, columns, -(-len(maps) // columns), (2.2, 2.4)) as (figure, axes):
        for axis in axes:
            axis.set_axis_off()
        for axis, (name, shares) in zip(axes, maps.items(), strict=False):
            drawn = axis.imshow(shares, vmin=0, vmax=1, cmap="magma", interpolation="nearest")
            axis.set_title(name, fontsize=8)
        figure.colorbar(drawn, ax=axes, shrink=0.7, label="share of images")
        figure.suptitle(title, fontsize=10)


def plot_overlap(file: Path, title: str, names: Sequence[str], matrix: Sequence[Sequence[float]]) -> None:
    """How much classes have in common, 0 to 1."""
    side = max(3.5, 0.45 * len(names) + 1.5)
    with _figure(file, 1, 1, (side + 0.8, side)) as (figure, axes):
        drawn = axes[0].imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        axes[0].set_xticks(range(len(names)), names, rotation=90)
        axes[0].set_yticks(range(len(names)), names)
        for y, row in enumerate(matrix):
            for x, value in enumerate(row):
                colour = "black" if value > 0.6 else "white"
                axes[0].text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
        axes[0].set_title(title, fontsize=10)
        figure.colorbar(drawn, ax=axes[0], shrink=0.8)


def plot_randomisation(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Rank correlation with the explanation of the trained model, as layers are randomised from the top.

    Args:
        lines: for every `module`, the correlation of each kind of map.
    """
    with _figure(file, 1, 1, (max(5.5, 0.28 * len(lines) + 2), 4.2)) as (_, axes):
        places = list(range(len(lines)))
        for number, kind in enumerate(kind for kind in lines[0] if kind != "module"):
            known = [float("nan") if line[kind] is None else line[kind] for line in lines]
            style = _style(number, number == 0)
            axes[0].plot(places, known, marker="o", markersize=3.5, label=kind.replace("_", " "), **style)
        axes[0].axhline(0, color="#999999", linewidth=0.8)
        axes[0].set(ylabel="rank correlation with the explanation", xlabel="randomised down to", ylim=(-1.05, 1.05))
        axes[0].set_xticks(places, [line["module"] for line in lines], rotation=90, fontsize=7)
        axes[0].grid(alpha=0.25)
        axes[0].legend(fontsize=8)
