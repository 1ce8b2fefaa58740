// Draws the charts of a report from the JSON inside the page. Texts reach the page as text, and
// reach plotly escaped, since plotly reads a few tags in labels.
const report = JSON.parse(document.getElementById('report-data').textContent);
const CONFIG = { displayModeBar: false, responsive: true };
const dark = matchMedia('(prefers-color-scheme: dark)');
const calm = matchMedia('(prefers-reduced-motion: reduce)');
const tone = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const safe = text => String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
const show = v => v === null || v === undefined ? '–'
  : (Number.isInteger(v) ? String(v) : String(Number(v.toPrecision(3)))).replace('-', '−');
const places = trace => trace.layers.map(x =>
  trace.model.stacks.length > 1 ? `${x.stack} ${x.layer}` : x.layer);

function layout(x, y, extra = {}) {
  const axis = title => ({ title: { text: title, standoff: 6 }, gridcolor: tone('line'), linecolor: tone('line'),
    zerolinecolor: tone('muted'), zerolinewidth: 1, automargin: true, fixedrange: true });
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return { paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', hovermode: 'closest',
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: tone('muted') },
    margin: { l: 48, r: 10, t: 26, b: 40 }, showlegend: true,
    legend: { orientation: 'h', x: 0, y: 1.0, yanchor: 'bottom', font: { color: tone('ink') } },
    hoverlabel: { bgcolor: tone('card'), bordercolor: tone('line'), font: { color: tone('ink') } },
    xaxis: { ...axis(x), ...xaxis }, yaxis: { ...axis(y), ...yaxis }, ...rest };
}
const whole = n => ({ zeroline: false, tickmode: n > 16 ? 'auto' : 'linear', dtick: 1 });
const line = (name, x, y, colour, dash = 'solid') => ({ type: 'scatter', mode: 'lines+markers', name, x, y,
  line: { color: colour, width: dash === 'solid' ? 2.2 : 1.6, dash }, marker: { size: dash === 'solid' ? 6 : 4 } });

