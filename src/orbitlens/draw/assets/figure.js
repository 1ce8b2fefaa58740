// Panels as SVG, drawn to the size of their box and again when it changes; the nearest mark tells its numbers when pointed at.
import { drawAxes, frameOf } from './axes.js';
import { drawMarks } from './marks.js';
import { element, isNumber, px, svg } from './svg.js';

const REACH = 28; // pixels from a mark at which a reader points at it
const sized = new ResizeObserver(changes => changes.forEach(({ target }) => {
  const [width, height] = [target.clientWidth, target.clientHeight];
  if (target.panel && (width !== target.drawnSize?.[0] || height !== target.drawnSize?.[1])) { paintPanel(target); }
}));

// Draw a panel into a box of the page. `box.panel` keeps what is drawn.
export function drawPanel(box, panel) {
  if (!box.panel) { listen(box); sized.observe(box); }
  box.panel = panel;
  paintPanel(box);
}
// Draw other layers on the same axes: a frame of a moving picture.
export function moveLayers(box, layers) {
  box.panel = { ...box.panel, layers };
  const [marks, targets] = drawMarks(box.panel, box.frame);
  box.querySelector('.marks').replaceWith(marks);
  box.targets = targets;
}
export function paintPanel(box) {
  const { panel } = box, width = box.clientWidth, height = box.clientHeight;
  if (!width || !height) { return; }
  box.frame = frameOf(panel, width, height);
  const [marks, targets] = drawMarks(panel, box.frame);
  const drawing = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}` }, drawAxes(panel, box.frame), clipped(box.frame, panel, marks));
  Object.assign(box, { targets, drawnSize: [width, height] });
  box.querySelector('svg')?.remove();
  box.prepend(drawing);
}
// Ring the mark that a page calls by this key; the event `choose` of a box tells which one a reader clicked.
export function chooseMark(box, key) {
  if (box.panel) { box.panel.chosen = key; paintPanel(box); }
}
export function repaintAll() { document.querySelectorAll('.plot').forEach(box => { if (box.panel) { paintPanel(box); } }); }

// What lies beyond a range that was given is cut off; marks at the rim of any other stay whole.
let clips = 0;
function clipped(frame, panel, marks) {
  const outside = (v, [a, b]) => isNumber(v) && (v < Math.min(a, b) || v > Math.max(a, b));
  const cut = panel.layers.some(l => (panel.x_range && l.x?.some(v => outside(v, frame.x_range))) || (panel.y_range && [l.y, l.low, l.high].some(s => s?.some(v => outside(v, frame.y_range)))));
  if (!cut) { return marks; }
  const id = `clip-${clips += 1}`, area = svg('rect', { x: px(frame.left), y: px(frame.top), width: px(frame.right - frame.left), height: px(frame.bottom - frame.top) });
  return svg('g', { 'clip-path': `url(#${id})` }, svg('clipPath', { id }, area), marks);
}

function listen(box) {
  const tip = element('div', undefined, 'tip');
  tip.hidden = true;
  box.append(tip);
  const leave = () => { tip.hidden = true; };
  const point = event => {
    const where = box.getBoundingClientRect(), at = [event.clientX - where.left, event.clientY - where.top];
    const target = nearest(box.targets ?? [], at);
    if (!target) { leave(); return; }
    tip.textContent = target.text;
    tip.hidden = false;
    const [x, y] = target.at, below = y < tip.offsetHeight + 14;
    tip.style.left = `${Math.max(0, Math.min(box.clientWidth - tip.offsetWidth, x - tip.offsetWidth / 2))}px`;
    tip.style.top = `${below ? y + 12 : y - tip.offsetHeight - 10}px`;
  };
  box.addEventListener('click', event => {
    const where = box.getBoundingClientRect(), { key } = nearest(box.targets ?? [], [event.clientX - where.left, event.clientY - where.top]) ?? {};
    if (key !== undefined) { box.dispatchEvent(new CustomEvent('choose', { detail: key, bubbles: true })); }
  });
  box.addEventListener('pointermove', point);
  box.addEventListener('pointerdown', point);
  box.addEventListener('pointerleave', leave);
}
function nearest(targets, [x, y]) {
  let best = null, least = REACH ** 2;
  for (const target of targets) {
    if (target.box) {
      const [a, b, c, d] = target.box;
      if (x >= a && x <= c && y >= b && y <= d) { return target; }
      continue;
    }
    if (target.column) {
      if (x >= target.column[0] && x <= target.column[1]) { return target; }
      continue;
    }
    const distance = (target.at[0] - x) ** 2 + (target.at[1] - y) ** 2;
    if (distance < least) { [best, least] = [target, distance]; }
  }
  return best;
}
