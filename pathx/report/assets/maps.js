// Signed maps: read from grey pictures, added up, enlarged, and drawn on a photo as figures draw them.

import { DATA } from "./dom.js";

const DRAWN = 480; // of a map as it is drawn, in pixels
const LEAST_SPOT = 0.03; // of all support: spots with less get no line
const GLOW = Uint8Array.from(atob(DATA.glow ?? ""), (letter) => letter.charCodeAt(0));
const known = new Map();

/** The numbers of a map as {width, height, values}; 128 is zero, 255 the scale. */
export async function readMap(map) {
  if (!known.has(map.src)) known.set(map.src, decode(map));
  return known.get(map.src);
}

async function decode(map) {
  const image = new Image();
  image.src = map.src;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const values = new Float32Array(pixels.length / 4);
  const step = (map.scale ?? 1) / 127;
  for (let at = 0; at < values.length; at += 1) values[at] = (pixels[4 * at] - 128) * step;
  return { width: canvas.width, height: canvas.height, values };
}

/** The sum of maps, which may be of several sizes, in the size of the largest. */
export function addMaps(maps) {
  const width = Math.max(...maps.map((map) => map.width));
  const height = Math.max(...maps.map((map) => map.height));
  const values = new Float32Array(width * height);
  for (const map of maps) {
    for (let y = 0; y < height; y += 1) {
      const row = Math.floor((y * map.height) / height) * map.width;
      for (let x = 0; x < width; x += 1) values[y * width + x] += map.values[row + Math.floor((x * map.width) / width)];
    }
  }
  return { width, height, values };
}

/** Blur a map by a Gaussian whose sigma is a share of the shorter side, reflected at the edges. */
export function blur(map, share) {
  const sigma = share * Math.min(map.width, map.height);
  const reach = Math.ceil(3 * sigma);
  const weights = Array.from({ length: 2 * reach + 1 }, (_, at) => Math.exp(-0.5 * ((at - reach) / sigma) ** 2));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const taps = (length) => (to) => weights.map((weight, at) => [mirror(to + at - reach, length), weight / total]);
  return resample(map, map.width, map.height, taps(map.width), taps(map.height));
}

function mirror(at, length) {
  const place = ((at % (2 * length)) + 2 * length) % (2 * length);
  return place < length ? place : 2 * length - 1 - place;
}

/** Enlarge a map by cubic B-splines, which never overshoot. */
function enlarge(map) {
  const times = DRAWN / Math.max(map.width, map.height);
  if (times <= 1) return map;
  const [width, height] = [Math.round(map.width * times), Math.round(map.height * times)];
  const taps = (length, wanted) => (to) => {
    const at = ((to + 0.5) * length) / wanted - 0.5;
    const before = Math.floor(at);
    const d = at - before;
    const shares = [(1 - d) ** 3, d * d * (3 * d - 6) + 4, d * (d * (3 - 3 * d) + 3) + 1, d ** 3];
    return shares.map((part, tap) => [Math.max(0, Math.min(length - 1, before + tap - 1)), part / 6]);
  };
  return resample(map, width, height, taps(map.width, width), taps(map.height, height));
}

/** A map of another size: `across(x)` and `down(y)` say which places, with which weights, make a new one. */
function resample(map, width, height, across, down) {
  const narrow = new Float32Array(width * map.height);
  for (let x = 0; x < width; x += 1) {
    const taps = across(x);
    for (let y = 0; y < map.height; y += 1)
      for (const [from, weight] of taps) narrow[y * width + x] += weight * map.values[y * map.width + from];
  }
  const values = new Float32Array(width * height);
  for (let y = 0; y < height; y += 1)
    for (const [from, weight] of down(y))
      for (let x = 0; x < width; x += 1) values[y * width + x] += weight * narrow[from * width + x];
  return { width, height, values };
}

/** Draw a map into a canvas that lies on the photo: gold for, blue against, the photo darker where nothing is.
 *
 *  With `line`, a white line encloses half of the support. Returns what the strongest colour stands for, which may be
 *  given where maps are compared. */
