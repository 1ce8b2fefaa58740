// The room Flow: tokens that move, to be dragged; what moves them, to be changed; what is proved of it, and what a model did.
import { button, choice, colour, drawCurves, drawing, make, menu, number, slider } from './charts.js';
import { certificatesOf } from './certificates.js';
import { follow } from './integrator.js';
import { GAP, attentionOf, clusterLabels, energy, meanCosine } from './measures.js';
import { phaseMap } from './phase.js';
import { HEAD, LIMITS, MIXED, flowOf, movedText, pythonOf, settingsOf } from './systems.js';
import { asker, givenOf, givenWords, sameGiven, sentenceBox, statusLine } from './sentence.js';
import { axesOf, drawScene, places, projection, tintOf } from './view.js';

const SAVED = 241, SECONDS = 11, RTOL = 1e-6, REACH = 16, STEP = 0.06, KEPT = 4;
// Milliseconds: what a frame lasts, what of it stays unused, and what goes to computing whatever the rest of it takes.
const FRAME = 1000 / 60, SPARE = 2.5, LEAST = 1, SOON = 60;
const EASY = 1.5e6; // multiplications that a moment's energy may take; beyond twice that many of them it is left out
const ZEROS = new Float64Array(SAVED);
const log2 = { scale: v => 2 ** v, place: Math.log2 };
let app, data, s, made, run, source, key = '';
let stats, moments, radii, widest; // of the frames so far
let t = 0, playing = false, shown = false, asked = 0, before = 0, held = null, chosen = null, hover = null, ghost = true;
const view = { yaw: 0.55, pitch: 0.32 }, ui = {}, timing = { work: [], draw: [], gaps: [], paint: [] };
let frames = 0, mapping = true, ahead = 0; // ahead: milliseconds of the coming frame that are spent already
const span = () => run.until, free = () => s.norm === 'free', moment = () => run.until ? t / run.until * (SAVED - 1) : 0;

// --- whose tokens ----------------------------------------------------------------------------

// What the page holds of the model's flows, by sentence: { id, given, flow }; a live page asks its server for what it lacks.
let sources = [];
const canAsk = () => data.live && data.flow.model.tokens.length > 0;
// Make the source of a state the one in use, if all of it is there; else ask for it.
function found(state) {
  const given = givenOf(app, state);
  if (state.system !== HEAD || !canAsk()) { return true; }
  const layer = Math.min(data.model.n_layers - 1, Math.max(0, Number(state.layer ?? 0) || 0)), known = sources.find(one => sameGiven(one.given, given));
  if (known?.flow.model.layers.some(one => one.layer === layer)) { source = known; ui.ask.stop(); return true; }
  ui.ask({ ...given, layer }, answer => {
    if (answer === null) { return; }
    const into = known ?? { id: Math.max(...sources.map(one => one.id)) + 1, given, flow: { ...data.flow, model: { ...data.flow.model, layers: [] } } };
    into.flow.model.tokens = answer.tokens;
    into.flow.model.layers.push(answer.flow);
    if (!known) { sources.push(into); if (sources.length > KEPT) { sources.splice(1, 1); } }
    flow.show(app.state.get());
  });
  return false;
}

// --- the flow --------------------------------------------------------------------------------

function restart() {
  made = flowOf(s, source.flow);
  run = follow(made.system, made.tokens, made.n, { until: s.until, rtol: RTOL, saved: SAVED });
  stats = { times: [], cosine: [], clusters: [], energy: [], size: [] };
  moments = [];
  radii = [];
  widest = -Infinity;
}
// Integrate, and read off what has come, for about so many milliseconds.
function work(milliseconds) {
  const begun = performance.now();
  let spent = 0;
  while (spent < milliseconds && !settled()) {
    if (moments.length < run.frames.length) { measure(moments.length); } else { run.advance(milliseconds - spent); }
    spent = performance.now() - begun;
  }
  ahead += spent;
}
function measure(k) {
  const { n, d } = run, x = run.frames[k], scale = run.logScale[k], at = places(x, n, d, made.axes, s.norm === 'pre-ln');
  moments.push(at);
  let most = 1e-300;
  for (let i = 0; i < n; i += 1) { most = Math.max(most, Math.hypot(at[3 * i], at[3 * i + 1], at[3 * i + 2])); }
  widest = Math.max(widest, Math.log(most) + scale);
  radii.push(widest); // a cloud that grows is followed, one that shrinks is watched
  stats.times.push(run.times[k]);
  stats.cosine.push(meanCosine(x, n, d));
  stats.clusters.push(clusterLabels(x, n, d, free()).count);
  stats.size.push((Math.log(most) + scale) / Math.LN10);
  const every = Math.max(2, Math.ceil(energyCost() / EASY));
  stats.energy.push(tooWide() || (k % every && k !== SAVED - 1) ? NaN : energy(made.system, x, n, scale));
}
const energyCost = () => 2 * made.n * made.system.d * made.system.r * made.system.heads.length, tooWide = () => energyCost() > 20 * EASY;
// On a globe with a causal mask, the first token is what to look at: it is turned to the front.
function aim() {
  if (s.layer || s.norm !== 'sphere' || s.d !== 3 || s.mask !== 'causal') { return; }
  const [x, y, z] = moments[0];
  view.yaw = Math.atan2(x, -y) - 0.35;
  view.pitch = Math.max(-1.2, Math.min(1.2, Math.asin(z) - 0.25));
}
const settled = () => run.status !== 'running' && moments.length === run.frames.length;

