// The path as nodes and ribbons: which units stand together, what flows between them, and what is cut off.

/** Nodes that a column shows at first; the weakest beyond them are one. */
const SHOWN = 8;

/** Units by their id, `layer:position`. */
export function unitsOf(path) {
  const units = new Map();
  for (const layer of path.layers) {
    layer.units.forEach((unit, position) => {
      const tensor = layer.tensors[unit.tensor] ?? { name: "?", shape: [] };
      units.set(`${layer.layer}:${position}`, {
        ...unit,
        id: `${layer.layer}:${position}`,
        layer: layer.layer,
        position,
        name: tensor.name,
        shape: tensor.shape,
      });
    });
  }
  return units;
}

/** A unit as path.json and the command line name it. */
export function unitName(unit) {
  return `${unit.name} [${unit.index.join(",")}]`;
}

/** What a column shows: channels, the units of those that are opened, and one node for what is too weak to show. */
export function columnNodes(layer, units, opened, more) {
  const channels = new Map();
  layer.units.forEach((_, position) => {
    const unit = units.get(`${layer.layer}:${position}`);
    const id = `${layer.layer}/${unit.tensor}.${unit.channel}`;
    if (!channels.has(id)) channels.set(id, []);
    channels.get(id).push(unit);
  });
  const nodes = [];
  for (const [id, members] of channels) {
    if (members.length === 1 || opened.has(id)) {
      for (const unit of members)
        nodes.push(node("unit", unit.id, layer.layer, [unit], members.length > 1 ? id : null));
    } else nodes.push(node("channel", id, layer.layer, members, null));
  }
  if (opened.size === 0 || !nodes.some((one) => one.parent))
    nodes.sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  const limit = SHOWN * 2 ** (more.get(layer.layer) ?? 0);
  const shown = nodes.length <= limit + 1 ? nodes : nodes.slice(0, limit);
  const weak = nodes.slice(shown.length).flatMap((one) => one.units);
  if (weak.length) shown.push(node("more", `${layer.layer}/more`, layer.layer, weak, null));
  const unlisted = layer.kept - layer.units.length;
  if (unlisted > 0)
    shown.push({
      ...node("unlisted", `${layer.layer}/unlisted`, layer.layer, [], null),
      value: layer.unlisted,
      count: unlisted,
    });
  return shown;
}

function node(kind, id, layer, units, parent) {
  return { kind, id, layer, units, parent, value: sum(units.map((unit) => unit.contribution)) };
}

/** Columns from the image to the class: left to right as they are drawn. */
export function columnsOf(path, units, opened, more) {
  return [...path.layers].reverse().map((layer) => ({ ...layer, nodes: columnNodes(layer, units, opened, more) }));
}

/** Ribbons between nodes: what units send through units, summed up. `edges` are [layer, from, layer above or null, to, value]. */
export function ribbonsOf(path, columns) {
  const home = new Map();
  for (const column of columns) for (const one of column.nodes) for (const unit of one.units) home.set(unit.id, one);
  const ribbons = new Map();
  const add = (from, to, value) => {
    const key = `${from.id}→${to ? to.id : "class"}`;
    const ribbon = ribbons.get(key) ?? { key, from, to, value: 0 };
    ribbon.value += value;
    ribbons.set(key, ribbon);
  };
  for (const [layer, from, above, to, value] of path.edges) {
    const lower = home.get(`${layer}:${from}`);
    const upper = above === null ? null : home.get(`${above}:${to}`);
    if (lower && (above === null || upper)) add(lower, upper, value);
  }
  return [...ribbons.values()];
}

/** Of a node, what arrives from units of the path, and what is left: bias, units that were not kept, ribbons not listed. */
export function cutOff(value, incoming) {
  return value - sum(incoming.map((ribbon) => ribbon.value));
}

/** Everything that a node leads to, up to the class and down to the image: nodes by id and ribbons by key, each with
 *  the share of what starts at the node (or arrives at it) that takes this way. */
export function reach(start, ribbons) {
  const nodes = new Map([[start, 1]]);
  const lit = new Map();
  const id = (node) => (node ? node.id : "class");
  const follow = (here, there, order) => {
    const amounts = new Map([[start, 1]]);
    const gross = new Map();
    for (const ribbon of ribbons)
      gross.set(id(ribbon[here]), (gross.get(id(ribbon[here])) ?? 0) + Math.abs(ribbon.value));
    for (const ribbon of [...ribbons].sort(order)) {
      const amount = amounts.get(id(ribbon[here]));
      if (amount === undefined) continue;
      const whole = gross.get(id(ribbon[here]));
      const share = whole ? (amount * Math.abs(ribbon.value)) / whole : 0;
      lit.set(ribbon.key, share);
      const next = id(ribbon[there]);
      amounts.set(next, (amounts.get(next) ?? 0) + share);
      nodes.set(next, amounts.get(next));
    }
  };
  follow("from", "to", (one, other) => one.from.layer - other.from.layer);
  follow(
    "to",
    "from",
    (one, other) => (other.to ? other.to.layer : Infinity) - (one.to ? one.to.layer : Infinity) || 0,
  );
  return { nodes, ribbons: lit };
}

/** Added up. */
export function sum(values) {
  return values.reduce((total, value) => total + (Number.isFinite(value) ? value : 0), 0);
}
