// What all charts share: the data inside the page, colours of the page's theme, axes, elements.
// Texts reach the page as text, and reach plotly escaped, since plotly reads a few tags in labels.
const report = JSON.parse(document.getElementById('report-data').textContent);
const CONFIG = { displayModeBar: false, responsive: true };
const dark = matchMedia('(prefers-color-scheme: dark)');
const calm = matchMedia('(prefers-reduced-motion: reduce)');
const tone = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const safe = text => String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
const show = v => v === null || v === undefined ? '–'
  : (Number.isInteger(v) ? String(v) : String(Number(v.toPrecision(3)))).replace('-', '−');
const few = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
const isDark = () => dark.matches && !document.documentElement.classList.contains('printing');
const element = (name, text, className) => {
  const found = document.createElement(name);
  if (text !== undefined) { found.textContent = text; }
  if (className) { found.className = className; }
  return found;
};

function layout(x, y, extra = {}) {
  const axis = title => ({ title: { text: title, standoff: 6 }, gridcolor: tone('line'), linecolor: tone('line'),
    zerolinecolor: tone('muted'), zerolinewidth: 1, automargin: false, fixedrange: true });
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return { paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', hovermode: 'closest', dragmode: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: tone('muted') },
    margin: { l: y ? 62 : 48, r: 10, t: 8, b: x ? 40 : 24 }, showlegend: false,
    hoverlabel: { bgcolor: tone('card'), bordercolor: tone('line'), font: { color: tone('ink') } },
    xaxis: { ...axis(x), ...xaxis }, yaxis: { ...axis(y), ...yaxis }, ...rest };
}
const whole = n => ({ zeroline: false, showgrid: false, tickmode: n > 12 ? 'auto' : 'linear', dtick: 1, nticks: 8 });
const named = n => ({ type: 'category', showgrid: false, zeroline: false, tickangle: 0, nticks: n > 10 ? 8 : n + 1 });
const line = (name, x, y, colour, dash = 'solid') => ({ type: 'scatter', mode: 'lines+markers', name, x, y,
  line: { color: colour, width: dash === 'solid' ? 2.4 : 1.8, dash }, marker: { size: dash === 'solid' ? 6 : 5 } });
const clear = (colour, share) => {
  const [r, g, b] = [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
};
// A control: the lowest and the highest of its runs, filled between.
const band = (name, x, ends, colour) => [0, 1].map(k => ({ type: 'scatter', mode: 'lines', name, x,
  y: ends.map(pair => pair[k]), line: { color: clear(colour, 0.75), width: 1 },
  ...(k ? { fill: 'tonexty', fillcolor: clear(colour, 0.22) } : {}),
  hovertemplate: `${name}, ${k ? 'highest' : 'lowest'}: %{y:.3g}<extra></extra>` }));
const padded = (values, share = 0.06) => {
  const kept = values.filter(Number.isFinite), a = Math.min(...kept), b = Math.max(...kept), m = share * (b - a || 1);
  return [a - m, b + m];
};

// A table of numbers, made when its details are opened.
function behind(columns, rows) {
  const found = element('details');
  found.append(element('summary', 'The numbers behind this chart'));
  found.addEventListener('toggle', () => { if (found.open && !found.querySelector('table')) { fill(); } });
  function fill() {
    const box = element('div', undefined, 'scroll'), table = element('table'), top = element('tr'), body = element('tbody'), head = element('thead');
    columns.forEach(name => { const th = element('th', name); th.scope = 'col'; top.append(th); });
    for (const values of rows()) {
      const row = element('tr');
      values.forEach(v => { const cell = element('td', typeof v === 'string' ? v : show(v), 'n'); if (typeof v === 'number') { cell.dataset.v = v; } row.append(cell); });
      body.append(row);
    }
    head.append(top);
    table.append(head, body);
    box.tabIndex = 0;
    box.append(table);
    found.append(box);
  }
  return found;
}

// A player: a button, a slider and a word for the moment. `frame(k)` draws a moment, which may lie
// between two where motion is welcome.
function player(box, last, frame, name, ms) {
  const button = box.querySelector('button'), slider = box.querySelector('input'), word = box.querySelector('output');
  let playing = null;
  const now = () => Number(slider.value);
  const label = () => { button.textContent = playing !== null ? 'Pause' : now() === last ? 'Replay' : 'Play'; };
  const go = k => {
    const whole = Math.round(k);
    slider.value = whole;
    word.textContent = name(whole);
    slider.setAttribute('aria-valuetext', name(whole));
    frame(k);
  };
  const stop = () => { cancelAnimationFrame(playing); playing = null; label(); };
  const play = () => {
    let k = now() === last ? 0 : now(), before = performance.now();
    go(k);
    const step = moment => {
      if (!box.isConnected) { stop(); return; }
      k = Math.min(last, k + (moment - before) / ms);
      before = moment;
      go(calm.matches ? Math.floor(k) : k);
      if (k >= last) { go(last); stop(); } else { playing = requestAnimationFrame(step); }
    };
    playing = requestAnimationFrame(step);
    label();
  };
  button.addEventListener('click', () => playing !== null ? stop() : play());
  slider.addEventListener('input', () => { stop(); go(now()); });
  label();
  return { go, now };
}
const between = (frames, k) => {
  const low = Math.floor(k), share = k - low;
  if (share === 0) { return frames[low]; }
  return frames[low].map((p, i) => p.map((v, j) => v + share * (frames[low + 1][i][j] - v)));
};
