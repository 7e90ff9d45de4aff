// Pages of evaluations, grids and common units.

import {
  DATA,
  card,
  choice,
  counted,
  make,
  number,
  percent,
  remarks,
  rowHead,
  shadedCell,
  tableOf,
  text,
} from "./dom.js";
import { crops } from "./detail.js";

const MEASURES = { insertion: "insertion ↑", deletion: "deletion ↓", difference: "insertion minus deletion ↑" };
const made = DATA.document;
const items = [
  ...(made.grid ?? []).map((cell) => [`depth ${cell.depth}, width ${cell.width}`, cell]),
  ...Object.entries(made.methods ?? {}),
];
const state = { method: items[0]?.[0], layer: null };
const place = make("div");

function header() {
  const { model = {}, protocol, images } = made;
  const facts = [
    DATA.folder,
    images === undefined ? null : counted(images, "image"),
    model.name,
    protocol ? `protocol ${protocol}` : null,
    typeof made.accuracy === "number" ? `${percent(made.accuracy)} predicted as labelled` : null,
  ];
  const notes = [
    ...(made.notes ?? []),
    ...Object.entries({ ...(made.unread ?? {}), ...(made.not_run ?? {}) }).map(
      ([name, reason]) => `${name}: ${reason}`,
    ),
  ];
  return make(
    "header.top",
    make("p.over", text(facts.filter(Boolean).join(" · "))),
    make("h1", text(DATA.title)),
    remarks(notes),
  );
}

/** Means with their intervals, the plots beside the file, and the images behind a row. */
function measured() {
  const known = Object.keys(MEASURES).filter((measure) => items.some(([, figures]) => figures[measure]));
  const cell = (one) =>
    one ? make("td.amount", `${number(one.mean, 3)} (${number(one.low, 3)} to ${number(one.high, 3)})`) : "";
  const rows = items.map(([name, figures]) => {
    const pressed = String(name === state.method);
    const choose = { class: "link", "aria-pressed": pressed, click: () => update({ method: name }) };
    return [rowHead(make("button", choose, text(name))), ...known.map((measure) => cell(figures[measure]))];
  });
  return [
    card(
      "section",
      "The figures",
      make("p.quiet", "Means, with 95 % intervals in brackets."),
      tableOf("table", "Means and intervals", ["", ...known.map((key) => MEASURES[key])], rows),
      DATA.plots.map((src) => make("img.sheet", { src, alt: "The same as a plot" })),
    ),
    ...images(),
  ];
}

/** The images behind a mean, from the best to the worst. */
function images() {
  const known = DATA.rows
    .filter((row) => row.method === state.method && row.insertion !== null && row.deletion !== null)
    .map((row) => ({ ...row, difference: row.insertion - row.deletion }))
    .sort((one, other) => other.difference - one.difference);
  if (!known.length) return [];
  const tiles = known
    .slice(0, 400)
    .map((row) =>
      make(
        "li",
        DATA.thumbnails[row.image] ? make("img", { src: DATA.thumbnails[row.image], alt: "" }) : null,
        make("b", number(row.difference, 3)),
        make("span", text(row.predicted)),
        make("span.quiet", text(row.image.split(/[\\/]/).pop())),
      ),
    );
  const told = `${counted(known.length, "image")}, from the highest insertion minus deletion to the lowest.`;
  return [
    card(
      "section",
      `Image by image: ${state.method}`,
      make("p.quiet", told),
      make("ul.strip", { tabindex: "0", "aria-label": "Images" }, tiles),
    ),
  ];
}

/** Which share of a class's images has each channel on its path. */
function common() {
  const layers = (made.layers ?? []).map((one) => [one.layer, `layer ${one.layer}`]);
  const classes = made.classes.filter((one) => !one.too_few);
  if (!layers.length || !classes.length) return [make("p", "No class has enough images to say what they share.")];
  state.layer ??= layers[0][0];
  const shares = new Map();
  for (const one of classes) {
    const layer = one.layers.find((other) => other.layer === state.layer) ?? {};
    for (const entry of layer.channels?.length ? layer.channels : (layer.units ?? [])) {
      const name = `${entry.tensor} ${entry.channel ?? entry.index?.[0]}`;
      if (!shares.has(name)) shares.set(name, new Map());
      shares.get(name).set(one.label, Math.max(entry.share, shares.get(name).get(one.label) ?? 0));
    }
  }
  const strongest = [...shares]
    .sort(([, one], [, other]) => Math.max(...other.values()) - Math.max(...one.values()))
    .slice(0, 24);
  const told = make("div.told", { role: "status" }, "Choose a cell to see the units behind it.");
  const cell = (name, byClass, label) => {
    const share = byClass.get(label);
    if (!share) return make("td");
    const words = `${percent(share)} of ${label} have ${name} on their path`;
    const tell = () => told.replaceChildren(...behind(name, label).filter(Boolean));
    return shadedCell(share, "right", words, percent(share), tell);
  };
  const table = tableOf(
    "table.confusion",
    "Classes and channels",
    ["channel", ...classes.map((one) => text(one.label))],
    strongest.map(([name, byClass]) => [rowHead(text(name)), ...classes.map((one) => cell(name, byClass, one.label))]),
  );
  return [
    card(
      "section",
      "Classes and channels",
      layers.length > 1 ? choice("Layer", layers, state.layer, (layer) => update({ layer })) : null,
      make(
        "p.quiet",
        `The ${strongest.length} channels that most images of a class share, and the share of images whose path holds them.`,
      ),
      table,
      told,
    ),
  ];
}

function behind(name, label) {
  const layer = made.classes.find((one) => one.label === label).layers.find((one) => one.layer === state.layer);
  const units = (layer.units ?? []).filter((unit) => `${unit.tensor} ${unit.index[0]}` === name).slice(0, 12);
  return [
    text(`${label}, ${name}: `),
    text(units.map((unit) => `[${unit.index.join(",")}] ${percent(unit.share)}`).join(", ") || "no unit is listed"),
    crops(...parts(name)),
  ];
}

function parts(name) {
  const at = name.lastIndexOf(" ");
  return [name.slice(0, at), Number(name.slice(at + 1))];
}

function update(changes) {
  Object.assign(state, changes);
  place.replaceChildren(...(DATA.kind === "common" ? common() : measured()).filter(Boolean));
}

document.body.append(
  header(),
  make("main.plain", place),
  make("footer", "This page needs no network and sends nothing."),
);
update({});
