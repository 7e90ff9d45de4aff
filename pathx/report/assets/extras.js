// What else there is of an explanation: features of its decomposition, contrasts, and the verdict of a check.

import { DATA, card, make, number, percent, scrolling, signed, tableOf, text } from "./dom.js";

/** A card for everything that the results hold. */
export function extras() {
  return [features(), ...DATA.contrasts.map(contrast), verdict()].filter(Boolean);
}

function features() {
  const made = DATA.features;
  if (!made) return null;
  const items = made.items.map((feature) =>
    make(
      "li",
      { class: "feature" },
      feature.src ? make("img", { src: feature.src, alt: `Where feature ${feature.feature} looks` }) : null,
      make("b", {}, `Feature ${feature.feature}`),
      make("span", {}, text(feature.name)),
      make(
        "span",
        {},
        `score ${signed(feature.score, 3)}${feature.share === null ? "" : `, ${percent(feature.share)}`}`,
      ),
    ),
  );
  return card(
    "Its features",
    {},
    make("p", {}, `Taken apart at layer ${made.layer}: ${made.reason}.`),
    make("ul", { class: "features" }, items),
  );
}

function contrast(made) {
  const rows = made.pairs.map((pair) => [pair.label, signed(pair.logit), signed(pair.score), number(pair.overlap, 2)]);
  const head = ["against", "logits differ by", "paths differ by", "overlap"];
  return card(
    "Against other classes",
    {},
    made.reason ? make("p", {}, text(made.reason)) : null,
    made.src
      ? make("img", { class: "sheet", src: made.src, alt: `The paths of ${made.labels.join(", ")} side by side` })
      : null,
    scrolling("Contrasts", tableOf({}, head, rows.map((cells) => cells.map(text)))),
  );
}

function verdict() {
  const found = DATA.check;
  if (!found) return null;
  const words = { true: "good", false: "bad", null: "noted" };
  return card(
    "Can it be trusted?",
    {},
    make(
      "p",
      {},
      found.passed ? "All checks of this model on this image passed." : "A check failed: do not trust the explanation.",
    ),
    make(
      "dl",
      { class: "findings" },
      found.findings.map((one) =>
        make(
          "div",
          { class: words[one.passed] },
          make("dt", {}, text(one.name), " ", make("b", {}, words[one.passed])),
          make("dd", {}, text(one.verdict)),
        ),
      ),
    ),
  );
}
