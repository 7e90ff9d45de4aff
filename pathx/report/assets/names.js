// Names that a person gives to channels: kept by this browser, saved as names.json, shown everywhere.

import { DATA, announce, channelKey, make, saveFile } from "./dom.js";

const PLACE = `pathx-names-${DATA.model?.sha256 ?? ""}`;
const given = { ...DATA.names, ...kept() };

function kept() {
  try {
    return JSON.parse(localStorage.getItem(PLACE) ?? "{}");
  } catch {
    return {}; // a page in a notebook's frame keeps nothing
  }
}

/** The name of a channel, or nothing. */
export function nameOf(tensor, channel) {
  return given[channelKey(tensor, channel)] ?? "";
}

/** A field for the name of a channel; `changed()` hears of a new one. */
export function nameField(tensor, channel, changed = () => {}) {
  const input = make("input.naming", {
    type: "text",
    maxlength: 80,
    placeholder: "your name for it",
    "aria-label": `Your name for channel ${channel} of ${tensor}`,
    change: () => {
      given[channelKey(tensor, channel)] = input.value.trim();
      try {
        localStorage.setItem(PLACE, JSON.stringify(given));
      } catch {
        // only in this page, then
      }
      announce(input.value ? "Named." : "The name is gone.");
      changed();
    },
  });
  input.value = nameOf(tensor, channel);
  return input;
}

/** Saves all names as a file that pathx reads. */
export function namesButton() {
  const save = () => {
    const names = Object.fromEntries(Object.entries(given).filter(([, name]) => name));
    const document = { schema: "pathx/names@1", model: DATA.model, names };
    saveFile("names.json", "application/json", `${JSON.stringify(document, null, 2)}\n`);
  };
  const hint =
    "Names stay in this browser. To keep them, put names.json beside the results: pathx then shows them everywhere.";
  return make("p.quiet", make("button", { click: save }, "Save names.json"), " ", hint);
}
