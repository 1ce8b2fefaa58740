// Panel and size -> where numbers are on the screen: ranges, ticks, margins.
import { isNumber, svg, px } from './svg.js';

const SUPERSCRIPTS = { '-': '⁻', 0: '⁰', 1: '¹', 2: '²', 3: '³', 4: '⁴', 5: '⁵', 6: '⁶', 7: '⁷', 8: '⁸', 9: '⁹' };
const LETTER = 6.1; // pixels, about

// The numbers of a layer that its axes must hold.
const EXTENT = {
  curve: l => [l.x, [...l.y, ...(l.low ?? []), ...(l.high ?? [])]],
  band: l => [l.x, [...l.low, ...l.high]],
  bars: l => [l.x.flatMap(v => [v - 0.6 * (l.width ?? 0.8), v + 0.6 * (l.width ?? 0.8)]), [...(l.base ?? [0]), ...l.y]],
  points: l => [l.x, [...l.y, ...(l.low ?? []), ...(l.high ?? [])]],
  level: l => l.vertical ? [[l.at], []] : [[], [l.at]],
};
const EXACT = { // ranges without room on their sides
  heat: l => [[-0.5, l.values[0].length - 0.5], [l.values.length - 0.5, -0.5]],
  forest: l => [null, [-0.7, l.names.length - 0.3]],
};

function ranges(panel) {
  const values = [[], []], exact = [null, null];
  for (const layer of panel.layers) {
    if (EXACT[layer.kind]) { EXACT[layer.kind](layer).forEach((ends, k) => { exact[k] ??= ends; }); }
    if (layer.kind === 'forest') { values[0].push(...layer.low, ...layer.high); }
    if (EXTENT[layer.kind]) { EXTENT[layer.kind](layer).forEach((v, k) => { for (const one of v) { values[k].push(one); } }); }
  }
  const bars = panel.layers.some(layer => layer.kind === 'bars');
  return [panel.x_range, panel.y_range].map((given, k) => given ?? exact[k]
    ?? padded(values[k], k ? panel.y_log : panel.x_log, bars ? k ? 'zero' : 'none' : 'all'));
}
export function padded(values, log = false, room = 'all', share = 0.05) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { if (isNumber(v) && (!log || v > 0)) { low = Math.min(low, v); high = Math.max(high, v); } }
  if (low > high) { return log ? [1, 10] : [0, 1]; }
  if (log) {
    const m = share * (Math.log10(high / low) || 1);
    return [low * 10 ** -m, high * 10 ** m];
  }
  if (room === 'none') { return [low, high]; }
  const m = share * (high - low || Math.abs(high) || 1), fromZero = room === 'zero';
  return [fromZero && low === 0 ? 0 : low - m, fromZero && high === 0 ? 0 : high + m];
}

export function niceTicks([a, b], most) {
  const low = Math.min(a, b), high = Math.max(a, b), size = 10 ** Math.floor(Math.log10((high - low) / most || 1));
  const step = [1, 2, 5, 10].map(f => f * size).find(s => (high - low) / s <= most) ?? 10 * size;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    const text = digits > 4 || step >= 1e6 ? Number((k * step).toPrecision(6)).toExponential() : (k * step).toFixed(digits);
    ticks.push([k * step, (k === 0 ? '0' : text).replace('-', '−')]);
  }
  return ticks;
}
function logTicks([low, high], most) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), ticks = [];
  if (last - first >= 2) {
    const step = Math.ceil((last - first + 1) / most);
    for (let k = last; k >= first; k -= step) { ticks.unshift([10 ** k, power(k)]); }
    return ticks;
  }
  for (let k = Math.floor(Math.log10(low)); k <= last; k++) {
    for (const f of [1, 2, 5]) { if (f * 10 ** k >= low && f * 10 ** k <= high) { ticks.push([f * 10 ** k, plain(f * 10 ** k)]); } }
  }
  return ticks.length > 1 ? ticks : niceTicks([low, high], 4);
}
const plain = v => String(Number(v.toPrecision(6)));
const power = k => k >= -2 && k <= 3 ? plain(10 ** k) : `10${[...String(k)].map(c => SUPERSCRIPTS[c]).join('')}`;

function ticksOf(panel, side, range, most) {
  const given = panel[`${side}_ticks`];
  if (given) { return given; }
  for (const layer of panel.layers) {
    const names = layer.kind === 'heat' ? layer[`${side}_names`] : layer.kind === 'forest' && side === 'y' ? layer.names : null;
    if (names) { return names.map((name, k) => [layer.kind === 'forest' ? names.length - 1 - k : k, name]); }
    if (layer.kind === 'heat') { return niceTicks(range, most).filter(([v]) => Number.isInteger(v)); }
  }
  return panel[`${side}_log`] ? logTicks(range, most) : niceTicks(range, most);
}
const widest = ticks => Math.max(0, ...ticks.map(([, name]) => LETTER * Math.min(name.length, 24)));

