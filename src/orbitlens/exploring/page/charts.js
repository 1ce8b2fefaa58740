// Small parts that rooms share: elements, controls, and drawings that are a canvas on the page and an SVG in a file.
import { isNumber, show, svg } from '../../draw/assets/svg.js';

export const make = (name, options = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === 'class') { made.className = value; }
    else if (key === 'text') { made.textContent = value; } // words are text, never markup
    else if (key.startsWith('on')) { made.addEventListener(key.slice(2), value); }
    else if (value === true) { made.setAttribute(key, ''); }
    else if (value !== false && value !== undefined && value !== null) { made.setAttribute(key, value); }
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
};
export const button = (text, title, work, options = {}) => make('button', { type: 'button', title, text, onclick: work, ...options });
export const number = v => show(v);

let named = 0;
// A slider with its name and its value in words. `scale` turns a place of the slider into a value, `place` a value into its place.
export function slider({ label, min, max, step = 'any', value, word = number, scale = v => v, place = v => v, title, onvalue }) {
  const id = `control-${named += 1}`, input = make('input', { type: 'range', id, min: place(min), max: place(max), step }), output = make('output', { for: id });
  const set = v => {
    input.value = place(v);
    output.textContent = word(v);
    input.setAttribute('aria-valuetext', word(v));
  };
  input.addEventListener('input', () => { const v = scale(Number(input.value)); output.textContent = word(v); input.setAttribute('aria-valuetext', word(v)); onvalue(v); });
  set(value);
  const box = make('div', { class: 'control', title }, make('label', { for: id, text: label }), output, input);
  return { box, set, enable: (on, why) => { input.disabled = !on; box.classList.toggle('off', !on); box.title = on ? title ?? '' : why ?? ''; } };
}
// A choice of a few, as radio buttons side by side.
export function choice({ label, options, value, onvalue, title }) {
  const name = `choice-${named += 1}`, inputs = new Map();
  const row = make('fieldset', { class: 'choice', title }, make('legend', { text: label }));
  const place = make('div', { class: 'segments' });
  for (const [key, text, hint] of options) {
    const input = make('input', { type: 'radio', name, value: key, onchange: () => onvalue(key) });
    inputs.set(key, input);
    place.append(make('label', { title: hint }, input, make('span', { text })));
  }
  row.append(place);
  const set = v => inputs.forEach((input, key) => { input.checked = key === String(v); });
  const enable = (key, on, why) => { const one = inputs.get(key); one.disabled = !on; one.parentElement.classList.toggle('off', !on); one.parentElement.title = on ? '' : why ?? ''; };
  set(value);
  return { box: row, set, enable };
}
export function menu({ label, groups, value, onvalue }) {
  const id = `control-${named += 1}`, list = make('select', { id, onchange: () => onvalue(list.value) });
  for (const [name, options] of groups) {
    list.append(make('optgroup', { label: name }, ...options.map(([key, text, off]) => make('option', { value: key, text, disabled: Boolean(off) }))));
  }
  list.value = value;
  return { box: make('div', { class: 'control menu' }, make('label', { for: id, text: label }), list), set: v => { list.value = v; }, list };
}

// --- pens: one drawing, two media ------------------------------------------------------------

const SERIF = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

export function canvasPen(context) {
  const paint = ({ fill, stroke, width = 1, opacity = 1, dash }) => {
    if (opacity !== 1) { context.globalAlpha = opacity; }
    if (fill) { context.fillStyle = fill; context.fill(); }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      if (dash) { context.setLineDash(dash); }
      context.stroke();
      if (dash) { context.setLineDash([]); }
    }
    if (opacity !== 1) { context.globalAlpha = 1; }
  };
  const trace = (points, closed) => { // [x0, y0, x1, y1, …]; a NaN lifts the pen
    let down = false;
    for (let i = 0; i < points.length; i += 2) {
      if (!(points[i] === points[i])) { down = false; continue; }
      if (down) { context.lineTo(points[i], points[i + 1]); } else { context.moveTo(points[i], points[i + 1]); down = true; }
    }
    if (closed) { context.closePath(); }
  };
  return {
    circle: (x, y, r, style) => { context.beginPath(); context.arc(x, y, Math.max(0, r), 0, 2 * Math.PI); paint(style); },
    circles(places, r, style) { // [x0, y0, x1, y1, …], all alike
      context.beginPath();
      for (let i = 0; i < places.length; i += 2) { context.moveTo(places[i] + r, places[i + 1]); context.arc(places[i], places[i + 1], r, 0, 2 * Math.PI); }
      paint(style);
    },
    line: (points, style) => { context.beginPath(); trace(points, style.closed); paint(style); },
    rect: (x, y, w, h, style) => { context.beginPath(); context.rect(x, y, w, h); paint(style); },
    text(x, y, words, { fill, size = 12, align = 'left', weight = 400, opacity = 1 }) {
      context.globalAlpha = opacity;
      context.fillStyle = fill;
      context.font = `${weight} ${size}px ${SERIF}`;
      context.textAlign = align;
      context.fillText(words, x, y);
      context.globalAlpha = 1;
    },
  };
}
const rounded = v => Math.round(100 * v) / 100;

