// What a trace says of a head of a scan.
export function tracedLayer({ model, layer }) {
  return model.trace?.layers.find(one => one.stack === layer.stack && one.layer === layer.layer) ?? null;
}
export const tracedHead = found => tracedLayer(found)?.directions.heads[found.head.head] ?? null;
