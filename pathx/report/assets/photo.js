// The photo with a map on it, the frame of what the network saw, and the fields of units.

import { DATA, choice, draw, make } from "./dom.js";
import { addMaps, blur, gradient, paint, readMap } from "./maps.js";

const SMOOTHING = 0.025; // of the shorter side: as overlays of pixels have it

/** The photo as an element with the methods `show(path)` and `fields(list)`. */
export function makePhoto() {
  const size = DATA.photo ?? { width: DATA.input[0], height: DATA.input[1] };
  const region = DATA.photo ? DATA.region : [0, 0, size.width, size.height];
  const state = { kind: null, path: null, own: null, turn: 0 };
  const canvas = make("canvas", { class: "map" });
  const marks = draw("svg", { class: "marks", viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" });
  const photo = DATA.photo
    ? make("img", {
        src: DATA.photo.src,
        alt: "",
        class: Math.max(size.width, size.height) <= 128 ? "crisp" : "",
        draggable: "false",
      })
    : make("div", { class: "grey" });
  const line = make("div", { class: "divider", "aria-hidden": "true" });
  const stage = make("div", { class: "stage", role: "img" }, photo, canvas, marks, line);
  const legend = make("p", { class: "legend" });
  stage.style.aspectRatio = `${size.width} / ${size.height}`;
  const [left, top, right, bottom] = region;
  const across = (100 * (right - left)) / size.width;
  Object.assign(canvas.style, {
    left: `${(100 * left) / size.width}%`,
    top: `${(100 * top) / size.height}%`,
    width: `${across}%`,
    height: `${(100 * (bottom - top)) / size.height}%`,
  });

  const opacity = slider("Opacity", 0, 100, 100, (value) => (canvas.style.opacity = value / 100));
  const compare = slider("Compare", 0, 100, 0, divide);
  function divide(value) {
    const place = ((value / 100) * size.width - left) / (right - left);
    canvas.style.clipPath = value > 0 ? `inset(0 0 0 ${Math.max(0, Math.min(100, 100 * place))}%)` : "none";
    line.style.left = `${value}%`;
    line.hidden = value <= 0;
  }

  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    drag(event);
  });
  stage.addEventListener("pointermove", (event) => event.buttons && drag(event));
  function drag(event) {
    const box = stage.getBoundingClientRect();
    compare.input.value = Math.max(0, Math.min(100, (100 * (event.clientX - box.left)) / box.width));
    divide(Number(compare.input.value));
  }

  async function render() {
    const turn = (state.turn += 1);
    const maps = state.own
      ? [state.own.map]
      : state.kind === "path"
        ? state.path.places.slice(0, state.path.depth).filter(Boolean)
        : state.kind === "pixels"
          ? [state.path.pixels[state.path.depth]].filter(Boolean)
          : [];
    const read = await Promise.all(maps.map(readMap));
    if (turn !== state.turn) return; // something else was asked for meanwhile
    const what = state.own
      ? `what ${state.own.name} saw`
      : { path: "the path map", pixels: "the pixel map", none: "no map" }[state.kind];
    canvas.hidden = !read.length;
    const pixels = state.kind === "pixels" && !state.own;
    const summed = read.length ? addMaps(read) : null;
    const scale = summed ? paint(canvas, pixels || state.own ? blur(summed, SMOOTHING) : summed, !pixels) : null;
    const missing = state.kind !== "none" && !read.length;
    const bar = make("span", { class: "bar", "aria-hidden": "true" });
    const against = summed?.values.some((value) => value < -scale / 20);
    bar.style.backgroundImage = gradient(against ? -1 : 0);
    const words =
      `${what[0].toUpperCase()}${what.slice(1)}: gold supports the class${against ? ", blue counts against it" : ""}` +
      `${pixels ? "; smoothed" : "; the line holds half of the support"}.`;
    legend.replaceChildren(
      ...(scale ? [bar] : []),
      missing ? `For this path ${what} is not in the files.` : scale ? words : "The photo alone.",
    );
    stage.setAttribute("aria-label", `${DATA.image.file}, ${missing ? "without a map" : `with ${what}`}`);
  }

  function boxes(list) {
    marks.replaceChildren();
    if (DATA.photo) marks.append(...outline(region, size));
    const [wide, high] = DATA.input;
    for (const { field, kind, name } of list) {
      if (field.length !== 4) continue;
      const [a, b, c, d] = field;
      const x = left + (a / wide) * (right - left);
      const y = top + (b / high) * (bottom - top);
      const box = { x, y, width: ((c - a) / wide) * (right - left), height: ((d - b) / high) * (bottom - top) };
      marks.append(
        draw("rect", { ...box, class: `field under` }),
        draw("rect", { ...box, class: `field ${kind}`, "data-field": field.join(",") }),
      );
      if (name)
        marks.append(
          draw(
            "text",
            {
              x: x + size.width / 60,
              y: y + size.width / 18,
              class: "mark",
              "font-size": size.width / 20,
              "stroke-width": size.width / 150,
            },
            name,
          ),
        );
    }
  }

  const kinds = [
    ["path", "Path map"],
    ["pixels", "Pixel map"],
    ["none", "Photo"],
  ];
  const switchMap = (kind) => {
    state.kind = kind;
    render();
  };
  const has = {
    path: DATA.paths.some((path) => path.places.some(Boolean)),
    pixels: DATA.paths.some((path) => Object.keys(path.pixels).length),
    none: true,
  };
  const offered = kinds.filter(([kind]) => has[kind]);
  state.kind = offered[0][0];
  const controls = make(
    "div",
    { class: "controls" },
    choice("Map", offered, state.kind, switchMap),
    opacity.label,
    compare.label,
  );
  divide(0);
  boxes([]);

  return {
    element: make("div", { class: "photo" }, stage, legend, controls),
    show(path) {
      state.path = path;
      render();
    },
    /** The fields of units, and the own map of one of them. */
    fields(list, own) {
      boxes(list);
      if (own?.map !== state.own?.map) {
        state.own = own;
        render();
      }
    },
  };
}

function slider(name, least, most, value, change) {
  const input = make("input", {
    type: "range",
    min: least,
    max: most,
    step: 1,
    value,
    input: () => change(Number(input.value)),
  });
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
