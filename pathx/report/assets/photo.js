// The photo with a map on it, the frame of what the network saw, and the fields of units.

import { DATA, choice, draw, make } from "./dom.js";

/** The photo as an `element`; `fields(units, own)` marks where units look, with the field of the first; `own` is a map of one of them. */
export function makePhoto() {
  const size = DATA.photo ?? { width: DATA.input[0], height: DATA.input[1] };
  const [left, top, right, bottom] = DATA.photo ? DATA.region : [0, 0, size.width, size.height];
  const maps = [...DATA.maps, { name: "Photo", legend: "The photo alone." }];
  const state = { map: maps[0], own: null, units: [] };
  const picture = make("img.map", { alt: "", draggable: "false" });
  const marks = draw("svg.marks", { viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" });
  const crisp = Math.max(size.width, size.height) <= 128 ? "crisp" : "";
  const photo = DATA.photo
    ? make("img", { src: DATA.photo.src, alt: "", class: crisp, draggable: "false" })
    : make("div.grey");
  const line = make("div.divider", { "aria-hidden": "true" });
  const stage = make("div.stage", { role: "img" }, photo, picture, marks, line);
  const legend = make("p.legend");
  stage.style.aspectRatio = `${size.width} / ${size.height}`;
  const compare = make("input", {
    type: "range",
    min: 0,
    max: 100,
    value: 0,
    input: () => divide(Number(compare.value)),
  });

  function divide(value) {
    const start = state.map.whole && !state.own ? 0 : left;
    const wide = state.map.whole && !state.own ? size.width : right - left;
    const place = ((value / 100) * size.width - start) / wide;
    picture.style.clipPath = value > 0 ? `inset(0 0 0 ${Math.max(0, Math.min(100, 100 * place))}%)` : "none";
    line.style.left = `${value}%`;
    line.hidden = value <= 0;
  }

  function drag(event) {
    const box = stage.getBoundingClientRect();
    compare.value = Math.max(0, Math.min(100, (100 * (event.clientX - box.left)) / box.width));
    divide(Number(compare.value));
  }
  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    drag(event);
  });
  stage.addEventListener("pointermove", (event) => event.buttons && drag(event));

  function render() {
    const map = state.own ?? state.map;
    const [x, y, wide, high] = map.whole
      ? [0, 0, 1, 1]
      : [left / size.width, top / size.height, (right - left) / size.width, (bottom - top) / size.height];
    const share = (value) => `${100 * value}%`;
    Object.assign(picture.style, { left: share(x), top: share(y), width: share(wide), height: share(high) });
    picture.hidden = !map.src;
    if (map.src) picture.src = map.src;
    stage.classList.toggle("dim", Boolean(state.own));
    stage.setAttribute("aria-label", `${DATA.image.file}. ${map.legend}`);
    legend.replaceChildren(map.bar ? make("img", { src: map.bar, alt: "" }) : "", map.legend);
    marks.replaceChildren(...(map.whole ? [] : outline()), ...fieldOf(state.units[0]), ...state.units.flatMap(spot));
    divide(Number(compare.value));
  }

  const across = (x) => left + (x / DATA.input[0]) * (right - left);
  const down = (y) => top + (y / DATA.input[1]) * (bottom - top);

  function fieldOf(unit) {
    if (unit?.receptive_field.length !== 4) return [];
    const [a, b, c, d] = unit.receptive_field;
    const box = { x: across(a), y: down(b), width: across(c) - across(a), height: down(d) - down(b) };
    return [
      draw("rect.field.shadow", { ...box }),
      draw("rect.field.pointed", { ...box, "data-field": unit.receptive_field.join(",") }),
    ];
  }

  function spot({ centre }) {
    if (!centre) return [];
    return [draw("circle.spot", { cx: across(centre[0]), cy: down(centre[1]), r: size.width / 90 })];
  }

  /** Dim what the network did not see, as overlay.png does. */
  function outline() {
    const [x, y] = [Math.max(0, left), Math.max(0, top)];
    const inner = { x, y, width: Math.min(size.width, right) - x, height: Math.min(size.height, bottom) - y };
    if (inner.width >= size.width && inner.height >= size.height) return [];
    const hole = `M0,0H${size.width}V${size.height}H0Z M${x},${y}v${inner.height}h${inner.width}v${-inner.height}Z`;
    return [draw("path.unseen", { d: hole, "fill-rule": "evenodd" }), draw("rect.frame", { ...inner })];
  }

  const set = (changes) => {
    Object.assign(state, changes);
    render();
  };
  const names = maps.map((map, at) => [at, map.name]);
  const controls = make(
    "div.controls",
    choice("Map", names, 0, (at) => set({ map: maps[at] })),
    make("label.slider", make("span", "Compare"), compare),
  );
  render();
  return {
    element: make("div.photo", stage, legend, controls),
    fields: (units, own) => set({ units, own }),
  };
}
