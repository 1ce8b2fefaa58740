// One function a kind of layer: (layer, frame, panel, targets) -> elements. `targets` are places that a reader can point at.
import { isNumber, paint, px, show, svg } from './svg.js';

const SHAPES = { // unit shapes around 0, as polygons; circles are circles
  square: 'M-.9 -.9H.9V.9H-.9Z', diamond: 'M0 -1.2L1.2 0L0 1.2L-1.2 0Z', 'triangle-up': 'M0 -1.2L1.1 .9H-1.1Z',
  'triangle-down': 'M0 1.2L1.1 -.9H-1.1Z', x: 'M-1 -.5L-.5 -1L0 -.5L.5 -1L1 -.5L.5 0L1 .5L.5 1L0 .5L-.5 1L-1 .5L-.5 0Z',
};

function pathOf(xs, ys, frame) {
  const parts = [];
  let on = false;
  for (let i = 0; i < xs.length; i++) {
    if (isNumber(xs[i]) && isNumber(ys[i])) {
      parts.push(on ? 'L' : 'M', px(frame.x(xs[i])), ' ', px(frame.y(ys[i])));
      on = true;
    } else { on = false; }
  }
  return parts.join('');
}
const area = (l, frame) => svg('path', { d: `${pathOf([...l.x, ...[...l.x].reverse()], [...l.high, ...[...l.low].reverse()], frame)}Z`,
  style: `fill:${paint(l.colour)};fill-opacity:.2;stroke:none` });
const nameOf = (v, ticks) => (ticks ?? []).find(([at]) => at === v)?.[1] ?? show(v);
const words = (...parts) => parts.filter(Boolean).join('\n');

function told(layer, panel, i, y) {
  return words(layer.texts?.[i] ?? layer.label, `${panel.x_label ?? ''} ${nameOf(layer.x[i], panel.x_ticks)}`.trim(),
    `${panel.y_label ?? ''} ${show(y)}`.trim());
}

