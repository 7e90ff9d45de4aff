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
  scrolling,
  shadedCell,
  tableOf,
  text,
} from "./dom.js";
import { crops } from "./detail.js";

const MEASURES = { insertion: "insertion ↑", deletion: "deletion ↓", difference: "insertion minus deletion ↑" };
const made = DATA.document;
const state = { measure: "insertion", method: null, layer: null };
const place = make("div", { class: "path" });

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
    "header",
    { class: "top" },
    make("p", { class: "over" }, text(facts.filter(Boolean).join(" · "))),
    make("h1", {}, text(DATA.title)),
    remarks(notes),
  );
}

/** Methods, or cells of a grid, that have a figure. */
function items(measure) {
  const cells = (made.grid ?? []).map((cell) => [`depth ${cell.depth}, width ${cell.width}`, cell]);
  return [...cells, ...Object.entries(made.methods ?? {})]
    .filter(([, figures]) => figures[measure])
    .map(([key, figures]) => ({ key, ...figures[measure] }));
}

function measured() {
  const known = Object.entries(MEASURES).filter(([measure]) => items(measure).length);
  if (!known.length) return [make("p", {}, "There are no figures in this file.")];
  const best = [...items(state.measure)].sort((one, other) =>
    state.measure === "deletion" ? one.mean - other.mean : other.mean - one.mean,
  );
  return [
    card(
      "The figures",
      {},
      choice("Measure", known, state.measure, (measure) => update({ measure })),
      scrolling("Means and intervals", intervals(best)),
    ),
    ...images(),
  ];
}

/** A row per item: a button that chooses it, and its mean with its interval, in words and as a bar. */
function intervals(items) {
  const low = Math.min(0, ...items.map((item) => item.low));
  const high = Math.max(...items.map((item) => item.high), 1e-9);
  const place = (value) => `${(100 * (value - low)) / (high - low)}%`;
  const rows = items.map((item) => {
    const dot = make("span", { class: "dot" });
    const line = make("span", { class: "whisker" });
    dot.style.left = place(item.mean);
    line.style.left = place(item.low);
    line.style.right = place(low + high - item.high);
    const pressed = String(item.key === state.method);
    const choose = () => update({ method: item.key });
    return [
      rowHead(
        make("button", { type: "button", class: "link", "aria-pressed": pressed, click: choose }, text(item.key)),
      ),
      make("td", { class: "figure" }, `${number(item.mean, 3)} (${number(item.low, 3)} to ${number(item.high, 3)})`),
      make("td", { class: "track", "aria-hidden": "true" }, make("span", { class: "rail" }, line, dot)),
    ];
  });
  return tableOf({ class: "intervals" }, ["", "mean (95 %)", ""], rows);
}

/** The images behind a mean, from the best to the worst. */
function images() {
  const rows = DATA.rows
    .filter((row) => row.method === state.method)
    .map((row) => ({
      ...row,
      difference: row.insertion === null || row.deletion === null ? null : row.insertion - row.deletion,
    }));
  const known = rows
    .filter((row) => row[state.measure] !== null)
    .sort((one, other) => other[state.measure] - one[state.measure]);
  if (!known.length) return [];
  const tiles = known
    .slice(0, 400)
    .map((row) =>
      make(
        "li",
        {},
        DATA.thumbnails[row.image] ? make("img", { src: DATA.thumbnails[row.image], alt: "" }) : null,
        make("b", {}, number(row[state.measure], 3)),
        make("span", {}, text(row.predicted)),
        make("span", { class: "quiet" }, text(row.image.split(/[\\/]/).pop())),
      ),
    );
  return [
    card(
      `Image by image: ${state.method}`,
      {},
      make(
        "p",
        { class: "quiet" },
        `${counted(known.length, "image")}, from the highest ${state.measure} to the lowest.`,
      ),
      make("ul", { class: "strip", tabindex: "0", "aria-label": "Images" }, tiles),
    ),
  ];
}

/** Which share of a class's images has each channel on its path. */
function common() {
  const layers = (made.layers ?? []).map((one) => [one.layer, `layer ${one.layer}`]);
  if (!layers.length) return [make("p", {}, "There are no classes in this file.")];
  state.layer ??= layers[0][0];
  const shares = new Map();
  for (const one of made.classes) {
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
  const told = make("div", { class: "told", role: "status" }, "Choose a cell to see the units behind it.");
  const cell = (name, byClass, label) => {
    const share = byClass.get(label);
    if (!share) return make("td", {});
    const words = `${percent(share)} of ${label} have ${name} on their path`;
    const tell = () => told.replaceChildren(...behind(name, label).filter(Boolean));
    return shadedCell(share, "right", words, percent(share), tell);
  };
  const table = tableOf(
    { class: "confusion" },
    ["channel", ...made.classes.map((one) => text(one.label))],
    strongest.map(([name, byClass]) => [
      rowHead(text(name)),
      ...made.classes.map((one) => cell(name, byClass, one.label)),
    ]),
  );
  return [
    card(
      "Classes and channels",
      {},
      layers.length > 1 ? choice("Layer", layers, state.layer, (layer) => update({ layer })) : null,
      make(
        "p",
        { class: "quiet" },
        `The ${strongest.length} channels that most images of a class share, and the share of images whose path holds them.`,
      ),
      scrolling("Classes and channels", table),
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
  make("main", { class: "plain" }, place),
  make("footer", {}, "This page needs no network and sends nothing."),
);
state.method = Object.keys(made.methods ?? {})[0] ?? items("insertion")[0]?.key ?? null;
update({});
