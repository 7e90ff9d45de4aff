// The gallery of many explanations: search, sort, filter, a confusion matrix, and a list that draws only what is in view.

import {
  DATA,
  announce,
  card,
  choice,
  counted,
  make,
  percent,
  remarks,
  rowHead,
  saveFile,
  shadedCell,
  tableOf,
  text,
} from "./dom.js";

const GAP = 14;
const HIGH = 322; // of a tile, with the gap below
const MOST_CLASSES = 24;
const fall = (row) => (row.removal ? row.removal.before - row.removal.after : null);
const SORTS = {
  first: ["Wrong first", (row) => [row.error ? 1 : row.wrong ? 0 : 2, row.at]],
  falls: ["Falls most without its path", (row) => [-(fall(row) ?? -Infinity)]],
  stays: ["Falls least without its path", (row) => [fall(row) ?? Infinity]],
  low: ["Least probable", (row) => [row.probability ?? Infinity]],
  high: ["Most probable", (row) => [-(row.probability ?? -1)]],
  margin: ["Closest call", (row) => [row.margin ?? Infinity]],
  file: ["File name", (row) => [row.file]],
};
const rows = DATA.rows.map((row, at) => ({
  ...row,
  at,
  words: [row.file, row.truth, row.predicted, row.error].join(" ").toLowerCase(),
}));
const state = { words: "", sort: "first", truth: "", predicted: "", show: "all", list: rows };

const status = make("p.told", { role: "status" });
const inner = make("div.tiles-inner", { role: "list", "aria-label": "Images" });
const view = make("div", inner);

function filtered() {
  const fits = (row) =>
    (!state.words || row.words.includes(state.words)) &&
    (!state.truth || row.truth === state.truth) &&
    (!state.predicted || row.predicted === state.predicted) &&
    (state.show === "all" ||
      (state.show === "wrong" && row.wrong) ||
      (state.show === "right" && !row.error && row.truth && !row.wrong) ||
      (state.show === "failed" && row.error));
  const key = SORTS[state.sort][1];
  const keyed = rows.filter(fits).map((row) => [key(row), row]);
  keyed.sort(([one], [other]) => {
    for (let at = 0; at < one.length; at += 1) if (one[at] !== other[at]) return one[at] < other[at] ? -1 : 1;
    return 0;
  });
  return keyed.map(([, row]) => row);
}

function update() {
  state.list = filtered();
  const wrong = state.list.filter((row) => row.wrong).length;
  const failed = state.list.filter((row) => row.error).length;
  status.textContent = `${counted(state.list.length, "image")} of ${rows.length.toLocaleString("en")}${wrong ? `, ${wrong} predicted wrong` : ""}${failed ? `, ${failed} failed` : ""}`;
  announce(status.textContent);
  paintView();
}

function columnsThatFit() {
  const least = view.clientWidth < 500 ? 150 : 210;
  return Math.max(1, Math.floor((view.clientWidth + GAP) / (least + GAP)));
}

/** Only the rows of tiles in view, and a few beyond, are in the page. */
function paintView() {
  const across = columnsThatFit();
  const lines = Math.ceil(state.list.length / across);
  inner.style.height = `${lines * HIGH}px`;
  const top = Math.max(0, -view.getBoundingClientRect().top);
  const first = Math.max(0, Math.floor(top / HIGH) - 2) * across;
  const last = Math.min(state.list.length, (Math.floor(top / HIGH) + Math.ceil(innerHeight / HIGH) + 3) * across);
  const focused = document.activeElement?.dataset?.at;
  const wide = (view.clientWidth - GAP * (across - 1)) / across;
  const tiles = [];
  for (let at = first; at < last; at += 1) {
    const one = tile(state.list[at], at);
    one.style.transform = `translate(${(at % across) * (wide + GAP)}px, ${Math.floor(at / across) * HIGH}px)`;
    one.style.width = `${wide}px`;
    tiles.push(one);
  }
  inner.replaceChildren(...tiles);
  if (focused !== undefined) inner.querySelector(`[data-at="${Number(focused)}"]`)?.focus({ preventScroll: true });
}

function tile(row, at) {
  const item = {
    class: `tile ${row.error ? "failed" : row.wrong ? "wrong" : ""}`,
    role: "listitem",
    "aria-setsize": state.list.length,
    "aria-posinset": at + 1,
  };
  const name = row.file.split(/[\\/]/).slice(-2).join("/");
  if (row.error)
    return make(
      "div",
      item,
      make("div.blank", "failed"),
      make("div.caption", { tabindex: "0", "data-at": at }, make("b", text(name)), make("span", text(row.error))),
    );
  const picture = row.thumbnail
    ? make("img", { src: row.thumbnail, alt: "", decoding: "async" })
    : make("div.blank", "no photo");
  const { removal } = row;
  const line = (tag, name, share) =>
    make(tag, { class: "pair" }, make("span", name), make("span.amount", percent(share)));
  return make(
    "div",
    item,
    make(
      "a",
      { href: row.page, "data-at": at },
      picture,
      make(
        "div.caption",
        line("b", text(row.predicted ?? row.target), row.probability),
        row.truth ? make("span.truth", row.wrong ? ["✗ is ", text(row.truth)] : "✓ as labelled") : null,
        removal ? line("div", "without path", removal.after) : null,
        removal ? line("div", "at random", removal.at_random) : null,
        make("span.quiet", text(name)),
      ),
    ),
  );
}