function scene() {
  const n = run.n, isHead = s.layer !== null, last = moments.length - 1, m = Math.min(moment(), last), globe = !free();
  const logRadius = k => globe ? isHead ? around(Math.max(...ghostRadius(), widest)) : Math.log(1.04) : radii[Math.min(last, Math.ceil(k))] + 0.12;
  const one = { n, moments, logScale: s.norm === 'free' ? run.logScale : ZEROS, globe: globe && !isHead, axis: s.enc === 'rotary', projected: isHead, flat: s.d === 2, view, hover, chosen, names: made.names, logRadius, tint: i => tintOf(i, n),
    attention: hover !== null || chosen !== null ? attention() : null, future: held !== null, ghost: isHead && ghost && globe ? made.ghost : null, ghostAt: t, words: isHead && n <= 64 && held === null };
  return [one, m];
}
// The circle of all directions is shown whole, or, where tokens lie far within it, not at all.
const around = widest => widest > Math.log(0.6) ? Math.max(widest + 0.06, 0.02) : widest + 0.06;
const ghostRadius = () => { if (!made.ghostRadius) { made.ghostRadius = ghostShown() ? made.ghost.map(g => { let most = 1e-9; for (let i = 0; i < s.n; i += 1) { most = Math.max(most, Math.hypot(g[3 * i], g[3 * i + 1], g[3 * i + 2])); } return Math.log(most); }) : [-Infinity]; } return made.ghostRadius; };
const ghostShown = () => made.ghost.length > 0;
function attention() {
  const k = Math.min(moments.length - 1, Math.round(moment())), token = hover ?? chosen;
  return token < run.n ? attentionOf(made.system, run.frames[k], run.n, run.logScale[k], token) : null;
}

// --- time ------------------------------------------------------------------------------------

const playWord = () => playing ? 'Pause' : t >= span() ? 'Replay' : 'Play';
function play(on) {
  if (playing && !on) { ui.time.set(t); drawCharts(); }
  playing = on;
  ui.play.textContent = playWord();
  ui.play.setAttribute('aria-pressed', on);
  wake();
}
function go(time) {
  t = Math.min(span(), Math.max(0, time));
  ui.time.set(t);
  ui.play.textContent = playWord();
}
// What a frame has left for computing: the browser paints after the page has drawn, and takes about as long as it took the last times.
const RECENT = 12, usually = times => { const some = times.slice(-RECENT).sort((a, b) => a - b); return some[Math.floor(0.75 * some.length)] ?? 0; };
const left = drawing => Math.max(LEAST, FRAME - SPARE - usually(timing.paint) - drawing - ahead);
const painted = new MessageChannel(); // a message that is sent at the end of a frame's own work arrives when the frame is painted
let worked = 0;
painted.port1.onmessage = () => note('paint', performance.now() - worked);
function note(name, milliseconds) { timing[name].push(milliseconds); if (timing[name].length > 600) { timing[name].shift(); } }
function wake() { if (shown && !asked) { before = performance.now(); asked = requestAnimationFrame(frame); } }
function frame(now) {
  asked = 0;
  frames += 1;
  const begun = performance.now(), gap = Math.max(0, now - before);
  before = now;
  if (playing && held === null) {
    const reached = stats.times[stats.times.length - 1] ?? 0;
    t = Math.min(t + gap / 1000 * span() / SECONDS, settled() ? span() : reached);
    if (!app.calm() && s.d !== 2) { view.yaw += 0.00006 * gap; }
    if (t >= span()) { go(t); play(false); say(); }
  }
  const drawn = performance.now();
  ui.picture.now();
  // Charts, map, slider and words take turns, so that no frame draws them all; each of them is a few times a second what it should be.
  const turn = frames % 6;
  if (turn < 3) { ui.charts[turn].now(); }
  else if (turn === 3) { ui.phase.now(); }
  else if (playing && turn === 4) { ui.time.set(t); }
  else if (playing) { ui.caption.textContent = caption(); }
  const drew = performance.now() - drawn;
  note('draw', drew);
  if (!settled()) { work(left(drew)); if (settled() && !playing) { say(); drawCharts(); ui.picture.soon(); } }
  else if (mapping && held === null) { ui.phase.work(left(drew)); }
  ahead = 0;
  worked = performance.now();
  note('work', worked - begun);
  note('gaps', gap);
  painted.port2.postMessage(null);
  if (playing || !settled() || held !== null || (mapping && !ui.phase.finished)) { asked = requestAnimationFrame(frame); }
  else { drawCharts(); } // the last frame for now: none of them waits for its turn
}
const drawCharts = () => ui.charts.forEach(one => one.now());