// --- one function a kind of chart: (model, extra) -> [traces, layout] ---
const CHARTS = {
  changes({ trace }) {
    const x = places(trace);
    const bar = (name, part, colour) => ({ type: 'bar', name, x, marker: { color: colour },
      y: trace.layers.map(l => l[part].measured_log_change) });
    return [[bar('attention', 'attention', tone('spread')), bar('MLP', 'mlp', tone('gather')),
      bar('norms', 'norm', tone('muted'))],
    layout('layer', '', { bargap: 0.3, xaxis: whole(x.length) })];
  },
  metric({ trace, shuffled }, name) {
    const x = places(trace), of = t => t.layers.map(l => l.metrics[name]);
    const data = [];
    if (trace.twin) { data.push(line('untrained twin', x, of(trace.twin), tone('muted'), 'dot')); }
    if (shuffled) { data.push(line('shuffled', x, of(shuffled), tone('gather'), 'dash')); }
    data.push(line('model', x, of(trace), tone('spread')));
    const values = data.flatMap(d => d.y), log = Math.min(...values) > 0
      && Math.max(...values) > 30 * Math.min(...values);
    return [data, layout('', '', { margin: { l: 44, r: 8, t: 22, b: 24 }, xaxis: whole(x.length),
      yaxis: { type: log ? 'log' : 'linear', nticks: 5 }, legend: { orientation: 'h', y: 1, yanchor: 'bottom',
        font: { size: 11, color: tone('ink') }, traceorder: 'reversed' } })];
  },
  layers({ trace }) {
    const x = places(trace), of = key => trace.layers.map(l => l.attention[key]);
    return [[line('measured', x, of('measured_log_change'), tone('ink')),
      line('predicted', x, of('predicted_log_change'), tone('spread'), 'dash'),
      line('simulated', x, of('simulated_log_change'), tone('gather'), 'dot')],
    layout('layer', 'ln change', { xaxis: whole(x.length) })];
  },
  scatter({ trace }) {
    const all = trace.layers.flatMap(l => l.heads.map(h => ({ ...h, name: `${l.stack} ${l.layer}.${h.head}` })));
    const ends = all.flatMap(h => [h.measured, h.predicted]);
    const span = [Math.min(...ends), Math.max(...ends)];
    return [[{ type: 'scatter', mode: 'lines', x: span, y: span, hoverinfo: 'skip', name: 'equal',
      line: { color: tone('muted'), width: 1, dash: 'dot' } },
    { type: 'scatter', mode: 'markers', name: 'a head', x: all.map(h => h.predicted), y: all.map(h => h.measured),
      text: all.map(h => safe(h.name)), hovertemplate: '%{text}<br>predicted %{x:.3g}<br>measured %{y:.3g}<extra></extra>',
      marker: { color: tone('spread'), size: 8, opacity: 0.75, line: { width: 1, color: tone('card') } } }],
    layout('predicted', 'measured')];
  },
  orbits(model) {
    const { orbits } = model, n = orbits.tokens.length;
    const flat = orbits.positions.flat(), xs = flat.map(p => p[0]), ys = flat.map(p => p[1]);
    const pad = v => { const a = Math.min(...v), b = Math.max(...v), m = 0.06 * (b - a || 1); return [a - m, b + m]; };
    return [orbitTraces(orbits, orbits.depths.length - 1), layout(
      `first direction, ${Math.round(100 * orbits.explained[0])} %`,
      `second direction, ${Math.round(100 * orbits.explained[1])} %`,
      { showlegend: false, xaxis: { range: pad(xs), zeroline: false }, yaxis: { range: pad(ys), zeroline: false } })];
  },
  defects({ audit }) {
    const names = { pe_causal: 'encoding and mask', pe_full: 'encoding alone', nope_causal: 'mask alone', nope_full: 'neither' };
    const hues = { pe_causal: 'ink', pe_full: 'spread', nope_causal: 'gather', nope_full: 'muted' };
    const x = audit.layers.map(l => l.layer === 0 ? 'in' : String(l.layer - 1));
    return [Object.keys(names).filter(c => audit.cells[c]).map(c => line(
      names[c] + (c === audit.model.own_cell ? ' (as it is)' : ''), x, audit.layers.map(l => l.defects[c]),
      tone(hues[c]), c === audit.model.own_cell ? 'solid' : 'dash')),
    layout('output of layer', 'defect', { xaxis: { type: 'category' }, yaxis: { rangemode: 'tozero' } })];
  },
  swaps({ audit }) {
    const rows = audit.swap_distance;
    return [[{ type: 'scatter', mode: 'lines+markers', x: rows.map(r => r.size), y: rows.map(r => r.mean),
      line: { color: tone('spread'), width: 2.2 }, marker: { size: 7 }, error_y: { type: 'data', symmetric: false,
        array: rows.map(r => r.high - r.mean), arrayminus: rows.map(r => r.mean - r.low), thickness: 1, width: 3,
        color: tone('muted') } }],
    layout('distance in tokens', audit.model.has_head ? 'bits' : 'relative change',
      { showlegend: false, xaxis: { type: 'log', tickvals: rows.map(r => r.size) }, yaxis: { rangemode: 'tozero' } })];
  },
  identity({ audit }) {
    const { variants } = audit.slices, named = variants[0].layers[0].identity !== null;
    // Some variants are read at the last layer only: a score belongs to its layer's column.
    const score = l => l === undefined ? null : named ? l.identity.score : l.position.score;
    const z = variants.map(v => variants[0].layers.map(own => score(v.layers.find(l => l.layer === own.layer))));
    const y = variants.map(v => safe(v.removed === 'none' ? 'as it is' : `without: ${v.removed}`));
    return [[{ type: 'heatmap', z, y, x: variants[0].layers.map(l => l.layer === 0 ? 'in' : String(l.layer - 1)),
      zmin: 0, zmax: 1, hoverongaps: false, colorscale: [[0, tone('zero')], [1, tone('gather')]], xgap: 2, ygap: 2,
      hovertemplate: '%{y}, layer %{x}: %{z:.2f}<extra></extra>',
      colorbar: { thickness: 8, outlinewidth: 0, tickvals: [0, 0.5, 1] } }],
    layout('output of layer', '', { xaxis: { type: 'category', showgrid: false },
      yaxis: { autorange: 'reversed', showgrid: false, automargin: true } })];
  },
  places({ audit }) {
    const rows = audit.slices.variants[0].layers, x = rows.map(l => l.layer === 0 ? 'in' : String(l.layer - 1));
    const data = [];
    if (rows[0].identity) {
      data.push(line('its token', x, rows.map(l => l.identity.score), tone('gather')));
      data.push(line('previous', x, rows.map(l => l.previous.score), tone('third'), 'dash'));
      data.push(line('next', x, rows.map(l => l.following.score), tone('muted'), 'dot'));
    }
    data.push(line('place, R²', x, rows.map(l => l.position.score), tone('spread')));
    return [data, layout('output of layer', 'score', { xaxis: { type: 'category' } })];
  },
};

