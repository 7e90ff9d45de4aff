// What else there is of an explanation: features of its decomposition, contrasts, and the verdict of a check.

import { DATA, card, channelKey, counted, make, number, percent, signed, tableOf, text } from "./dom.js";
import { nameOf } from "./names.js";

/** A card for everything else that the results hold. */
export function extras() {
  return [...DATA.contrasts.map(contrast), verdict()].filter(Boolean);
}

/** The features of a decomposition, groups of units that look at the same spot; `go(tensor, index)` leads to a unit of the flow. */
export function features(go) {
  if (!DATA.features) return [];
  const { layer, items } = DATA.features;
  const drawn = items.filter((one) => one.drawn);
  const rest = items.filter((one) => !one.drawn);
  const left = rest.reduce((sum, one) => sum + (one.share ?? 0), 0);
  return [
    card(
      "section",
      "Its features",
      make(
        "p.told",
        `Units of layer ${layer} that look at the same spot, by their share of what the layer sends to the class; all maps in one scale.`,
      ),
      make(
        "ul.features",
        drawn.map((one) => featureItem(one, go)),
      ),
      rest.length
        ? make("p.quiet", `Not drawn: ${counted(rest.length, "weaker feature")} with ${percent(left)}.`)
        : null,
    ),
  ];
}

function featureItem(one, go) {
  const unit = ([channel, ...place]) => `channel ${channel}${place.length ? ` at ${place.join(", ")}` : ""}`;
  const channels = one.channels.slice(0, 3).map(({ tensor, channel, units }) => {
    const words = DATA.references[channelKey(tensor, channel)]?.words;
    const name = nameOf(tensor, channel) || `channel ${channel}`;
    return make("li", text(`${name} ×${units}`), words ? make("span.quiet", " ", text(words)) : null);
  });
  const units = one.units.map(([tensor, index, contribution]) =>
    make(
      "li.pair",
      make("button.link", { title: tensor, click: () => go(tensor, index) }, unit(index)),
      make("span.amount", signed(contribution, 3)),
    ),
  );
  return make(
    "li.feature",
    { "data-feature": one.feature },
    one.picture ? make("img.overlay", { src: one.picture, alt: "" }) : null,
    make("b.pair", make("span", `Feature ${one.feature}`), make("span", percent(one.share))),
    make("ul", channels),
    one.channels.length > 3 ? make("span.quiet", `and ${counted(one.channels.length - 3, "channel")} more`) : null,
    make("details", make("summary", counted(one.units.length, "unit")), make("ul", units)),
  );
}

function contrast(made) {
  const rows = made.pairs.map((pair) => [pair.label, signed(pair.logit), signed(pair.score), number(pair.overlap, 2)]);
  const head = ["against", "logits differ by", "paths differ by", "overlap"];
  return card(
    "section",
    "Against other classes",
    made.reason ? make("p", text(made.reason)) : null,
    made.src ? make("img.sheet", { src: made.src, alt: `The paths of ${made.labels.join(", ")} side by side` }) : null,
    tableOf(
      "table",
      "Contrasts",
      head,
      rows.map((cells) => cells.map(text)),
    ),
  );
}

function verdict() {
  const found = DATA.check;
  if (!found) return null;
  const words = { true: "good", false: "bad", null: "noted" };
  return card(
    "section",
    "Can it be trusted?",
    make(
      "p",
      found.passed ? "All checks of this model on this image passed." : "A check failed: do not trust the explanation.",
    ),
    make(
      "dl.findings",
      found.findings.map((one) =>
        make(
          "div",
          { class: words[one.passed] },
          make("dt", text(one.name), " ", make("b", words[one.passed])),
          make("dd", text(one.verdict)),
        ),
      ),
    ),
  );
}
