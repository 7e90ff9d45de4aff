// Signed maps: read from grey pictures, added up, enlarged, and drawn on a photo as figures draw them.

import { DATA } from "./dom.js";

const DRAWN = 480; // of a map as it is drawn, in pixels
const LEAST_SPOT = 0.03; // of all support: spots with less get no line
const [COLOUR, WHITE] = [0.4, 215]; // the photo keeps this much of its colour; its brightest places become this light
const GLOW = Uint8Array.from(atob(DATA.glow ?? ""), (letter) => letter.charCodeAt(0));
const known = new Map();

/** The numbers of a map as {width, height, values}; 128 is zero, 255 the scale. */
export async function readMap(map) {
  if (!known.has(map.src)) known.set(map.src, decode(map));
  return known.get(map.src);
}

async function decode(map) {
  const image = await load(map.src);
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

async function load(src) {
  const image = new Image();
  image.src = src;
  await image.decode();
  return image;
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

/** Draw what the network saw of the photo into a canvas, with a map on it: gold for, blue against.
 *
 *  The photo is paler below, of middling lightness, and grey where there is heat, as in overlay.png. With `line`, a white
 *  line encloses half of the support. Returns what the strongest colour stands for, which may be given where maps are
 *  compared. */
export async function paint(canvas, map, line, scale = scaleOf(map)) {
  const large = enlarge(map);
  const { width, height, values } = large;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const image = await seenPhoto(context, width, height);
  const tone = toneOf(image.data);
  const strokes = line ? strokesOf(large, halfLevel(map.values)) : () => [0, 0];
  for (let at = 0; at < values.length; at += 1) {
    const value = Math.max(-1, Math.min(1, values[at] / scale));
    const step = 128 + Math.round(127 * value);
    const size = Math.abs(value);
    const opacity = 0.72 * size ** 0.75 * (1 - 0.25 * size);
    const colour = COLOUR * (1 - Math.min(1, (4 * Math.abs(step - 128)) / 255));
    const grey = greyOf(image.data, 4 * at);
    const [white, black] = strokes(at);
    for (let channel = 0; channel < 3; channel += 1) {
      const below = tone[Math.round(grey + colour * (image.data[4 * at + channel] - grey))];
      const heated = below + opacity * (GLOW[3 * step + channel] - below);
      image.data[4 * at + channel] = heated * (1 - black) * (1 - white) + 255 * white;
    }
  }
  context.putImageData(image, 0, 0);
  return scale;
}

async function seenPhoto(context, width, height) {
  context.fillStyle = "#999";
  context.fillRect(0, 0, width, height);
  if (DATA.photo) {
    photoLoading ??= load(DATA.photo.src);
    const [left, top, right, bottom] = DATA.region;
    context.drawImage(await photoLoading, left, top, right - left, bottom - top, 0, 0, width, height);
  }
  return context.getImageData(0, 0, width, height);
}
let photoLoading = null;

function greyOf(data, at) {
  return 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
}

/** What becomes of each lightness: dark photos are lightened and bright ones darkened. */
function toneOf(data) {
  let sum = 0;
  for (let at = 0; at < data.length; at += 4) sum += greyOf(data, at);
  const mean = Math.max(0.01, Math.min(0.99, sum / (data.length / 4) / 255));
  const power = Math.max(0.5, Math.min(2.2, Math.log(0.4) / Math.log(mean)));
  return Array.from({ length: 256 }, (_, value) => WHITE * (value / 255) ** power);
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