// --- words -----------------------------------------------------------------------------------

const fixed = c => Number.isFinite(c) ? c.toFixed(3).replace('-', '−') : '–';
function caption() {
  const k = Math.min(moments.length - 1, Math.round(moment())), whose = s.layer ? `${s.heads === 'all' ? `All heads of layer ${s.layer.layer}` : `Head ${s.layer.layer}.${s.head}`} of ${data.model.name}` : s.system;
  const where = { sphere: 'on the sphere', free: 'free', 'pre-ln': 'behind a norm' }[s.norm], c = stats.cosine[k];
  return `${whose}, ${s.n} tokens, ${where}: mean cosine C = ${fixed(c)}, ${stats.clusters[k]} cluster${stats.clusters[k] === 1 ? '' : 's'} at t = ${Math.min(t, stats.times.at(-1)).toFixed(1)}${settled() ? '' : ', as far as it is computed'}.`;
}
function say() { ui.caption.textContent = caption(); ui.live.textContent = caption(); }
const EXPLAINED = { T1: 'distances of pairs are monotone', T2: 'the whole cloud diverges, or converges to 0', T3: 'tokens on one side of a plane diverge', T4: 'the fate of the first token', T5: 'no token is faster than this',
  N1: 'tokens in a half-space gather', N1c: 'tokens gather at the leading direction', N2: 'where the first token goes', N3: 'the others follow the first', N4: 'attention cannot be sharper', N5: 'all pairs keep one angle', N6: 'the energy is monotone' };
