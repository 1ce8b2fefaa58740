// One head in numbers, and its certificates.
import { element } from '../../draw/assets/svg.js';
import { numberCell } from './data.js';
import { tracedHead, tracedLayer } from './traced.js';

function measured(found) {
  const traced = tracedHead(found), raw = tracedLayer(found)?.heads[found.head.head];
  if (!traced) { return []; }
  const predicted = Object.entries(traced.predicted).filter(([name]) => name !== 'itself').map(([name, v]) => [`ΔS predicted, “${name}”`, v]);
  return [['ΔS measured, its share', traced.share], ['ΔS, this head alone', traced.alone], ['ΔS on the judged contexts', traced.judged], ...predicted,
    ...(raw ? [['raw distances, ln change measured', raw.measured], ['sharpness Σp²', raw.sharpness], ['share on the first token', raw.sink]] : [])];
}
function weights(head) {
  const rows = [['expansion index, weights', head.expansion_index]];
  if (head.data_aware) { rows.push(['expansion index, measured covariance', head.data_aware.expansion_index]); }
  if (head.rotary) { rows.push([`expansion index, context of ${head.rotary.context}`, head.rotary.expansion_index]); }
  rows.push(['rates, smallest', head.rates.min], ['rates, mean', head.rates.mean], ['rates, largest', head.rates.max],
    ['alignment ⟨V, W⟩, in sigmas', head.alignment_sigmas], ['largest Re λ of V', head.ov_abscissa],
    ['copying score of V', head.ov_copying], ['symmetry of W', head.qk_symmetry]);
  return rows;
}
export function headNumbers(found) {
  const rows = [...measured(found), ...weights(found.head)];
  const table = element('table'), body = element('tbody');
  for (const [name, value] of rows) {
    const row = element('tr'), title = element('th', name);
    title.scope = 'row';
    row.append(title, numberCell(value));
    body.append(row);
  }
  table.append(body);
  return table;
}

export function headCertificates(model, head) {
  const box = element('div', undefined, 'proofs'), held = element('ul'), rest = element('ul'), more = element('details');
  for (const c of head.certificates) {
    const item = element('li', undefined, c.holds ? 'holds' : '');
    item.append(element('b', c.name), document.createTextNode(`: ${c.why.map(k => model.clauses[k]).join('; ')}`));
    (c.holds ? held : rest).append(item);
  }
  box.append(element('h5', held.children.length ? 'Certificates that hold' : 'No certificate holds'), held);
  more.append(element('summary', `${rest.children.length} that do not, and why`), rest);
  more.open = !held.children.length;
  if (rest.children.length) { box.append(more); }
  return box;
}
