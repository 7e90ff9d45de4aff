// What is known of a node of the flow: its numbers, what feeds it and what it feeds, and what its channel looks for.

import { DATA, channelKey, counted, make, number, percent, signed, text } from "./dom.js";
import { effectOf } from "./effects.js";
import { nameField } from "./names.js";
import { sum, unitName } from "./paths.js";

const STRONGEST = 6;
const HINT =
  "Point at a box of the flow, or move to it with Tab and the arrow keys, to see where it looks and what it carries. Click or Enter holds it here.";

/** The panel as an element with the method `show(node, held)`; `react` hears what the reader wants. */
export function makeDetail(units, path, react) {
  const panel = make("div.details");
  return {
    element: panel,
    show(node, held) {
      panel.replaceChildren(node ? nodeCard(node, held, units, path, react) : make("p.hint", HINT));
    },
  };
}

function nodeCard(node, held, units, path, react) {
  const unit = node.units[0];
  const total = sum(path.layers.find((layer) => layer.layer === node.layer).units.map((one) => one.contribution));
  const shared = [
    ["layer", String(node.layer)],
    ["contribution", signed(node.value)],
    ["share of the layer", percent(node.value / total)],
  ];
  if (node.kind === "unlisted" || node.kind === "more") {
    const title =
      node.kind === "more"
        ? counted(node.units.length, "weaker unit")
        : `${node.count} units that this page does not list`;
    return make("article.unit", make("h3", title), facts(shared));
  }
  const title =
    node.kind === "unit" ? text(unitName(unit)) : ["Channel ", String(unit.channel), " of ", text(unit.name)];
  const more = node.kind === "unit" ? unitFacts(unit) : [["units", String(node.units.length)]];
  const measured = effectOf(node);
  return make(
    "article.unit",
    { "data-unit": node.id },
    make("h3", title),
    facts([...shared, ...more]),
    measured ? facts(measuredFacts(measured)) : null,
    crops(unit.name, unit.channel),
    nameField(unit.name, unit.channel, react.renamed),
    ...(node.kind === "unit" ? feeds(unit, units, path, react) : []),
    make(
      "div.buttons",
      node.kind === "channel"
        ? button(`Open into ${counted(node.units.length, "unit")}`, () => react.open(node))
        : null,
      node.parent ? button("Close the channel", () => react.close(node.parent)) : null,
      held ? button("Let go", () => react.hold(node)) : null,
    ),
  );
}

function measuredFacts({ predicted, measured, after }) {
  return [
    ["predicted fall without it", signed(predicted, 3)],
    ["measured fall", signed(measured, 3)],
    [`${DATA.target.label} then`, percent(after)],
  ].map(([name, value]) => [text(name), value]);
}

function button(name, click) {
  return make("button.quiet", { click }, name);
}

function unitFacts(unit) {
  const field = unit.receptive_field;
  return [
    ["activation", number(unit.activation)],
    ["weight", signed(unit.weight)],
    ["importance", number(unit.importance)],
    ["sees", field.length === 4 ? `x ${field[0]}–${field[2]}, y ${field[1]}–${field[3]}` : "everything"],
  ];
}

/** What a channel looks for: where it matters most in other images. */
export function crops(name, channel) {
  const known = DATA.references[channelKey(name, channel)];
  if (!known) return null;
  return make(
    "figure.crops",
    make("figcaption", `channel ${channel} looks for: `, text(known.words)),
    known.crops.map((crop) => make("img", { src: crop.src, alt: `${crop.label} in ${crop.file}` })),
  );
}

function feeds(unit, units, path, react) {
  const up = path.edges.filter(([lower, from]) => lower === unit.layer && from === unit.position);
  const down = path.edges.filter(([, , above, to]) => above === unit.layer && to === unit.position);
  const above = up.map(([, , layer, to, value]) => [layer === null ? null : `${layer}:${to}`, value]);
  const below = down.map(([layer, from, , , value]) => [`${layer}:${from}`, value]);
  return [links("feeds", above, units, react), links("fed by", below, units, react)];
}

function links(title, list, units, react) {
  const known = list.filter(([id]) => id === null || units.has(id));
  if (!known.length) return null;
  const strongest = known.sort(([, one], [, other]) => Math.abs(other) - Math.abs(one)).slice(0, STRONGEST);
  const rows = strongest.map(([id, value]) => {
    const item =
      id === null
        ? make("span", "the class")
        : make("button.link", { click: () => react.go(id) }, text(unitName(units.get(id))));
    return make("li.pair", item, make("span.amount", signed(value, 3)));
  });
  const rest = known.length - strongest.length;
  return make("div.links", make("h4", title), make("ul", rows, rest > 0 ? make("li.quiet", `and ${rest} more`) : null));
}

/** Names and values. */
export function facts(rows) {
  return make(
    "dl.facts",
    rows.map(([name, value]) => make("div", make("dt", name), make("dd", value))),
  );
}
