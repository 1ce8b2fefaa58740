// The phase map: how flows like the one in front end, over β and over the value map; a point of it starts that flow.
import { colour, drawing, mixed, number } from './charts.js';
import { follow } from './integrator.js';
import { clusterLabels, largest, meanCosine } from './measures.js';
import { LIMITS, MIXED, flowOf } from './systems.js';

const COLUMNS = 21, ROWS = 15, TOKENS = 12, LONGEST = 10, FAR = 6, RTOL = 1e-3, CLEARLY = Math.log(2), TURN = 0.01, WIDE = 256;

export function phaseMap(app, choose) {
  let settings = null, key = '', cells = [], order = [], current = null, next = 0, stale = false;
  // All heads of a wide layer: every cell would take seconds.
  const tooWide = () => settings.layer && settings.heads === 'all' && settings.d > WIDE;
  const across = () => settings.system === MIXED ? ['a', LIMITS.a] : ['v', LIMITS.v];
  const valueOf = column => { const [, [low, high]] = across(); return low + (high - low) * column / (COLUMNS - 1); };
  const betaOf = row => LIMITS.beta[0] * (LIMITS.beta[1] / LIMITS.beta[0]) ** (row / (ROWS - 1));
  const box = (width, height) => ({ x: 34, y: 16, w: width - 40, h: height - 38 });
  const picture = drawing('Phase map', (pen, width, height) => {
    stale = false;
    const { x, y, w, h } = box(width, height), [cw, ch] = [w / COLUMNS, h / ROWS];
    cells.forEach((_, k) => { const end = nearOne(k); if (end) { pen.rect(x + (k % COLUMNS) * cw, y + h - (Math.floor(k / COLUMNS) + 1) * ch, cw + 0.6, ch + 0.6, { fill: shade(end) }); } });
    pen.rect(x, y, w, h, { stroke: colour('grid') });
    if (!settings) { return; }
    pen.text(x - 5, 10, 'β', { fill: colour('ink'), size: 12, align: 'right', weight: 600 });
    pen.text(x + 0.75 * w, height - 5, settings.system === MIXED ? 'a →' : 'v →', { fill: colour('ink'), size: 12, align: 'center', weight: 600 });
    const [name, [low, high]] = across(), mid = low < 0 ? [0] : [];
    for (const v of [low, ...mid, high]) { pen.text(x + w * (v - low) / (high - low), height - 6, number(v), { fill: colour('muted'), size: 11, align: v === low ? 'left' : v === high ? 'right' : 'center' }); }
    for (const b of [0.125, 1, 4, 16]) { pen.text(x - 5, y + h - h * Math.log(b / LIMITS.beta[0]) / Math.log(LIMITS.beta[1] / LIMITS.beta[0]) + (b === 16 ? 9 : b === 0.125 ? 0 : 4), b === 0.125 ? '⅛' : number(b), { fill: colour('muted'), size: 11, align: 'right' }); }
    const px = x + w * (settings[name] - low) / (high - low), py = y + h - h * Math.log(settings.beta / LIMITS.beta[0]) / Math.log(LIMITS.beta[1] / LIMITS.beta[0]);
    pen.circle(px, py, 5.5, { fill: colour('paper'), stroke: colour('ink'), width: 2 });
  });
  function shade({ change, clear }) {
    const strength = clear ? 0.35 + 0.6 * Math.min(1, Math.abs(change)) : 0;
    return mixed(colour('zero'), colour(change > 0 ? 'spread' : 'gather'), strength);
  }
  // A cell that is not there yet looks like the coarse one that it lies in.
  function nearOne(k) {
    const [c, r] = [k % COLUMNS, Math.floor(k / COLUMNS)];
    for (const step of [1, 2, 4]) { const found = cells[(r - r % step) * COLUMNS + c - c % step]; if (found) { return found; } }
    return null;
  }
  function begin() {
    cells = new Array(COLUMNS * ROWS).fill(null);
    // Coarse first: every point of the map has a near one soon.
    order = cells.map((_, k) => k).sort((a, b) => rank(a) - rank(b));
    next = 0;
    current = null;
  }
  const rank = k => { const [c, r] = [k % COLUMNS, Math.floor(k / COLUMNS)]; return [4, 2, 1].findIndex(step => c % step === 0 && r % step === 0) * 1e4 + ((c * 7 + r * 13) % 97); };
  // A free cloud that has grown this far is on its way out: the rest of its run would tell nothing more.
  const farAway = ({ made, run }) => { const k = run.frames.length - 1; return made.system.geometry === 'free' && Math.log(largest(run.frames[k], run.n, run.d) / largest(run.frames[0], run.n, run.d)) + run.logScale[k] > FAR; };
  function ended(made, run) {
    const { n, d } = run, free = made.system.geometry === 'free', k = run.frames.length - 1;
    const change = free ? Math.log(largest(run.frames[k], n, d)) + run.logScale[k] - Math.log(largest(run.frames[0], n, d)) : Math.log(Math.max(1e-12, 1 - meanCosine(run.frames[k], n, d))) - Math.log(Math.max(1e-12, 1 - meanCosine(run.frames[0], n, d)));
    return { change: change / (free ? 6 : 4), raw: change, clear: Math.abs(change) > (free ? CLEARLY : TURN), clusters: clusterLabels(run.frames[k], n, d, free).count };
  }
  return {
    box: picture.box,
    canvas: picture.canvas,
    get finished() { return tooWide() || (next >= order.length && current === null); },
    set(s) {
      settings = s;
      const one = JSON.stringify({ ...s, layer: s.layer?.layer, beta: 0, [s.system === MIXED ? 'a' : 'v']: 0, moved: [...s.moved] });
      if (one !== key) { key = one; begin(); }
      picture.soon();
    },
    // Work for about so many milliseconds.
    work(milliseconds) {
      const begun = performance.now();
      while (!this.finished && performance.now() - begun < milliseconds) {
        if (!current) {
          const k = order[next], [name] = across(), s = { ...settings, n: Math.min(settings.n, TOKENS), beta: betaOf(Math.floor(k / COLUMNS)), [name]: valueOf(k % COLUMNS) }, made = flowOf(s, app.data.flow);
          current = { k, made, run: follow(made.system, made.tokens, s.n, { until: Math.min(LONGEST, s.until), rtol: RTOL, saved: 41 }) };
        }
        if (!current.run.advance(milliseconds - (performance.now() - begun)) && !farAway(current)) { break; }
        cells[current.k] = ended(current.made, current.run);
        current = null;
        next += 1;
        stale = true;
      }
      if (this.finished && stale) { picture.soon(); }
    },
    now() { if (stale) { picture.now(); } },
    redraw: picture.soon,
    pick(event) {
      const bounds = picture.canvas.getBoundingClientRect(), { x, y, w, h } = box(bounds.width, bounds.height), [name, [low, high]] = across();
      const u = Math.min(1, Math.max(0, (event.clientX - bounds.left - x) / w)), v = Math.min(1, Math.max(0, 1 - (event.clientY - bounds.top - y) / h));
      choose({ [name]: Number((low + (high - low) * u).toFixed(3)), beta: Number((LIMITS.beta[0] * (LIMITS.beta[1] / LIMITS.beta[0]) ** v).toPrecision(3)) });
    },
    step(dx, dy) {
      const [name, [low, high]] = across(), ratio = (LIMITS.beta[1] / LIMITS.beta[0]) ** (1 / (ROWS - 1));
      choose({ [name]: Number(Math.min(high, Math.max(low, settings[name] + dx * (high - low) / (COLUMNS - 1))).toFixed(3)), beta: Number(Math.min(LIMITS.beta[1], Math.max(LIMITS.beta[0], settings.beta * ratio ** dy)).toPrecision(3)) });
    },
    words(s) { return s.layer && s.heads === 'all' && s.d > WIDE ? `All heads of tokens ${s.d} wide: a map of 315 such flows would take minutes. Choose this one head for its map; a click still sets β and v.` : `Each cell is a flow of ${Math.min(s.n, TOKENS)} tokens up to t = ${Math.min(LONGEST, s.until)}; stronger colour, larger change. Click one to start it.`; },
  };
}
