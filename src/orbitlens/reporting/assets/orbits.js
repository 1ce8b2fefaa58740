// Orbits: directions of tokens around the one that they share, in two principal axes, or in three that the reader turns.
import { padded } from '../../draw/assets/axes.js';
import { drawPanel, moveLayers } from '../../draw/assets/figure.js';
import { between, player } from '../../draw/assets/player.js';
import { show } from '../../draw/assets/svg.js';
import { report } from './data.js';
import { trails } from './head_pictures.js';
import { markLayer } from './heads.js';
import { findHead, onChoice } from './selection.js';

const TRAILS = { shared: 1, 2: 3, 3: 3 }; // depths behind a token, by view
const STEPS = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
const ORDINALS = ['first', 'second', 'third'], RINGS = [0.9, 0.75, 0.5, 0.25, 0, -0.5];
const few = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
const percent = share => `${Math.round(100 * share)} %`;
const far = points => Math.max(...points.flat().map(p => Math.hypot(...p))) || 1;
// From the first token of the context to the last.
const shade = share => share < 0.5 ? `color-mix(in srgb, var(--place-middle) ${200 * share}%, var(--place-first))`
  : `color-mix(in srgb, var(--place-last) ${200 * share - 100}%, var(--place-middle))`;

// Around the shared direction a token's squared distance from the centre is 1 minus its cosine with it.
const away = cosine => Math.sqrt(Math.max(0, 1 - cosine));
const polar = orbits => orbits.shared.map((row, d) => row.map((c, i) => [away(c) * Math.cos(orbits.bearings[d][i]), away(c) * Math.sin(orbits.bearings[d][i])]));
function turned([x, y, z], { view, yaw, pitch }) {
  if (view !== '3') { return [x, y, 0]; }
  const a = x * Math.cos(yaw) + z * Math.sin(yaw), c = -x * Math.sin(yaw) + z * Math.cos(yaw);
  return [a, y * Math.cos(pitch) - c * Math.sin(pitch), y * Math.sin(pitch) + c * Math.cos(pitch)];
}
function layersOf(orbits, state) {
  const places = state.places, n = orbits.tokens.length, now = between(places, state.k).map(p => turned(p, state)), depth = Math.round(state.k);
  const depths = now.map(p => p[2]), low = Math.min(...depths), span = Math.max(...depths) - low, base = n <= 40 ? 9 : 7.5;
  const ways = { kind: 'curve', ...trails(places, now, state.k, TRAILS[state.view], p => turned(p, state)), colour: '#636A75', width: 1, opacity: 0.3, silent: true };
  const tokens = { kind: 'points', x: now.map(p => p[0]), y: now.map(p => p[1]), colours: orbits.tokens.map((_, i) => shade(i / Math.max(1, n - 1))),
    sizes: depths.map(d => state.view === '3' ? base * (0.6 + 0.6 * (span > 0 ? (d - low) / span : 0.5)) : base), opacity: 1,
    texts: orbits.tokens.map((t, i) => `${i}: “${t}”\ncosine with the shared direction ${show(orbits.shared[depth][i])}`), only_texts: true,
    ...(state.words ? { words: orbits.tokens.map(t => few(t.trim() || '␣', 14)) } : {}) };
  const [lines, names] = state.view === 'shared' ? rings(state) : [[], []];
  return [...lines, ways, tokens, ...names, ...(state.view === '3' ? axesOf(orbits, state) : [])];
}
function rings({ reach }) {
  const round = Array.from({ length: 73 }, (_, i) => i * Math.PI / 36), kept = RINGS.filter(c => away(c) <= 1.02 * reach);
  return [kept.map(c => ({ kind: 'curve', x: round.map(a => away(c) * Math.cos(a)), y: round.map(a => away(c) * Math.sin(a)), colour: '#8A8F98', width: 1, opacity: 0.45, dotted: true, silent: true })),
    kept.map(c => ({ kind: 'points', x: [0], y: [away(c)], words: [c === kept[0] ? `cosine ${c}` : String(c).replace('-', '−')], colour: '#636A75', silent: true }))];
}
function axesOf(orbits, state) {
  const r = 0.8 * state.reach;
  return ORDINALS.flatMap((name, i) => {
    const end = [0, 0, 0].map((_, j) => j === i ? r : 0), a = turned(end.map(v => -v), state), b = turned(end, state);
    return [{ kind: 'curve', x: [a[0], b[0]], y: [a[1], b[1]], colour: '#636A75', width: 1, silent: true },
      { kind: 'points', x: [b[0]], y: [b[1]], words: [`${name}, ${percent(orbits.explained[i])}`], colour: '#636A75', silent: true }];
  });
}
function panelOf(orbits, state) {
  state.places = state.view === 'shared' ? state.polar : orbits.positions;
  state.reach = far(state.places);
  const layers = layersOf(orbits, state), flat = orbits.positions.flat(), r = (state.view === '3' ? 0.9 : 1.06) * state.reach;
  if (state.view !== '2') { return { layers, bare: true, square: true, x_range: [-r, r], y_range: [-r, r] }; }
  return { layers, zero: false, x_label: `first direction, ${percent(orbits.explained[0])}`, y_label: `second direction, ${percent(orbits.explained[1])}`,
    x_range: padded(flat.map(p => p[0])), y_range: padded(flat.map(p => p[1])) };
}
const layerAt = (orbits, depth) => depth === 0 ? null : Number(orbits.depths[depth].replace('after layer ', ''));
const depthOf = (orbits, layer) => orbits.depths.findIndex((_, d) => d > 0 && layerAt(orbits, d) >= layer); // some depths may be left out

