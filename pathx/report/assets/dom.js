// Elements and numbers. Text from the data only ever becomes text nodes and attribute values, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The data of this page. */
export const DATA = JSON.parse(document.getElementById("data").textContent);

/** An element with its classes, attributes and children: `make("p.quiet", { id: 3 }, "text")`, `make("ul", items)`.
 *
 *  Attributes that are functions are listeners (`click: …`), null ones are left out. */
export function make(selector, ...parts) {
  return filled((tag) => document.createElement(tag), selector, parts);
}

/** The same for SVG. */
export function draw(selector, ...parts) {
  return filled((tag) => document.createElementNS(SVG, tag), selector, parts);
}

function filled(create, selector, parts) {
  const [tag, ...classes] = selector.split(".");
  const [attributes, children] = parts[0]?.constructor === Object ? [parts[0], parts.slice(1)] : [{}, parts];
  const element = create(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** A table by its name, which keys reach and scroll. Cells are what they hold, or elements of their own (`th` for the head of a row). */
export function tableOf(selector, name, heads, rows) {
  const cell = (content) => (/^t[hd]$/i.test(content?.tagName ?? "") ? content : make("td", content));
  return make(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-label": name },
    make(
      selector,
      make(
        "thead",
        make(
          "tr",
          heads.map((head) => make("th", { scope: "col" }, head)),
        ),
      ),
      make(
        "tbody",
        rows.map((cells) => make("tr", cells.map(cell))),
      ),
    ),
  );
}

/** A cell with a button, coloured as strongly as its share, from 0 to 1, says. */
export function shadedCell(share, kind, name, content, click) {
  const button = make("button", { class: kind, "aria-label": name, click }, content);
  button.style.setProperty("--strength", `${10 + 50 * share}%`);
  return make("td", button);
}

/** The head of a row of a table. */
export function rowHead(content) {
  return make("th", { scope: "row" }, content);
}

/** A user's text, whose own direction stays inside it. */
export function text(value) {
  return make("bdi", String(value ?? ""));
}

/** A number for people; what is no number is said to be none. */
export function number(value, digits = 4) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "not a number";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4)
    return value
      .toExponential(digits - 2)
      .replace("e+", "e")
      .replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** A number with its sign, for what supports or counts against. */
export function signed(value, digits = 4) {
  return (value > 0 ? "+" : "") + number(value, digits);
}

/** A share as a percentage. */
export function percent(share) {
  if (typeof share !== "number" || !Number.isFinite(share)) return "–";
  const value = 100 * share;
  return `${value.toFixed(Math.abs(value) >= 1 || value === 0 ? 1 : 2).replace("-", "−")}%`;
}

/** A channel as pathx names it: `features.3[7]`. */
export function channelKey(tensor, channel) {
  return `${tensor}[${channel}]`;
}

/** Hand the reader a file. */
export function saveFile(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** "1 unit", "3 units". */
export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** Buttons of which one is pressed. */
export function choice(name, options, chosen, change) {
  const press = (event, value) => {
    for (const one of event.target.parentElement.children) one.setAttribute("aria-pressed", one === event.target);
    change(value);
  };
  const button = ([value, label]) =>
    make("button", { click: (event) => press(event, value), "aria-pressed": String(value === chosen) }, label);
  return make("div.buttons", { role: "group", "aria-label": name }, options.map(button));
}

/** A section of the page with a heading, such as `card("section.flow", "The path", …)`. */
export function card(selector, title, ...children) {
  const id = `heading-${(cards += 1)}`;
  return make(`${selector}.card`, { "aria-labelledby": id }, make("h2", { id }, title), ...children);
}
let cards = 0;

/** What a reader must know of a page; nothing where there is nothing to say. */
export function remarks(list) {
  if (!list.length) return null;
  return make(
    "div.notes",
    { role: "note", "aria-label": "Notes" },
    make(
      "ul",
      list.map((one) => make("li", text(one))),
    ),
  );
}

/** Something that happened, told to screen readers. */
export function announce(message) {
  let place = document.getElementById("spoken");
  if (!place) {
    place = make("div.offscreen", { id: "spoken", role: "status", "aria-live": "polite" });
    document.body.append(place);
  }
  place.textContent = message;
}
