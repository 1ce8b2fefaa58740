// Pictures of one head: rates, the spectrum of V, the rotary effect, and its simulated flow. Each is made in two steps:
// its place on the page, then what draws it there.
import { padded } from '../../draw/assets/axes.js';
import { drawPanel, moveLayers } from '../../draw/assets/figure.js';
import { between, player } from '../../draw/assets/player.js';
import { element, show } from '../../draw/assets/svg.js';
import { numbersBehind } from './data.js';

const SPREAD = '#D55E00', GATHER = '#0072B2', HUES = [SPREAD, GATHER, '#009E73', '#8A8F98'];
const TRAIL = 12; // moments behind a token
const sign = v => v > 0 ? SPREAD : GATHER;
const count = numbers => numbers.map((_, k) => k);

function place(caption, name, ...rest) {
  const made = element('figure', undefined, name), plot = element('div', undefined, 'plot');
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', `${caption}. The table below has all numbers.`);
  made.append(element('figcaption', caption), plot, ...rest);
  return made;
}
const still = (made, panel) => ({ made, draw: () => drawPanel(made.querySelector('.plot'), panel) });
const some = (shown, all) => `${shown.length < all ? `${shown.length} of ` : ''}${all}`;

export function ratesPicture({ rates, n_rates }) {
  const made = place(`Rates: ${some(rates, n_rates)} directions grow (+) or shrink (−)`, 'rates', numbersBehind(['k', 'rate'], () => rates.map((v, i) => [i, v])));
  return still(made, { x_ticks: [[0, 'smallest'], [rates.length - 1, 'largest']],
    layers: [{ kind: 'bars', x: count(rates), y: rates, colours: rates.map(sign), width: 0.85, texts: rates.map((_, i) => `rate ${i + 1}`) }] });
}
export function spectrumPicture({ eigenvalues, n_eigenvalues }) {
  const made = place(`Spectrum of the value map V: ${some(eigenvalues, n_eigenvalues)} eigenvalues`, 'plane',
    numbersBehind(['k', 'real', 'imaginary'], () => eigenvalues.map((v, i) => [i, ...v])));
  const r = 1.12 * Math.max(...eigenvalues.flat().map(Math.abs), 1e-9);
  return still(made, { x_label: 'real part', y_label: 'imaginary', x_range: [-r, r], y_range: [-r, r],
    layers: [{ kind: 'level', at: 0, vertical: true, colour: '#8A8F98', solid: true },
      { kind: 'points', x: eigenvalues.map(v => v[0]), y: eigenvalues.map(v => v[1]), colours: eigenvalues.map(v => sign(v[0])), size: 7, opacity: 0.8 }] });
}
export function offsetsPicture({ offsets, offset_index, offset_size }) {
  const made = place('Rotary effect: expansion index by offset of key and query', 'offsets',
    numbersBehind(['offset', 'index', 'size of rates'], () => offsets.map((m, i) => [m, offset_index[i], offset_size[i]])));
  return still(made, { x_label: 'offset in tokens', x_ticks: offsets.map((m, i) => [i, String(m)]),
    layers: [{ kind: 'curve', x: count(offsets), y: offset_index, colour: SPREAD, width: 2.4, markers: true }] });
}
export function energyPicture({ rotary: { energy } }) {
  const made = place('Share of rotary frequencies in the score map, fast to slow', 'energy', numbersBehind(['frequency', 'share'], () => energy.map((v, i) => [i, v])));
  return still(made, { x_label: 'frequency', layers: [{ kind: 'bars', x: count(energy), y: energy, colour: GATHER }] });
}

export function flowPicture(flow) {
  const last = flow.times.length - 1, box = element('div', undefined, 'player'), label = element('label', 'Time '), slider = element('input'), button = element('button', 'Play');
  Object.assign(slider, { type: 'range', min: 0, max: last, value: last });
  label.append(slider);
  button.type = 'button';
  box.append(button, label, element('output', `t = ${show(flow.times.at(-1))}`));
  const made = place('Simulated flow: this head alone, at every depth', 'flow', box,
    element('p', `Outcome: ${flow.ending}. Expected: ${flow.predicted}.`, 'note'),
    numbersBehind(['time', 'token', 'x', 'y'], () => flow.times.flatMap((t, i) => flow.positions[i].map((p, j) => [t, j, ...p]))));
  const draw = () => {
    const plot = made.querySelector('.plot'), flat = flow.positions.flat(), range = j => padded(flat.map(p => p[j]));
    drawPanel(plot, { bare: true, x_range: range(0), y_range: range(1), layers: flowLayers(flow, last) });
    player(box, { last, frame: k => moveLayers(plot, flowLayers(flow, k)), name: k => `t = ${show(flow.times[k])}`, ms: 110 });
  };
  return { made, draw };
}
function flowLayers(flow, k) {
  const now = between(flow.positions, k);
  return [{ kind: 'curve', ...trails(flow.positions, now, k, TRAIL), colour: '#8A8F98', width: 1, opacity: 0.5, silent: true },
    { kind: 'points', x: now.map(p => p[0]), y: now.map(p => p[1]), size: 8, colours: flow.clusters.map(c => c < 0 ? '#22262E' : HUES[Math.min(c, 3)]),
      texts: flow.clusters.map((_, i) => `token ${i}`), only_texts: true }];
}
// The last moments of each token up to now, as one line with gaps.
export function trails(positions, now, k, length, seen = p => p) {
  const x = [], y = [];
  now.forEach((p, i) => {
    for (let d = Math.max(0, Math.ceil(k) - length); d < k; d++) {
      const at = seen(positions[d][i]);
      x.push(at[0]);
      y.push(at[1]);
    }
    x.push(p[0], null);
    y.push(p[1], null);
  });
  return { x, y };
}
