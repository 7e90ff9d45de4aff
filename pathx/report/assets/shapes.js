// The shapes of the flow: where columns, bars and ribbons are, and how they are drawn.

import { DATA, channelKey, counted, draw, number, signed } from "./dom.js";
import { nameOf } from "./names.js";
import { cutOff, sum, unitName } from "./paths.js";

export const TOP = 58;
export const FOOT = 46;
const BARS = 300; // of a column, added up
const GAP_BETWEEN = 5;
const EDGE = 4;

/** Where columns and bars are, and how large their pictures.
 *
 *  In each column the bars add up to one height; a bar is as tall as its contribution, in a row that is tall enough for its
 *  picture. Narrow flows leave out the side of the image, and words. */
export function placed(columns, room) {
  const narrow = room < 560;
  const least = narrow ? 44 : 112;
  const image = narrow ? 0 : 118; // from its side to the first layer
  const bar = narrow ? 8 : 14;
  const width = Math.max(room - 2, 2 * EDGE + image + least * columns.length + bar);
  const step = (width - 2 * EDGE - image - bar) / columns.length;
  const at = (place) => EDGE + (place < 0 ? 0 : image + step * place);
  const picture = Math.min(narrow ? 30 : 40, step - bar - 8);
  const gross = columns.map((column) => sum(column.nodes.map((one) => Math.abs(one.value))));
  const rows = columns.map((column, place) =>
    column.nodes.map((one) => {
      const height = Math.max(2, (Math.abs(one.value) * BARS) / (gross[place] || 1));
      return { one, height, row: Math.max(height, one.units.length && one.kind !== "more" ? picture : 14) };
    }),
  );
  const needed = rows.map((column) => sum(column.map(({ row }) => row)) + GAP_BETWEEN * (column.length - 1));
  const tall = Math.max(BARS, ...needed);
  const boxes = new Map();
  rows.forEach((column, place) => {
    const gap = column.length > 1 ? (tall - sum(column.map(({ row }) => row))) / (column.length - 1) : 0;
    let y = TOP;
    for (const { one, height, row } of column) {
      boxes.set(one.id, { x: at(place), y: y + (row - height) / 2, height, top: y, row });
      y += row + gap;
    }
  });
  boxes.set("class", { x: at(columns.length), y: TOP, height: tall });
  return { width, tall, bar, step, picture, narrow, boxes, at };
}

export function patterns() {
  const hatched = draw(
    "pattern",
    { id: "hatched", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    draw("rect.hatch", { width: 1.6, height: 5 }),
  );
  const { photo } = DATA;
  const size = photo && { width: photo.width, height: photo.height };
  return draw("defs", hatched, photo ? draw("image", { id: "photo", href: photo.src, ...size }) : null);
}

/** Where on the two sides of each bar its ribbons are, and what is cut off. */
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
      const above = (ribbon) => (ribbon.to ? boxes.get(ribbon.to.id).y : 0);
      side(one.id, box, out, above, out.length ? cutOff(one.value, out) : 0, right);
      const incoming = ribbons.filter((ribbon) => ribbon.to === one);
      const rest = known && column.layer !== lowest ? cutOff(one.value, incoming) : 0;
      side(one.id, box, incoming, (ribbon) => boxes.get(ribbon.from.id).y, rest, left);
    }
  }
  const top = ribbons.filter((ribbon) => !ribbon.to);
  side("class", boxes.get("class"), top, (ribbon) => boxes.get(ribbon.from.id).y, cutOff(target.logit, top), left);
  return { left, right };
}

export function ribbonShape(ribbon, sides, { boxes, bar }) {
  const upper = ribbon.to ? ribbon.to.id : "class";
  const from = sides.right.get(ribbon.from.id)[ribbon.key];
  const to = sides.left.get(upper)[ribbon.key];
  const through = ribbon.to ? `${label(ribbon.to)} of layer ${ribbon.to.layer}` : "the class";
  return draw(
    "path",
    {
      class: `ribbon ${ribbon.value < 0 ? "against" : "for"}`,
      d: band(boxes.get(ribbon.from.id).x + bar, from, boxes.get(upper).x, to),
      "data-key": ribbon.key,
      "data-from": ribbon.from.id,
      "data-to": upper,
      "data-value": ribbon.value,
    },
    draw("title", `${signed(ribbon.value)}: ${label(ribbon.from)} of layer ${ribbon.from.layer} through ${through}`),
  );
}

