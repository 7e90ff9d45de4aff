// Pages of evaluations, grids and common units.

import { DATA, card, choice, counted, make, number, percent, remarks, rowHead, tableOf, text } from "./dom.js";
import { curves, intervals } from "./charts.js";
import { crops } from "./detail.js";

const MEASURES = { insertion: "insertion ↑", deletion: "deletion ↓", difference: "insertion minus deletion ↑" };
const made = DATA.document;
const state = { measure: "insertion", method: null, layer: null };
const place = make("div", { class: "path" });

function header() {
  const { model = {}, protocol, pictures } = made;
  const facts = [
    DATA.folder,
    pictures === undefined ? null : counted(pictures, "image"),
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
    .map(([key, figures]) => ({ key, label: key, ...figures[measure] }));
}

function measured() {
  const known = Object.entries(MEASURES).filter(([measure]) => items(measure).length);
  if (!known.length) return [make("p", {}, "There are no figures in this file.")];
  const best = [...items(state.measure)].sort((one, other) =>
    state.measure === "deletion" ? one.mean - other.mean : other.mean - one.mean,
  );
  const table = intervals(best, {
    name: MEASURES[state.measure],
    chosen: state.method,
    choose: (method) => update({ method }),
  });
  return [
    card(
      "The figures",
      {},
      choice("Measure", known, state.measure, (measure) => update({ measure })),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Means and intervals" }, table),
    ),
    made.grid ? card("Against width", {}, gridPlot()) : evaluationPlot(),
    ...images(),
  ];
}

function gridPlot() {
  const depths = [...new Set(made.grid.map((cell) => cell.depth))];
  const widths = [...new Set(made.grid.map((cell) => cell.width))];
  const lines = depths
    .map((depth) => ({
      label: `depth ${depth}`,
      points: made.grid
        .filter((cell) => cell.depth === depth && cell[state.measure])
        .map((cell) => ({ x: widths.indexOf(cell.width), ...cell[state.measure] })),
    }))
    .filter((line) => line.points.length);
  return curves(lines, {
    title: MEASURES[state.measure],
    across: "width",
    up: "",
    ticks: widths.map((width, at) => [at, String(width)]),
  });
}

function evaluationPlot() {
  const plots = ["insertion", "deletion"].map((measure) => {
    const lines = Object.entries(DATA.curves)
      .filter(([, both]) => both[measure])
      .map(([label, both]) => ({
        label,
        points: both[measure].mean.map((mean, at) => ({
          x: at / (both[measure].mean.length - 1),
          mean,
          low: both[measure].low[at],
          high: both[measure].high[at],
        })),
      }));
    return lines.length
      ? curves(lines, {
          title: MEASURES[measure],
          across: "share of the pixels",
          up: "probability",
          ticks: [
            [0, "0"],
            [0.5, "50 %"],
            [1, "100 %"],
          ],
        })
      : null;
  });
  return plots.some(Boolean) ? card("The curves", {}, make("div", { class: "plots" }, plots)) : null;
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
        DATA.thumbnails[row.picture] ? make("img", { src: DATA.thumbnails[row.picture], alt: "" }) : null,
        make("b", {}, number(row[state.measure], 3)),
        make("span", {}, text(row.predicted)),
        make("span", { class: "quiet" }, text(row.picture.split(/[\\/]/).pop())),
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
    const button = make(
      "button",
      {
        type: "button",
        class: "right",
        "aria-label": `${percent(share)} of ${label} have ${name} on their path`,
        click: () => told.replaceChildren(...behind(name, label).filter(Boolean)),
      },
      percent(share),
    );
    button.style.setProperty("--strength", `${10 + 50 * share}%`);
    return make("td", {}, button);
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
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Classes and channels" }, table),
      told,
    ),
    overlapCard(),
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

function overlapCard() {
  const { overlap } = made;
  if (!overlap?.channels) return null;
  const names = overlap.classes;
  const cell = (share) => {
    const box = make("td", {}, make("span", { class: "shade" }, number(share, 2)));
    box.firstChild.style.setProperty("--strength", `${60 * share}%`);
    return box;
  };
  return card(
    "How much classes have in common",
    {},
    make("p", { class: "quiet" }, "1 where two classes use all channels equally often, 0 where they share none."),
    make(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Overlap of classes" },
      tableOf(
        { class: "confusion" },
        [make("th", {}, ""), ...names.map(text)],
        names.map((name, row) => [rowHead(text(name)), ...overlap.channels[row].map(cell)]),
      ),
    ),
  );
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
