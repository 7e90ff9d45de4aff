// The photo with a map on it, the frame of what the network saw, and the fields of units.

import { DATA, choice, draw, make } from "./dom.js";
import { addMaps, blur, gradient, paint, readMap, scaleOf } from "./maps.js";

const SMOOTHING = 0.025; // of the shorter side, as overlays of pixels have it
const MAPS = {
  path: ["Path map", "The path map", DATA.path?.places.filter(Boolean) ?? []],
  pixels: ["Pixel map", "The pixel map, smoothed", [DATA.path?.pixels]],
  none: ["Photo", "The photo alone", []],
};

/** The photo as an `element`; `fields(units, own)` marks where units look, with the field of the first; `own` is a map of one of them. */
export function makePhoto() {
  const size = DATA.photo ?? { width: DATA.input[0], height: DATA.input[1] };
  const region = DATA.photo ? DATA.region : [0, 0, size.width, size.height];
  const offered = Object.keys(MAPS).filter((kind) => kind === "none" || MAPS[kind][2].length);
  const state = { kind: offered[0], own: null, turn: 0 };
  const canvas = make("canvas", { class: "map" });
  const marks = draw("svg", { class: "marks", viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" });
  const crisp = Math.max(size.width, size.height) <= 128 ? "crisp" : "";
  const photo = DATA.photo
    ? make("img", { src: DATA.photo.src, alt: "", class: crisp, draggable: "false" })
    : make("div", { class: "grey" });
  const line = make("div", { class: "divider", "aria-hidden": "true" });
  const stage = make("div", { class: "stage", role: "img" }, photo, canvas, marks, line);
  const legend = make("p", { class: "legend" });
  stage.style.aspectRatio = `${size.width} / ${size.height}`;
  const [left, top, right, bottom] = region;
  Object.assign(canvas.style, {
    left: `${(100 * left) / size.width}%`,
    top: `${(100 * top) / size.height}%`,
    width: `${(100 * (right - left)) / size.width}%`,
    height: `${(100 * (bottom - top)) / size.height}%`,
  });
  const opacity = slider("Opacity", 100, (value) => (canvas.style.opacity = value / 100));
  const compare = slider("Compare", 0, divide);

  function divide(value) {
    const place = ((value / 100) * size.width - left) / (right - left);
    canvas.style.clipPath = value > 0 ? `inset(0 0 0 ${Math.max(0, Math.min(100, 100 * place))}%)` : "none";
    line.style.left = `${value}%`;
    line.hidden = value <= 0;
  }

  function drag(event) {
    const box = stage.getBoundingClientRect();
    compare.input.value = Math.max(0, Math.min(100, (100 * (event.clientX - box.left)) / box.width));
    divide(Number(compare.input.value));
  }
  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    drag(event);
  });
  stage.addEventListener("pointermove", (event) => event.buttons && drag(event));

  async function render() {
    const turn = (state.turn += 1);
    const [, named, own] = MAPS[state.kind];
    const what = state.own ? `What ${state.own.name} saw` : named;
    const read = await Promise.all((state.own ? [state.own.map] : own).map(readMap));
    if (turn !== state.turn) return; // something else was asked for meanwhile
    canvas.hidden = !read.length;
    stage.setAttribute("aria-label", `${DATA.image.file}. ${what}`);
    if (!read.length) return legend.replaceChildren(`${what}.`);
    const pixels = state.kind === "pixels" && !state.own;
    const map = pixels || state.own ? blur(addMaps(read), SMOOTHING) : addMaps(read);
    const scale = await paint(canvas, map, !pixels);
    if (turn !== state.turn) return;
    const against = map.values.some((value) => value < -scale / 20);
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    bar.style.backgroundImage = gradient(against ? -1 : 0);
    const meaning = `gold supports the class${against ? ", blue counts against it" : ""}`;
    legend.replaceChildren(bar, `${what}: ${meaning}${pixels ? "" : "; the line holds half of the support"}.`);
  }

  function boxes(list) {
    marks.replaceChildren(...(DATA.photo ? outline(region, size) : []));
    const [wide, high] = DATA.input;
    const across = (x) => left + (x / wide) * (right - left);
    const down = (y) => top + (y / high) * (bottom - top);
    const strongest = list[0]?.receptive_field ?? [];
    if (strongest.length === 4) {
      const [a, b, c, d] = strongest;
      const box = { x: across(a), y: down(b), width: across(c) - across(a), height: down(d) - down(b) };
      marks.append(
        draw("rect", { ...box, class: "field shadow" }),
        draw("rect", { ...box, class: "field pointed", "data-field": strongest.join(",") }),
      );
    }
    for (const { centre } of list.filter((unit) => unit.centre))
      marks.append(draw("circle", { class: "spot", cx: across(centre[0]), cy: down(centre[1]), r: size.width / 90 }));
  }

  const switchMap = (kind) => {
    state.kind = kind;
    render();
  };
  const controls = make(
    "div",
    { class: "controls" },
    choice(
      "Map",
      offered.map((kind) => [kind, MAPS[kind][0]]),
      state.kind,
      switchMap,
    ),
    opacity.label,
    compare.label,
  );
  divide(0);
  boxes([]);
  render();
  return {
    element: make("div", { class: "photo" }, stage, legend, controls),
    fields(list, own) {
      boxes(list);
      if (own?.map === state.own?.map) return;
      state.own = own;
      render();
    },
  };
}

/** What the network saw of the photo, with one of several maps on each, all in one scale. */
export async function overlays(maps) {
  const read = await Promise.all(maps.map(readMap));
  const scale = Math.max(...read.map(scaleOf));
  return Promise.all(
    read.map(async (map) => {
      const canvas = make("canvas", { class: "overlay" });
      await paint(canvas, map, true, scale);
      return canvas;
    }),
  );
}

function slider(name, value, change) {
  const input = make("input", { type: "range", min: 0, max: 100, value, input: () => change(Number(input.value)) });
  return { input, label: make("label", { class: "slider" }, make("span", {}, name), input) };
}

function outline([left, top, right, bottom], { width, height }) {
  const x = Math.max(0, left);
  const y = Math.max(0, top);
  const inner = { x, y, width: Math.min(width, right) - x, height: Math.min(height, bottom) - y };
  if (inner.width >= width && inner.height >= height) return [];
  const hole = `M0,0H${width}V${height}H0Z M${x},${y}v${inner.height}h${inner.width}v${-inner.height}Z`;
  return [
    draw("path", { class: "unseen", d: hole, "fill-rule": "evenodd" }),
    draw("rect", { ...inner, class: "frame" }),
  ];
}