/** What the deepest layer gets from the pixels and from the bias of the layers below. */
export function imageSide(columns, path, { boxes, bar, tall, at }) {
  const group = draw("g");
  const x = at(-1);
  group.append(heading(x, ["image", path.model ? null : "not in the files"]));
  if (!path.model || !columns.length) return group;
  const deepest = sum(columns[0].nodes.map((one) => one.value));
  const parts = [
    ["pixels", path.model.attribution_sum],
    ["bias", path.model.bias],
    ["skips", deepest - path.model.score],
  ].filter(
    ([name, value]) =>
      Number.isFinite(value) && (name === "pixels" || Math.abs(value) > 1e-4 * Math.abs(path.model.score)),
  );
  const gross = sum(parts.map(([, value]) => Math.abs(value))) || 1;
  const rows = columns[0].nodes.map((one) => boxes.get(one.id));
  const end = { x: rows[0].x - 9, top: rows[0].y, bottom: rows.at(-1).y + rows.at(-1).height };
  const free = tall - 26 * (parts.length - 1);
  let y = TOP;
  let into = end.top;
  for (const [name, value] of parts) {
    const height = Math.max(2, (free * Math.abs(value)) / gross);
    const part = ((end.bottom - end.top) * Math.abs(value)) / gross;
    const kind = `${value < 0 ? "against" : "for"} ${name === "pixels" ? "" : "constant"}`;
    group.append(
      draw("path", {
        class: `band ${kind}`,
        d: band(x + bar, [y, y + height], end.x, [into, into + part]),
        "data-part": name,
        "data-value": value,
      }),
      draw("rect", { class: `box ${kind}`, x, y, width: bar, height, rx: Math.min(3, height / 2) }),
      draw("text.name", { x: x + bar + 5, y: y + height / 2 + 4 }, `${name} ${signed(value, 3)}`),
    );
    y += height + 26;
    into += part;
  }
  group.append(draw("line.brace", { x1: end.x, x2: end.x, y1: end.top, y2: end.bottom }));
  return group;
}

/** What a bar gets from elsewhere than the path. */
export function cutShape({ top, bottom, value }, { x }, { narrow }) {
  const width = narrow ? 8 : 22;
  const place = { x: x - width, y: top, width, height: Math.max(0.5, bottom - top) };
  const words = `${signed(value)} from biases, units that were not kept, and ribbons too weak to list`;
  return draw("rect.cut", { ...place, "data-cut": value, fill: "url(#hatched)" }, draw("title", words));
}

/** The class: what the path brings to it, and how much of its logit does not come from the path. */
export function classSide(target, sides, places) {
  const { boxes, bar, tall, narrow } = places;
  const { x, y, height } = boxes.get("class");
  const end = x + bar;
  const group = draw("g.whole", { "data-id": "class" });
  const name = draw("text", { x: end, y: 32 }, draw("title", target.label), fitting(target.label, narrow ? 9 : 16));
  group.append(draw("g.head.end", draw("text.strong", { x: end, y: 16 }, "class"), name));
  const rest = sides.left.get("class").rest;
  if (rest) group.append(cutShape(rest, { x }, places));
  const logit = `${narrow ? "" : target.name === "the logit" ? "logit " : "Δ logit "}${number(target.logit, 3)}`;
  group.append(
    draw("rect", { class: `box ${target.logit < 0 ? "against" : "for"}`, x, y, width: bar, height, rx: 3 }),
    draw(
      "g.foot.end",
      draw("text.strong", { x: end, y: TOP + tall + 20 }, logit),
      rest && !narrow ? draw("text", { x: end, y: TOP + tall + 36 }, `${number(rest.value, 3)} not by the path`) : null,
    ),
  );
  return group;
}

