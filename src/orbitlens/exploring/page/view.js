// The picture of a flow: tokens as points of a plane, a space or a globe, with trails, the ghost of the model and whom a token attends to.
import { colour, mixed, number, placeColour } from './charts.js';
import { short } from './sentence.js';

const TRAIL = 56, BANDS = 3, LEVELS = 8, POINT = 5.2, TINTS = 16;

// Right, up and towards the viewer, by two angles.
export function axesOf({ yaw, pitch }) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  return [[cy, sy, 0], [-sy * sp, cy * sp, cp], [sy * cp, -cy * cp, sp]];
}
const dot3 = (a, x, y, z) => a[0] * x + a[1] * y + a[2] * z;

// Every token in the three coordinates of the picture, moment by moment: coordinates themselves, or along the axes of a head's tokens.
export function places(frame, n, d, axes, unit) {
  const out = new Float64Array(3 * n);
  for (let i = 0; i < n; i += 1) {
    let size = 1;
    if (unit) { size = 0; for (let c = 0; c < d; c += 1) { size += frame[i * d + c] ** 2; } size = Math.sqrt(size) || 1; }
    for (let k = 0; k < 3; k += 1) {
      let v = 0;
      if (axes) { for (let c = 0; c < d; c += 1) { v += axes[k * d + c] * frame[i * d + c]; } } else { v = k < d ? frame[i * d + k] : 0; }
      out[3 * i + k] = v / size;
    }
  }
  return out;
}
// Scene: { n, moments: [places], logScale, globe, flat, tint(i), view, hover, chosen, attention, ghost, ghostAt, logRadius(k) }.
export function drawScene(pen, width, height, scene, k) {
  const low = Math.max(0, Math.min(scene.moments.length - 1, Math.floor(k))), high = Math.min(scene.moments.length - 1, low + 1), share = Math.min(1, Math.max(0, k - low));
  const frame = projection(scene, width, height, scene.logRadius(k)), { n } = scene;
  backdrop(pen, scene, frame);
  const points = [], paper = colour('paper');
  for (let i = 0; i < n; i += 1) { points.push({ i, ...frame.at(scene, low, high, share, i) }); }
  scene.points = points;
  if (scene.ghost) { drawGhost(pen, scene, frame); }
  if (scene.future) { drawFuture(pen, scene, frame); }
  else { drawTrails(pen, scene, frame, k); }
  if (scene.attention) { drawAttention(pen, scene, points); }
  for (const p of [...points].sort((a, b) => a.z - b.z)) {
    const near = scene.flat ? 1 : Math.min(1, Math.max(0, 0.5 + 0.5 * p.z)), r = POINT * (0.62 + 0.38 * near) * (n > 90 ? 0.85 : 1), own = scene.tint(p.i);
    pen.circle(p.x, p.y, r + 0.7, { fill: paper });
    pen.circle(p.x, p.y, r, { fill: pale(own, Math.round(LEVELS * near)) });
    if (p.i === scene.hover || p.i === scene.chosen) { pen.circle(p.x, p.y, r + 4, { stroke: colour('ink'), width: 1.6 }); }
  }
  const named = points.find(p => p.i === (scene.hover ?? scene.chosen));
  if (scene.words) { drawWords(pen, scene, points, named); }
  if (named) { label(pen, scene, named, true); }
}
// As many names as have room, the nearest first.
function drawWords(pen, scene, points, named) {
  const taken = named ? [[named.x, named.y - 20, 110, 26]] : [];
  for (const p of [...points].sort((a, b) => b.z - a.z || a.i - b.i)) {
    const wide = 4 + 6.6 * shown(scene.names[p.i] ?? '').length, box = [p.x + 9, p.y - 16, wide, 13];
    if (p === named || taken.some(([x, y, w, h]) => box[0] < x + w && x < box[0] + wide && box[1] < y + h && y < box[1] + 13)) { continue; }
    taken.push(box);
    label(pen, scene, p);
  }
}
const shown = text => short(text, 18);
const label = (pen, scene, p, whole) => {
  const words = scene.names?.length ? whole ? `${p.i}: “${shown(scene.names[p.i] ?? '')}”` : shown(scene.names[p.i] ?? '') : `token ${p.i}`;
  pen.text(p.x + 9, p.y - 7, words, { fill: colour('ink'), size: whole ? 13 : 11, weight: whole ? 600 : 400, opacity: scene.flat || whole ? 1 : 0.4 + 0.6 * Math.max(0, p.z) });
};