const tidy = v => v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1).replace('-', '−') : number(v), brief = why => {
  const [first] = why.replace(/^(no certificate; |breaks: )/, '').replace(/^not checked( here)?: /, '').split('; '), [asked, ...rest] = s.layer && !why.startsWith('not checked') ? first.split(': ') : [first];
  return (rest.length ? `asks that ${asked}; here ${rest.join(': ')}` : first).replaceAll('>=', '≥').replaceAll('<=', '≤');
};
const claim = (name, why) => (why && !why.includes('hold') ? why : EXPLAINED[name]).replace(/(?<=\()-(?=\d)/g, '−');
function badges() {
  const found = certificatesOf(s, data.flow, made);
  ui.badges.replaceChildren(...found.map(({ name, title, holds, margin, why }) => {
    const state = holds === null ? 'unknown' : holds ? 'holds' : 'fails', word = { unknown: 'not checked here', holds: 'proved', fails: 'no certificate' }[state];
    return make('li', { class: `badge ${state}`, tabindex: 0, 'aria-label': `${name}, ${title}: ${word}. ${why}` },
      make('b', { text: name }), make('span', { class: 'what', text: title }), make('span', { class: 'verdict', text: word }),
      make('span', { class: 'why', text: holds ? `${claim(name, why)}${margin === null ? '' : ` (margin ${tidy(margin)})`}` : holds === null ? '' : brief(why) }), make('small', { text: `${EXPLAINED[name]}. ${why}` }));
  }));
  const proved = found.filter(one => one.holds).map(one => one.name);
  ui.proved.textContent = proved.length ? `${proved.join(', ')} proved for this flow and this start` : found.every(one => one.holds === null) ? s.layer ? 'Not checked here: the library checks one head of the model, at its own settings, on the sphere and free.' : 'Not checked here: the theorems are for flows without re-injected positions.' : 'nothing is proved of this flow';
}

// --- controls --------------------------------------------------------------------------------

const TITLES = { aligned: 'aligned: W = V = I', 'anti-aligned': 'anti-aligned: V = −I', rotation: 'rotation: V a quarter turn', spiral: 'spiral: V turns inwards', random: 'random W and V',
  'symmetric-pd': 'symmetric, A positive', 'symmetric-nd': 'symmetric, A negative', pd: 'pd: sym(A) positive', hd: 'hd: sym(A) of both signs', nd: 'nd: sym(A) negative', mixed: 'mixed: aligned to random' };
const ROLES = 'W: whom a token looks at, by exp(β x·Wy). V: what it takes from them.';

const set = patch => app.state.set(patch), PLAIN = Object.fromEntries(['beta', 'until', 'v', 'a', 'mask', 'enc', 'base', 'norm', 'heads', 'moved', 'n', 'd'].map(name => [name, null]));
function controls() {
  const own = [[HEAD, 'A head of this model', !data.flow.model.layers.length && !canAsk()]];
  ui.system = menu({ label: 'What moves the tokens', value: s.system, groups: [['Named systems', [...data.flow.examples.map(one => [one.name, TITLES[one.name] ?? one.name]), [MIXED, TITLES.mixed]]], [data.model.name, own]],
    onvalue: v => set({ ...PLAIN, system: v, ...(v === HEAD || s.layer ? {} : { norm: s.norm, d: s.d }) }) });
  ui.heads = make('div', { class: 'picker', role: 'group', 'aria-label': 'Layer and head' });
  ui.heads.addEventListener('keydown', event => { // one stop for the tabulator; arrows go through layers and heads
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key], held = source.flow.model.layers.map(one => one.layer);
    if (!step || !s.layer) { return; }
    event.preventDefault();
    let layer = s.layer.layer + step[0];
    while (!data.live && layer >= 0 && layer < data.model.n_layers && !held.includes(layer)) { layer += step[0]; }
    if (layer >= 0 && layer < data.model.n_layers) { set({ layer, head: Math.max(0, Math.min(s.layer.n_heads - 1, s.head + step[1])), moved: null }); }
  });
  ui.what = make('p', { class: 'hint' });
  ui.missing = make('p', { class: 'hint', text: `No head of the model: ${data.flow.model.why_missing}` });
  ui.beta = slider({ label: 'β, sharpness of attention', min: LIMITS.beta[0], max: LIMITS.beta[1], ...log2, value: s.beta, word: v => number(v), onvalue: v => set({ beta: Number(v.toPrecision(3)) }) });
  ui.v = slider({ label: 'v, factor on the value map', min: LIMITS.v[0], max: LIMITS.v[1], step: 0.05, value: s.v, word: v => number(v), onvalue: v => set({ v: Number(v.toFixed(2)) }) });
  ui.a = slider({ label: 'a, alignment of V with W', min: -1, max: 1, step: 0.02, value: s.a, word: v => number(v), onvalue: v => set({ a: Number(v.toFixed(2)) }) });
  ui.until = slider({ label: 'Time to run (depth)', min: LIMITS.until[0], max: LIMITS.until[1], step: 1, value: s.until, word: v => number(v), onvalue: v => set({ until: v }) });
  ui.n = slider({ label: 'Context n', min: 1, max: s.most, step: 1, value: s.n, word: v => `${Math.round(v)} tokens`, onvalue: v => set({ n: Math.round(v), moved: null }) });
  ui.base = slider({ label: 'Rotary base', min: LIMITS.base[0], max: LIMITS.base[1], scale: v => 10 ** v, place: Math.log10, value: s.base, word: v => v >= 1000 ? Math.round(v).toLocaleString('en') : number(v), onvalue: v => set({ base: Number(v.toPrecision(3)) }) });
  ui.mask = choice({ label: 'Mask', options: [['full', 'full', 'every token sees every token'], ['causal', 'causal', 'a token sees itself and those before it']], value: s.mask, onvalue: v => set({ mask: v }) });
  ui.norm = choice({ label: 'Norm', options: [['sphere', 'sphere', 'tokens are directions'], ['pre-ln', 'own lengths', 'attention sees directions; each token keeps its own length'], ['free', 'free', 'no norm']], value: s.norm, onvalue: v => set({ norm: v, moved: null }) });
  ui.width = choice({ label: 'Dimensions', options: data.flow.widths.map(d => [String(d), String(d)]), value: String(s.d), onvalue: v => set({ d: v, moved: null }) });
  const encodings = [['none', 'none'], ['rotary', 'rotary'], ['alibi', 'ALiBi'], ['absolute', 'absolute, added at the input'], ['reinjected', 'absolute, in every layer']];
  ui.enc = menu({ label: 'Position encoding', value: s.enc, groups: [['Encoding', encodings]], onvalue: v => set({ enc: v }) });
  ui.own = choice({ label: 'Position encoding', options: [['own', 'its own'], ['none', 'none']], value: s.enc, onvalue: v => set({ enc: v }) });
  ui.count = choice({ label: 'Number of heads', options: [['1', '1'], ['2', '2'], ['4', '4']], value: String(s.heads), onvalue: v => set({ heads: v }) });
  ui.all = choice({ label: 'Heads', options: [['one', 'this one'], ['all', 'all of the layer']], value: String(s.heads), onvalue: v => set({ heads: v }) });
  ui.reset = button('Put tokens back', 'Forget what was dragged', () => set({ moved: null }));
  const parts = [ui.system.box, ui.missing, ui.heads, ui.what, ui.beta.box, ui.v.box, ui.a.box, ui.n.box, ui.until.box, ui.norm.box, ui.mask.box, ui.enc.box, ui.own.box, ui.base.box, ui.count.box, ui.all.box, ui.width.box, ui.reset];
  return make('form', { class: 'card settings', 'aria-label': 'Settings of the flow', onsubmit: event => event.preventDefault() }, ...parts);
}
function refreshControls() {
  const isHead = s.layer !== null, on = (one, yes) => { (one.box ?? one).hidden = !yes; };
  for (const name of ['beta', 'v', 'a', 'until', 'n', 'base']) { ui[name].set(s[name]); }
  ui.n.box.querySelector('input').max = s.most;
  ui.n.set(s.n);
  ui.time.box.querySelector('input').max = s.until;
  for (const [name, value] of [['mask', s.mask], ['norm', s.norm], ['width', s.d], ['own', s.enc], ['count', s.heads], ['all', s.heads], ['system', s.system]]) { ui[name].set(value); }
  ui.enc.set(s.enc);
  ui.norm.enable('pre-ln', s.norms.includes('pre-ln'), 'for heads of a model with norms');
  on(ui.a, s.system === MIXED);
  on(ui.base, isHead && s.layer.rotary?.plain && s.enc === 'own'); // in two or three dimensions there is one plane, which turns by 1 a position whatever the base
  on(ui.enc, !isHead);
  on(ui.width, !isHead);
  on(ui.count, !isHead);
  on(ui.own, isHead && (s.layer.rotary || s.layer.slopes));
  on(ui.all, isHead);
  on(ui.heads, isHead);
  on(ui.ghost, isHead);
  ui.reset.hidden = s.moved.size === 0;
  ui.missing.hidden = data.flow.model.layers.length > 0 || canAsk() || !data.flow.model.why_missing;
  ui.sentence.box.hidden = !isHead || !data.live;
  ui.what.textContent = isHead ? measuredWords() : `${systemWords()}. ${ROLES}`;
  ui.headline.textContent = headline();
  ui.phaseWords.textContent = ui.phase.words(s);
  ui.legend.replaceChildren(...(free() ? [key2('gather', 'tokens converge'), key2('spread', 'tokens diverge')] : [key2('gather', 'directions gather'), key2('spread', 'directions spread')]), key2('neither', 'neither'));
  if (isHead) { refreshPicker(); }
}
const key2 = (name, words) => make('span', {}, make('i', { class: name }), words);
function systemWords() {
  if (s.system === MIXED) { return 'W = I, V = a I + √(1 − a²) R, R random'; }
  const what = data.flow.examples.find(one => one.name === s.system).what.split(free() ? '\n' : ':')[0].replaceAll('-I', '−I');
  return /\bA\b/.test(what) ? `${what}; A = W V⁻¹` : what;
}
// What one looks at, for who has never seen it.
function headline() {
  if (s.layer) {
    const rings = ghost && !free() ? ' Rings: where the whole model took them.' : '';
    return `Each dot is a token of ${givenWords(source.given)}. ${s.heads === 'all' ? `The heads of layer ${s.layer.layer} move` : `Head ${s.layer.layer}.${s.head} moves`} them, again and again.${rings} Drag one.`;
  }
  const pulled = s.system === 'aligned' ? s.v < 0 ? 'Attention pushes it away from those it looks at.' : s.v > 0 ? 'Attention pulls it towards those it looks at.' : 'Attention is off: v is 0.' : 'Attention moves it by what it looks at.';
  return `Each dot is a token of a sentence${free() ? '' : ', seen as a direction'}. ${pulled} Drag one, and the others answer.`;
}
function measuredWords() {
  const { layer, head_cosine: alone, ghost_cosine: c } = s.layer, one = alone[s.head], words = givenWords(source.given);
  if (s.heads === 'all' || one === undefined) { return `The model's tokens of ${words} in front of layer ${layer}: C = ${fixed(c[0])}, one layer later ${fixed(c[1] ?? c[0])}.`; }
  return `The model's tokens of ${words} in front of layer ${layer}: C = ${fixed(c[0])}. Measured after this head alone: ${fixed(one)}. One unit of time is one layer.`;
}
function refreshPicker() {
  const hadFocus = ui.heads.contains(document.activeElement), tall = Math.max(7, Math.min(22, Math.floor(230 / data.model.n_layers) - 3)), every = Math.ceil(15 / (tall + 3)); // all layers at one glance
  ui.heads.style.setProperty('--tall', `${tall}px`);
  const held = new Set(source.flow.model.layers.map(one => one.layer)), rows = [];
  for (let l = 0; l < data.model.n_layers; l += 1) {
    const n = source.flow.model.layers.find(one => one.layer === l)?.n_heads ?? data.model.n_heads;
    rows.push(make('span', { class: 'layer', text: l % every ? '' : l }), make('span', { class: 'row' }, ...Array.from({ length: n }, (_, h) => button('', held.has(l) || data.live ? `Head ${l}.${h}` : data.flow.model.why_missing, () => set({ layer: l, head: h, moved: null }),
      { 'aria-label': `Head ${l}.${h}`, 'aria-pressed': String(l === s.layer.layer && (h === s.head || s.heads === 'all')), tabindex: l === s.layer.layer && h === s.head ? 0 : -1, disabled: !held.has(l) && !data.live }))));
  }
  ui.heads.replaceChildren(make('span', { class: 'axis', text: 'layer × head' }), make('div', { class: 'cells' }, ...rows));
  if (hadFocus) { ui.heads.querySelector('[tabindex="0"]')?.focus(); }
}

