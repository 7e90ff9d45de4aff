"""Sheets of what is compared in one colour scale: the features of a decision, several classes, several settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from pathx.drawing.page import Bar, Panel, sheet
from pathx.drawing.render import Drawing
from pathx.drawing.view import View, heat_of, heat_scale, magnified, summed_heat, unit_boxes, with_inset
from pathx.drawing.words import carried, carried_difference, counted, percent, settings_line
from pathx.explanation import Explanation, Unit

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition, Group


def decomposition_sheet(made: Decomposition, view: View, drawing: Drawing) -> Image.Image:
    """The whole, and each group of features, in one colour scale; weak ones are magnified, as their captions say."""
    tile = view.tile()
    whole = made.whole
    scale = decomposition_scale(made, drawing)
    units = counted(len(made.features) + made.others.units, "unit")
    details = (f"taken apart into {units} of layer {made.layer}", f"score {whole.score:.4g}")
    factor = magnified(heat_of(whole, drawing), scale, drawing)
    shown = tile.overlay(whole, drawing, scale=scale / factor)
    panels = [Panel(shown, "the whole path", (*details, *_strength(factor)))]
    for number, group in enumerate(made.groups):
        members = [made.features[position] for position in group.features]
        boxes = [box for member in members for box in unit_boxes(member.explanation)]
        values = group_heat(made, group, drawing)
        factor = magnified(values, scale, drawing)
        drawn = tile.overlay(values, drawing, scale=scale / factor, boxes=list(dict.fromkeys(boxes)))
        seen = bool(values.any())
        panels.append(
            Panel(
                with_inset(drawn, tile, values) if seen else drawn,
                f"{group_letter(number)}: {group_line(group)}",
                (
                    *channels_line([member.unit for member in members]),
                    *_strength(factor),
                    *(() if seen else ("nothing of it reaches the image",)),
                ),
            )
        )
    notes = [settings_line(whole), *decomposition_remarks(made)]
    return sheet(panels, title=view.label, more=view.more, notes=notes, bar=_bar(drawing, scale, view.label))


def group_letter(number: int) -> str:
    """A, B, … Z, AA, AB, …"""
    return (group_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def group_line(group: Group) -> str:
    """`21 units, 28.0%`: how many features a group has, and their share of the score."""
    share = "" if group.share is None else f", {percent(group.share)}"
    return f"{counted(len(group.features), 'unit')}{share}"


def channels_line(units: Sequence[Unit]) -> list[str]:
    """The channels that the units of a group belong to, the commonest first."""
    counts = Counter((unit.tensor, unit.index[0]) for unit in units)
    (tensor, channel), of_first = counts.most_common(1)[0]
    more = f" and {counted(len(counts) - 1, 'other')}" if len(counts) > 1 else ""
    times = f" ({of_first} of them)" if more and of_first > 1 else ""
    return [f"{tensor}, channel {channel}{times}{more}"]


def group_heat(made: Decomposition, group: Group, drawing: Drawing) -> Tensor:
    """What overlays and sheets show of a group: the sum of its features."""
    return summed_heat((made.features[position].explanation for position in group.features), drawing)


def decomposition_scale(made: Decomposition, drawing: Drawing) -> float:
    """The one colour scale of a decomposition: of the whole, its features and their groups."""
    parts = [heat_of(feature.explanation, drawing) for feature in made.features]
    groups = [group_heat(made, group, drawing) for group in made.groups]
    return heat_scale([heat_of(made.whole, drawing), *parts, *groups], drawing)


def decomposition_remarks(made: Decomposition) -> list[str]:
    """What a reader must know of a decomposition, in sentences."""
    remarks = []
    if made.below_alpha:
        remarks.append("No unit of this layer is above alpha; the best one stands alone.")
    elif len(made.features) + made.others.units == 1:
        remarks.append("The layer keeps a single unit: there is one feature.")
    elif len(made.groups) == 1 and made.others.units == 0:
        remarks.append(f"All {len(made.features)} units belong together: there is one feature.")
    if made.others.units:
        share = f", {percent(made.others.share)} of the score" if made.others.share is not None else ""
        every = len(made.features) + made.others.units
        remarks.append(f"Not shown: {made.others.units} of {every} units{share}.")
    if not made.features:
        return [*remarks, "No unit of this layer is on the path: there is nothing to take apart."]
    together = made.whole.score + made.difference.score
    if made.difference.exact:
        return [*remarks, "Added up, the features are the whole path."]
    return [
        *remarks,
        f"Added up, the features give {together:.3g}, the whole path gives {made.whole.score:.3g}: each feature chooses its "
        "own units in the layers below, and together they may choose more or others than the one path does.",
    ]


def contrast_sheet(
    made: Contrast, view: View, labels: Sequence[str], probabilities: Sequence[float], drawing: Drawing
) -> Image.Image:
    """The photo, each class, and what supports the first and not each other, in one colour scale.

    Args:
        labels, probabilities: of the explained classes, in their order.
    """
    tile = view.tile()
    scale = made.scale(drawing)
    panels = [Panel(tile.photo, "photo")]
    shown = list(zip(labels, probabilities, made.explanations, strict=True))[: made.MOST_SHOWN]
    for label, probability, explanation in shown:
        logit = float(explanation.logits.flatten()[explanation.target])
        said = f"{percent(probability)}; its units {carried(explanation.score, logit)}"
        panels.append(Panel(tile.overlay(explanation, drawing, scale=scale), label, (said,)))
    for label, values, pair in zip(labels[1:], _differences(made, drawing), made.pairs, strict=False):
        one, other = drawing.colours.split("-")
        said = f"its units {carried_difference(pair.score, pair.logit)}"
        details = (f"{one}: for {labels[0]}; {other}: for {label}", said)
        panels.append(Panel(tile.overlay(values, drawing, scale=scale), f"why {labels[0]} and not {label}", details))
    notes = [settings_line(made.explanations[0]), *([made.reason] if made.reason else [])]
    if len(made.explanations) > made.MOST_SHOWN:
        notes.append(f"The first {made.MOST_SHOWN} of {len(made.explanations)} classes; contrast.json has all.")
    return sheet(panels, title=" or ".join(labels[: made.MOST_SHOWN]) + "?", notes=notes, bar=_bar(drawing, scale))


def contrast_scale(made: Contrast, drawing: Drawing) -> float:
    """The one colour scale of all that a contrast shows: the classes, and how they differ."""
    classes = [heat_of(explanation, drawing) for explanation in made.explanations[: made.MOST_SHOWN]]
    return heat_scale([*classes, *_differences(made, drawing)], drawing)


def _differences(made: Contrast, drawing: Drawing) -> list[Tensor]:
    """What is shown of the first class against each other."""
    first, *others = made.explanations[: made.MOST_SHOWN]
    return [
        heat_of(first, drawing) - heat_of(other, drawing)
        if pair.difference is None
        else heat_of(pair.difference, drawing)
        for other, pair in zip(others, made.pairs, strict=False)
    ]


def comparison_sheet(explanations: Sequence[Explanation], view: View, drawing: Drawing) -> Image.Image:
    """One image and class explained in several ways, such as depths and widths, in one colour scale.

    Weak ones are magnified, as their captions say. Settings that fill a grid of depths and widths are laid out so.
    """
    tile = view.tile()
    ordered = sorted(
        explanations, key=lambda made: (made.depth, _width_order(made), made.alpha, made.skips, made.importance)
    )
    heats = [heat_of(made, drawing) for made in ordered]
    scale = heat_scale(heats, drawing)
    depths, widths = {made.depth for made in ordered}, {made.width for made in ordered}
    told_apart = len({(made.alpha, made.skips, made.importance) for made in ordered}) > 1
    is_grid = len(ordered) == len(depths) * len(widths) and 1 < len(widths) <= 6
    panels = []
    for made, values in zip(ordered, heats, strict=True):
        factor = magnified(values, scale, drawing)
        how = f"alpha {made.alpha:.4g}, skips {made.skips}, importance {made.importance}"
        details = (f"score {made.score:.4g}", *([how] if told_apart else []))
        drawn = tile.overlay(made, drawing, scale=scale / factor)
        panels.append(Panel(drawn, f"depth {made.depth}, width {made.width}", (*details, *_strength(factor))))
    return sheet(
        panels, title=view.label, bar=_bar(drawing, scale, view.label), columns=len(widths) if is_grid else None
    )


def _width_order(explanation: Explanation) -> tuple[int, float]:
    if isinstance(explanation.width, int):
        return 0, explanation.width
    return (2, 0.0) if explanation.width == "all" else (1, float(explanation.width.rstrip("%")))


def _strength(factor: int) -> list[str]:
    return [f"shown {factor} times stronger"] if factor > 1 else []


def _bar(drawing: Drawing, scale: float, label: str = "") -> Bar:
    return Bar(drawing.colours, f"against {label}".strip(), f"for {label}".strip(), scale)
