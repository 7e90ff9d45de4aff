// The page of one explanation.

import {
  DATA,
  announce,
  card,
  choice,
  copyButton,
  counted,
  make,
  number,
  percent,
  remarks,
  scrolling,
  signed,
  tableOf,
  text,
} from "./dom.js";
import { facts, makeDetail } from "./detail.js";
import { makeFlow } from "./flow.js";
import { makePhoto } from "./photo.js";
import { namesButton } from "./names.js";
import { cutPath, sum, unitName, unitsOf } from "./paths.js";
import { extras } from "./extras.js";

const state = { width: DATA.own.width, depth: DATA.own.depth, path: null, units: new Map(), pinned: [] };
const react = { pin, look, go, renamed: () => flow.redraw() };
const photo = makePhoto();
const flow = makeFlow(DATA.whole, react);
const detail = makeDetail(react);
const told = make("p", { class: "told" });
const table = scrolling("Units of the path");

const EXACT = {
  region: "Exact in a region: the numbers hold for every image around this one that opens the same gates.",
  image: "Exact at this image: gates, norms and attention are held as they are here; around it the numbers differ.",
};

function header() {
  const { target, model } = DATA;
  const place = target.rank === 1 ? "the predicted class" : `rank ${target.rank} of ${model.classes}`;
  return make(
    "header",
    { class: "top" },
    navigation(),
    make(
      "p",
      { class: "over" },
      "Why ",
      make("b", {}, text(DATA.image.file)),
      " looks to ",
      make("b", {}, text(model.name)),
      " like",
    ),
    make("h1", {}, text(DATA.whole.label)),
    make("p", { class: "over" }, `${percent(target.probability)}, ${place}`),
    DATA.others.length
      ? make(
          "nav",
          { class: "others", "aria-label": "Other classes of this image" },
          "Also explained:",
          DATA.others.map(([label, to]) => make("a", { href: to }, text(label))),
        )
      : null,
    proof(),
    make("p", { class: "quiet" }, EXACT[model.exact]),
    make(
      "details",
      { class: "again" },
      make("summary", {}, "Settings, and the command that makes it again"),
      facts(settings()),
      make(
        "div",
        { class: "command" },
        make("code", {}, DATA.command),
        copyButton("Copy", () => DATA.command),
      ),
    ),
    remarks(DATA.notes),
  );
}

/** What becomes of the class in the real network without the path's units, in words and as bars. */
function proof() {
  const { removal } = DATA;
  if (!removal) return null;
  const rows = [
    ["the network as it is", removal.before],
    ["without the path", removal.after],
    ["without as many others", removal.at_random],
  ].filter(([, share]) => typeof share === "number");
  return make(
    "section",
    { class: "proof card", "aria-label": "Proof by removal" },
    make("p", {}, text(DATA.proof)),
    make("dl", { class: "bars" }, rows.map(([name, share]) => bar(name, share))),
  );
}

function bar(name, share) {
  const inner = make("span", {});
  inner.style.width = `${100 * share}%`;
  return make("div", {}, make("dt", {}, name), make("dd", {}, make("span", { class: "rail" }, inner), percent(share)));
}

function settings() {
  const { model, target, image } = DATA;
  const score = ownScore();
  return [
    ["class", `${target.index} of ${model.classes}`],
    ["depth", `${DATA.own.depth} of ${counted(model.hidden_layers, "layer")}`],
    ["width", `at most ${DATA.own.width} units of a layer`],
    ["the path carries", `${number(score)} of ${DATA.whole.name} ${number(DATA.whole.logit)}`],
    ["weights", model.weights],
    ["alpha", number(DATA.alpha)],
    ["skips", DATA.skips],
    ["importance", DATA.importance],
    ["image", `${image.width} × ${image.height}`],
    ["made by", DATA.created_by],
  ].map(([name, value]) => [name, text(value)]);
}

function navigation() {
  if (!DATA.around) return null;
  const link = (name, to) =>
    to
      ? make("a", { href: to, rel: name === "Previous" ? "prev" : "next" }, name)
      : make("span", { class: "off" }, name);
  return make(
    "nav",
    { "aria-label": "Images of this report" },
    make("a", { href: DATA.around.index }, "All images"),
    link("Previous", DATA.around.previous),
    link("Next", DATA.around.next),
  );
}

function ownScore() {
  const path = DATA.paths.find((one) => one.width === DATA.own.width);
  return path.models[DATA.own.depth]?.score ?? NaN;
}

function flowCard() {
  const widths = DATA.paths.map((path) => [path.width, String(path.width)]);
  const most = () => chosen().layers.length;
  const output = make("output", {}, String(state.depth));
  const slider = make("input", {
    type: "range",
    min: 1,
    max: most(),
    step: 1,
    value: state.depth,
    "aria-label": "Depth",
    input: () => grow(Number(slider.value), state.width),
  });
  const grow = (depth, width) => {
    state.width = width;
    slider.max = most();
    state.depth = Math.min(depth, most());
    slider.value = state.depth;
    output.textContent = String(state.depth);
    show();
    announce(`Depth ${state.depth}, width ${state.width}`);
  };
  const search = make("input", {
    type: "search",
    placeholder: "unit, channel or layer",
    "aria-label": "Search units",
    input: () => found(search.value),
  });
  return card(
    "The path",
    { class: "flow" },
    make(
      "div",
      { class: "controls" },
      make("label", { class: "slider" }, make("span", {}, "Depth"), slider, output),
      widths.length > 1 ? choice("Width", widths, state.width, (width) => grow(state.depth, width)) : null,
      choice(
        "Scale",
        [
          [false, "each layer"],
          [true, "the same"],
        ],
        false,
        (same) => flow.scale(same),
      ),
      make("label", { class: "search" }, search, results),
      make("button", { type: "button", class: "quiet", click: () => flow.closeAll() }, "Close channels"),
    ),
    told,
    flow.element,
    widths.length > 1
      ? null
      : make(
          "p",
          { class: "quiet" },
          "The page holds this width only. Explained by itself with --report, the image gets other widths and depths, and what single units saw.",
        ),
    make(
      "ul",
      { class: "keys" },
      make("li", { class: "for" }, "supports the class"),
      make("li", { class: "against" }, "counts against it"),
      make("li", { class: "cut" }, "cut off: biases, and units that the path does not keep"),
    ),
  );
}
const results = make("ul", { class: "results" });