export function projection(scene, width, height, logRadius) {
  const view = axesOf(scene.flat ? { yaw: 0, pitch: Math.PI / 2 } : scene.view), unit = Math.min(width, height) / 2 * 0.9, cx = width / 2, cy = height / 2;
  const place = (x, y, z) => ({ x: cx + unit * dot3(view[0], x, y, z), y: cy - unit * dot3(view[1], x, y, z), z: dot3(view[2], x, y, z) });
  const scaled = (k, factor, m, i) => [m[3 * i] * factor, m[3 * i + 1] * factor, m[3 * i + 2] * factor], factors = [];
  const factor = (s, f) => factors[f] ??= Math.exp(s.logScale[f] - logRadius);
  return { view, unit, cx, cy, place, logRadius, factor,
    at(s, low, high, share, i) {
      const a = scaled(low, factor(s, low), s.moments[low], i), b = share ? scaled(high, factor(s, high), s.moments[high], i) : a;
      return place(a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1]), a[2] + share * (b[2] - a[2]));
    } };
}
// Which way is up, and what a rotary encoding turns about.
function drawAxis(pen, scene, frame) {
  for (const end of [-1, 1]) {
    const a = frame.place(0, 0, end * Math.exp(-frame.logRadius)), b = frame.place(0, 0, 1.1 * end * Math.exp(-frame.logRadius));
    pen.line([a.x, a.y, b.x, b.y], { stroke: colour('muted'), width: 1.6, opacity: a.z < 0 ? 0.35 : 0.9 });
  }
}
function backdrop(pen, scene, frame) {
  const { cx, cy, unit, logRadius } = frame, line = colour('grid');
  if (scene.globe) {
    const r = unit * Math.exp(-logRadius);
    pen.circle(cx, cy, r, { fill: colour('soft'), stroke: line, width: 1.2 });
    if (!scene.flat && !scene.projected) { graticule(pen, frame, Math.exp(-logRadius), line); if (scene.axis) { drawAxis(pen, scene, frame); } }
    return;
  }
  const decade = Math.floor((logRadius) / Math.LN10 + 1e-9);
  for (let k = scene.projected ? 0 : decade - 2; k <= (scene.projected ? 0 : decade + 1); k += 1) { // directions on three axes are within 1
    const r = unit * Math.exp(k * Math.LN10 - logRadius);
    if (r < 12 || r > (scene.projected ? 1 : 2.2) * unit) { continue; }
    pen.circle(cx, cy, r, { stroke: line, width: 1 });
    pen.text(cx + r * 0.7071 + 4, cy - r * 0.7071 - 3, k >= -2 && k <= 3 ? number(10 ** k) : `10^${k}`.replace('-', '−'), { fill: colour('muted'), size: 11, opacity: Math.min(1, r / 60) });
  }
  pen.circle(cx, cy, 2, { fill: colour('muted') });
}
function graticule(pen, frame, radius, line) {
  const path = [];
  const ring = point => {
    for (let a = 0; a <= 72; a += 1) { const p = frame.place(...point(a * Math.PI / 36).map(v => v * radius)); path.push(p.z >= 0 ? p.x : NaN, p.z >= 0 ? p.y : NaN); }
    path.push(NaN, NaN);
  };
  for (let lat = -60; lat <= 60; lat += 30) { const [h, r] = [Math.sin(lat * Math.PI / 180), Math.cos(lat * Math.PI / 180)]; ring(a => [r * Math.cos(a), r * Math.sin(a), h]); }
  for (let lon = 0; lon < 180; lon += 30) { const [e, f] = [Math.cos(lon * Math.PI / 180), Math.sin(lon * Math.PI / 180)]; ring(a => [e * Math.cos(a), f * Math.cos(a), Math.sin(a)]); }
  pen.line(path, { stroke: line, width: 0.8 });
}
// Token i at saved moments from … to, on the screen: one pass over plain numbers, since it runs for every token in every frame.
function way(scene, frame, i, from, to, step, path) {
  const [r, u] = frame.view, { cx, cy, unit } = frame;
  for (let f = from; f <= to; f += step) {
    const m = scene.moments[f], g = unit * frame.factor(scene, f), x = m[3 * i], y = m[3 * i + 1], z = m[3 * i + 2];
    path.push(cx + g * (r[0] * x + r[1] * y + r[2] * z), cy - g * (u[0] * x + u[1] * y + u[2] * z));
  }
}
function drawTrails(pen, scene, frame, k) {
  const last = Math.floor(k), { n } = scene, step = n > 64 ? 3 : 2, group = Math.max(1, Math.ceil(n / TINTS));
  for (let band = BANDS - 1; band >= 0; band -= 1) {
    const from = Math.max(0, last - Math.round(TRAIL * (band + 1) / BANDS)), to = Math.max(0, last - Math.round(TRAIL * band / BANDS));
    if (to <= from) { continue; }
    for (let first = 0; first < n; first += group) { // neighbours in the context share a colour, and a path: a stroke costs more than its points
      const path = [];
      for (let i = first; i < Math.min(n, first + group); i += 1) {
        way(scene, frame, i, from, to - 1, step, path);
        if (band === 0) { const end = scene.points[i]; path.push(end.x, end.y); } else { way(scene, frame, i, to, to, 1, path); }
        path.push(NaN, NaN);
      }
      pen.line(path, { stroke: scene.tint(Math.min(n - 1, first + (group >> 1))), width: 1.4, opacity: 0.42 * (1 - band / BANDS) });
    }
  }
}
function drawFuture(pen, scene, frame) {
  const last = scene.moments.length - 1, step = Math.max(1, Math.floor(last / 60));
  for (let i = 0; i < scene.n; i += 1) {
    const path = [];
    way(scene, frame, i, 0, last, step, path);
    pen.line(path, { stroke: scene.tint(i), width: i === scene.chosen ? 2.2 : 1.1, opacity: i === scene.chosen ? 0.9 : 0.4 });
  }
}
function drawAttention(pen, scene, points) {
  const from = points[scene.hover ?? scene.chosen];
  if (!from) { return; }
  scene.attention.forEach((p, j) => { if (p > 0.004 && j !== from.i) { pen.line([from.x, from.y, points[j].x, points[j].y], { stroke: colour('ink'), width: 0.6 + 5 * p, opacity: Math.min(0.75, 0.12 + 1.6 * p) }); } });
}
function drawGhost(pen, scene, frame) {
  const factor = Math.exp(-frame.logRadius), last = scene.ghost.length - 1, at = Math.min(scene.ghostAt, last), low = Math.floor(at), high = Math.min(last, low + 1), share = at - low;
  const path = [], rings = [];
  for (let i = 0; i < scene.n; i += 1) {
    const place = g => frame.place(...[0, 1, 2].map(c => factor * scene.ghost[g][3 * i + c]));
    for (let g = 0; g <= low; g += 1) { const p = place(g); path.push(p.x, p.y); }
    const [a, b] = [place(low), place(high)], now = { x: a.x + share * (b.x - a.x), y: a.y + share * (b.y - a.y) };
    path.push(now.x, now.y, NaN, NaN);
    rings.push(now.x, now.y);
  }
  pen.line(path, { stroke: colour('grey'), width: 1, opacity: 0.4, dash: [3, 3] });
  pen.circles(rings, 3.6, { stroke: colour('grey'), width: 1.2, opacity: 0.75 });
}
// Colours are text to a canvas: those of tokens, near and far, are made once a theme.
const made = new Map();
const kept = (key, make) => { if (made.size > 4000) { made.clear(); } if (!made.has(key)) { made.set(key, make()); } return made.get(key); };
const pale = (own, level) => kept(`${own} ${level} ${colour('paper')}`, () => mixed(colour('paper'), own, 0.34 + 0.66 * level / LEVELS));
export const tintOf = (i, n) => kept(`${i} ${n} ${colour('early')}`, () => placeColour(n < 2 ? 0 : i / (n - 1)));
