// The map of heads: colours by the chosen reading, and a panel with all about one head.
const READINGS = { weights: h => h.expansion_index, data: h => h.data_aware && h.data_aware.expansion_index,
  context: h => h.rotary && h.rotary.expansion_index };

function paint(part, scan, reading) {
  const scale = Number(part.dataset.scale);
  part.querySelectorAll('.head').forEach(button => {
    const [n, k] = button.dataset.head.split('.').map(Number);
    const head = scan.layers[n].heads[k], value = READINGS[reading](head);
    button.style.setProperty('--hue', value > 0 ? 'var(--spread)' : 'var(--gather)');
    button.style.setProperty('--amount', `${Math.round(85 * Math.min(1, Math.abs(value ?? 0) / scale))}%`);
    if (button.textContent) { button.textContent = value === null ? '–' : (value > 0 ? '+' : value < 0 ? '−' : '') + Math.abs(value).toFixed(2); }
    const label = `layer ${scan.layers[n].layer}, head ${head.head}: expansion index ${show(value)}, ${head.tendency}`;
    button.setAttribute('aria-label', label);
    button.title = label;
  });
}

function numbers(rows) {
  const table = element('table'), body = element('tbody');
  for (const [name, value] of rows) {
    const row = element('tr'), head = element('th', name), cell = element('td', typeof value === 'string' ? value : show(value), 'n');
    head.scope = 'row';
    if (typeof value === 'number') { cell.dataset.v = value; }
    row.append(head, cell);
    body.append(row);
  }
  table.append(body);
  return table;
}
function headNumbers(model, layer, head, n, k) {
  const rows = [['expansion index, weights', head.expansion_index]];
  if (head.data_aware) { rows.push(['expansion index, as the data lie', head.data_aware.expansion_index]); }
  if (head.rotary) { rows.push([`expansion index, context of ${head.rotary.context}`, head.rotary.expansion_index]); }
  rows.push(['rates, smallest', head.rates.min], ['rates, mean', head.rates.mean], ['rates, largest', head.rates.max],
    ['alignment ⟨V, W⟩, in sigmas', head.alignment_sigmas], ['largest Re λ of V', head.ov_abscissa],
    ['copying score of V', head.ov_copying], ['symmetry of W', head.qk_symmetry]);
  const traced = model.trace && model.trace.layers[n] && model.trace.layers[n].heads[k];
  if (traced) {
    rows.push(['measured ln change', traced.measured], ['predicted ln change', traced.predicted],
      ['sharpness Σp²', traced.sharpness], ['share on the first token', traced.sink]);
  }
  return numbers(rows);
}
function proofs(model, head) {
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
function figure(caption, name) {
  const found = element('figure', undefined, name), plot = element('div', undefined, 'plot');
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', `${caption}. The table below has all numbers.`);
  found.append(element('figcaption', caption), plot);
  return found;
}

// Each picture of a head: its figure, and what draws it once it is on the page.
function ratesPicture(spectra) {
  const thin = spectra.rates.length < spectra.n_rates ? `${spectra.rates.length} of ` : '';
  const found = figure(`Rates: ${thin}${spectra.n_rates} directions grow (+) or shrink (−)`, 'rates');
  found.append(behind(['k', 'rate'], () => spectra.rates.map((v, i) => [i, v])));
  return [found, plot => Plotly.newPlot(plot, [{ type: 'bar', x: spectra.rates.map((_, i) => i), y: spectra.rates,
    marker: { color: spectra.rates.map(v => tone(v > 0 ? 'spread' : 'gather')) }, hovertemplate: 'rate %{y:.3g}<extra></extra>' }],
  layout('', '', { bargap: 0.15, xaxis: { showticklabels: false, showgrid: false, zeroline: false }, margin: { l: 48, r: 6, t: 6, b: 10 } }), CONFIG)];
}
function planePicture(spectra) {
  const thin = spectra.eigenvalues.length < spectra.n_eigenvalues ? `${spectra.eigenvalues.length} of ` : '';
  const found = figure(`Spectrum of the value map V: ${thin}${spectra.n_eigenvalues} eigenvalues`, 'plane');
  found.append(behind(['k', 'real', 'imaginary'], () => spectra.eigenvalues.map((v, i) => [i, ...v])));
  const r = 1.12 * Math.max(...spectra.eigenvalues.flat().map(Math.abs), 1e-9);
  return [found, plot => Plotly.newPlot(plot, [{ type: 'scatter', mode: 'markers', x: spectra.eigenvalues.map(v => v[0]), y: spectra.eigenvalues.map(v => v[1]),
    marker: { size: 8, opacity: 0.8, color: spectra.eigenvalues.map(v => tone(v[0] > 0 ? 'spread' : 'gather')), line: { width: 1, color: tone('card') } },
    hovertemplate: '%{x:.3g} + %{y:.3g} i<extra></extra>' }],
  layout('real part', 'imaginary', { xaxis: { range: [-r, r], nticks: 5 }, yaxis: { range: [-r, r], nticks: 5 } }), CONFIG)];
}
function offsetPicture(spectra) {
  const found = figure('Rotary effect: expansion index by offset of key and query', 'offsets');
  found.append(behind(['offset', 'index', 'size of rates'], () => spectra.offsets.map((m, i) => [m, spectra.offset_index[i], spectra.offset_size[i]])));
  const x = spectra.offsets.map(String);
  return [found, plot => Plotly.newPlot(plot, [line('index', x, spectra.offset_index, tone('spread'))],
    layout('offset in tokens', '', { xaxis: named(x.length) }), CONFIG)];
}
function energyPicture(head) {
  const found = figure('Share of rotary frequencies in the score map, fast to slow', 'energy');
  found.append(behind(['frequency', 'share'], () => head.rotary.energy.map((v, i) => [i, v])));
  return [found, plot => Plotly.newPlot(plot, [{ type: 'bar', x: head.rotary.energy.map((_, i) => i), y: head.rotary.energy,
    marker: { color: tone('gather') }, hovertemplate: 'frequency %{x}: %{y:.1%}<extra></extra>' }],
  layout('frequency', '', { xaxis: { dtick: head.rotary.energy.length > 16 ? 8 : 1, zeroline: false, showgrid: false }, yaxis: { tickformat: '.0%' } }), CONFIG)];
}
function flowPicture(flow) {
  const found = figure('Simulated flow: this head alone, at every depth', 'flow');
  const box = element('div', undefined, 'player'), label = element('label', 'Time '), slider = element('input'), button = element('button', 'Play');
  Object.assign(slider, { type: 'range', min: 0, max: flow.times.length - 1, value: flow.times.length - 1 });
  label.append(slider);
  button.type = 'button';
  box.append(button, label, element('output', `t = ${show(flow.times.at(-1))}`));
  found.append(box, element('p', `What happened: ${flow.ending}. Expected: ${flow.predicted}.`, 'note'),
    behind(['time', 'token', 'x', 'y'], () => flow.times.flatMap((t, i) => flow.positions[i].map((p, j) => [t, j, ...p]))));
  return [found, plot => drawFlow(found, plot, flow)];
}
function drawFlow(found, plot, flow) {
  const last = flow.times.length - 1, hues = ['spread', 'gather', 'third', 'muted'];
  const colour = flow.clusters.map(c => tone(c < 0 ? 'ink' : hues[Math.min(c, 3)]));
  const traces = k => {
    const x = [], y = [], now = between(flow.positions, k);
    now.forEach((p, i) => {
      for (let d = Math.max(0, Math.ceil(k) - 12); d < k; d++) { x.push(flow.positions[d][i][0]); y.push(flow.positions[d][i][1]); }
      x.push(p[0], null);
      y.push(p[1], null);
    });
    return [{ type: 'scatter', mode: 'lines', x, y, hoverinfo: 'skip', line: { color: tone('muted'), width: 1 }, opacity: 0.5 },
      { type: 'scatter', mode: 'markers', x: now.map(p => p[0]), y: now.map(p => p[1]),
        text: flow.clusters.map((_, i) => `token ${i}`), hovertemplate: '%{text}<extra></extra>', marker: { size: 8, color: colour, line: { width: 1, color: tone('card') } } }];
  };
  const flat = flow.positions.flat(), axis = j => ({ range: padded(flat.map(p => p[j])), showticklabels: false, zeroline: false });
  Plotly.newPlot(plot, traces(last), layout('', '', { margin: { l: 6, r: 6, t: 6, b: 6 }, xaxis: axis(0), yaxis: axis(1) }), CONFIG);
  player(found.querySelector('.player'), last, k => {
    const next = traces(k);
    Plotly.restyle(plot, { x: next.map(t => t.x), y: next.map(t => t.y) }, [0, 1]);
  }, k => `t = ${show(flow.times[k])}`, 110);
}

function detail(model, n, k) {
  const layer = model.scan.layers[n], head = layer.heads[k], box = element('div');
  const own = model.weights_of[layer.stack][layer.layer], shared = model.weights_of[layer.stack].filter(v => v === own).length;
  const here = f => f.stack === layer.stack && f.layer === own && f.head === head.head;
  box.append(element('h4', `${report.models.length > 1 ? `${model.name}: layer` : 'Layer'} ${layer.layer}, head ${head.head}${model.scan.model.stacks.length > 1 ? ` (${layer.stack})` : ''}: ${head.tendency === 'neutral' ? 'no different from chance' : head.tendency + ' tokens'}, ${head.regime}${shared > 1 ? `; ${shared} layers share these weights` : ''}`));
  const spectra = model.spectra.find(here), flow = model.flows.find(here), pictures = [], moving = flow ? flowPicture(flow) : null;
  box.append(headNumbers(model, layer, head, n, k), ...(moving ? [moving[0]] : []), proofs(model, head));
  if (spectra) {
    pictures.push(ratesPicture(spectra), planePicture(spectra));
    if (spectra.offsets.length) { pictures.push(offsetPicture(spectra)); }
  }
  if (head.rotary && head.rotary.energy.length > 1) { pictures.push(energyPicture(head)); }
  const grid = element('div', undefined, 'pictures');
  grid.append(...pictures.map(([found]) => found));
  if (!flow) { grid.append(element('p', `Its flow is not simulated: ${model.missing.flows || 'only the heads that gather or spread most are (--flows N)'}.`, 'note')); }
  if (spectra && !spectra.offsets.length) { grid.append(element('p', `No rotary effect by offset: this model's encoding is ${model.scan.model.position}.`, 'note')); }
  if (!spectra && model.missing.spectra) { grid.append(element('p', `No spectra: ${model.missing.spectra}`, 'note')); }
  box.append(grid);
  if (moving) { pictures.push(moving); }
  return [box, () => pictures.forEach(([found, drawInto]) => drawInto(found.querySelector('.plot')))];
}
// One panel for all maps of a report.
const panel = document.getElementById('detail');
function open(k, place) {
  document.querySelectorAll('.heads').forEach(part => part.querySelectorAll('.head').forEach(b =>
    b.setAttribute('aria-pressed', String(part.dataset.model === String(k) && b.dataset.head === place))));
  panel.querySelectorAll('.js-plotly-plot').forEach(plot => Plotly.purge(plot));
  const [box, drawAll] = detail(report.models[k], ...place.split('.').map(Number));
  panel.replaceChildren(box);
  Object.assign(panel.dataset, { model: k, shown: place });
  drawAll();
}
function maps() {
  const first = document.querySelector('.heads');
  if (!first) { return; }
  const { model, shown } = panel.dataset;
  open(Number(model ?? first.dataset.model), shown ?? first.dataset.open);
}
document.querySelectorAll('.heads').forEach(part => {
  const model = report.models[Number(part.dataset.model)];
  paint(part, model.scan, 'weights');
  part.addEventListener('change', event => { if (event.target.type === 'radio') { paint(part, model.scan, event.target.value); } });
  part.addEventListener('click', event => {
    const button = event.target.closest('.head');
    if (button) { open(Number(part.dataset.model), button.dataset.head); }
  });
  // Arrow keys walk over the map, as in a spreadsheet.
  part.addEventListener('keydown', event => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, button = event.target.closest('.head');
    if (!button || !steps[event.key]) { return; }
    const [n, k] = button.dataset.head.split('.').map(Number), [down, right] = steps[event.key];
    const next = part.querySelector(`[data-head="${n + down}.${k + right}"]`);
    if (next) { event.preventDefault(); next.focus(); }
  });
});