function orbitTraces(orbits, k) {
  const n = orbits.tokens.length, now = orbits.positions[k];
  const x = [], y = [];
  for (let i = 0; i < n; i++) {
    for (let d = Math.max(0, k - 2); d <= k; d++) { x.push(orbits.positions[d][i][0]); y.push(orbits.positions[d][i][1]); }
    x.push(null); y.push(null);
  }
  const few = n <= 40;
  return [{ type: 'scatter', mode: 'lines', x, y, hoverinfo: 'skip', line: { color: tone('muted'), width: 0.8 }, opacity: 0.35 },
    { type: 'scatter', mode: 'markers', x: now.map(p => p[0]), y: now.map(p => p[1]),
      text: orbits.tokens.map((t, i) => `${i}: “${safe(t)}”`), hovertemplate: '%{text}<extra></extra>',
      marker: { size: few ? 11 : 9, color: orbits.tokens.map((_, i) => i), 
        colorscale: dark.matches ? [[0, '#4ba3de'], [0.5, '#b7a9c9'], [1, '#f2bf4a']] : [[0, '#0b4f8a'], [0.5, '#8a8fa0'], [1, '#e39a00']],
        line: { width: 1, color: tone('card') }, colorbar: { thickness: 8, outlinewidth: 0,
          title: { text: 'place', side: 'right' } } } }];
}

function draw(figure) {
  const { chart, model, extra } = figure.dataset;
  const [data, where] = CHARTS[chart](report.models[Number(model)], extra);
  Plotly.react(figure.querySelector('.plot'), data, where, CONFIG);
}
const drawn = new Set();
const watch = new IntersectionObserver(seen => {
  for (const { isIntersecting, target } of seen) {
    if (isIntersecting && !drawn.has(target)) { drawn.add(target); draw(target); }
  }
}, { rootMargin: '600px' });
document.querySelectorAll('[data-chart]').forEach(figure => watch.observe(figure));
addEventListener('beforeprint', () => document.querySelectorAll('[data-chart]').forEach(draw));

