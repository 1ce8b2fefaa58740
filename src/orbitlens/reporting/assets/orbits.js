// Orbits: tokens in two directions, or in three that the reader turns.
import { padded } from '../../draw/assets/axes.js';
import { drawPanel, moveLayers } from '../../draw/assets/figure.js';
import { between, player } from '../../draw/assets/player.js';
import { report } from './data.js';
import { trails } from './head_pictures.js';

const TRAIL = 3; // depths behind a token
const STEPS = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
const ORDINALS = ['first', 'second', 'third'];
const few = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
const percent = share => `${Math.round(100 * share)} %`;
const reach = orbits => Math.max(...orbits.positions.flat().map(p => Math.hypot(...p))) || 1;
// From the first token of the context to the last.
const shade = share => share < 0.5 ? `color-mix(in srgb, var(--place-middle) ${200 * share}%, var(--place-first))`
  : `color-mix(in srgb, var(--place-last) ${200 * share - 100}%, var(--place-middle))`;

function turned([x, y, z], { view, yaw, pitch }) {
  if (view === 2) { return [x, y, 0]; }
  const a = x * Math.cos(yaw) + z * Math.sin(yaw), c = -x * Math.sin(yaw) + z * Math.cos(yaw);
  return [a, y * Math.cos(pitch) - c * Math.sin(pitch), y * Math.sin(pitch) + c * Math.cos(pitch)];
}
function layersOf(orbits, state) {
  const n = orbits.tokens.length, now = between(orbits.positions, state.k).map(p => turned(p, state));
  const depths = now.map(p => p[2]), low = Math.min(...depths), span = Math.max(...depths) - low, base = n <= 40 ? 9 : 7.5;
  const ways = { kind: 'curve', ...trails(orbits.positions, now, state.k, TRAIL, p => turned(p, state)), colour: '#636A75', width: 1, opacity: 0.4, silent: true };
  const tokens = { kind: 'points', x: now.map(p => p[0]), y: now.map(p => p[1]), colours: orbits.tokens.map((_, i) => shade(i / Math.max(1, n - 1))),
    sizes: depths.map(d => state.view === 3 ? base * (0.6 + 0.6 * (span > 0 ? (d - low) / span : 0.5)) : base), opacity: 1,
    texts: orbits.tokens.map((t, i) => `${i}: “${t}”`), only_texts: true, ...(state.words ? { words: orbits.tokens.map(t => few(t.trim() || '␣', 14)) } : {}) };
  return [ways, tokens, ...(state.view === 3 ? axesOf(orbits, state) : [])];
}
function axesOf(orbits, state) {
  const r = 0.8 * reach(orbits);
  return ORDINALS.flatMap((name, i) => {
    const end = [0, 0, 0].map((_, j) => j === i ? r : 0), a = turned(end.map(v => -v), state), b = turned(end, state);
    return [{ kind: 'curve', x: [a[0], b[0]], y: [a[1], b[1]], colour: '#636A75', width: 1, silent: true },
      { kind: 'points', x: [b[0]], y: [b[1]], words: [`${name}, ${percent(orbits.explained[i])}`], colour: '#636A75', silent: true }];
  });
}
function panelOf(orbits, state) {
  const layers = layersOf(orbits, state), flat = orbits.positions.flat(), r = 0.9 * reach(orbits);
  if (state.view === 3) { return { layers, bare: true, square: true, x_range: [-r, r], y_range: [-r, r] }; }
  return { layers, zero: false, x_label: `first direction, ${percent(orbits.explained[0])}`, y_label: `second direction, ${percent(orbits.explained[1])}`,
    x_range: padded(flat.map(p => p[0])), y_range: padded(flat.map(p => p[1])) };
}

function startOrbits(part) {
  const { orbits } = report.models[Number(part.dataset.model)], plot = part.querySelector('.plot'), last = orbits.depths.length - 1;
  const state = { view: 2, k: last, yaw: 0.6, pitch: 0.35, words: false };
  const move = () => moveLayers(plot, layersOf(orbits, state));
  drawPanel(plot, panelOf(orbits, state));
  player(part.querySelector('.player'), { last, frame: k => { state.k = k; move(); }, name: k => orbits.depths[k], ms: 700 });
  part.addEventListener('change', event => {
    if (event.target.type === 'radio') { state.view = Number(event.target.value); }
    if (event.target.type === 'checkbox') { state.words = event.target.checked; }
    plot.tabIndex = state.view === 3 ? 0 : -1;
    plot.classList.toggle('turns', state.view === 3);
    drawPanel(plot, panelOf(orbits, state));
  });
  turnable(plot, state, move);
}
function turnable(plot, state, move) {
  let held = null;
  const turn = (right, up) => { state.yaw += right; state.pitch = Math.max(-1.5, Math.min(1.5, state.pitch + up)); move(); };
  plot.addEventListener('pointerdown', event => { if (state.view === 3) { held = [event.clientX, event.clientY]; plot.setPointerCapture(event.pointerId); } });
  plot.addEventListener('pointermove', event => {
    if (held === null) { return; }
    turn((event.clientX - held[0]) / 160, (event.clientY - held[1]) / 160);
    held = [event.clientX, event.clientY];
  });
  for (const name of ['pointerup', 'pointercancel']) { plot.addEventListener(name, () => { held = null; }); }
  plot.addEventListener('keydown', event => {
    if (state.view === 3 && STEPS[event.key]) { event.preventDefault(); turn(...STEPS[event.key]); }
  });
}
export function startAllOrbits() { document.querySelectorAll('.orbits').forEach(startOrbits); }
