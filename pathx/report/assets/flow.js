// The path as a flow: a column per layer from the image to the class, a box per node, a ribbon per edge.

import { announce, counted, draw, make, number, percent, signed } from "./dom.js";
import { columnsOf, reach, ribbonsOf, sum } from "./paths.js";
import {
  FOOT,
  TOP,
  classSide,
  columnNames,
  cutShape,
  fitting,
  heading,
  imageSide,
  label,
  patterns,
  pictureShape,
  placed,
  ribbonShape,
  sidesOf,
  spoken,
  underLabel,
} from "./shapes.js";

/** The flow as an `element`, and what can be done with it.
 *
 *  `target` is {label, logit, name} of what is explained; `look(node, held)` hears which node the reader points at, or holds. */
export function makeFlow(target, path, units, look) {
  const opened = new Set();
  const more = new Map();
  const state = { nodes: new Map(), ribbons: [], focus: null, held: null };
  const board = make("div.board", {
    role: "region",
    tabindex: "0",
    "aria-label": "The path from the image to the class; it scrolls sideways",
  });

  function render() {
    const columns = columnsOf(path, units, opened, more);
    const places = placed(columns, board.clientWidth || 900);
    state.ribbons = ribbonsOf(path, columns);
    state.nodes = new Map(columns.flatMap((column) => column.nodes).map((one) => [one.id, one]));
    const drawn = drawing(columns, places);
    board.replaceChildren(drawn);
    state.focus = state.nodes.has(state.focus) ? state.focus : (columns.at(-1)?.nodes[0]?.id ?? null);
    state.held = state.nodes.has(state.held) ? state.held : null;
    rove();
    light(null);
  }

  function drawing(columns, places) {
    const height = TOP + places.tall + FOOT;
    const sides = sidesOf(state.ribbons, places.boxes, columns, target);
    const names = columnNames(columns);
    const ribbons = state.ribbons.map((ribbon) => ribbonShape(ribbon, sides, places));
    return draw(
      "svg",
      {
        width: places.width,
        height,
        viewBox: `0 0 ${places.width} ${height}`,
        role: "group",
        "aria-label": summary(columns),
        keydown: key,
      },
      patterns(),
      draw("g.ribbons", ribbons),
      places.narrow ? null : imageSide(columns, path, places),
      classSide(target, sides, places),
      columns.map((column, place) => columnShape(column, places.at(place), names[place], sides, places)),
    );
  }

  function columnShape(column, x, [name, more], sides, places) {
    const total = sum(column.nodes.map((one) => one.value));
    const letters = Math.floor(places.step / 6.5) - 1;
    const units = counted(column.kept, "unit") + (column.below_alpha ? " *" : "");
    const lines = places.narrow
      ? [fitting(`layer ${column.layer}`, letters), null, String(column.kept)]
      : [`layer ${column.layer}`, fitting(name, letters - more.length) + more, units];
    const head = heading(x, lines);
    head.append(draw("title", column.tensors.map((tensor) => tensor.name).join(", ")));
    const foot = draw("g.foot");
    const facts = { class: "strong", "data-sum": total, "data-layer": column.layer };
    foot.append(
      draw("text", { x, y: TOP + places.tall + 20, ...facts }, signed(total, places.narrow ? 2 : 3)),
      draw("text", { x, y: TOP + places.tall + 36 }, percent(total / target.logit)),
    );
    return draw(
      "g.column",
      head,
      column.nodes.map((one) => nodeShape(one, places.boxes.get(one.id), sides, places)),
      foot,
    );
  }

  function nodeShape(one, box, sides, places) {
    const { bar, step, picture, narrow } = places;
    const incoming = sides.left.get(one.id);
    const shape = draw("g", {
      class: `node ${one.value < 0 ? "against" : "for"} ${one.kind}`,
      role: "button",
      tabindex: "-1",
      "data-id": one.id,
      "data-value": one.value,
      "aria-label": spoken(one, target),
      "aria-pressed": "false",
      pointerenter: () => light(one.id),
      pointerleave: () => light(null),
      focus: () => focused(one.id),
      click: () => act(one),
      dblclick: () => one.kind === "channel" && open(one),
    });
    const { x, y, height, top, row } = box;
    if (incoming?.rest) shape.append(cutShape(incoming.rest, box, places));
    shape.append(
      draw("rect.hit", { x: x - 2, y: top - 1, width: step - 20, height: row + 2 }),
      draw("rect.box", { x, y, width: bar, height, rx: Math.min(3, height / 2) }),
    );
    const alone = one.kind === "more" || one.kind === "unlisted";
    const shown = alone ? null : pictureShape(one, box, places);
    if (shown) shape.append(shown);
    const start = x + bar + 3 + (shown ? picture + 4 : 2);
    const letters = Math.floor((x + step - start - 26) / 6);
    const middle = top + row / 2;
    if (narrow && !alone) return shape;
    const line = (kind, y, words) => draw("text", { class: kind, x: start, y }, fitting(words, letters));
    const words = draw("g.words", { "aria-hidden": "true" });
    words.append(line("name", alone ? middle + 4 : middle - 2, label(one)));
    if (!alone) words.append(line("under", middle + 12, underLabel(one)));
    return [shape, words];
  }

  function act(one) {
    state.focus = one.id;
    if (one.kind === "more") open(one);
    else if (one.kind !== "unlisted") hold(one);
  }

  function hold(one) {
    state.held = state.held === one.id ? null : one.id;
    announce(state.held ? "Held." : "Let go.");
    light(null);
  }

  function open(one) {
    if (one.kind === "more") more.set(one.layer, (more.get(one.layer) ?? 0) + 1);
    else opened.add(one.id);
    render();
    announce(one.kind === "more" ? "More units are shown." : `Channel opened: ${counted(one.units.length, "unit")}.`);
    const next = one.kind === "more" ? one.id : one.units[0].id;
    element(next)?.focus();
  }

  function close(parent) {
    opened.delete(parent);
    state.focus = parent;
    render();
    element(parent)?.focus();
  }

  function key(event) {
    const one = state.nodes.get(state.focus);
    if (!one) return;
    if (event.key === "Enter" || event.key === " ") act(one);
    else if (event.key === "Escape" && one.parent) close(one.parent);
    else if (event.key.startsWith("Arrow")) step(one, event.key.slice(5));
    else return;
    event.preventDefault();
  }

  function step(one, way) {
    const columns = [...new Set([...state.nodes.values()].map((other) => other.layer))].sort((a, b) => a - b);
    const column = (layer) => [...state.nodes.values()].filter((other) => other.layer === layer);
    const here = column(one.layer);
    const place = here.indexOf(one);
    let next = null;
    if (way === "Up") next = here[place - 1];
    else if (way === "Down") next = here[place + 1];
    else {
      const there = column(columns[columns.indexOf(one.layer) + (way === "Right" ? 1 : -1)]);
      next = there[Math.min(place, there.length - 1)];
    }
    if (next) element(next.id).focus();
  }

  function element(id) {
    return [...board.querySelectorAll(".node")].find((shape) => shape.dataset.id === id);
  }

  function focused(id) {
    state.focus = id;
    rove();
    light(id);
  }

  function rove() {
    for (const shape of board.querySelectorAll(".node"))
      shape.setAttribute("tabindex", shape.dataset.id === state.focus ? "0" : "-1");
  }

  /** Light up what a node leads to, or with null the node that is held. */
  function light(id) {
    const start = id ?? state.held;
    const found = start ? reach(start, state.ribbons) : null;
    board.firstElementChild?.classList.toggle("dimmed", Boolean(found && state.ribbons.length));
    for (const shape of board.querySelectorAll(".ribbon")) {
      const share = found?.ribbons.get(shape.dataset.key);
      shape.classList.toggle("lit", share !== undefined);
      shape.style.opacity = share === undefined ? "" : 0.12 + 0.76 * Math.sqrt(Math.min(1, share));
    }
    for (const shape of board.querySelectorAll(".node, .whole"))
      shape.classList.toggle("lit", Boolean(found?.nodes.has(shape.dataset.id)));
    for (const shape of board.querySelectorAll(".node")) {
      shape.classList.toggle("held", shape.dataset.id === state.held);
      shape.setAttribute("aria-pressed", String(shape.dataset.id === state.held));
    }
    look(state.nodes.get(start) ?? null, start !== null && start === state.held);
  }

  function summary(columns) {
    const sums = columns.map(
      (column) => `layer ${column.layer} ${number(sum(column.nodes.map((one) => one.value)), 3)}`,
    );
    return `Path to ${target.label}: ${sums.join(", ")}; ${target.name} is ${number(target.logit)}. Arrow keys move, Enter holds a box.`;
  }

  return {
    element: board,
    open,
    close,
    hold,
    reveal(unit) {
      const channel = [...state.nodes.values()].find(
        (one) => one.kind !== "unit" && one.units.some((member) => member.id === unit),
      );
      if (channel?.kind === "channel") opened.add(channel.id);
      else if (channel) more.set(channel.layer, 20);
      if (channel) render();
      if (state.nodes.has(unit)) element(unit).focus();
      else if (channel) this.reveal(unit);
    },
    redraw: render,
  };
}
