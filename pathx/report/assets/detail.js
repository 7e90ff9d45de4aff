// What is known of a unit: its numbers, what feeds it and what it feeds; two pinned ones side by side.

import { DATA, channelKey, copyButton, counted, make, number, percent, rowHead, signed, tableOf, text } from "./dom.js";
import { nameField } from "./names.js";
import { sum, unitName } from "./paths.js";

const STRONGEST = 6;

/** The panel as an element with the method `show(node, pinned, units, path)`. */
export function makeDetail(react) {
  const panel = make("div", { class: "details" });
  return {
    element: panel,
    show(node, pinned, units, path) {
      const cards = pinned.map((id, at) => unitCard(units.get(id), units, path, "AB"[at], react)).filter(Boolean);
      const looked =
        node && !(node.kind === "unit" && pinned.includes(node.units[0].id))
          ? nodeCard(node, units, path, react)
          : null;
      const both =
        pinned.length === 2 && pinned.every((id) => units.has(id))
          ? comparison(...pinned.map((id) => units.get(id)))
          : null;
      const hint = make(
        "p",
        { class: "hint" },
        "Point at a unit of the flow, or move to it with Tab and the arrow keys, to see where it looks and what it carries. Click or Enter pins it; a second pin compares the two.",
      );
      panel.replaceChildren(...[...cards, looked, both].filter(Boolean), ...(cards.length || looked ? [] : [hint]));
    },
  };
}

function nodeCard(node, units, path, react) {
  if (node.kind === "unit") return unitCard(node.units[0], units, path, "", react);
  if (node.kind === "unlisted")
    return make(
      "article",
      { class: "unit" },
      make("h3", {}, counted(node.count, "unit"), " that this page does not list"),
      facts([
        ["layer", String(node.layer)],
        ["contribution", signed(node.value)],
      ]),
    );
  const first = node.units[0];
  const title =
    node.kind === "more"
      ? counted(node.units.length, "weaker unit")
      : ["Channel ", String(first.index[0]), " of ", text(first.name)];
  const total = sum(path.layers.find((layer) => layer.layer === node.layer).units.map((unit) => unit.contribution));
  return make(
    "article",
    { class: "unit" },
    make("h3", {}, title),
    facts([
      ["layer", String(node.layer)],
      ["units", String(node.units.length)],
      ["contribution", signed(node.value)],
      ["share of the layer", percent(node.value / total)],
    ]),
    node.kind === "channel" ? crops(first.name, first.index[0]) : null,
    node.kind === "channel" ? nameField(first.name, first.index[0], react.renamed) : null,
  );
}

/** What a channel looks for: where it matters most in other images. */
export function crops(name, channel) {
  const known = DATA.references[channelKey(name, channel)];
  if (!known) return null;
  return make(
    "figure",
    { class: "crops" },
    make("figcaption", {}, `channel ${channel} looks for: `, text(known.words)),
    known.crops.map((crop) => make("img", { src: crop.src, alt: `${crop.label} in ${crop.file}` })),
  );
}

function unitCard(unit, units, path, pin, react) {
  if (!unit) return null;
  const layer = path.layers.find((one) => one.layer === unit.layer);
  const total = sum(layer.units.map((one) => one.contribution));
  const up = path.edges.filter(([lower, from]) => lower === unit.layer && from === unit.position);
  const down = path.edges.filter(([, , above, to]) => above === unit.layer && to === unit.position);
  const name = unitName(unit);
  const field = unit.receptive_field;
  const head = make("h3", {}, pin ? make("span", { class: `pin ${pin}` }, pin) : null, text(name));
  const buttons = make(
    "div",
    { class: "buttons" },
    copyButton("Copy name", () => name),
    pin ? make("button", { type: "button", class: "quiet", click: () => react.pin(unit.id) }, `Unpin ${pin}`) : null,
  );
  return make(
    "article",
    { class: "unit", "data-unit": unit.id },
    head,
    facts([
      ["layer", String(unit.layer)],
      ["contribution", signed(unit.contribution)],
      ["share of the layer", percent(unit.contribution / total)],
      ["activation", number(unit.activation)],
      ["weight", signed(unit.weight)],
      ["importance", number(unit.importance)],
      ["sees", field.length === 4 ? `x ${field[0]}–${field[2]}, y ${field[1]}–${field[3]}` : "everything"],
    ]),
    crops(unit.name, unit.index[0]),
    nameField(unit.name, unit.index[0], react.renamed),
    links(
      "feeds",
      up.map(([, , above, to, value]) => [above === null ? null : `${above}:${to}`, value]),
      units,
      react,
    ),
    links(
      "fed by",
      down.map(([lower, from, , , value]) => [`${lower}:${from}`, value]),
      units,
      react,
    ),
    buttons,
  );
}

function links(title, list, units, react) {
  const known = list.filter(([id]) => id === null || units.has(id));
  if (!known.length) return null;
  const strongest = known.sort(([, one], [, other]) => Math.abs(other) - Math.abs(one)).slice(0, STRONGEST);
  const rows = strongest.map(([id, value]) => {
    const name = id === null ? "the class" : unitName(units.get(id));
    const item =
      id === null
        ? make("span", {}, name)
        : make("button", { type: "button", class: "link", click: () => react.go(id) }, text(name));
    return make("li", {}, item, make("span", { class: "amount" }, signed(value, 3)));
  });
  const rest = known.length - strongest.length;
  return make(
    "div",
    { class: "links" },
    make("h4", {}, title),
    make("ul", {}, rows, rest > 0 ? make("li", { class: "quiet" }, `and ${rest} more`) : null),
  );
}

function comparison(one, other) {
  const rows = [
    ["contribution", one.contribution, other.contribution],
    ["activation", one.activation, other.activation],
    ["weight", one.weight, other.weight],
    ["importance", one.importance, other.importance],
  ];
  return make(
    "article",
    { class: "unit comparison" },
    make("h3", {}, "A beside B"),
    tableOf(
      {},
      ["", "A", "B", "A minus B"],
      rows.map(([name, a, b]) => [rowHead(name), number(a), number(b), signed(a - b)]),
    ),
    make(
      "p",
      {},
      `Their fields overlap by ${percent(overlap(one.receptive_field, other.receptive_field))} of both together.`,
    ),
  );
}

function overlap(one, other) {
  if (one.length !== 4 || other.length !== 4) return NaN;
  const side = (low, high) => Math.max(0, Math.min(one[high], other[high]) - Math.max(one[low], other[low]));
  const area = ([a, b, c, d]) => (c - a) * (d - b);
  const both = side(0, 2) * side(1, 3);
  return both / (area(one) + area(other) - both);
}

/** Names and values. */
export function facts(rows) {
  return make(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}