// --- hands -----------------------------------------------------------------------------------

function nearest(event) {
  const bounds = ui.picture.canvas.getBoundingClientRect(), x = event.clientX - bounds.left, y = event.clientY - bounds.top, [one, m] = scene();
  const width = bounds.width, height = bounds.height, frame = projection(one, width, height, one.logRadius(m)), low = Math.floor(m), high = Math.min(moments.length - 1, low + 1);
  let best = null, least = REACH ** 2;
  for (let i = 0; i < run.n; i += 1) { const p = frame.at(one, low, high, m - low, i), q = (p.x - x) ** 2 + (p.y - y) ** 2 - (p.z > 0 ? 20 : 0); if (q < least) { least = q; best = i; } }
  return { token: best, x, y, frame, one };
}
function startPlace(i) { // where a token starts, in the picture's coordinates, before it was dragged
  const plain = flowOf({ ...s, moved: new Map() }, source.flow);
  return [...places(follow(plain.system, plain.tokens, plain.n, { until: 0 }).frames[0], plain.n, s.d, plain.axes, s.norm === 'pre-ln').subarray(3 * i, 3 * i + 3)];
}
function place(i, target, from) {
  const begun = performance.now();
  const scale = s.layer && s.norm === 'free' ? made.scale : 1, by = target.map((v, k) => Math.max(-90, Math.min(90, (v - from[k]) / scale)));
  s = { ...s, moved: new Map(s.moved).set(i, by.map(v => Number(v.toFixed(4)))) };
  key = keyOf(s);
  restart();
  go(0);
  badges();
  ahead += performance.now() - begun;
  work(left(usually(timing.draw))); // the ways from where it is now are wanted in the coming picture
  wake();
}
function pointers() {
  const canvas = ui.picture.canvas;
  let grip = null;
  canvas.addEventListener('pointerdown', event => {
    const { token, x, y } = nearest(event);
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    if (token === null) { grip = { turn: [event.clientX, event.clientY, view.yaw, view.pitch] }; return; }
    chosen = token;
    held = token;
    hover = null;
    play(false);
    go(0);
    const [one] = scene(), frame = projection(one, canvas.clientWidth, canvas.clientHeight, one.logRadius(0)), p = frame.at(one, 0, 0, 0, token);
    grip = { token, from: startPlace(token), frame, depth: p.z, off: [p.x - x, p.y - y], jumped: Math.hypot(p.x - x, p.y - y) > REACH };
    if (grip.jumped) { grip.off = [0, 0]; grip.fresh = true; }
    wake();
  });
  canvas.addEventListener('pointermove', event => {
    if (!grip) { const { token } = nearest(event); if (token !== hover) { hover = token; canvas.classList.toggle('grabs', token !== null); ui.picture.soon(); } return; }
    if (grip.turn) {
      if (s.d === 2) { return; }
      const [x, y, yaw, pitch] = grip.turn;
      view.yaw = yaw - (event.clientX - x) * 0.008;
      view.pitch = Math.max(-1.5, Math.min(1.5, pitch + (event.clientY - y) * 0.008));
      ui.picture.soon();
      return;
    }
    const bounds = canvas.getBoundingClientRect(), { frame, from, token } = grip, x = (event.clientX - bounds.left + grip.off[0] - frame.cx) / frame.unit, y = (frame.cy - (event.clientY - bounds.top + grip.off[1])) / frame.unit;
    let z = grip.depth;
    if (s.norm === 'sphere' && !s.layer) { const r = Math.hypot(x, y) * Math.exp(frame.logRadius); z = s.d === 2 ? 0 : Math.sqrt(Math.max(0, 1 - r * r)) * Math.exp(-frame.logRadius) * (grip.depth < 0 ? -1 : 1); }
    const axes = frame.view, target = [0, 1, 2].map(k => (axes[0][k] * x + axes[1][k] * y + axes[2][k] * z) * Math.exp(frame.logRadius));
    place(token, target, from);
  });
  const drop = () => {
    const was = grip;
    grip = null;
    if (held === null) { return; }
    held = null;
    if (was?.token !== undefined && s.moved.has(was.token)) { set({ moved: movedText(s.moved) }); }
    if (!app.calm()) { play(true); }
    wake();
  };
  canvas.addEventListener('pointerup', drop);
  canvas.addEventListener('pointercancel', drop);
  canvas.addEventListener('pointerleave', () => { if (!grip && hover !== null) { hover = null; ui.picture.soon(); } });
  canvas.addEventListener('keydown', event => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.key === '[' || event.key === ']') { chosen = ((chosen ?? -1) + (event.key === ']' ? 1 : -1) + run.n) % run.n; ui.live.textContent = `Token ${chosen}${made.names[chosen] ? ` “${made.names[chosen]}”` : ''} chosen; arrows move it.`; }
    else if (event.key === ' ') { toggle(); }
    else if (event.key === 'Escape') { chosen = null; }
    else if (move && chosen !== null) {
      const axes = axesOf(s.d === 2 ? { yaw: 0, pitch: Math.PI / 2 } : view), from = startPlace(chosen), now = moments[0].subarray(3 * chosen, 3 * chosen + 3), unit = free() ? Math.exp(radii[0]) : 1;
      place(chosen, [0, 1, 2].map(k => now[k] + STEP * unit * (axes[0][k] * move[0] + axes[1][k] * move[1])), from);
      set({ moved: movedText(s.moved) });
    } else if (move && s.d !== 2) { view.yaw -= 0.08 * move[0]; view.pitch = Math.max(-1.5, Math.min(1.5, view.pitch - 0.08 * move[1])); }
    else { return; }
    event.preventDefault();
    ui.picture.soon();
  });
}
const toggle = () => { if (!playing && t >= span()) { go(0); } play(!playing); };

