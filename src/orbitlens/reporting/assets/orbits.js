// Orbits: tokens in two directions, or in three that the reader turns. Three are projected here, as
// plotly's own 3-D needs WebGL and evaluates strings, which the page's policy forbids.
const PLACE = { light: [[0, '#0b4f8a'], [0.5, '#8a8fa0'], [1, '#e39a00']], dark: [[0, '#4ba3de'], [0.5, '#b7a9c9'], [1, '#f2bf4a']] };
const TRAIL = 3; // depths behind a token

function turned([x, y, z], { view, yaw, pitch }) {
  if (view === 2) { return [x, y, 0]; }
  const a = x * Math.cos(yaw) + z * Math.sin(yaw), c = -x * Math.sin(yaw) + z * Math.cos(yaw);
  return [a, y * Math.cos(pitch) - c * Math.sin(pitch), y * Math.sin(pitch) + c * Math.cos(pitch)];
}
function orbitTraces(orbits, state) {
  const n = orbits.tokens.length, now = between(orbits.positions, state.k).map(p => turned(p, state));
  const x = [], y = [], last = Math.ceil(state.k) - 1;
  for (let i = 0; i < n; i++) {
    for (let d = Math.max(0, last - TRAIL + 1); d <= last; d++) {
      const p = turned(orbits.positions[d][i], state);
      x.push(p[0]);
      y.push(p[1]);
    }
    x.push(now[i][0], null);
    y.push(now[i][1], null);
  }
  const depths = now.map(p => p[2]), [low, high] = [Math.min(...depths), Math.max(...depths)];
  const near = depths.map(d => high > low ? (d - low) / (high - low) : 0.5), base = n <= 40 ? 11 : 9;
  const size = state.view === 3 ? near.map(v => base * (0.6 + 0.6 * v)) : base;
  const text = orbits.tokens.map((t, i) => `${i}: “${safe(t)}”`);
  const axes = state.view === 3 ? orbitAxes(orbits, state) : { x: [null], y: [null], text: [''] };
  return [
    { type: 'scatter', mode: 'lines', x, y, hoverinfo: 'skip', line: { color: tone('muted'), width: 1, shape: 'spline', smoothing: 0.6 }, opacity: 0.4 },
    { type: 'scatter', mode: state.words ? 'text' : 'markers', x: now.map(p => p[0]), y: now.map(p => p[1]),
      customdata: text, hovertemplate: '%{customdata}<extra></extra>', text: orbits.tokens.map(t => safe(few(t.trim() || '␣', 14))),
      textfont: { size: 12, color: orbits.tokens.map((_, i) => shade(i / Math.max(1, n - 1))) },
      marker: { size, color: orbits.tokens.map((_, i) => i), colorscale: isDark() ? PLACE.dark : PLACE.light,
        line: { width: 1, color: tone('card') } } },
    { type: 'scatter', mode: 'lines+text', ...axes, hoverinfo: 'skip', textfont: { color: tone('muted'), size: 11 }, line: { color: tone('muted'), width: 1 } },
  ];
}
function shade(share) {
  const stops = isDark() ? PLACE.dark : PLACE.light, k = share < 0.5 ? 0 : 1, t = (share - stops[k][0]) * 2;
  const parts = [1, 3, 5].map(j => [stops[k], stops[k + 1]].map(s => parseInt(s[1].slice(j, j + 2), 16)));
  return `rgb(${parts.map(([a, b]) => Math.round(a + t * (b - a))).join(',')})`;
}
const reach = orbits => Math.max(...orbits.positions.flat().map(p => Math.hypot(...p))) || 1;
function orbitAxes(orbits, state) {
  const r = 0.8 * reach(orbits), x = [], y = [], text = [];
  [[r, 0, 0], [0, r, 0], [0, 0, r]].forEach((end, i) => {
    const a = turned(end.map(v => -v), state), b = turned(end, state);
    x.push(a[0], b[0], null);
    y.push(a[1], b[1], null);
    text.push('', `${['first', 'second', 'third'][i]}, ${Math.round(100 * orbits.explained[i])} %`, '');
  });
  return { x, y, text };
}
function orbitPicture(orbits, state) {
  const flat = orbits.positions.flat(), data = orbitTraces(orbits, state);
  if (state.view === 3) {
    const r = 0.9 * reach(orbits), hidden = { range: [-r, r], visible: false };
    return [data, layout('', '', { margin: { l: 4, r: 4, t: 4, b: 4 }, xaxis: { ...hidden, constrain: 'domain' }, yaxis: { ...hidden, scaleanchor: 'x' } })];
  }
  return [data, layout(`first direction, ${Math.round(100 * orbits.explained[0])} %`, `second direction, ${Math.round(100 * orbits.explained[1])} %`,
    { xaxis: { range: padded(flat.map(p => p[0])), zeroline: false }, yaxis: { range: padded(flat.map(p => p[1])), zeroline: false } })];
}

document.querySelectorAll('.orbits').forEach(part => {
  const { orbits } = report.models[Number(part.dataset.model)], figure = part.querySelector('[data-chart]'), plot = part.querySelector('.plot');
  const state = { view: 2, k: orbits.depths.length - 1, yaw: 0.6, pitch: 0.35, words: false };
  const redraw = () => Plotly.react(plot, ...orbitPicture(orbits, state), CONFIG);
  const move = () => {
    if (!plot.data) { redraw(); return; }
    const next = orbitTraces(orbits, state);
    Plotly.restyle(plot, { x: next.map(t => t.x), y: next.map(t => t.y), text: next.map(t => t.text), 'marker.size': next.map(t => t.marker ? t.marker.size : undefined) }, [0, 1, 2]);
  };
  player(part.querySelector('.player'), orbits.depths.length - 1, k => { state.k = k; move(); }, k => orbits.depths[k], 700);
  figure.addEventListener('drawn', () => { if (state.view === 3 || state.words || state.k !== orbits.depths.length - 1) { redraw(); } });
  part.addEventListener('change', event => {
    if (event.target.type === 'radio') { state.view = Number(event.target.value); }
    if (event.target.type === 'checkbox') { state.words = event.target.checked; }
    plot.tabIndex = state.view === 3 ? 0 : -1;
    plot.classList.toggle('turns', state.view === 3);
    redraw();
  });
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
    const steps = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
    if (state.view === 3 && steps[event.key]) { event.preventDefault(); turn(...steps[event.key]); }
  });
});