// --- a player: a button, a slider and a word for the moment ---
function player(box, last, frame, name, ms) {
  const button = box.querySelector('button'), slider = box.querySelector('input'), word = box.querySelector('output');
  let timer = null;
  const now = () => Number(slider.value);
  const label = () => { button.textContent = timer ? 'Pause' : now() === last ? 'Replay' : 'Play'; };
  const go = k => { slider.value = k; word.textContent = name(k); slider.setAttribute('aria-valuetext', name(k)); frame(k); };
  const stop = () => { clearInterval(timer); timer = null; label(); };
  button.addEventListener('click', () => {
    if (timer) { stop(); return; }
    if (now() === last) { go(0); }
    timer = setInterval(() => { if (!box.isConnected || now() >= last) { stop(); } else { go(now() + 1); } }, ms);
    label();
  });
  slider.addEventListener('input', () => { stop(); go(now()); });
  label();
  return { go, now, start: () => button.click() };
}
document.querySelectorAll('.orbits').forEach(part => {
  const { orbits } = report.models[Number(part.dataset.model)], plot = part.querySelector('.plot');
  const steps = player(part.querySelector('.player'), orbits.depths.length - 1, k => {
    if (!plot.data) { draw(part.querySelector('[data-chart]')); drawn.add(part.querySelector('[data-chart]')); }
    const next = orbitTraces(orbits, k);
    Plotly.animate(plot, { data: next.map(({ x, y }) => ({ x, y })), traces: [0, 1] },
      { mode: 'immediate', transition: { duration: calm.matches ? 0 : 420, easing: 'cubic-in-out' },
        frame: { duration: calm.matches ? 0 : 420, redraw: false } });
  }, k => orbits.depths[k], 650);
  part.steps = steps;
});

// --- the map of heads ---
const element = (name, text, className) => {
  const found = document.createElement(name);
  if (text !== undefined) { found.textContent = text; }
  if (className) { found.className = className; }
  return found;
};
const READINGS = { weights: h => h.expansion_index, data: h => h.data_aware && h.data_aware.expansion_index,
  context: h => h.rotary && h.rotary.expansion_index };
