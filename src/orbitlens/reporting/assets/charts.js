// One function a kind of chart: (model, extra) -> [traces, layout]. Models of one report share axes.
const CHARTS = {
  parts({ trace, bands }, part) {
    return overDepth(trace, bands, 'parts', part, l => l[part].measured_log_change);
  },
  metrics({ trace, bands }, name) {
    return overDepth(trace, bands, 'metrics', name, l => l.metrics[name]);
  },
  layers({ trace }) {
    const x = places(trace), of = key => trace.layers.map(l => l.attention[key]);
    return [[line('measured', x, of('measured_log_change'), tone('ink')),
      line('predicted', x, of('predicted_log_change'), tone('spread'), 'dash'),
      line('simulated', x, of('simulated_log_change'), tone('gather'), 'dot')],
    layout('layer', '', { xaxis: whole(x.length) })];
  },
  scatter({ trace }) {
    const all = trace.layers.flatMap(l => l.heads.map(h => ({ ...h, name: `${l.stack} ${l.layer}.${h.head}` })));
    const ends = sharedEnds(m => m.trace ? m.trace.layers.flatMap(l => l.heads.flatMap(h => [h.measured, h.predicted])) : []);
    return [[{ type: 'scatter', mode: 'lines', x: ends, y: ends, hoverinfo: 'skip', name: 'equal',
      line: { color: tone('muted'), width: 1.2, dash: 'dot' } },
    { type: 'scatter', mode: 'markers', name: 'a head', x: all.map(h => h.predicted), y: all.map(h => h.measured),
      text: all.map(h => safe(h.name)), hovertemplate: '%{text}<br>predicted %{x:.3g}<br>measured %{y:.3g}<extra></extra>',
      marker: { color: tone('spread'), size: 8, opacity: 0.75, line: { width: 1, color: tone('card') } } }],
    layout('predicted', 'measured', { xaxis: { range: ends }, yaxis: { range: ends } })];
  },
  orbits(model) { return orbitPicture(model.orbits, { view: 2, k: model.orbits.depths.length - 1, yaw: 0.6, pitch: 0.35, words: false }); },
  defects({ audit }) {
    const hues = { pe_causal: 'ink', pe_full: 'spread', nope_causal: 'gather', nope_full: 'muted' };
    const x = audit.layers.map(l => l.layer === 0 ? 'in' : String(l.layer - 1));
    return [Object.keys(hues).filter(c => audit.cells[c]).map(c => line(c, x, audit.layers.map(l => l.defects[c]),
      tone(hues[c]), c === audit.model.own_cell ? 'solid' : 'dash')),
    layout('output of layer', '', { xaxis: named(x.length), yaxis: { rangemode: 'tozero' } })];
  },
  swaps({ audit }) {
    const rows = audit.swap_distance;
    return [[{ type: 'scatter', mode: 'lines+markers', x: rows.map(r => r.size), y: rows.map(r => r.mean),
      line: { color: tone('spread'), width: 2.4 }, marker: { size: 7 }, error_y: { type: 'data', symmetric: false,
        array: rows.map(r => r.high - r.mean), arrayminus: rows.map(r => r.mean - r.low), thickness: 1, width: 3,
        color: tone('muted') } }],
    layout('distance in tokens', '', { xaxis: { type: 'log', showgrid: false, tickvals: rows.map(r => r.size),
      ticktext: rows.map(r => String(r.size)) }, yaxis: { rangemode: 'tozero' } })];
  },
  neighbours({ audit }) {
    const rows = audit.positions, inside = p => audit.blocks.some(b => p >= b.first && p < b.last);
    return [[{ type: 'bar', x: rows.map(r => r.position), y: rows.map(r => r.mean),
      marker: { color: rows.map(r => tone(inside(r.position) ? 'third' : 'spread')) },
      hovertemplate: 'positions %{x} and the next: %{y:.3g}<extra></extra>' }],
    layout('position of the first of two', '', { bargap: 0.25, xaxis: { showgrid: false, zeroline: false } })];
  },
  identity({ audit }) {
    const { variants } = audit.slices, decoded = variants[0].layers[0].identity !== null;
    // Some variants are read at the last layer only: a score belongs to its layer's column.
    const score = l => l === undefined ? null : decoded ? l.identity.score : l.position.score;
    const own = variants[0].layers;
    const z = variants.map(v => own.map(o => score(v.layers.find(l => l.layer === o.layer))));
    return [[{ type: 'heatmap', z, y: variants.map(v => safe(v.removed === 'none' ? 'as it is' : `− ${v.removed}`)),
      x: own.map(l => l.layer === 0 ? 'in' : String(l.layer - 1)), showscale: false, ...(own.length <= 8 ? { texttemplate: '%{z:.2f}' } : {}),
      zmin: 0, zmax: 1, hoverongaps: false, colorscale: [[0, tone('zero')], [1, tone('gather')]], xgap: 2, ygap: 2,
      hovertemplate: '%{y}, layer %{x}: %{z:.2f}<extra></extra>' }],
    layout('output of layer', '', { margin: { l: 92, r: 8, t: 8, b: 40 }, xaxis: named(own.length),
      yaxis: { autorange: 'reversed', showgrid: false, dtick: 1 } })];
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
    return [data, layout('output of layer', '', { xaxis: named(x.length) })];
  },
};
const SHARED = new Set(['parts', 'metrics', 'layers', 'defects', 'swaps', 'neighbours', 'places']);
const NEEDS = { parts: 'trace', metrics: 'trace', layers: 'trace', defects: 'audit', swaps: 'audit', neighbours: 'audit', places: 'audit' };