/** What a node looks like: where its channel mattered most in other images, or the patch of this one that it looks at. */
export function pictureShape(one, box, { bar, picture }) {
  const place = { x: box.x + bar + 3, y: box.top + (box.row - picture) / 2, width: picture, height: picture };
  const unit = one.units[0];
  const crop = DATA.references[channelKey(unit.name, unit.channel)]?.crops[0];
  if (crop) return draw("image.picture", { ...place, href: crop.src, preserveAspectRatio: "xMidYMid slice" });
  const patch = DATA.photo && patchOf(one.units);
  if (!patch) return null;
  const inner = draw("use", { href: "#photo" });
  return draw("svg.picture", { ...place, viewBox: patch.join(" ") }, inner);
}

/** The part of the photo that the strongest of some units looks at, [x, y, width, height].
 *
 *  It lies in the middle of the unit's receptive field, and is no more than a third of the input. */
function patchOf(units) {
  const unit = units.reduce((best, one) => (Math.abs(one.contribution) > Math.abs(best.contribution) ? one : best));
  if (unit.receptive_field.length !== 4 || !unit.centre) return null;
  const [wide, high] = DATA.input;
  const [a, b, c, d] = unit.receptive_field;
  const side = Math.min(c - a, d - b, Math.min(wide, high) / 3);
  const inside = (middle, most) => Math.max(0, Math.min(most - side, middle - side / 2));
  const [x, y] = unit.centre;
  const [left, top, right, bottom] = DATA.region;
  const across = (right - left) / wide;
  const down = (bottom - top) / high;
  return [left + across * inside(x, wide), top + down * inside(y, high), side * across, side * down];
}

/** Lines at the top of a column. */
export function heading(x, lines) {
  return draw(
    "g.head",
    lines.map((line, row) => line && draw("text", { x, y: [16, 32, 47][row], class: row ? "" : "strong" }, line)),
  );
}

/** The names of columns without what all of them share, so that what tells them apart fits. */
export function columnNames(columns) {
  const names = columns.map((column) => column.tensors.map((tensor) => tensor.name));
  const all = [...new Set(names.flat())];
  const words = all.map((name) => name.split(/(?<=[._])/));
  const shared = (side) => {
    let count = 0;
    const word = (list) => (side < 0 ? list.at(-1 - count) : list[count]);
    while (all.length > 1 && words.every((list) => list.length > count + 1 && word(list) === word(words[0])))
      count += 1;
    return sum(Array.from({ length: count }, (_, at) => (side < 0 ? words[0].at(-1 - at) : words[0][at]).length));
  };
  const [head, tail] = [shared(1), shared(-1)];
  const cut = (name, start) => name.slice(start, name.length - tail).replace(/[._]$/, "");
  const noun = /[^._]*[._]$/.exec(all[0]?.slice(0, head))?.[0].length ?? 0;
  const start = all.every((name) => /^\d+$/.test(cut(name, head))) ? head - noun : head; // a bare number keeps its noun
  return names.map((own) => {
    const short = own.map((name) => cut(name, start));
    return [short[0] ?? "", short.length > 1 ? ` +${short.length - 1}` : ""];
  });
}

export function fitting(name, most) {
  return name.length > most ? `${name.slice(0, Math.max(1, most - 1))}…` : name;
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
  const given = nameOf(unit.name, unit.channel);
  if (one.kind === "channel") return `${given || unit.channel} ×${one.units.length}`;
  return `${given} [${unit.index.join(",")}]`.trim();
}

/** The second line of a node: what its channel looks for, where that is known, or what it contributes. */
export function underLabel(one) {
  const unit = one.units[0];
  return (unit && DATA.references[channelKey(unit.name, unit.channel)]?.words) || signed(one.value, 3);
}

export function spoken(one, target) {
  const amount = `${signed(one.value)} for ${target.label}`;
  if (one.kind === "unlisted")
    return `${counted(one.count, "unit")} of layer ${one.layer} that this page does not list, ${amount}`;
  if (one.kind === "more") return `${counted(one.units.length, "weaker unit")} of layer ${one.layer}, ${amount}; opens`;
  if (one.kind === "channel")
    return `Channel ${one.units[0].channel} of ${one.units[0].name}, layer ${one.layer}, ${counted(one.units.length, "unit")}, ${amount}`;
  return `Unit ${unitName(one.units[0])}, layer ${one.layer}, ${amount}`;
}