export function svgPen(width, height, paper, title) {
  const root = svg('svg', { xmlns: 'http://www.w3.org/2000/svg', width, height, viewBox: `0 0 ${width} ${height}` });
  root.append(svg('title', {}, title), svg('rect', { width: '100%', height: '100%', fill: paper }));
  const attributes = ({ fill, stroke, width: w = 1, opacity = 1, dash }) => ({ fill: fill ?? 'none',
    ...(stroke ? { stroke, 'stroke-width': w, 'stroke-linejoin': 'round', 'stroke-linecap': 'round' } : {}), ...(opacity < 1 ? { opacity: rounded(opacity) } : {}),
    ...(dash ? { 'stroke-dasharray': dash.join(' ') } : {}) });
  const add = (name, shape, style) => root.append(svg(name, { ...shape, ...attributes(style) }));
  return {
    root,
    circle: (x, y, r, style) => add('circle', { cx: rounded(x), cy: rounded(y), r: rounded(r) }, style),
    circles(places, r, style) { for (let i = 0; i < places.length; i += 2) { this.circle(places[i], places[i + 1], r, style); } },
    line(points, style) {
      let d = '', down = false;
      for (let i = 0; i < points.length; i += 2) {
        if (!(points[i] === points[i])) { down = false; continue; }
        d += `${down ? 'L' : 'M'}${rounded(points[i])} ${rounded(points[i + 1])}`;
        down = true;
      }
      if (d) { add('path', { d: style.closed ? `${d}Z` : d }, style); }
    },
    rect: (x, y, w, h, style) => add('rect', { x: rounded(x), y: rounded(y), width: rounded(w), height: rounded(h) }, style),
    text: (x, y, words, { fill, size = 12, align = 'left', weight = 400, opacity = 1 }) => root.append(svg('text', { x: rounded(x), y: rounded(y), fill, 'font-size': size,
      'font-weight': weight, 'font-family': SERIF, opacity, 'text-anchor': { left: 'start', center: 'middle', right: 'end' }[align] }, words)),
  };
}

// A canvas that keeps to its box, at the screen's resolution, and draws when asked: at once, or in the next frame.
export function drawing(label, draw) {
  const canvas = make('canvas', { role: 'img', 'aria-label': label }), box = make('div', { class: 'drawing' }, canvas);
  let asked = 0, size = [0, 0];
  const now = () => {
    asked = 0;
    const [width, height] = size;
    if (width < 2 || height < 2) { return; }
    const context = canvas.getContext('2d'), ratio = canvas.width / width;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.lineJoin = context.lineCap = 'round';
    draw(canvasPen(context), width, height);
  };
  const soon = () => { if (!asked) { asked = requestAnimationFrame(now); } };
  const fit = () => {
    const { width, height } = box.getBoundingClientRect(), ratio = Math.min(3, window.devicePixelRatio || 1);
    if (Math.round(width * ratio) === canvas.width && Math.round(height * ratio) === canvas.height) { return; }
    size = [width, height];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    now();
  };
  new ResizeObserver(fit).observe(box);
  // What a file holds is drawn by the same function, at the size on the page.
  canvas.asSvg = title => { const pen = svgPen(Math.round(size[0]), Math.round(size[1]), colour('paper'), title); draw(pen, size[0], size[1]); return pen.root; };
  return { box, canvas, now, soon, fit, size: () => size };
}

// --- colours ---------------------------------------------------------------------------------

