// The chosen head: one for the whole page, linked between map, tables, charts and orbits, and in the address as
// #head=0.11 (and &model=1 for another model than the first).
import { report } from './data.js';

const listeners = [];
let chosen = null;

export const headKey = (model, layer, head) => `${model.scan.model.stacks.length > 1 ? `${layer.stack}.` : ''}${layer.layer}.${head.head}`;
// Where a head is in the data of a model: its layer and the head; null if there is none of that name.
export function findHead(k, key) {
  for (const layer of report.models[k]?.scan?.layers ?? []) {
    const head = layer.heads.find(one => headKey(report.models[k], layer, one) === key);
    if (head) { return { model: report.models[k], layer, head }; }
  }
  return null;
}
export function onChoice(listener) { listeners.push(listener); }
export function choose(k, key, { silent = false } = {}) {
  if (!findHead(k, key) || (chosen && chosen.k === k && chosen.key === key)) { return; }
  chosen = { k, key };
  const framed = location.protocol === 'about:'; // in a notebook: a frame without an address of its own
  if (!silent && !framed) { history.replaceState(null, '', `#head=${key}${k ? `&model=${k}` : ''}`); }
  listeners.forEach(listener => listener(chosen));
}
// What the address asks for; null where that is no head of this report.
export function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1)), key = asked.get('head'), k = Number(asked.get('model') ?? 0);
  return key !== null && findHead(k, key) ? { k, key } : null;
}
export function followAddress() {
  addEventListener('hashchange', () => {
    const asked = fromAddress();
    if (asked) { choose(asked.k, asked.key, { silent: true }); }
  });
}