// Pixels of a number along an axis.
function along([a, b], log, from, to) {
  const f = log ? Math.log10 : v => v, low = f(a), span = f(b) - low || 1;
  return v => from + (f(v) - low) / span * (to - from);
}
// Names side by side that would touch are thinned out evenly.
function thinned(ticks, at) {
  for (let step = 1; step < ticks.length; step++) {
    const kept = ticks.filter((_, k) => k % step === 0), ends = kept.map(([v, name]) => [at(v), 0.5 * LETTER * name.length + 4]);
    if (ends.every(([x, half], k) => k === 0 || Math.abs(x - ends[k - 1][0]) >= half + ends[k - 1][1])) { return kept; }
  }
  return ticks.slice(0, 1);
}

// The frame of a panel: ranges, the inner box in pixels, and where numbers lie in it.
export function frameOf(panel, width, height) {
  const [x_range, y_range] = ranges(panel), bare = panel.bare;
  const y_ticks = bare ? [] : ticksOf(panel, 'y', y_range, Math.max(2, Math.min(6, Math.floor(height / 38))));
  const named = panel.layers.some(l => l.kind === 'level' && l.vertical && l.label);
  const box = { left: bare ? 6 : 10 + widest(y_ticks) + (panel.y_label ? 18 : 0), right: width - (bare ? 6 : 12),
    top: named ? 18 : 8, bottom: height - (bare ? 6 : panel.x_label ? 38 : 22) };
  const margin = box.left;
  if (panel.square) { squared(box, x_range, y_range); }
  const x = along(x_range, panel.x_log, box.left, box.right), y = along(y_range, panel.y_log, box.bottom, box.top);
  const x_ticks = bare ? [] : thinned(ticksOf(panel, 'x', x_range, Math.max(2, Math.min(8, Math.floor((box.right - box.left) / 64)))), x);
  return { ...box, margin, x, y, x_range, y_range, x_ticks, y_ticks, width, height };
}
// The largest box in which both axes have the same unit.
function squared(box, [x0, x1], [y0, y1]) {
  const unit = Math.min((box.right - box.left) / Math.abs(x1 - x0), (box.bottom - box.top) / Math.abs(y1 - y0));
  const spare = [box.right - box.left - unit * Math.abs(x1 - x0), box.bottom - box.top - unit * Math.abs(y1 - y0)];
  box.left += spare[0] / 2;
  box.right -= spare[0] / 2;
  box.top += spare[1] / 2;
  box.bottom -= spare[1] / 2;
}

export function drawAxes(panel, frame) {
  const made = svg('g', { 'aria-hidden': 'true' }), table = panel.layers.some(l => l.kind === 'heat');
  const numbers = panel.zero !== false && !panel.y_log && !panel.y_ticks && !panel.layers.some(l => l.kind === 'forest');
  if (panel.bare) { return made; }
  const text = (x, y, words, more = {}) => made.append(svg('text', { x: px(x), y: px(y), ...more }, words));
  const rule = (x1, y1, x2, y2, name) => made.append(svg('line', { x1: px(x1), y1: px(y1), x2: px(x2), y2: px(y2), class: name }));
  const inside = (v, [a, b]) => v >= Math.min(a, b) - 1e-9 * Math.abs(b - a) && v <= Math.max(a, b) + 1e-9 * Math.abs(b - a);
  for (const [v, name] of frame.y_ticks.filter(([v]) => inside(v, frame.y_range))) {
    const y = frame.y(v), short = name.length > 24 ? `${name.slice(0, 23)}…` : name;
    if (!table) { rule(frame.left, y, frame.right, y, v === 0 && numbers ? 'zero' : 'rule'); }
    text(frame.left - 6, y + 4, short, { 'text-anchor': 'end' });
  }
  for (const [v, name] of frame.x_ticks.filter(([v]) => inside(v, frame.x_range))) {
    if (!table && !panel.x_ticks) { rule(frame.x(v), frame.top, frame.x(v), frame.bottom, 'rule'); }
    const half = 0.5 * LETTER * name.length;
    text(Math.max(half, Math.min(frame.width - half, frame.x(v))), frame.bottom + 16, name, { 'text-anchor': 'middle' });
  }
  if (panel.x_label) { text((frame.left + frame.right) / 2, Math.min(frame.height - 4, frame.bottom + 34), panel.x_label, { 'text-anchor': 'middle' }); }
  if (panel.y_label) {
    const y = (frame.top + frame.bottom) / 2, x = px(frame.left - frame.margin + 12);
    text(x, y, panel.y_label, { 'text-anchor': 'middle', transform: `rotate(-90 ${x} ${px(y)})` });
  }
  return made;
}