function places(trace) { return trace.layers.map(x => trace.model.stacks.length > 1 ? `${x.stack} ${x.layer}` : x.layer); }
function sharedEnds(of) { return padded(report.models.flatMap(of)); }
function overDepth(trace, bands, kind, name, of) {
  const x = places(trace), hues = { twin: 'muted', shuffled: 'gather' }, words = { twin: 'untrained twin', shuffled: 'shuffled' };
  const controls = Object.keys(hues).filter(c => bands[c]).flatMap(c => band(words[c], x, bands[c][kind][name], tone(hues[c])));
  if (name === 'mean_cosine') { controls.push({ ...line('floor', x, trace.layers.map(l => l.metrics.shuffled_cosine), tone('third'), 'dot') }); }
  const data = [...controls, line('model', x, trace.layers.map(of), tone('spread'))];
  return [data, layout('', '', { xaxis: whole(x.length), yaxis: { nticks: 5 } })];
}
// The same axis for a quantity in every model; logarithmic where its values need it.
function shareAxis(kind, extra, where) {
  const values = report.models.filter(m => m[NEEDS[kind]] && (kind !== 'places' || (m.audit.slices && m.audit.slices.variants.length)))
    .flatMap(m => CHARTS[kind](m, extra)[0].flatMap(t => [...t.y, ...(t.error_y ? t.y.map((v, i) => v + t.error_y.array[i]) : [])])).filter(Number.isFinite);
  if (kind === 'metrics' && Math.min(...values) > 0 && Math.max(...values) > 30 * Math.min(...values)) {
    const decades = padded(values.map(Math.log10));
    Object.assign(where.yaxis, { type: 'log', range: decades, dtick: Math.max(1, Math.ceil((decades[1] - decades[0]) / 4)) });
    return;
  }
  if (report.models.length > 1) {
    const zero = ['defects', 'swaps', 'neighbours'].includes(kind);
    where.yaxis.range = padded(zero ? [0, ...values] : values);
    if (zero && Math.min(...values) >= 0) { where.yaxis.range[0] = 0; }
  }
}

function draw(figure) {
  const { chart, model, extra } = figure.dataset;
  const [data, where] = CHARTS[chart](report.models[Number(model)], extra);
  if (SHARED.has(chart)) { shareAxis(chart, extra, where); }
  Plotly.react(figure.querySelector('.plot'), data, where, CONFIG);
  figure.dispatchEvent(new Event('drawn'));
}
