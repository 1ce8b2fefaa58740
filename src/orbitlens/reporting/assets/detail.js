// All about the chosen head, in one panel.
import { element } from '../../draw/assets/svg.js';
import { report } from './data.js';
import { downloadable } from './downloads.js';
import { headCertificates, headNumbers } from './head_numbers.js';
import { energyPicture, flowPicture, offsetsPicture, ratesPicture, spectrumPicture } from './head_pictures.js';
import { findHead, onChoice } from './selection.js';
import { tracedHead } from './traced.js';

const panel = document.getElementById('detail'), limits = document.querySelector('.heads')?.dataset ?? {};

function doesTo(found) {
  const share = tracedHead(found)?.share;
  if (share === undefined) { return 'not measured on tokens'; }
  return Math.abs(share) <= Number(limits.clear) ? 'hardly moves directions' : share < 0 ? 'gathers directions' : 'spreads directions';
}

function titleOf(found, n_shared) {
  const { model, layer, head } = found, start = report.models.length > 1 ? `${model.name}: layer` : 'Layer';
  const stack = model.scan.model.stacks.length > 1 ? ` (${layer.stack})` : '', shared = n_shared > 1 ? `; ${n_shared} layers share these weights` : '';
  return `${start} ${layer.layer}, head ${head.head}${stack}: ${doesTo(found)}, ${head.orientation} maps${shared}`;
}
function notesOf(model, spectra, flow) {
  const notes = [];
  if (!flow) { notes.push(`Its flow is not simulated: ${model.missing.flows ?? 'only those of the most opposed and most aligned heads are (--flows N)'}.`); }
  if (spectra && !spectra.offsets.length) { notes.push(`No rotary effect by offset: this model's encoding is ${model.scan.model.position}.`); }
  if (!spectra && model.missing.spectra) { notes.push(`No spectra: ${model.missing.spectra}`); }
  return notes.map(text => element('p', text, 'note'));
}
function openHead({ k, key }) {
  const found = findHead(k, key), { model, layer, head } = found, shared = model.weights_of[layer.stack], own = shared[layer.layer];
  const here = f => f.stack === layer.stack && f.layer === own && f.head === head.head;
  const spectra = model.spectra.find(here), flow = model.flows.find(here), moving = flow ? flowPicture(flow) : null, pictures = [];
  if (spectra) { pictures.push(ratesPicture(spectra), spectrumPicture(spectra)); }
  if (spectra?.offsets.length) { pictures.push(offsetsPicture(spectra)); }
  if (head.rotary?.energy.length > 1) { pictures.push(energyPicture(head)); }
  const box = element('div'), grid = element('div', undefined, 'pictures');
  grid.append(...pictures.map(one => one.made), ...notesOf(model, spectra, flow));
  box.append(element('h4', titleOf(found, shared.filter(v => v === own).length)),
    headNumbers(found), ...(moving ? [moving.made] : []), headCertificates(model, head), grid);
  panel.replaceChildren(box);
  [...pictures, ...(moving ? [moving] : [])].forEach(one => one.draw());
  downloadable(panel);
}
export function startDetail() { onChoice(openHead); }
