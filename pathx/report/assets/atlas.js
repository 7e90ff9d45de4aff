// The atlas: the channels of a network by layer, what they look for, and whose paths they are on.

import { DATA, card, channelKey, choice, counted, make, percent, text } from "./dom.js";
import { nameField, nameOf, namesButton } from "./names.js";

const STEP = 60; // channels that are listed at first, and added by a button
const state = { layer: DATA.layers[0]?.layer, words: "", most: STEP };
const list = make("div.atlas");
const status = make("p.told", { role: "status" });

function channelCard({ tensor, one }) {
  const pages = DATA.shown[channelKey(tensor, one.channel)] ?? [];
  const { images, share, classes } = one.paths;
  const paths = images ? `on ${counted(images, "path")}, with ${percent(share)} of the layer` : "on no path";
  const files = pages.length
    ? pages.map(([file, address]) => make("li", make("a", { href: address }, text(file))))
    : one.files.map((file) => make("li", text(file)));
  return make(
    "article.channel",
    { "data-channel": channelKey(tensor, one.channel) },
    make("h3", `channel ${one.channel}`, make("span.quiet", " ", text(tensor))),
    nameField(tensor, one.channel),
    one.crops.length
      ? make(
          "div.crops",
          one.crops.map((crop) =>
            make("img", { src: crop.src, alt: `${crop.label} in ${crop.file}`, loading: "lazy" }),
          ),
        )
      : null,
    make("p", "looks for ", text(one.words)),
    one.specificity === null
      ? null
      : make("p.quiet", `specificity ${percent(one.specificity)}: `, specific(one.specificity)),
    make(
      "p.quiet",
      paths,
      classes.length ? ": " : "",
      text(
        classes
          .slice(0, 4)
          .map((pair) => pair.join(" "))
          .join(", "),
      ),
    ),
    make(
      "details",
      make(
        "summary",
        pages.length ? `on the paths of ${counted(pages.length, "explanation")}` : counted(one.files.length, "image"),
      ),
      make("ul", files),
    ),
  );
}

function specific(share) {
  if (share > 0.999) return "all its references are of one class";
  return share < 0.25 ? "its references are of many classes" : "its references are of a few classes";
}

function update(changes = {}) {
  Object.assign(state, { most: STEP, ...changes });
  const layer = DATA.layers.find((one) => one.layer === state.layer) ?? { tensors: [] };
  const all = layer.tensors.flatMap((tensor) => tensor.channels.map((one) => ({ tensor: tensor.name, one })));
  const said = ({ tensor, one }) =>
    [one.channel, one.words, nameOf(tensor, one.channel), ...one.files].join(" ").toLowerCase();
  const carried = ({ one }) => one.paths.images * one.paths.share;
  const found = all
    .filter((entry) => said(entry).includes(state.words))
    .sort((one, other) => carried(other) - carried(one));
  status.textContent = `${counted(found.length, "channel")} of ${all.length} that were on paths`;
  const more = make("button", { click: () => update({ most: state.most + STEP }) }, "Show more");
  list.replaceChildren(...found.slice(0, state.most).map(channelCard), ...(found.length > state.most ? [more] : []));
}

function controls() {
  const search = make("input", {
    type: "search",
    "aria-label": "Search",
    placeholder: "class, name, number or file",
    input: () => update({ words: search.value.trim().toLowerCase() }),
  });
  const layers = DATA.layers.map((one) => [one.layer, `layer ${one.layer}`]);
  return make(
    "div.controls",
    choice("Layer", layers, state.layer, (layer) => update({ layer })),
    search,
  );
}

document.body.append(
  make(
    "header.top",
    make("p.over", text(`${DATA.model.name} · ${counted(DATA.images, "image")} · by ${DATA.by}`)),
    make("h1", text(DATA.title)),
    namesButton(),
  ),
  make("main.plain", card("section", "Channels", controls(), status, list)),
  make("footer", "This page needs no network and sends nothing."),
);
update();