// --- the room --------------------------------------------------------------------------------

function build(place) {
  ui.picture = drawing('Tokens in motion. Square brackets choose a token, arrows move it, space plays.', (pen, width, height) => { if (moments?.length) { drawScene(pen, width, height, ...scene()); } });
  Object.assign(ui.picture.canvas, { tabIndex: 0 });
  ui.picture.canvas.classList.add('stage-canvas');
  const chart = (title, label, options) => { const one = drawing(label, (pen, width, height) => { if (stats) { drawCurves(pen, width, height, { xRange: [0, s.until], now: t, xLabel: s.layer ? 'layers' : 't', ...options() }); } }); return { ...one, title }; };
  const cosines = () => [{ x: stats.times, y: stats.cosine, colour: colour('blue') }, ...(s.layer && ghost ? [{ x: s.layer.ghost_cosine.map((_, k) => k), y: s.layer.ghost_cosine, colour: colour('grey'), dash: [4, 3] }] : [])];
  const evens = { get x() { return stats.times.filter((_, k) => Number.isFinite(stats.energy[k])); }, get y() { return stats.energy.filter(Number.isFinite); } };
  ui.charts = [
    chart('Energy: ln mean exp(score)', 'Energy over time', () => ({ absent: tooWide() ? 'not computed for a layer this wide' : '', curves: [{ x: evens.x, y: evens.y, colour: colour('green') }] })),
    chart('C: mean cosine over pairs', 'Mean cosine over time', () => ({ curves: cosines(), range: [Math.min(0, ...stats.cosine.filter(Number.isFinite), 0), 1] })),
    chart(`Clusters: gaps below ${GAP}`, 'Number of clusters over time', () => ({ curves: [{ x: stats.times, y: stats.clusters, colour: colour('orange') }], range: [0, Math.max(2, ...stats.clusters)] })),
  ];
  ui.play = button('Play', 'Play or pause (space)', toggle, { class: 'play' });
  ui.time = slider({ label: 'Time', min: 0, max: s.until, value: 0, word: v => `t = ${v.toFixed(1)}`, onvalue: v => { play(false); go(v); say(); wake(); } });
  ui.caption = make('p', { class: 'caption' });
  ui.headline = make('p', { class: 'headline' });
  ui.live = make('p', { class: 'unseen', 'aria-live': 'polite' });
  ui.ghost = make('label', { class: 'tick' }, make('input', { type: 'checkbox', checked: true, onchange: event => { ghost = event.target.checked; made.ghostRadius = null; ui.picture.soon(); drawCharts(); } }), 'the model itself, as a ghost');
  ui.badges = make('ul', { class: 'badges', 'aria-label': 'Certificates' });
  ui.proved = make('p', { class: 'hint', 'aria-live': 'polite' });
  ui.phase = phaseMap(app, patch => { if (!app.calm()) { playing = true; } set(patch); });
  Object.assign(ui.phase.canvas, { tabIndex: 0 });
  ui.phase.canvas.setAttribute('aria-label', 'Phase map. Arrows move the point, and start its flow.');
  ui.phase.canvas.addEventListener('pointerdown', event => { ui.phase.pick(event); ui.phase.canvas.setPointerCapture(event.pointerId); });
  ui.phase.canvas.addEventListener('pointermove', event => { if (event.buttons) { ui.phase.pick(event); } });
  ui.phase.canvas.addEventListener('keydown', event => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (step) { event.preventDefault(); ui.phase.step(...step); }
  });
  ui.phaseWords = make('p', { class: 'hint' });
  ui.legend = make('p', { class: 'legend' });
  const left = controls();
  const stage = make('div', { class: 'card stage' }, make('div', { class: 'tokens' }, ui.picture.box, make('p', { class: 'order', 'aria-hidden': 'true' }, make('span', { text: 'first' }), make('i'), make('span', { text: 'last token' }))),
    make('div', { class: 'transport' }, ui.play, ui.time.box, ui.ghost), ui.caption, ui.live);
  const right = make('div', { class: 'side' }, make('section', { class: 'card phase' }, make('h2', { text: 'Phase map: how such flows end' }), make('div', { class: 'map' }, ui.phase.box), ui.legend, ui.phaseWords),
    make('section', { class: 'card proofs' }, make('h2', { text: 'What is proved' }), ui.proved, ui.badges));
  const below = make('div', { class: 'curves' }, ...ui.charts.map(one => make('figure', { class: 'card' }, make('figcaption', { text: one.title }), make('div', { class: 'chart' }, one.box))));
  ui.status = statusLine();
  ui.ask = asker(app, 'flow', ui.status);
  ui.sentence = sentenceBox(app, { what: 'Your sentence, whose tokens the head moves' });
  stage.prepend(make('div', { class: 'sentence-of-flow' }, ui.sentence.box, ui.status.box), ui.headline);
  place.append(make('div', { class: 'flow' }, left, stage, right, below));
  pointers();
}
const keyOf = one => JSON.stringify({ ...one, layer: one.layer?.layer, moved: movedText(one.moved) });