function found(words) {
  const wanted = words.trim().toLowerCase();
  results.replaceChildren();
  if (!wanted) return;
  const channel = /^(?:channel )?(\d+)$/.exec(wanted);
  const fits = (unit) =>
    channel
      ? unit.index[0] === Number(channel[1]) || unit.layer === Number(channel[1])
      : unitName(unit).toLowerCase().includes(wanted) || `layer ${unit.layer}` === wanted;
  const hits = [...state.units.values()]
    .filter(fits)
    .sort((one, other) => Math.abs(other.contribution) - Math.abs(one.contribution));
  const shown = hits
    .slice(0, 8)
    .map((unit) =>
      make(
        "li",
        {},
        make(
          "button",
          { type: "button", class: "link", click: () => go(unit.id) },
          text(unitName(unit)),
          ` ${signed(unit.contribution, 3)}`,
        ),
      ),
    );
  results.replaceChildren(
    ...shown,
    make("li", { class: "quiet" }, hits.length ? counted(hits.length, "unit") : "nothing found"),
  );
  announce(counted(hits.length, "unit"));
}

function chosen() {
  return DATA.paths.find((path) => path.width === state.width) ?? DATA.paths[0];
}

function show() {
  state.path = cutPath(chosen(), state.depth);
  state.units = unitsOf(state.path);
  state.pinned = state.pinned.filter((id) => state.units.has(id));
  const last = state.path.layers.at(-1);
  const deepest = sum(last?.units.map((unit) => unit.contribution) ?? []) + (last?.unlisted ?? 0);
  const listed = Math.min(...state.path.layers.map((layer) => layer.edges_share ?? 1));
  const score = state.path.model?.score ?? deepest;
  told.textContent =
    `${counted(sum(state.path.layers.map((layer) => layer.kept)), "unit")} of ${counted(state.path.layers.length, "layer")} carry ${number(score)} of ${DATA.whole.name} ${number(DATA.whole.logit)}.` +
    (state.path.layers.some((layer) => layer.below_alpha)
      ? " * no unit of that layer was above alpha; the best one was kept."
      : "") +
    (listed < 0.995 ? ` Of the ribbons the strongest are drawn, ${percent(listed)} of all at least.` : "");
  flow.show(state.path, state.units);
  flow.pin(state.pinned);
  photo.show(state.path);
  unitTable();
}

function pin(id) {
  const at = state.pinned.indexOf(id);
  if (at >= 0) state.pinned.splice(at, 1);
  else state.pinned = [...state.pinned.slice(-1), id];
  announce(at >= 0 ? "Unpinned." : `Pinned as ${"AB"[state.pinned.length - 1]}.`);
  flow.pin(state.pinned);
}

function look(node) {
  detail.show(node, state.pinned, state.units, state.path);
  const seen = state.pinned.map((id, at) => ({
    field: state.units.get(id).receptive_field,
    kind: `pinned ${"AB"[at]}`,
    name: "AB"[at],
  }));
  const pointed = node
    ? [
        ...new Map(
          node.units.map((unit) => [
            unit.receptive_field.join(),
            { field: unit.receptive_field, kind: "pointed", name: "" },
          ]),
        ).values(),
      ].slice(0, 12)
    : [];
  const one = node?.kind === "unit" ? node.units[0] : state.units.get(state.pinned.at(-1));
  const map = one && state.width === DATA.own.width ? DATA.unit_maps[one.id] : null;
  photo.fields([...seen, ...pointed], map ? { map, name: unitName(one) } : null);
}

function go(id) {
  flow.reveal(id);
}

function unitTable() {
  const rows = state.path.layers.flatMap((layer) =>
    layer.units.slice(0, 200).map((_, position) => state.units.get(`${layer.layer}:${position}`)),
  );
  const cells = (unit) => [
    String(unit.layer),
    text(unitName(unit)),
    signed(unit.contribution),
    number(unit.activation),
    signed(unit.weight),
    number(unit.importance),
    unit.receptive_field.join(", "),
  ];
  const heads = [
    "layer",
    "unit",
    "contribution",
    "activation",
    "weight",
    "importance",
    "sees (left, top, right, bottom)",
  ];
  table.replaceChildren(tableOf({}, heads, rows.map(cells)));
}

document.addEventListener("keydown", (event) => {
  if (
    !DATA.around ||
    event.altKey ||
    event.ctrlKey ||
    event.metaKey ||
    event.target.closest("input, select, svg, .board")
  )
    return;
  const to = { ArrowLeft: DATA.around.previous, ArrowRight: DATA.around.next, Escape: DATA.around.index }[event.key];
  if (to) location.href = to;
});
addEventListener("resize", () => flow.redraw());

document.body.append(
  header(),
  make(
    "main",
    {},
    make(
      "div",
      { class: "look" },
      card("The image", {}, photo.element),
      card("The unit", { class: "detail" }, detail.element, namesButton()),
    ),
    flowCard(),
    ...extras(),
    make("details", { class: "card" }, make("summary", {}, "The path as a table"), table),
  ),
  make("footer", {}, `Made by ${DATA.created_by}. This page needs no network and sends nothing.`),
);
show();
