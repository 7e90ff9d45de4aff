// The page of one explanation.

import { DATA, announce, card, counted, make, number, percent, remarks, signed, text } from "./dom.js";
import { facts, makeDetail } from "./detail.js";
import { makeFlow } from "./flow.js";
import { makePhoto } from "./photo.js";
import { namesButton } from "./names.js";
import { sum, unitName, unitsOf } from "./paths.js";
import { effects } from "./effects.js";
import { extras, features } from "./extras.js";

const { path } = DATA;
const units = unitsOf(path);
const photo = makePhoto();
const detail = makeDetail(units, path, {
  go: (id) => flow.reveal(id),
  open: (node) => flow.open(node),
  close: (parent) => flow.close(parent),
  hold: (node) => flow.hold(node),
  renamed: () => flow.redraw(),
});
const flow = makeFlow(DATA.whole, path, units, look);

const EXACT = {
  region: "Exact in a region: the numbers hold for every image around this one that opens the same gates.",
  image: "Exact at this image: gates, norms and attention are held as they are here; around it the numbers differ.",
};

function header() {
  const { target, model } = DATA;
  const place = target.rank === 1 ? "the predicted class" : `rank ${target.rank} of ${model.classes}`;
  return make(
    "header.top",
    navigation(),
    make("p.over", "Why ", make("b", text(DATA.image.file)), " looks to ", make("b", text(model.name)), " like"),
    make("h1", text(DATA.whole.label)),
    make("p.over", `${percent(target.probability)}, ${place}`),
    DATA.others.length
      ? make(
          "nav.others",
          { "aria-label": "Other classes of this image" },
          "Also explained:",
          DATA.others.map(([label, to]) => make("a", { href: to }, text(label))),
        )
      : null,
    DATA.proof ? make("p.proof.card", text(DATA.proof)) : null,
    make("p.quiet", EXACT[model.exact]),
    make(
      "details.again",
      make("summary", "Settings, and the command that makes it again"),
      facts(settings()),
      make("code.command", DATA.command),
    ),
    remarks(DATA.notes),
  );
}

function settings() {
  const { model, target, image } = DATA;
  const { depth, width, alpha, skips, importance } = DATA.settings;
  return [
    ["class", `${target.index} of ${model.classes}`],
    ["depth", `${depth} of ${counted(model.hidden_layers, "layer")}`],
    ["width", `at most ${width} units of a layer`],
    ["the path carries", `${number(path.model.score)} of ${DATA.whole.name} ${number(DATA.whole.logit)}`],
    ["weights", model.weights],
    ["alpha", number(alpha)],
    ["skips", skips],
    ["importance", importance],
    ["image", `${image.width} × ${image.height}`],
    ["made by", DATA.created_by],
  ].map(([name, value]) => [name, text(value)]);
}

function navigation() {
  if (!DATA.around) return null;
  const link = (name, to) =>
    to ? make("a", { href: to, rel: name === "Previous" ? "prev" : "next" }, name) : make("span.off", name);
  return make(
    "nav",
    { "aria-label": "Images of this report" },
    make("a", { href: DATA.around.index }, "All images"),
    link("Previous", DATA.around.previous),
    link("Next", DATA.around.next),
  );
}

function flowCard() {
  const search = make("input", {
    type: "search",
    placeholder: "unit, channel or layer",
    "aria-label": "Search units",
    input: () => found(search.value),
  });
  return card(
    "section.flow",
    "The path",
    make("label.search", search, results),
    make("p.told", told()),
    flow.element,
    make(
      "ul.keys",
      make("li.for", "supports the class"),
      make("li.against", "counts against it"),
      make("li.cut", "cut off: biases, and units that the path does not keep"),
    ),
  );
}
const results = make("ul.results");

function found(words) {
  const wanted = words.trim().toLowerCase();
  results.replaceChildren();
  if (!wanted) return;
  const channel = /^(?:channel )?(\d+)$/.exec(wanted);
  const fits = (unit) =>
    channel
      ? unit.channel === Number(channel[1]) || unit.layer === Number(channel[1])
      : unitName(unit).toLowerCase().includes(wanted) || `layer ${unit.layer}` === wanted;
  const hits = [...units.values()]
    .filter(fits)
    .sort((one, other) => Math.abs(other.contribution) - Math.abs(one.contribution));
  const shown = hits
    .slice(0, 8)
    .map((unit) =>
      make(
        "li",
        make(
          "button.link",
          { click: () => flow.reveal(unit.id) },
          text(unitName(unit)),
          ` ${signed(unit.contribution, 3)}`,
        ),
      ),
    );
  results.replaceChildren(...shown, make("li.quiet", hits.length ? counted(hits.length, "unit") : "nothing found"));
  announce(counted(hits.length, "unit"));
}

function told() {
  const listed = Math.min(...path.layers.map((layer) => layer.edges_share ?? 1));
  const kept = counted(sum(path.layers.map((layer) => layer.kept)), "unit");
  return (
    `${kept} of ${counted(path.layers.length, "layer")}, from the image on the left to the class on the right.` +
    (path.layers.some((layer) => layer.below_alpha)
      ? " * no unit of that layer was above alpha; the best one was kept."
      : "") +
    (listed < 0.995 ? ` The strongest ribbons are drawn, at least ${percent(listed)} of all.` : "")
  );
}

/** Show what is known of a node, and where its units look. */
function look(node, held) {
  detail.show(node, held);
  const strongest = [...(node?.units ?? [])].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution));
  const src = node?.kind === "unit" ? DATA.unit_maps[node.units[0].id] : null;
  const legend = src && `What ${unitName(node.units[0])} saw: gold supports the class, blue counts against it.`;
  photo.fields(strongest, src ? { src, legend } : null);
}

function goTo(tensor, index) {
  const place = index.join();
  const unit = [...units.values()].find((one) => one.name === tensor && one.index.join() === place);
  if (unit) flow.reveal(unit.id);
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
    ...features(goTo),
    make(
      "div.look",
      card("section", "The image", photo.element),
      card("section.detail", "The unit", detail.element, namesButton()),
    ),
    flowCard(),
    ...effects(),
    ...extras(),
  ),
  make("footer", `Made by ${DATA.created_by}. This page needs no network and sends nothing.`),
);
flow.redraw();
