// The map of heads: colours by the chosen reading, and one panel with all about the chosen head.
import { element, show } from '../../draw/assets/svg.js';
import { report } from './data.js';
import { headCertificates, headNumbers } from './head_numbers.js';
import { energyPicture, flowPicture, offsetsPicture, ratesPicture, spectrumPicture } from './head_pictures.js';

const READINGS = { weights: h => h.expansion_index, data: h => h.data_aware?.expansion_index ?? null,
  context: h => h.rotary?.expansion_index ?? null };
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const panel = document.getElementById('detail');

function paintMap(part, scan, reading) {
  const scale = Number(part.dataset.scale);
  part.querySelectorAll('.head').forEach(button => {
    const [n, k] = button.dataset.head.split('.').map(Number);
    const head = scan.layers[n].heads[k], value = READINGS[reading](head);
    button.style.setProperty('--hue', value > 0 ? 'var(--spread)' : 'var(--gather)');
    button.style.setProperty('--amount', `${Math.round(85 * Math.min(1, Math.abs(value ?? 0) / scale))}%`);
    if (button.textContent) { button.textContent = value === null ? '–' : (value > 0 ? '+' : value < 0 ? '−' : '') + Math.abs(value).toFixed(2); }
    const label = `layer ${scan.layers[n].layer}, head ${head.head}: expansion index ${show(value)}, ${head.orientation}`;
    button.setAttribute('aria-label', label);
    button.title = label;
  });
}

function titleOf(model, layer, head, n_shared) {
  const start = report.models.length > 1 ? `${model.name}: layer` : 'Layer';
  const stack = model.scan.model.stacks.length > 1 ? ` (${layer.stack})` : '';
  const orientation = head.orientation === 'neutral' ? 'no different from chance' : `${head.orientation} maps`;
  const shared = n_shared > 1 ? `; ${n_shared} layers share these weights` : '';
  return `${start} ${layer.layer}, head ${head.head}${stack}: ${orientation}, ${head.regime}${shared}`;
}
function notesOf(model, spectra, flow) {
  const notes = [];
  if (!flow) { notes.push(`Its flow is not simulated: ${model.missing.flows ?? 'only the most aligned and opposed heads are (--flows N)'}.`); }
  if (spectra && !spectra.offsets.length) { notes.push(`No rotary effect by offset: this model's encoding is ${model.scan.model.position}.`); }
  if (!spectra && model.missing.spectra) { notes.push(`No spectra: ${model.missing.spectra}`); }
  return notes.map(text => element('p', text, 'note'));
}
function openHead(k, place) {
  document.querySelectorAll('.heads').forEach(part => part.querySelectorAll('.head').forEach(b =>
    b.setAttribute('aria-pressed', String(part.dataset.model === String(k) && b.dataset.head === place))));
  const model = report.models[k], at = place.split('.').map(Number), layer = model.scan.layers[at[0]], head = layer.heads[at[1]];
  const own = model.weights_of[layer.stack][layer.layer], here = f => f.stack === layer.stack && f.layer === own && f.head === head.head;
  const spectra = model.spectra.find(here), flow = model.flows.find(here), moving = flow ? flowPicture(flow) : null, pictures = [];
  if (spectra) { pictures.push(ratesPicture(spectra), spectrumPicture(spectra)); }
  if (spectra?.offsets.length) { pictures.push(offsetsPicture(spectra)); }
  if (head.rotary?.energy.length > 1) { pictures.push(energyPicture(head)); }
  const box = element('div'), grid = element('div', undefined, 'pictures');
  grid.append(...pictures.map(one => one.made), ...notesOf(model, spectra, flow));
  box.append(element('h4', titleOf(model, layer, head, model.weights_of[layer.stack].filter(v => v === own).length)),
    headNumbers(model, layer, head, at), ...(moving ? [moving.made] : []), headCertificates(model, head), grid);
  panel.replaceChildren(box);
  [...pictures, ...(moving ? [moving] : [])].forEach(one => one.draw());
}

export function startMaps() {
  const maps = [...document.querySelectorAll('.heads')];
  maps.forEach(part => {
    const k = Number(part.dataset.model), { scan } = report.models[k];
    paintMap(part, scan, 'weights');
    part.addEventListener('change', event => { if (event.target.type === 'radio') { paintMap(part, scan, event.target.value); } });
    part.addEventListener('click', event => {
      const button = event.target.closest('.head');
      if (button) { openHead(k, button.dataset.head); }
    });
    // Arrow keys walk over the map, as in a spreadsheet.
    part.addEventListener('keydown', event => {
      const button = event.target.closest('.head');
      if (!button || !ARROWS[event.key]) { return; }
      const [n, h] = button.dataset.head.split('.').map(Number), [down, right] = ARROWS[event.key];
      const next = part.querySelector(`[data-head="${n + down}.${h + right}"]`);
      if (next) { event.preventDefault(); next.focus(); }
    });
  });
  if (maps.length) { openHead(Number(maps[0].dataset.model), maps[0].dataset.open); }
}