let kept = new Map();
export const colour = name => {
  if (!kept.has(name)) {
    // Canvases know no variables, and no colours that depend on the theme: a probe turns them into plain ones.
    const probe = make('span', { hidden: true });
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    kept.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return kept.get(name);
};
export const forgetColours = () => { kept = new Map(); };
const channels = text => { const [r, g, b] = text.match(/[\d.]+/g).map(Number); return [r, g, b]; };
export const mixed = (a, b, share) => {
  const [x, y] = [channels(a), channels(b)];
  return `rgb(${x.map((v, i) => Math.round(v + share * (y[i] - v))).join(' ')})`;
};
// The colour of a place in a context: early, middle, late.
export const placeColour = share => share < 0.5 ? mixed(colour('early'), colour('middle'), 2 * share) : mixed(colour('middle'), colour('late'), 2 * share - 1);

// --- curves over time ------------------------------------------------------------------------

const nice = (low, high, n) => {
  const raw = (high - low) / n, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 2.5, 5, 10].map(f => f * power).find(s => s >= raw);
  const ticks = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) { ticks.push(Math.abs(v) < 1e-9 * step ? 0 : v); }
  return ticks;
};
const axis = v => Math.abs(v) >= 1e4 ? v.toExponential(Number.isInteger(v / 10 ** Math.floor(Math.log10(Math.abs(v)))) ? 0 : 1).replace('e+', 'e').replace('-', '−') : number(v);
// Curves {x, y, colour, dash, label}; `now` is a moment to mark, `range` fixes the vertical axis.
export function drawCurves(pen, width, height, { curves, now, range, xRange, xLabel = '', absent = '' }) {
  if (absent) { pen.text(width / 2, height / 2, absent, { fill: colour('muted'), size: 12, align: 'center' }); return; }
  const values = curves.flatMap(c => [...c.y]).filter(isNumber), left = 40, right = 10, top = 8, bottom = 20;
  let [low, high] = range ?? [Math.min(...values), Math.max(...values)];
  if (!values.length) { [low, high] = [0, 1]; }
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) { [low, high] = [low - 0.5, high + 0.5]; }
  const [from, to] = xRange, x = v => left + (v - from) / (to - from || 1) * (width - left - right), y = v => height - bottom - (v - low) / (high - low) * (height - top - bottom);
  for (const tick of nice(low, high, 3)) {
    pen.line([left, y(tick), width - right, y(tick)], { stroke: colour('grid') });
    pen.text(left - 6, y(tick) + 4, axis(tick), { fill: colour('muted'), size: 11, align: 'right' });
  }
  for (const tick of nice(from, to, 4)) { if (xLabel && x(tick) > width - right - 8 - 6 * xLabel.length) { continue; } pen.text(x(tick), height - 4, number(tick), { fill: colour('muted'), size: 11, align: 'center' }); }
  if (xLabel) { pen.text(width - right, height - 4, xLabel, { fill: colour('muted'), size: 11, align: 'right' }); }
  for (const c of curves) {
    const points = [];
    for (let i = 0; i < c.x.length && c.x[i] <= to; i += 1) { points.push(isNumber(c.y[i]) ? x(c.x[i]) : NaN, isNumber(c.y[i]) ? y(Math.min(high, Math.max(low, c.y[i]))) : NaN); }
    pen.line(points, { stroke: c.colour, width: c.width ?? 1.8, dash: c.dash, opacity: c.opacity ?? 1 });
  }
  if (now === undefined || now === null) { return; }
  pen.line([x(now), top, x(now), height - bottom], { stroke: colour('muted'), opacity: 0.5 });
  const c = curves[0];
  if (!c) { return; }
  let k = c.x.findIndex(v => v >= now);
  k = k < 0 ? c.x.length - 1 : k;
  if (k < 0 || !isNumber(c.y[k])) { return; }
  const at = Math.min(now, c.x[c.x.length - 1]), back = Math.max(0, k - 1), share = k > back && isNumber(c.y[back]) ? (at - c.x[back]) / (c.x[k] - c.x[back]) : 1;
  pen.circle(x(at), y(Math.min(high, Math.max(low, share === 1 ? c.y[k] : c.y[back] + share * (c.y[k] - c.y[back])))), 3.2, { fill: c.colour });
}