export function paint(canvas, map, line, scale = scaleOf(map)) {
  const large = enlarge(map);
  const { width, height, values } = large;
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const strokes = line ? strokesOf(large, halfLevel(map.values)) : null;
  for (let at = 0; at < values.length; at += 1) {
    const value = Math.max(-1, Math.min(1, values[at] / scale));
    const step = 3 * (128 + Math.round(127 * value));
    const size = Math.abs(value);
    const bright = Math.min(1, 1.6 * size);
    const dim = 0.34 * (1 - bright * bright * (3 - 2 * bright));
    const opacity = 0.72 * size ** 0.75 * (1 - 0.25 * size);
    const alpha = 1 - (1 - opacity) * (1 - dim);
    const [white, black] = strokes ? strokes(at) : [0, 0];
    const below = (1 - white) * (1 - black);
    const whole = 1 - below * (1 - alpha);
    for (let channel = 0; channel < 3; channel += 1) {
      const colour = GLOW[step + channel] * opacity * below + 255 * white;
      image.data[4 * at + channel] = whole > 0 ? colour / whole : 0;
    }
    image.data[4 * at + 3] = 255 * whole;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return scale;
}

/** How white and how black each place is, where a line runs along a level. */
function strokesOf({ width, height, values }, level) {
  const kept = spots(values, width, height, level);
  const half = Math.max(width, height) / 600 + 0.5;
  return (at) => {
    const x = at % width;
    const right = x + 1 < width ? at + 1 : at;
    const down = at + width < values.length ? at + width : at;
    const slope =
      Math.hypot(values[right] - values[x ? at - 1 : at], values[down] - values[Math.max(0, at - width)]) / 2;
    const away = Math.abs(values[at] - level) / Math.max(slope, 1e-12);
    if (level <= 0 || away > 2 * half + 0.5 || !near(kept, at, width, 3)) return [0, 0];
    const stroke = (reach, strength) => strength * Math.max(0, Math.min(1, reach + 0.5 - away));
    return [stroke(half, 0.95), stroke(2 * half, 0.5)];
  };
}

function near(kept, at, width, reach) {
  for (let y = -reach; y <= reach; y += 1)
    for (let x = -reach; x <= reach; x += 1) if (kept[at + y * width + x]) return true;
  return false;
}

/** Places at or above a level, in connected spots that hold enough of the support. */
function spots(values, width, height, level) {
  const kept = new Uint8Array(values.length);
  const met = new Uint8Array(values.length);
  const support = values.reduce((sum, value) => sum + Math.max(0, value), 0);
  for (let start = 0; start < values.length; start += 1) {
    if (met[start] || values[start] < level) continue;
    const spot = [start];
    met[start] = 1;
    let sum = 0;
    for (let next = 0; next < spot.length; next += 1) {
      const at = spot[next];
      sum += values[at];
      const x = at % width;
      for (const to of [x ? at - 1 : -1, x + 1 < width ? at + 1 : -1, at - width, at + width]) {
        if (to < 0 || to >= values.length || met[to] || values[to] < level) continue;
        met[to] = 1;
        spot.push(to);
      }
    }
    if (sum >= LEAST_SPOT * support) for (const at of spot) kept[at] = 1;
  }
  return kept;
}

/** The value from which on the strongest places hold half of all support. */
function halfLevel(values) {
  const support = values.filter((value) => value > 0).sort();
  let left = support.reduce((sum, value) => sum + value, 0) / 2;
  let at = support.length;
  while (at > 0 && left > 0) left -= support[(at -= 1)];
  return support[at] ?? 0;
}

/** What the strongest colour of a map stands for: all but the few strongest values. */
export function scaleOf(map) {
  const sizes = Float32Array.from(map.values, Math.abs)
    .filter((value) => value > 0)
    .sort();
  return sizes.length ? sizes[Math.min(sizes.length - 1, Math.ceil(sizes.length * 0.99) - 1)] || 1 : 1;
}

/** The colours of a map from most against to most for, as a gradient of CSS. */
export function gradient(from = -1) {
  const stops = Array.from({ length: 9 }, (_, at) => {
    const value = from + ((1 - from) * at) / 8;
    const step = 3 * (128 + Math.round(127 * value));
    return `rgb(${GLOW[step]} ${GLOW[step + 1]} ${GLOW[step + 2]} / ${Math.min(1, 0.1 + Math.abs(value))})`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}