function paint(part, scan, reading) {
  part.querySelectorAll('.head').forEach(button => {
    const [n, k] = button.dataset.head.split('.').map(Number);
    const head = scan.layers[n].heads[k], value = READINGS[reading](head);
    button.style.setProperty('--hue', value > 0 ? 'var(--spread)' : 'var(--gather)');
    button.style.setProperty('--amount', `${Math.round(85 * Math.min(1, Math.abs(value ?? 0)))}%`);
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
function detail(model, n, k) {
  const layer = model.scan.layers[n], head = layer.heads[k], box = element('div');
  box.append(element('h4', `Layer ${layer.layer}, head ${head.head}${model.scan.model.stacks.length > 1 ? ` (${layer.stack})` : ''}: ${head.tendency === 'neutral' ? 'no different from chance' : head.tendency + ' tokens'}, ${head.regime}`));
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
  box.append(numbers(rows));
  const proofs = element('div'), held = element('ul'), rest = element('ul'), more = element('details');
  for (const c of head.certificates) { (c.holds ? held : rest).append(element('li', `${c.name}: ${c.why}`, c.holds ? 'holds' : '')); }
  more.append(element('summary', `${rest.children.length} certificates that do not hold, and why`), rest);
  proofs.append(held.children.length ? held : element('p', 'No certificate holds.', 'note'));
  if (rest.children.length) { proofs.append(more); }
  const pictures = element('div');
  box.append(proofs, pictures);
  if (head.rotary && head.rotary.energy.length > 1) { pictures.append(figure('Share of each rotary frequency in the score map, fast to slow')); }
  const flow = model.flows.find(f => f.stack === layer.stack && f.layer === layer.layer && f.head === head.head);
  if (flow) { pictures.append(flowFigure(flow)); } else {
    pictures.append(element('p', model.missing.flows ? `Its flow is not simulated: ${model.missing.flows}` : 'Its flow is not simulated: only the heads that gather or spread most are (--flows N).', 'note'));
  }
  return { box, head, flow };
}
function figure(caption) {
  const found = element('figure'), plot = element('div', undefined, 'plot');
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', caption);
  found.append(element('figcaption', caption), plot);
  return found;
}
function flowFigure(flow) {
  const found = figure(`Simulated: this head alone, at every depth. ${flow.ending}. Expected: ${flow.predicted}`);
  found.classList.add('flow');
  const box = element('div', undefined, 'player'), label = element('label', 'Time '), slider = element('input');
  Object.assign(slider, { type: 'range', min: 0, max: flow.times.length - 1, value: flow.times.length - 1 });
  label.append(slider);
  const button = element('button', 'Play');
  button.type = 'button';
  box.append(button, label, element('output', show(flow.times.at(-1))));
  found.append(box);
  return found;
}
function drawFlow(found, flow) {
  const plot = found.querySelector('.plot'), last = flow.times.length - 1;
  const hues = ['spread', 'gather', 'third', 'muted'];
  const colour = flow.clusters.map(c => tone(c < 0 ? 'ink' : hues[Math.min(c, 3)]));
  const traces = k => {
    const x = [], y = [];
    flow.clusters.forEach((_, i) => {
      for (let d = Math.max(0, k - 8); d <= k; d++) { x.push(flow.positions[d][i][0]); y.push(flow.positions[d][i][1]); }
      x.push(null); y.push(null);
    });
    return [{ type: 'scatter', mode: 'lines', x, y, hoverinfo: 'skip', line: { color: tone('muted'), width: 0.8 }, opacity: 0.45 },
      { type: 'scatter', mode: 'markers', x: flow.positions[k].map(p => p[0]), y: flow.positions[k].map(p => p[1]),
        text: flow.clusters.map((_, i) => `token ${i}`), hovertemplate: '%{text}<extra></extra>', marker: { size: 8, color: colour } }];
  };
  const flat = flow.positions.flat(), range = j => {
    const v = flat.map(p => p[j]), a = Math.min(...v), b = Math.max(...v), m = 0.06 * (b - a || 1);
    return [a - m, b + m];
  };
  Plotly.newPlot(plot, traces(last), layout('', '', { showlegend: false, margin: { l: 10, r: 10, t: 6, b: 10 },
    xaxis: { range: range(0), showticklabels: false, zeroline: false }, yaxis: { range: range(1), showticklabels: false, zeroline: false } }), CONFIG);
  player(found.querySelector('.player'), last, k => Plotly.animate(plot, { data: traces(k).map(({ x, y }) => ({ x, y })), traces: [0, 1] },
    { mode: 'immediate', transition: { duration: 0 }, frame: { duration: 0, redraw: false } }), k => `t = ${show(flow.times[k])}`, 90);
}
function open(part, model, place) {
  const [n, k] = place.split('.').map(Number), panel = part.querySelector('.detail');
  part.querySelectorAll('.head').forEach(b => b.setAttribute('aria-pressed', String(b.dataset.head === place)));
  panel.querySelectorAll('.js-plotly-plot').forEach(plot => Plotly.purge(plot));
  const { box, head, flow } = detail(model, n, k);
  panel.replaceChildren(box);
  panel.dataset.shown = place;
  const bars = [...box.querySelectorAll('figure:not(.flow) .plot')];
  for (const plot of bars) {
    Plotly.newPlot(plot, [{ type: 'bar', x: head.rotary.energy.map((_, i) => i), y: head.rotary.energy,
      marker: { color: tone('gather') }, hovertemplate: 'frequency %{x}: %{y:.1%}<extra></extra>' }],
    layout('frequency', '', { showlegend: false, xaxis: { dtick: head.rotary.energy.length > 16 ? 8 : 1, zeroline: false }, yaxis: { tickformat: '.0%' }, margin: { l: 44, r: 8, t: 8, b: 36 } }), CONFIG);
  }
  if (flow) { drawFlow(box.querySelector('.flow'), flow); }
}
function maps() {
  document.querySelectorAll('.heads').forEach(part => {
    const model = report.models[Number(part.dataset.model)];
    open(part, model, part.querySelector('.detail').dataset.shown || part.dataset.open);
  });
}
document.querySelectorAll('.heads').forEach(part => {
  const model = report.models[Number(part.dataset.model)];
  paint(part, model.scan, 'weights');
  part.addEventListener('change', event => { if (event.target.type === 'radio') { paint(part, model.scan, event.target.value); } });
  part.addEventListener('click', event => {
    const button = event.target.closest('.head');
    if (button) { open(part, model, button.dataset.head); }
  });
});
maps();
dark.addEventListener('change', () => { drawn.forEach(draw); maps(); });
document.documentElement.dataset.ready = 'yes';
