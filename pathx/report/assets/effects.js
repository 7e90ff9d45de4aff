// What the frozen network predicts of parts of the path, beside what the real network loses without them.

import { DATA, card, channelKey, counted, make, number, percent, rowHead, tableOf, text } from "./dom.js";
import { nameOf } from "./names.js";

const LISTED = 10;
const byKind = (kind) => DATA.effects.filter((one) => one.kind === kind);

/** What was measured of a node of the flow, or nothing. */
export function effectOf(node) {
  const unit = node.units[0];
  const wanted = node.kind === "unit" ? unit?.index.join() : String(unit?.channel);
  return byKind(node.kind).find((one) => one.tensor === unit?.name && one.index.join() === wanted) ?? null;
}

/** A card with a table; nothing where nothing was measured. */
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
      "section",
      "Predicted and measured",
      make(
        "p.told",
        `The contribution of a part is how much of ${DATA.whole.name} the linear model says it sends. Measured is how much the real network loses when that part alone is set to zero, and other units may make up for it.`,
      ),
      tableOf("table.effects", "Predicted and measured", heads.map(text), rows),
    ),
  ];
}

function nameOfPart(one) {
  if (one.kind === "layer") return `layer ${one.layer}, ${counted(one.units, "unit")}`;
  const given = nameOf(one.tensor, one.index[0]);
  if (one.kind === "unit") return text(`${one.tensor} [${one.index.join(",")}]`);
  return text(`${given || channelKey(one.tensor, one.index[0])}, ${counted(one.units, "unit")}`);
}