export const flow = {
  follow, // for tests: the integrator alone
  timing,
  frames: () => frames,
  left,
  computing: () => !settled() || (mapping && !ui.phase.finished),
  map(on) { mapping = on; wake(); }, // whether the phase map is computed: benchmarks measure a flow alone
  certificates: (state, over) => { const one = settingsOf(state, over ?? data.flow); return certificatesOf(one, over ?? data.flow, flowOf(one, over ?? data.flow)); },
  mount(place, given) {
    app = given;
    data = app.data;
    source = { id: 0, given: app.data.rooms.start ?? { text: data.text }, flow: data.flow };
    sources = [source];
    s = settingsOf(app.state.get(), data.flow);
    build(place);
  },
  show(state) {
    shown = true;
    ui.sentence.set(state);
    if (!found(state) && key !== '') { return; } // what is on the page stays until the answer is there
    const next = { ...settingsOf(state, source.flow), sentence: source.id }, now = keyOf(next);
    if (now !== key) {
      const wasPlaying = playing || key === '';
      s = next;
      key = now;
      chosen = chosen !== null && chosen < s.n && s.moved.has(chosen) ? chosen : null;
      hover = null;
      restart();
      work(4);
      go(0);
      aim();
      refreshControls();
      badges();
      ui.phase.set(s);
      if (app.calm()) { work(SOON); go(span()); play(false); } else { play(wasPlaying || playing || held === null); }
      say();
    } else { refreshControls(); ui.phase.redraw(); }
    ui.picture.soon();
    drawCharts();
    wake();
  },
  hide() { shown = false; cancelAnimationFrame(asked); asked = 0; },
  picture: () => ui.picture.canvas,
  python: () => pythonOf(s, data.model, source.given),
  rows() {
    while (!settled()) { work(50); }
    const names = ['time', 'mean_cosine', 'clusters', 'log10_largest_shown'];
    return [names, ...stats.times.map((time, k) => [time, stats.cosine[k], stats.clusters[k], stats.size[k]])];
  },
  // Where the run ends: what the Python of this state prints.
  ending() { while (!settled()) { work(50); } const k = stats.times.length - 1; return { time: stats.times[k], cosine: stats.cosine[k], clusters: stats.clusters[k], status: run.status, tokens: [...run.frames[k]] }; },
  seek(time) { play(false); while (!settled()) { work(50); } go(time); say(); wake(); },
};
