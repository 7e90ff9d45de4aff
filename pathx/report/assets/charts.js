// Charts: means with their intervals, and curves with their bands. Every line has a colour, a dash and a label of its own.

import { draw, make, number } from "./dom.js";

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "5 2", "1 2"];

/** A row per item: its mean, its interval, and a name that is a button. */
export function intervals(items, { name, chosen, choose }) {
  const low = Math.min(0, ...items.map((item) => item.low));
  const high = Math.max(...items.map((item) => item.high), 1e-9);
  const place = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const rows = items.map((item) => {
    const dot = make("span", { class: "dot" });
    const line = make("span", { class: "whisker" });
    dot.style.left = place(item.mean);
    line.style.left = place(item.low);
    line.style.width = `${(100 * (item.high - item.low)) / (high - low)}%`;
    const words = `${number(item.mean, 3)} (${number(item.low, 3)} to ${number(item.high, 3)})`;
    const label = choose
      ? make(
          "button",
          { type: "button", class: "link", "aria-pressed": String(item.key === chosen), click: () => choose(item.key) },
          make("bdi", {}, item.label),
        )
      : make("bdi", {}, item.label);
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, label),
      make("td", { class: "figure" }, words),
      make("td", { class: "track", "aria-hidden": "true" }, make("span", { class: "rail" }, line, dot)),
    );
  });
  return make(
    "table",
    { class: "intervals" },
    make("caption", {}, name),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        ["", "mean (95 %)", ""].map((head) => make("th", { scope: "col" }, head)),
      ),
    ),
    make("tbody", {}, rows),
  );
}

/** Lines over a common axis; each has {label, points: [{x, mean, low, high}]}. */
export function curves(lines, { title, across, up, ticks }) {
  const [width, height, left, bottom] = [640, 300, 44, 40];
  const xs = lines.flatMap((line) => line.points.map((point) => point.x));
  const ys = lines.flatMap((line) => line.points.flatMap((point) => [point.low, point.high]));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [Math.min(0, ...ys), Math.max(...ys, 1e-9)];
  const x = (value) => left + ((width - left - 10) * (value - x0)) / (x1 - x0 || 1);
  const y = (value) => height - bottom - ((height - bottom - 10) * (value - y0)) / (y1 - y0);
  const svg = draw("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `${title}: ${lines.map((line) => `${line.label} ends at ${number(line.points.at(-1).mean, 3)}`).join(", ")}`,
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const value = y0 + part * (y1 - y0);
    svg.append(
      draw("line", { class: "grid", x1: left, x2: width - 10, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, class: "end" }, number(value, 2)),
    );
  }
  for (const [value, label] of ticks)
    svg.append(
      draw(
        "text",
        { x: x(value), y: height - bottom + 18, class: value === x1 && ticks.length > 1 ? "end" : "middle" },
        label,
      ),
    );
  svg.append(draw("text", { x: (left + width) / 2, y: height - 4, class: "middle" }, across));
  lines.forEach((line, at) => {
    const band = [
      ...line.points.map((point) => [x(point.x), y(point.high)]),
      ...[...line.points].reverse().map((point) => [x(point.x), y(point.low)]),
    ];
    svg.append(draw("polygon", { class: `band-${at % 8}`, points: joined(band) }));
    svg.append(
      draw(
        "polyline",
        {
          class: `line-${at % 8}`,
          points: joined(line.points.map((point) => [x(point.x), y(point.mean)])),
          "stroke-dasharray": DASHES[at % DASHES.length],
        },
        draw("title", {}, line.label),
      ),
    );
  });
  const legend = make(
    "ul",
    { class: "key-lines" },
    lines.map((line, at) =>
      make(
        "li",
        {},
        draw(
          "svg",
          { width: 34, height: 10, "aria-hidden": "true" },
          draw("line", {
            class: `line-${at % 8}`,
            x1: 0,
            x2: 34,
            y1: 5,
            y2: 5,
            "stroke-dasharray": DASHES[at % DASHES.length],
          }),
        ),
        make("bdi", {}, line.label),
      ),
    ),
  );
  return make("figure", { class: "plot" }, make("figcaption", {}, up ? `${title}, ${up}` : title), svg, legend);
}

function joined(points) {
  return points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
}