const DRAW = {
  curve(l, frame, panel, targets) {
    const dash = l.dashed ? 'stroke-dasharray:6 4;' : l.dotted ? 'stroke-dasharray:1.5 3.5;stroke-linecap:round;' : '';
    const style = `fill:none;stroke:${paint(l.colour)};stroke-width:${l.width ?? 1.8};stroke-linejoin:round;opacity:${l.opacity ?? 1};${dash}`;
    const made = l.low?.length ? [area(l, frame)] : [];
    made.push(svg('path', { d: pathOf(l.x, l.y, frame), style }));
    l.y.forEach((y, i) => {
      if (!isNumber(y) || !isNumber(l.x[i])) { return; }
      const at = [frame.x(l.x[i]), frame.y(y)];
      if (l.markers) { made.push(svg('circle', { cx: px(at[0]), cy: px(at[1]), r: 3, style: `fill:${paint(l.colour)};opacity:${l.opacity ?? 1}` })); }
      if (!l.silent) { targets.push({ at, text: told(l, panel, i, y) }); }
    });
    return made;
  },
  band(l, frame, panel, targets) {
    const edge = ys => svg('path', { d: pathOf(l.x, ys, frame), style: `fill:none;stroke:${paint(l.colour)};stroke-opacity:.7` });
    for (const [end, ys] of [['lowest', l.low], ['highest', l.high]]) {
      ys.forEach((y, i) => targets.push({ at: [frame.x(l.x[i]), frame.y(y)],
        text: words(`${l.label}, ${end}`, `${panel.x_label ?? ''} ${nameOf(l.x[i], panel.x_ticks)}`.trim(), show(y)) }));
    }
    return [area(l, frame), edge(l.low), edge(l.high)];
  },
  bars(l, frame, panel, targets) {
    const half = (l.width ?? 0.8) / 2;
    return l.x.map((x, i) => {
      const [a, b, y, base] = [frame.x(x - half), frame.x(x + half), frame.y(l.y[i]), frame.y(l.base?.[i] ?? 0)];
      const box = [a, Math.min(y, base), b, Math.max(y, base)];
      targets.push({ column: [a, b], at: [(a + b) / 2, Math.min(y, base)], text: l.base ? l.texts[i] : told(l, panel, i, l.y[i]) });
      return svg('rect', { x: px(box[0]), y: px(box[1]), width: px(Math.max(0.5, b - a)), height: px(Math.max(l.base ? 1 : 0, box[3] - box[1])),
        style: `fill:${paint(l.colours?.[i] ?? l.colour)}` });
    });
  },
  points(l, frame, panel, targets) {
    const made = [];
    l.x.forEach((x, i) => {
      const at = [frame.x(x), frame.y(l.y[i])], colour = paint(l.colours?.[i] ?? l.colour);
      if (l.low?.length) {
        made.push(svg('line', { x1: px(at[0]), x2: px(at[0]), y1: px(frame.y(l.low[i])), y2: px(frame.y(l.high[i])), style: `stroke:${colour};stroke-width:1.4` }));
      }
      made.push(l.words ? svg('text', { x: px(at[0]), y: px(at[1] + 4), 'text-anchor': 'middle', style: `fill:${colour};font-size:12px;paint-order:stroke;stroke:var(--paper);stroke-width:3px` }, l.words[i])
        : mark(l.symbols?.[i] ?? l.symbol, at, 0.6 * (l.sizes?.[i] ?? l.size ?? 6), `fill:${colour};fill-opacity:${l.opacities?.[i] ?? l.opacity ?? 0.9};stroke:var(--paper);stroke-width:.8`));
      if (l.keys?.[i] !== undefined && l.keys[i] === panel.chosen) {
        made.push(svg('circle', { cx: px(at[0]), cy: px(at[1]), r: 8, class: 'chosen', style: 'fill:none;stroke:var(--ink);stroke-width:2' }));
      }
      if (!l.silent) { targets.push({ at, key: l.keys?.[i], text: l.texts?.[i] && l.only_texts ? l.texts[i] : told(l, panel, i, l.y[i]) }); }
    });
    return made;
  },
  forest(l, frame, panel, targets) {
    return l.names.flatMap((name, k) => {
      const y = frame.y(l.names.length - 1 - k), colour = paint(l.colours[k]), x = frame.x(l.values[k]);
      targets.push({ at: [x, y], text: words(name, `${show(l.values[k])} (${show(l.low[k])} to ${show(l.high[k])})`) });
      return [svg('line', { x1: px(frame.x(l.low[k])), x2: px(frame.x(l.high[k])), y1: px(y), y2: px(y), style: `stroke:${colour};stroke-width:2.2;stroke-linecap:round` }),
        mark('circle', [x, y], 4.5, `fill:${colour};stroke:var(--paper);stroke-width:.8`)];
    });
  },
  heat(l, frame, panel, targets) {
    const [low, high] = l.limits ?? [0, 1], made = [];
    l.values.forEach((row, n) => row.forEach((v, k) => {
      const [x, y, x2, y2] = [frame.x(k - 0.5) + 1, frame.y(n - 0.5) + 1, frame.x(k + 0.5) - 1, frame.y(n + 0.5) - 1];
      if (!isNumber(v)) { return; }
      const share = Math.max(0, Math.min(1, (v - low) / (high - low || 1))), text = l.texts?.[n]?.[k];
      made.push(svg('rect', { x: px(x), y: px(y), width: px(Math.max(0.5, x2 - x)), height: px(Math.max(0.5, y2 - y)), rx: 2, style: `fill:${shade(l.stops, share)}` }));
      if (text && x2 - x > 6 * text.length) {
        const strong = l.dark_ends === 2 ? Math.abs(share - 0.5) > 0.33 : share > 0.6;
        made.push(svg('text', { x: px((x + x2) / 2), y: px((y + y2) / 2 + 4), 'text-anchor': 'middle', style: `fill:${strong && l.dark_ends ? '#fff' : l.dark_ends ? '#22262E' : 'var(--ink)'}` }, text));
      }
      targets.push({ box: [x, y, x2, y2], at: [(x + x2) / 2, y], text: words(l.y_names?.[n], l.x_names?.[k] && `${panel.x_label ?? ''} ${l.x_names[k]}`.trim(), show(v)) });
    }));
    return made;
  },
  level(l, frame) {
    const at = l.vertical ? frame.x(l.at) : frame.y(l.at);
    const ends = l.vertical ? { x1: px(at), x2: px(at), y1: px(frame.top), y2: px(frame.bottom) } : { x1: px(frame.left), x2: px(frame.right), y1: px(at), y2: px(at) };
    const made = [svg('line', { ...ends, style: `stroke:${paint(l.colour ?? '#636A75')};stroke-width:1.2;stroke-dasharray:${l.solid ? 'none' : '2 3'}` })];
    if (l.label) {
      const place = l.vertical ? { x: px(at + 4), y: px(frame.top - 4) } : { x: px(frame.right - 2), y: px(at - 4), 'text-anchor': 'end' };
      made.push(svg('text', place, l.label));
    }
    return made;
  },
};

function mark(symbol, [x, y], r, style) {
  return SHAPES[symbol] ? svg('path', { d: SHAPES[symbol], transform: `translate(${px(x)} ${px(y)}) scale(${px(r)})`, style: `${style};vector-effect:non-scaling-stroke` })
    : svg('circle', { cx: px(x), cy: px(y), r: px(r), style });
}
// A colour between those of a scale, mixed by the browser so that it follows the theme.
function shade(stops, share) {
  const k = Math.min(stops.length - 2, Math.floor(share * (stops.length - 1))), t = share * (stops.length - 1) - k;
  return `color-mix(in srgb, ${paint(stops[k + 1])} ${px(100 * t)}%, ${paint(stops[k])})`;
}

export function drawMarks(panel, frame) {
  const targets = [], made = svg('g', { class: 'marks' });
  for (const layer of panel.layers) { made.append(...DRAW[layer.kind](layer, frame, panel, targets)); }
  for (const [x, y, text] of panel.notes ?? []) {
    made.append(svg('text', { x: px(frame.x(x)), y: px(frame.y(y) + 4), 'text-anchor': 'middle', class: 'word' }, text));
  }
  return [made, targets];
}