function step(event) {
  const at = Number(event.target.dataset?.at ?? -1);
  const ways = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columnsThatFit(), ArrowUp: -columnsThatFit() };
  if (!(event.key in ways) || event.target.closest("input, select, button")) return;
  event.preventDefault();
  const next = at < 0 ? 0 : Math.max(0, Math.min(state.list.length - 1, at + ways[event.key]));
  const top = view.getBoundingClientRect().top + Math.floor(next / columnsThatFit()) * HIGH;
  if (top < 0 || top + HIGH > innerHeight) scrollBy(0, top - (innerHeight - HIGH) / 2);
  paintView();
  inner.querySelector(`[data-at="${next}"]`)?.focus({ preventScroll: true });
}

const selects = new Map();

/** A list to choose from, as a part of the state; nothing where there is no choice. */
function select(name, key, options) {
  if (options.length < 2) return null;
  const element = make(
    "select",
    { "aria-label": name, change: () => set({ [key]: element.value }) },
    options.map(([value, label]) => make("option", { value }, label)),
  );
  selects.set(key, element);
  return make("label.field-label", make("span", name), element);
}

function classesOf(key) {
  const names = [...new Set(rows.map((row) => row[key]).filter(Boolean))].sort();
  return [["", "all"], ...names.map((name) => [name, name])];
}

function set(changes) {
  Object.assign(state, changes);
  for (const [key, element] of selects) element.value = state[key];
  update();
}

function controls() {
  const search = make("input", {
    type: "search",
    placeholder: "file or class",
    input: () => set({ words: search.value.trim().toLowerCase() }),
  });
  const known = { margin: "margin", falls: "removal", stays: "removal" };
  const sorts = Object.keys(SORTS).filter((key) => !known[key] || rows.some((row) => row[known[key]] != null));
  const labelled = rows.some((row) => row.truth);
  const failed = rows.some((row) => row.error);
  const shows = ["all", ...(labelled ? ["wrong", "right"] : []), ...(failed ? ["failed"] : [])];
  return make(
    "div.controls",
    make("label.field-label", make("span", "Search"), search),
    select(
      "Sort",
      "sort",
      sorts.map((key) => [key, SORTS[key][0]]),
    ),
    select("Labelled", "truth", classesOf("truth")),
    select("Predicted", "predicted", classesOf("predicted")),
    shows.length > 1
      ? choice(
          "Show",
          shows.map((one) => [one, one]),
          "all",
          (show) => set({ show }),
        )
      : null,
    make("button", { click: table }, "Save as CSV"),
  );
}

/** What is shown, as a file. Text that a spreadsheet would take for a formula is marked as text. */
function table() {
  const keys = ["file", "truth", "predicted", "probability", "margin", "wrong", "error", "page"];
  const removals = ["before", "after", "at_random"];
  const cell = (value) => {
    const plain = value === null || value === undefined ? "" : String(value);
    return `"${(typeof value === "string" && /^[=+\-@\t\r＝＋－＠]/.test(plain) ? `'${plain}` : plain).replaceAll('"', '""')}"`;
  };
  const cells = (row) => [...keys.map((key) => row[key]), ...removals.map((key) => row.removal?.[key])];
  const lines = [[...keys, ...removals].join(","), ...state.list.map((row) => cells(row).map(cell).join(","))];
  saveFile("pathx.csv", "text/csv", `${lines.join("\r\n")}\r\n`);
}

/** Labels against predictions; the classes that are confused most, where there are many. */
function confusion() {
  const known = rows.filter((row) => row.truth && row.predicted);
  if (!known.length) return null;
  const counts = new Map();
  const busy = new Map();
  for (const { truth, predicted } of known) {
    const key = JSON.stringify([truth, predicted]);
    counts.set(key, (counts.get(key) ?? 0) + 1);
    for (const name of new Set([truth, predicted]))
      busy.set(name, (busy.get(name) ?? 0) + (truth === predicted ? 0.001 : 1));
  }
  const classes = [...busy]
    .sort(([, one], [, other]) => other - one)
    .slice(0, MOST_CLASSES)
    .map(([name]) => name)
    .sort();
  const most = Math.max(...counts.values());
  const cell = (truth, predicted) => {
    const count = counts.get(JSON.stringify([truth, predicted])) ?? 0;
    if (!count) return make("td");
    const words = `${counted(count, "image")} labelled ${truth} and predicted ${predicted}`;
    const filter = () => set({ truth, predicted, show: "all" });
    return shadedCell(count / most, truth === predicted ? "right" : "wrong", words, String(count), filter);
  };
  const right = known.filter((row) => !row.wrong).length;
  const hidden = busy.size - classes.length;
  return make(
    "details.card",
    make(
      "summary",
      `Labels and predictions: ${percent(right / known.length)} of ${counted(known.length, "image")} as labelled`,
    ),
    hidden > 0
      ? make("p.quiet", `The ${classes.length} classes that are confused most; ${hidden} more are not in the table.`)
      : null,
    tableOf(
      "table.confusion",
      "Confusion matrix",
      ["labelled ↓ predicted →", ...classes.map(text)],
      classes.map((truth) => [rowHead(text(truth)), ...classes.map((predicted) => cell(truth, predicted))]),
    ),
    make("button", { click: () => set({ truth: "", predicted: "" }) }, "Show all classes"),
  );
}

document.addEventListener("keydown", step);
addEventListener("scroll", () => requestAnimationFrame(paintView), { passive: true });
addEventListener("resize", paintView);

document.body.append(
  make(
    "header.top",
    make("p.over", "pathx report"),
    make("h1", counted(rows.length, "image")),
    DATA.links.length
      ? make(
          "nav",
          { "aria-label": "Other pages" },
          DATA.links.map((one) => make("a", { href: one.page }, text(one.title))),
        )
      : null,
    remarks(DATA.notes),
  ),
  make("main.plain", confusion(), card("section", "Images", controls(), status, view)),
  make("footer", "This report needs no network and sends nothing. Arrow keys move among the images, Enter opens one."),
);
update();
