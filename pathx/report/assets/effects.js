// What the frozen network predicts of parts of the path, beside what the real network loses without them.

import {
  DATA,
  card,
  channelKey,
  counted,
  draw,
  make,
  number,
  percent,
  rowHead,
  scrolling,
  tableOf,
  text,
} from "./dom.js";
import { nameOf } from "./names.js";

const LISTED = 10;
const SIZE = 300;
const EDGE_ROOM = 34;
const byKind = (kind) => DATA.effects.filter((one) => one.kind === kind);

/** What was measured of a node of the flow, or nothing. */
export function effectOf(node) {
  const unit = node.units[0];
  const wanted = node.kind === "unit" ? unit?.index.join() : String(unit?.channel);
  return byKind(node.kind).find((one) => one.tensor === unit?.name && one.index.join() === wanted) ?? null;
}

/** A card with a plot and a table; nothing where nothing was measured. */
export function effects() {
  const layers = byKind("layer");
  const channels = byKind("channel").length ? byKind("channel") : byKind("unit");
  if (!layers.length) return [];
  const strongest = [...channels].sort((one, other) => Math.abs(other.predicted) - Math.abs(one.predicted));
  const rows = [...layers, ...strongest.slice(0, LISTED)].map((one) => [
    rowHead(nameOfPart(one)),
    number(one.predicted, 3),
    number(one.measured, 3),
    percent(one.after),
  ]);
  const heads = ["without", "predicted fall", "measured fall", DATA.target.label];
  return [
    card(
      "Predicted and measured",
      { class: "effects" },
      make(
        "p",
        { class: "told" },
        `The contribution of a part is how much of ${DATA.whole.name} the linear model says it sends. Measured is how much the real network loses when that part alone is set to zero, and other units may make up for it.`,
      ),
      make(
        "div",
        { class: "columns" },
        plot(channels),
        scrolling("Predicted and measured", tableOf({}, heads.map(text), rows)),
      ),
    ),
  ];
}

function nameOfPart(one) {
  if (one.kind === "layer") return `layer ${one.layer}, ${counted(one.units, "unit")}`;
  const given = nameOf(one.tensor, one.index[0]);
  if (one.kind === "unit") return text(`${one.tensor} [${one.index.join(",")}]`);
  return text(`${given || channelKey(one.tensor, one.index[0])}, ${counted(one.units, "unit")}`);
}

/** Every channel as a dot: predicted to the right, measured up; on the line the linear model is right. */
function plot(parts) {
  const values = parts.flatMap((one) => [one.predicted, one.measured]);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const place = (value) => EDGE_ROOM + ((value - low) / (high - low || 1)) * (SIZE - EDGE_ROOM - 10);
  const [start, end] = [place(low), place(high)];
  const up = (value) => SIZE - place(value);
  const dots = parts.map((one) =>
    draw(
      "circle",
      { cx: place(one.predicted), cy: up(one.measured), r: 4.5, class: one.predicted < 0 ? "against" : "for" },
      draw(
        "title",
        {},
        `${channelKey(one.tensor, one.index)}: ${number(one.predicted, 3)} predicted, ${number(one.measured, 3)} measured`,
      ),
    ),
  );
  const label = (words, more) => draw("text", { class: "under", ...more }, words);
  const summary = `The predicted and the measured fall of ${counted(parts.length, "part")}`;
  return make(
    "figure",
    {},
    draw(
      "svg",
      { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "scatter", role: "img", "aria-label": summary },
      draw("line", { class: "axis", x1: start, y1: up(0), x2: end, y2: up(0) }),
      draw("line", { class: "axis", x1: place(0), y1: up(low), x2: place(0), y2: up(high) }),
      draw("line", { class: "same", x1: start, y1: up(low), x2: end, y2: up(high) }),
      dots,
      label("predicted", { x: SIZE - 60, y: up(0) + 14 }),
      label("measured", { x: place(0) + 5, y: 14 }),
      label(number(high, 2), { x: place(0) + 5, y: 28 }),
    ),
    make("figcaption", { class: "quiet" }, `${summary}. On the dashed line the prediction is right.`),
  );
}
