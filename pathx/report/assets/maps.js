// Signed maps: read from grey pictures, added up, and coloured.

const FOR = [
  [239, 106, 76],
  [196, 22, 28],
  [103, 0, 13],
];
const AGAINST = [
  [103, 169, 207],
  [33, 102, 172],
  [5, 48, 97],
];
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

/** Colour a map into a canvas: red for, blue against; the stronger the less of the photo shows through. */
export function paint(canvas, map, strongest = null) {
  canvas.width = map.width;
  canvas.height = map.height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(map.width, map.height);
  const scale = strongest ?? percentile(map.values);
  for (let at = 0; at < map.values.length; at += 1) {
    const value = Math.max(-1, Math.min(1, map.values[at] / scale));
    const size = Math.abs(value);
    const stops = value > 0 ? FOR : AGAINST;
    const place = Math.min(size * 1.6, 1.6);
    const below = Math.min(1, Math.floor(place));
    const part = place - below;
    for (let channel = 0; channel < 3; channel += 1) {
      image.data[4 * at + channel] = stops[below][channel] * (1 - part) + stops[below + 1][channel] * part;
    }
    image.data[4 * at + 3] = size < 0.004 ? 0 : 255 * Math.min(1, 0.06 + 0.94 * size ** 0.7);
  }
  context.putImageData(image, 0, 0);
  return scale;
}

/** What the strongest colour stands for: all but the few strongest values. */
function percentile(values) {
  const sizes = Float32Array.from(values, Math.abs)
    .filter((value) => value > 0)
    .sort();
  return sizes.length ? sizes[Math.min(sizes.length - 1, Math.ceil(sizes.length * 0.99) - 1)] || 1 : 1;
}
