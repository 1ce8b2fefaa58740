// The map of heads: colours by the chosen reading; a click or a key chooses a head.
import { isNumber, show } from '../../draw/assets/svg.js';
import { report } from './data.js';
import { choose, findHead, onChoice } from './selection.js';
import { tracedHead } from './traced.js';

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const MARKS = { predicted: 'P', weights: 'W' };
const VALUE = {
  measured: ({ traced }) => traced?.share ?? null,
  predicted: ({ traced }, part) => traced?.predicted[part.dataset.closure] ?? null,
  weights: ({ head }) => head.expansion_index,
  disagree: ({ traced }) => traced?.judged ?? null,
};
const ENDS = { weights: ['opposed', 'aligned'] };

function disagreeing(one, part) {
  if (!isNumber(one.traced?.judged) || Math.abs(one.traced.judged) <= Number(part.dataset.clear)) { return null; }
  return Object.keys(MARKS).filter(name => VALUE[name](one, part) * one.traced.judged <= 0);
}
const signed = v => `${v > 0 ? '+' : v < 0 ? '−' : ''}${Math.abs(v).toFixed(3).replace(/^0/, '')}`;
const written = v => !isNumber(v) ? '–' : Math.abs(v) < 0.0005 ? '0' : signed(v);

function wordsOf(one, reading, value, others) {
  if (reading === 'weights') { return `index ${show(value)}`; }
  if (reading === 'disagree') { return others === null ? 'too small to call' : others.length ? `${others.join(' and ')} of the other sign` : 'all signs agree'; }
  return `${reading} change of ln(1 − C) ${show(value)}${isNumber(value) ? `, ${value < 0 ? 'gathers' : 'spreads'} directions` : ''}`;
}
function paintMap(part, reading) {
  const k = Number(part.dataset.model), scale = Number(reading === 'weights' ? part.dataset.weights : part.dataset.scale);
  const counts = { clear: 0, predicted: 0, weights: 0 };
  part.querySelectorAll('.head').forEach(button => {
    const found = findHead(k, button.dataset.head), one = { ...found, traced: tracedHead(found) };
    const value = VALUE[reading](one, part), others = disagreeing(one, part), quiet = reading === 'disagree' && !others?.length;
    if (others) { counts.clear += 1; others.forEach(name => { counts[name] += 1; }); }
    button.style.setProperty('--hue', value > 0 ? 'var(--spread)' : 'var(--gather)');
    button.style.setProperty('--amount', `${quiet ? 0 : Math.round(85 * Math.min(1, Math.abs(value ?? 0) / scale))}%`);
    if (part.dataset.written) {
      button.textContent = reading !== 'disagree' ? written(value) : others === null ? '·' : others.map(name => MARKS[name]).join('') || '=';
    }
    const label = `layer ${found.layer.layer}, head ${found.head.head}: ${wordsOf(one, reading, value, others)}`;
    button.setAttribute('aria-label', label);
    button.title = label;
  });
  const [low, high] = ENDS[reading] ?? ['gathers directions', 'spreads directions'], [left, right] = part.querySelectorAll('.scale span');
  left.textContent = `${low} −${scale}`;
  right.textContent = `+${scale} ${high}`;
  part.querySelector('.reading').textContent = noteOf(reading, part, counts);
}
function noteOf(reading, part, { clear, predicted, weights }) {
  if (reading === 'measured') { return 'Share of attention’s change of ln(1 − C); the shares of a layer’s heads add up.'; }
  if (reading === 'predicted') { return `The same share by the closure “${part.dataset.closure}”, from statistics of other text.`; }
  if (reading === 'weights') { return 'From the weights alone: value map aligned with the score map, or opposed to it. Not what happens to tokens.'; }
  return `Of ${clear} heads whose measured sign is clear, the prediction (P) has the other sign in ${predicted}, the index of the weights (W) in ${weights}.`;
}

function startMap(part) {
  const k = Number(part.dataset.model), checked = part.querySelector('input:checked');
  if (part.querySelector('.head').textContent) { part.dataset.written = 'yes'; }
  paintMap(part, checked.value);
  part.addEventListener('change', event => { if (event.target.type === 'radio') { paintMap(part, event.target.value); } });
  part.addEventListener('click', event => {
    const button = event.target.closest('.head');
    if (button) { choose(k, button.dataset.head); }
  });
  // Arrow keys walk over the map, as in a spreadsheet.
  part.addEventListener('keydown', event => {
    const button = event.target.closest('.head'), step = ARROWS[event.key];
    if (!button || !step) { return; }
    const rows = [...part.querySelectorAll('tbody tr')].map(row => [...row.querySelectorAll('.head')]);
    const n = rows.findIndex(row => row.includes(button)), next = rows[n + step[0]]?.[rows[n].indexOf(button) + step[1]];
    if (next) { event.preventDefault(); next.focus(); }
  });
}
export function startMaps() {
  const maps = [...document.querySelectorAll('.heads')];
  maps.forEach(startMap);
  onChoice(({ k, key }) => maps.forEach(part => part.querySelectorAll('.head').forEach(button =>
    button.setAttribute('aria-pressed', String(Number(part.dataset.model) === k && button.dataset.head === key)))));
  return maps.length ? { k: Number(maps[0].dataset.model), key: maps[0].dataset.open } : null;
}
// The layer that orbits show is marked in the map.
export function markLayer(k, layer) {
  document.querySelectorAll(`.heads[data-model="${k}"] tbody tr`).forEach(row => row.classList.toggle('now', row === rowOf(row.parentNode, k, layer)));
}
function rowOf(body, k, layer) {
  return [...body.rows].find(row => {
    const found = findHead(k, row.querySelector('.head')?.dataset.head);
    return found && found.layer.layer === layer && found.layer.stack === report.models[k].orbits?.stack;
  });
}
