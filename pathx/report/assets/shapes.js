// The shapes of the flow: where columns, boxes and ribbons are, and how they are drawn.

import { counted, draw, number, signed } from "./dom.js";
import { cutOff, sum, unitName } from "./paths.js";

export const TOP = 58;
export const TALL = 400;
export const FOOT = 46;
export const BOX = 14;
const GAP = 5;
const STEP = 98;
const SIDE = 84;
const STUB = 26;

export function patterns() {
  const hatched = draw(
    "pattern",
    { id: "hatched", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    draw("rect", { width: 1.6, height: 5, class: "hatch" }),
  );
  return draw("defs", {}, hatched);
}

/** Where columns and boxes are. In each column the boxes fill the height, or all columns share one scale. */
export function placed(columns, target, room, sameScale) {
  const width = Math.max(room - 2, 2 * SIDE + STEP * (columns.length + 1));
  const step = (width - 2 * SIDE) / (columns.length + 1);
  const at = (place) => SIDE + step * (place + 1);
  const gross = columns.map((column) => sum(column.nodes.map((one) => Math.abs(one.value))));
  const largest = Math.max(...gross, Math.abs(target.logit), 1e-30);
  const boxes = new Map();
  columns.forEach((column, place) => {
    const free = TALL - GAP * (column.nodes.length - 1);
    const unit = sameScale ? free / largest : free / (gross[place] || 1);
    const heights = fitted(
      column.nodes.map((one) => Math.abs(one.value) * unit),
      free,
    );
    let y = TOP;
    column.nodes.forEach((one, row) => {
      boxes.set(one.id, { x: at(place) - BOX / 2, y, height: heights[row] });
      y += heights[row] + GAP;
    });
  });
  boxes.set("class", { x: at(columns.length) - BOX / 2, y: TOP, height: TALL });
  return { width, boxes, at };
}

/** Heights of at least a few pixels that together are not more than what is free. */
function fitted(heights, free) {
  const least = Math.min(2.5, free / heights.length);
  const raised = heights.map((height) => Math.max(least, height));
  const over = sum(raised) - free;
  const spare = sum(raised.map((height) => height - least));
  return over > 0 && spare > 0 ? raised.map((height) => height - ((height - least) * over) / spare) : raised;
}

/** Where on the two sides of each box its ribbons are, and what is cut off. */
export function sidesOf(ribbons, boxes, columns, target) {
  const left = new Map();
  const right = new Map();
  const lowest = columns[0]?.layer;
  const side = (id, box, own, order, rest, places) => {
    const parts = own
      .map((ribbon) => ({ key: ribbon.key, size: Math.abs(ribbon.value), order: order(ribbon) }))
      .sort((a, b) => a.order - b.order);
    const whole = sum(parts.map((part) => part.size)) + Math.abs(rest);
    const unit = whole > 0 ? box.height / whole : 0;
    const spots = {};
    let y = box.y;
    for (const part of parts) {
      spots[part.key] = [y, y + part.size * unit];
      y += part.size * unit;
    }
    if (Math.abs(rest) > 1e-6 * whole) spots.rest = { top: y, bottom: box.y + box.height, value: rest };
    places.set(id, spots);
  };
  const known = ribbons.some((ribbon) => ribbon.to);
  for (const column of columns) {
    for (const one of column.nodes) {
      const box = boxes.get(one.id);
      const out = ribbons.filter((ribbon) => ribbon.from === one);
      side(
        one.id,
        box,
        out,
        (ribbon) => (ribbon.to ? boxes.get(ribbon.to.id).y : 0),
        out.length ? cutOff(one.value, out) : 0,
        right,
      );
      const incoming = ribbons.filter((ribbon) => ribbon.to === one);
      const rest = known && column.layer !== lowest ? cutOff(one.value, incoming) : 0;
      side(one.id, box, incoming, (ribbon) => boxes.get(ribbon.from.id).y, rest, left);
    }
  }
  const top = ribbons.filter((ribbon) => !ribbon.to);
  side("class", boxes.get("class"), top, (ribbon) => boxes.get(ribbon.from.id).y, cutOff(target.logit, top), left);
  return { left, right };
}

export function ribbonShape(ribbon, sides, boxes) {
  const upper = ribbon.to ? ribbon.to.id : "class";
  const from = sides.right.get(ribbon.from.id)[ribbon.key];
  const to = sides.left.get(upper)[ribbon.key];
  const x0 = boxes.get(ribbon.from.id).x + BOX;
  const x1 = boxes.get(upper).x;
  const shape = draw("path", {
    class: `ribbon ${ribbon.value < 0 ? "against" : "for"}`,
    d: band(x0, from, x1, to),
    "data-key": ribbon.key,
    "data-from": ribbon.from.id,
    "data-to": ribbon.to ? ribbon.to.id : "class",
    "data-value": ribbon.value,
  });
  shape.append(
    draw(
      "title",
      {},
      `${signed(ribbon.value)}: ${label(ribbon.from)} of layer ${ribbon.from.layer} through ${ribbon.to ? `${label(ribbon.to)} of layer ${ribbon.to.layer}` : "the class"}`,
    ),
  );
  return shape;
}

/** What the deepest layer gets from the pixels and from the bias of the layers below. */
export function imageSide(columns, path, boxes, x) {
  const group = draw("g", { class: "image-side" });
  group.append(
    draw(
      "g",
      { class: "head" },
      draw("text", { x, y: 16, class: "strong" }, "image"),
      path.model ? null : draw("text", { x, y: 32 }, "not in the files"),
    ),
  );
  if (!path.model || !columns.length) return group;
  const deepest = sum(columns[0].nodes.map((one) => one.value));
  const parts = [
    ["pixels", path.model.attribution_sum],
    ["bias", path.model.bias],
    ["routes that jump", deepest - path.model.score],
  ];
  const shown = parts.filter(
    ([name, value]) =>
      Number.isFinite(value) && (name === "pixels" || Math.abs(value) > 1e-4 * Math.abs(path.model.score)),
  );
  const gross = sum(shown.map(([, value]) => Math.abs(value))) || 1;
  const rows = columns[0].nodes.map((one) => boxes.get(one.id));
  const end = { x: rows[0].x - 9, top: rows[0].y, bottom: rows.at(-1).y + rows.at(-1).height };
  const free = TALL - 12 * (shown.length - 1);
  const heights = fitted(
    shown.map(([, value]) => (free * Math.abs(value)) / gross),
    free,
  );
  let y = TOP;
  let into = end.top;
  shown.forEach(([name, value], row) => {
    const part = ((end.bottom - end.top) * Math.abs(value)) / gross;
    const kind = `${value < 0 ? "against" : "for"} ${name === "pixels" ? "" : "constant"}`;
    group.append(
      draw("path", {
        class: `band ${kind}`,
        d: band(x + BOX / 2, [y, y + heights[row]], end.x, [into, into + part]),
        "data-part": name,
        "data-value": value,
      }),
      draw("rect", {
        class: `box ${kind}`,
        x: x - BOX / 2,
        y,
        width: BOX,
        height: heights[row],
        rx: Math.min(3, heights[row] / 2),
      }),
      draw("text", { class: "aside", x: x - BOX / 2 - 5, y: y + heights[row] / 2 - 2 }, name),
      draw("text", { class: "aside", x: x - BOX / 2 - 5, y: y + heights[row] / 2 + 12 }, signed(value, 3)),
    );
    y += heights[row] + 12;
    into += part;
  });
  group.append(draw("line", { class: "brace", x1: end.x, x2: end.x, y1: end.top, y2: end.bottom }));
  return group;
}

/** What a box gets from elsewhere than the path. */
export function cutShape({ top, bottom, value }, { x }) {
  const height = Math.max(0.5, bottom - top);
  const place = { x: x - STUB, y: top, width: STUB, height };
  const words = `${signed(value)} from biases, units that were not kept, and ribbons too weak to list`;
  return draw("rect", { class: "cut", ...place, "data-cut": value, fill: "url(#hatched)" }, draw("title", {}, words));
}

/** The class: what the path brings to it, and how much of its logit does not come from the path. */
export function classSide(target, sides, boxes) {
  const { x, y, height } = boxes.get("class");
  const centre = x + BOX / 2;
  const group = draw("g", { class: "whole", "data-id": "class" });
  const name = draw("text", { x: centre, y: 32 }, draw("title", {}, target.label), ending(target.label, 15));
  group.append(draw("g", { class: "head" }, draw("text", { x: centre, y: 16, class: "strong" }, "class"), name));
  const rest = sides.left.get("class").rest;
  if (rest) {
    group.append(
      cutShape(rest, { x }),
      draw("text", { class: "aside inner", x: x - STUB - 4, y: (rest.top + rest.bottom) / 2 - 2 }, "cut off"),
      draw(
        "text",
        { class: "aside inner", x: x - STUB - 4, y: (rest.top + rest.bottom) / 2 + 12 },
        signed(rest.value, 3),
      ),
    );
  }
  group.append(
    draw("rect", { class: `box ${target.logit < 0 ? "against" : "for"}`, x, y, width: BOX, height, rx: 3 }),
    draw(
      "g",
      { class: "foot" },
      draw(
        "text",
        { x: centre, y: TOP + TALL + 20, class: "strong" },
        `${target.name === "the logit" ? "logit" : "Δ logit"} ${number(target.logit, 3)}`,
      ),
      draw("text", { x: centre, y: TOP + TALL + 36 }, "is 100 %"),
    ),
  );
  return group;
}

function ending(name, most) {
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}

function band(x0, [a, b], x1, [c, d]) {
  const middle = (x0 + x1) / 2;
  const f = (value) => value.toFixed(2);
  return `M${f(x0)},${f(a)}C${f(middle)},${f(a)} ${f(middle)},${f(c)} ${f(x1)},${f(c)}L${f(x1)},${f(d)}C${f(middle)},${f(d)} ${f(middle)},${f(b)} ${f(x0)},${f(b)}Z`;
}

export function label(one) {
  if (one.kind === "more") return `${one.units.length} more`;
  if (one.kind === "unlisted") return `${one.count} not listed`;
  const unit = one.units[0];
  if (one.kind === "channel") return `${unit.index[0]} ×${one.units.length}`;
  return unit.index.length > 1 ? `${unit.index[0]} [${unit.index.slice(1).join(",")}]` : String(unit.index[0]);
}

export function spoken(one, target) {
  const amount = `${signed(one.value)} for ${target.label}`;
  if (one.kind === "unlisted")
    return `${counted(one.count, "unit")} of layer ${one.layer} that this page does not list, ${amount}`;
  if (one.kind === "more") return `${counted(one.units.length, "weaker unit")} of layer ${one.layer}, ${amount}; opens`;
  if (one.kind === "channel")
    return `Channel ${one.units[0].index[0]} of ${one.units[0].name}, layer ${one.layer}, ${counted(one.units.length, "unit")}, ${amount}; opens`;
  return `Unit ${unitName(one.units[0])}, layer ${one.layer}, ${amount}; pins`;
}

export function shortened(name, most) {
  return name.length > most ? `…${name.slice(1 - most)}` : name;
}