function startOrbits(part, playing) {
  const k = Number(part.dataset.model), { orbits } = report.models[k], plot = part.querySelector('.plot'), last = orbits.depths.length - 1;
  const state = { view: 'shared', k: last, yaw: 0.6, pitch: 0.35, words: false, polar: polar(orbits) };
  const move = () => moveLayers(plot, layersOf(orbits, state));
  drawPanel(plot, panelOf(orbits, state));
  const named = d => `${orbits.depths[d]}: C ${orbits.cosine[d].toFixed(2).replace('-', '−')} in this context`;
  const frame = d => { state.k = d; move(); markLayer(k, layerAt(orbits, Math.round(d))); };
  const controls = player(part.querySelector('.player'), { last, frame, name: named, ms: 900 });
  controls.go(last);
  part.addEventListener('change', event => {
    if (event.target.type === 'radio') { state.view = event.target.value; }
    if (event.target.type === 'checkbox') { state.words = event.target.checked; }
    plot.tabIndex = state.view === '3' ? 0 : -1;
    plot.classList.toggle('turns', state.view === '3');
    drawPanel(plot, panelOf(orbits, state));
  });
  turnable(plot, state, move);
  let first = playing; // the choice that a page starts with leaves the play alone
  onChoice(chosen => {
    const found = chosen.k === k ? findHead(k, chosen.key) : null, depth = found?.layer.stack === orbits.stack ? depthOf(orbits, found.layer.layer) : -1;
    if (depth > 0 && !first) { controls.stop(); controls.go(depth); }
    first = false;
  });
  if (playing && !controls.calm()) { controls.play(); }
}
function turnable(plot, state, move) {
  let held = null;
  const turn = (right, up) => { state.yaw += right; state.pitch = Math.max(-1.5, Math.min(1.5, state.pitch + up)); move(); };
  plot.addEventListener('pointerdown', event => { if (state.view === '3') { held = [event.clientX, event.clientY]; plot.setPointerCapture(event.pointerId); } });
  plot.addEventListener('pointermove', event => {
    if (held === null) { return; }
    turn((event.clientX - held[0]) / 160, (event.clientY - held[1]) / 160);
    held = [event.clientX, event.clientY];
  });
  for (const name of ['pointerup', 'pointercancel']) { plot.addEventListener(name, () => { held = null; }); }
  plot.addEventListener('keydown', event => {
    if (state.view === '3' && STEPS[event.key]) { event.preventDefault(); turn(...STEPS[event.key]); }
  });
}
export function startAllOrbits({ playing }) { document.querySelectorAll('.orbits').forEach(part => startOrbits(part, playing)); }
