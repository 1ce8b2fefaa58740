// The room Model: what the model does with a sentence, and what it does with parts of it cut.
import { button, choice, colour, drawCurves, drawing, make, mixed, placeColour } from './charts.js';
import { asker, bits, givenOf, nounOf, noteList, outcomeList, sameGiven, sayOnce, sentenceBox, short, statusLine, tokenText, withLevels } from './sentence.js';

const ANGLES = { yaw: 0.6, pitch: 0.35 }, STEPS = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
const MANY = 12; // layers beyond which the board of cuts shows one of them
const PARTS = { attention: 'attention', mlp: 'MLP', norm: 'norm' }, MAPS = ['measured', 'predicted', 'weights', 'disagree'];
const signed = v => v === null || v === undefined ? '–' : `${v < 0 ? '−' : '+'}${Math.abs(v).toFixed(Math.abs(v) < 0.0995 ? 3 : 2)}`;
// What a link says, as far as this model has it.
const cutsOf = (state, { cuts, not_cut: why }) => (state.cuts ?? '').split(',').filter(name => [...cuts, 'encoding', 'mask'].includes(name) && !why[name]).sort();
const clamped = (text, count) => Math.max(0, Math.min(count - 1, Math.floor(Number(text ?? 0)) || 0));
const pickedOf = state => new Set((state.picked ?? '').split('.').filter(Boolean).map(Number));
const card = (name, title, ...parts) => make('section', { class: `card ${name}`, 'aria-label': title }, make('h2', { text: title }), ...parts);
const headOf = (state, facts) => ({ layer: clamped(state.layer, facts.n_layers), head: clamped(state.head, facts.n_heads) });

// Blue gathers, orange spreads; how much by how strong.
const tone = (value, most) => mixed(colour('zero'), colour(value < 0 ? 'gather' : 'spread'), Math.min(1, Math.abs(value) / (most || 1)) ** 0.7);

export const model = {
  mount(place, app) {
    this.absent = !app.data.rooms.model;
    if (this.absent) { place.append(make('p', { class: 'absent', text: app.data.rooms.why ?? 'This model cannot be run here.' })); return; }
    Object.assign(this, { place, app, reading: null, given: null, cuts: null, attentions: [], heads: null, depth: null, angles: { ...ANGLES }, playing: 0, last: null });
    this.statuses = { model: statusLine(), attention: statusLine(), heads: statusLine() };
    this.ask = Object.fromEntries(Object.entries(this.statuses).map(([name, status]) => [name, asker(app, name, status)]));
    this.sentence = sentenceBox(app, { what: 'Your sentence' });
    this.notes = make('div');
    this.makeTokens();
    this.makeHeads();
    this.makeOrbits();
    this.makeCourse();
    this.makeCuts();
    this.prediction = make('div', { class: 'prediction' });
    place.append(
      make('div', { class: 'card wide' }, this.sentence.box, this.statuses.model.box, this.notes),
      make('div', { class: 'model-grid' },
        card('tokens-card', 'Attention', this.tokenBar, this.statuses.attention.box, this.tokenScroll, this.tokenWords),
        card('heads-card', 'Every head', this.headMode.box, this.statuses.heads.box, this.headGrid, this.headKey, this.headWords, this.headButtons),
        card('orbits-card', 'Orbits: where tokens go', this.orbitBar, this.orbitPair, this.orbitControls),
        card('prediction-card', 'Prediction', this.prediction),
        card('waterfall-card', 'What each block does to S = ln(1 − C)', make('div', { class: 'chart tall' }, this.waterfall.box), this.stepWords),
        card('cosine-card', 'C, the mean cosine of tokens', make('div', { class: 'chart' }, this.curve.box), this.curveWords),
        card('cuts-card', 'Cut something', this.cutWords, this.cutBoard)));
  },

  show(state) {
    if (this.absent) { return; }
    const { app } = this, given = givenOf(app, state), cuts = this.cutsNow(), { layer } = headOf(state, app.data.model);
    this.sentence.set(state);
    const key = JSON.stringify([given, cuts]);
    if (this.key !== key) {
      this.key = key;
      const take = reading => {
        this.sayOnce();
        if (reading === null) { if (!app.data.live && this.reading === null) { app.api('model', given).then(take); } return; } // cuts that a frozen page does not know: it says so, and shows the model as it is
        if (this.reading === null || !sameGiven(this.reading.tokens, reading.tokens)) { this.depth = reading.depths.length - 1; this.fresh = true; }
        this.reading = reading;
        this.readingOf = JSON.stringify(given);
        this.draw();
        if (this.fresh && !app.calm()) { this.play(); }
        this.fresh = false;
      };
      this.ask.model({ ...given, ...(cuts.length ? { cuts } : {}) }, take);
    }
    const patterns = JSON.stringify([given, cuts, layer]);
    if (this.patterns !== patterns) {
      this.patterns = patterns;
      this.ask.attention({ ...given, layer, ...(cuts.length && app.data.live ? { cuts } : {}) }, attention => {
        this.sayOnce();
        if (attention !== null) { this.attentions = [{ ...attention, of: JSON.stringify(given) }, ...this.attentions.slice(0, 1)]; }
        this.drawTokens();
      });
    }
    const mode = MAPS.includes(state.map) ? state.map : 'measured';
    if (mode !== 'measured' && this.heads === null && !this.asked) {
      this.asked = true;
      this.ask.heads({}, heads => { this.heads = heads; this.asked = heads !== null; this.drawHeads(); });
    }
    this.draw();
  },
  hide() { cancelAnimationFrame(this.playing); this.playing = 0; },
  cutsNow() { return cutsOf(this.app.state.get(), this.app.data.rooms.model); },
  sayOnce() { sayOnce(this.statuses.model, this.statuses.attention); },
  // Arcs are those of the sentence that is shown: of one that could not be read there may be attention as well.
  get attention() { return this.attentions.find(one => one.of === this.readingOf) ?? null; },

  draw() {
    if (!this.reading) { return; }
    this.notes.replaceChildren(noteList(this.reading.notes));
    for (const part of ['Tokens', 'Heads', 'Orbits', 'Course', 'Cuts', 'Prediction']) { this[`draw${part}`](); }
  },

  // --- tokens and arcs ---

  makeTokens() {
    this.arcs = drawing('Arcs of attention: from each token to those it looks at', (pen, width, height) => this.drawArcs(pen, width, height, 'before'));
    this.arcsCut = drawing('Arcs of attention with the cuts', (pen, width, height) => this.drawArcs(pen, width, height, 'after'));
    this.tokenRow = make('div', { class: 'token-row', role: 'listbox', 'aria-label': 'Tokens; arrows move, Enter picks', 'aria-multiselectable': 'true' });
    this.tokenScroll = make('div', { class: 'token-scroll', tabindex: -1 }, make('div', { class: 'token-track' }, make('div', { class: 'arcs' }, this.arcs.box), this.tokenRow, make('div', { class: 'arcs cut', hidden: true }, this.arcsCut.box)));
    this.tokenWords = make('p', { class: 'explains' });
    const step = by => () => {
      const { n_layers: layers, n_heads: heads } = this.app.data.model, { layer, head } = headOf(this.app.state.get(), this.app.data.model), next = (layer * heads + head + by + layers * heads) % (layers * heads);
      this.app.state.set({ layer: Math.floor(next / heads), head: next % heads });
    };
    this.headName = make('b');
    this.tokenBar = make('div', { class: 'row' }, button('‹', 'The head before', step(-1), { class: 'small' }), this.headName, button('›', 'The next head', step(1), { class: 'small' }), make('span', { class: 'muted', text: 'A token looks back along its arcs; pick one to see only its own.' }));
    this.tokenRow.addEventListener('keydown', event => {
      const all = [...this.tokenRow.children], k = all.indexOf(document.activeElement), by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (k < 0 || by === undefined) { return; }
      event.preventDefault();
      all.forEach(one => { one.tabIndex = -1; });
      const next = all[(k + by + all.length) % all.length];
      next.tabIndex = 0;
      next.focus();
    });
  },
  pick(tokens, add = false) {
    const before = pickedOf(this.app.state.get()), next = add ? new Set(before) : new Set();
    for (const k of tokens) { if (add && before.has(k)) { next.delete(k); } else { next.add(k); } }
    this.app.state.set({ picked: [...next].sort((a, b) => a - b).join('.') });
  },
  drawTokens() {
    const { reading } = this;
    if (!reading) { return; }
    const state = this.app.state.get(), picked = pickedOf(state), { layer, head } = headOf(state, this.app.data.model), n = reading.tokens.length;
    this.headName.textContent = `Head ${layer}.${head}`;
    if (this.shownTokens !== reading.tokens) {
      this.shownTokens = reading.tokens;
      this.tokenRow.replaceChildren(...reading.tokens.map((name, k) => {
        const one = make('button', { type: 'button', class: 'token', role: 'option', tabindex: k === reading.place ? 0 : -1, title: `${k}: “${name}”`, onclick: event => this.pick([k], event.shiftKey || event.ctrlKey || pickedOf(this.app.state.get()).has(k)) }, make('bdi', { text: short(name) }));
        one.style.setProperty('--place', placeColour(n > 1 ? k / (n - 1) : 0));
        one.addEventListener('pointerenter', () => { this.hovered = k; this.redraw(); });
        one.addEventListener('pointerleave', () => { this.hovered = null; this.redraw(); });
        return one;
      }));
    }
    [...this.tokenRow.children].forEach((one, k) => {
      one.setAttribute('aria-selected', picked.has(k));
      one.classList.toggle('asked', k === reading.place);
      one.style.setProperty('--place', placeColour(n > 1 ? k / (n - 1) : 0));
    });
    const cut = Boolean(this.attention?.after && reading.after);
    this.tokenScroll.querySelector('.arcs.cut').hidden = !cut;
    const pattern = this.attention?.layer === layer ? this.attention.before[head] : null, looks = this.hovered ?? (picked.size === 1 ? [...picked][0] : reading.place), row = pattern?.[looks];
    const most = row ? row.map((p, j) => [p, j]).sort((a, b) => b[0] - a[0]).filter(([p]) => p >= 0.005).slice(0, 3) : [];
    this.tokenWords.textContent = row ? `“${tokenText(reading.tokens[looks])}” (${looks}) looks at ${most.map(([p, j]) => `“${tokenText(reading.tokens[j])}” (${j}) ${Math.round(100 * p)} %`).join(', ')}.${cut ? ' Above: the model as it is. Below: with the cuts.' : reading.after && !this.app.data.live ? ' Arcs are those of the model as it is: with cuts they need the running model.' : ''}` : '';
    this.arcs.fit(); this.arcs.now();
    this.arcsCut.fit(); this.arcsCut.now();
  },
  drawArcs(pen, width, height, which) {
    const { layer, head } = headOf(this.app.state.get(), this.app.data.model), pattern = this.attention?.layer === layer ? this.attention[which]?.[head] : null;
    if (!pattern || !this.reading) { return; }
    const tokens = [...this.tokenRow.children], x = tokens.map(one => one.offsetLeft + one.offsetWidth / 2), picked = pickedOf(this.app.state.get()), n = pattern.length;
    const from = this.hovered !== null && this.hovered !== undefined ? new Set([this.hovered]) : picked, down = which === 'after';
    const drawn = (i, j) => (!from.size || from.has(i)) && pattern[i][j] >= (from.size ? 0.02 : 0.12) && x[i] !== undefined && x[j] !== undefined;
    let widest = 60; // the widest arc that is drawn takes the whole height
    for (const one of [this.attention.before[head], this.attention.after?.[head]].filter(Boolean)) { one.forEach((row, i) => row.forEach((p, j) => { if (drawn(i, j)) { widest = Math.max(widest, Math.abs(x[i] - x[j])); } })); }
    for (let i = 0; i < n; i += 1) {
      if (from.size && !from.has(i)) { continue; }
      for (let j = 0; j < n; j += 1) {
        const p = pattern[i][j];
        if (!drawn(i, j)) { continue; }
        const base = down ? 2 : height - 2, sign = down ? 1 : -1, style = { stroke: placeColour(n > 1 ? j / (n - 1) : 0), width: 0.6 + 3.4 * p, opacity: from.size ? 0.25 + 0.75 * p : 0.12 + 0.7 * p };
        if (i === j) { pen.circle(x[i], base + sign * 5, 1 + 3 * p, { fill: style.stroke, opacity: style.opacity }); continue; }
        const reach = 12 + (height - 20) * Math.sqrt(Math.abs(x[i] - x[j]) / widest), middle = (x[i] + x[j]) / 2, half = (x[i] - x[j]) / 2, points = [];
        for (let s = 0; s <= 24; s += 1) { const a = Math.PI * s / 24; points.push(middle + half * Math.cos(a), base + sign * reach * Math.sin(a)); }
        pen.line(points, style);
      }
    }
  },
  redraw() { this.drawTokens(); this.orbits.forEach(one => one.soon()); },

  // --- the map of heads ---

  makeHeads() {
    const hints = { measured: `each head’s share of the change of S on your ${nounOf(this.app)}`, predicted: 'by a closure fitted on another text', weights: 'how value and score map lie to each other, in standard deviations of random ones', disagree: 'heads whose measured and predicted signs differ' };
    this.headMode = choice({ label: 'Colour', options: MAPS.map(name => [name, name, hints[name]]), value: 'measured', onvalue: v => this.app.state.set({ map: v === 'measured' ? null : v }) });
    this.headGrid = make('div', { class: 'heads', role: 'grid', 'aria-label': 'Heads: a row a layer, a column a head' });
    this.headWords = make('p', { class: 'explains' });
    this.cutHead = button('', '', () => { const { layer, head } = headOf(this.app.state.get(), this.app.data.model); this.toggleCut(`head ${layer}.${head}`); }, { class: 'small' });
    this.headKey = make('p', { class: 'legend' });
    this.headButtons = make('div', { class: 'row' }, this.cutHead, make('span', { class: 'muted', text: 'Arrows move, x cuts.' }));
    this.headGrid.addEventListener('keydown', event => {
      const { n_layers: layers, n_heads: heads } = this.app.data.model, { layer, head } = headOf(this.app.state.get(), this.app.data.model);
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (event.key === 'x') { this.toggleCut(`head ${layer}.${head}`); }
      if (!step) { return; }
      event.preventDefault();
      const next = { layer: Math.max(0, Math.min(layers - 1, layer + step[0])), head: Math.max(0, Math.min(heads - 1, head + step[1])) };
      this.app.state.set(next);
      this.headCells.get(`${next.layer}.${next.head}`)?.focus();
    });
  },
  known(layer, head) { return this.heads?.heads.find(one => one.layer === layer && one.head === head) ?? null; },
  drawHeads() {
    const { reading } = this;
    if (!reading) { return; }
    const state = this.app.state.get(), mode = MAPS.includes(state.map) ? state.map : 'measured', chosen = headOf(state, this.app.data.model), cut = new Set(reading.cuts), measured = reading.before.heads;
    this.headMode.set(mode);
    if (this.headShape !== `${measured.length}x${measured[0]?.length}`) {
      this.headShape = `${measured.length}x${measured[0]?.length}`;
      this.headCells = new Map();
      const tall = Math.max(7, Math.min(24, Math.floor(330 / measured.length) - 3)), every = Math.ceil(15 / (tall + 3)); // all layers at one glance, up to thirty or so
      this.headGrid.style.setProperty('--tall', `${tall}px`);
      this.headGrid.replaceChildren(...measured.map((row, layer) => make('div', { class: 'head-row', role: 'row' }, make('span', { class: 'layer', text: layer % every ? '' : layer, role: 'rowheader', 'aria-label': `layer ${layer}`, title: `layer ${layer}` }), ...row.map((_, head) => {
        const cell = make('button', { type: 'button', class: 'head', role: 'gridcell', onclick: () => this.app.state.set({ layer, head }) });
        this.headCells.set(`${layer}.${head}`, cell);
        return cell;
      }))));
    }
    const value = { measured: (l, h) => measured[l][h], predicted: (l, h) => this.known(l, h)?.predicted, weights: (l, h) => this.known(l, h)?.alignment, disagree: (l, h) => measured[l][h] }[mode];
    const all = measured.flatMap((row, l) => row.map((_, h) => Math.abs(value(l, h) ?? 0))), most = Math.max(1e-9, ...all);
    measured.forEach((row, l) => row.forEach((_, h) => {
      const cell = this.headCells.get(`${l}.${h}`), v = value(l, h), apart = this.disagrees(l, h), on = chosen.layer === l && chosen.head === h, gone = cut.has(`head ${l}.${h}`) || cut.has(`attention ${l}`) || cut.has(`block ${l}`);
      cell.style.background = v === undefined || v === null ? colour('zero') : mode === 'disagree' ? (apart ? colour('pink') : colour('zero')) : mode === 'weights' ? mixed(colour('zero'), colour(v > 0 ? 'green' : 'pink'), Math.min(1, Math.abs(v) / most) ** 0.7) : tone(v, most);
      cell.classList.toggle('on', on);
      cell.classList.toggle('gone', gone);
      cell.tabIndex = on ? 0 : -1;
      const known = this.known(l, h), words = `head ${l}.${h}${gone ? ', cut' : ''}: measured ${signed(measured[l][h])}${known ? `, predicted ${signed(known.predicted)}, maps ${known.orientation} (${signed(known.alignment)} σ)` : ''}`;
      cell.title = words;
      cell.setAttribute('aria-label', words);
      cell.setAttribute('aria-selected', on);
    }));
    this.headWords.textContent = this.aboutHeads(mode, chosen, measured);
    const keys = { weights: [['aligned', 'maps aligned'], ['opposed', 'opposed']], disagree: [['opposed', 'predicted wrongly']] }[mode] ?? [['gather', 'gathers tokens'], ['spread', 'spreads them']];
    this.headKey.replaceChildren(make('span', { text: 'a row a layer' }), ...keys.map(([name, words]) => make('span', {}, make('i', { class: name }), words)));
    const name = `head ${chosen.layer}.${chosen.head}`;
    this.cutHead.textContent = cut.has(name) ? `Put ${name} back` : `Cut ${name}`;
    this.cutHead.title = this.cutHead.textContent;
  },
  disagrees(l, h) {
    const known = this.known(l, h), v = this.reading.before.heads[l][h];
    return known !== null && Math.abs(v) >= this.heads.clear && Math.sign(v) !== Math.sign(known.predicted);
  },
  aboutHeads(mode, { layer, head }, measured) {
    const v = measured[layer]?.[head], known = this.known(layer, head), verb = Math.abs(v) < (this.heads?.clear ?? 0.01) ? 'does little to' : v < 0 ? 'gathers' : 'spreads';
    if (mode === 'measured') { return `Head ${layer}.${head} ${verb} the tokens of your ${nounOf(this.app)}: it changes S = ln(1 − C) by ${signed(v)}.`; }
    if (!this.heads) { return ''; }
    if (mode === 'weights') { return `Value and score map of head ${layer}.${head} are ${known?.orientation ?? '–'} (${signed(known?.alignment)} σ). It is a property of the weights, not of what the head does to tokens.`; }
    const text = { text: 'a passage of English', random: 'random tokens', noise: 'images of noise' }[this.heads.text] ?? this.heads.text;
    if (mode === 'predicted') { return `Head ${layer}.${head}: ${signed(known?.predicted)} predicted (closure “${this.heads.closure}”, fitted on ${text} of ${this.heads.n_tokens} tokens, knowing nothing of your ${nounOf(this.app)}), ${signed(v)} measured on it.`; }
    const clear = measured.flatMap((row, l) => row.map((x, h) => [x, this.known(l, h)])).filter(([x, k]) => Math.abs(x) >= this.heads.clear && k), n = clear.length, right = clear.filter(([x, k]) => Math.sign(x) === Math.sign(k.predicted)).length;
    const commoner = Math.max(clear.filter(([x]) => x < 0).length, clear.filter(([x]) => x > 0).length), same = clear.filter(([x, k]) => Math.sign(x) === Math.sign(k.elsewhere)).length;
    return `Signs of the ${n} heads beyond ±${this.heads.clear} on your ${nounOf(this.app)}: ${right} predicted, ${commoner} by always saying the commoner one, ${same} by what was measured on ${text}. Pink: predicted wrongly.`;
  },

  // --- orbits ---

  makeOrbits() {
    this.orbits = ['before', 'after'].map(which => drawing(which === 'before' ? 'Orbits of tokens through depth, the model as it is' : 'Orbits of tokens through depth, with the cuts', (pen, width, height) => this.drawOrbit(pen, width, height, which)));
    this.orbitPair = make('div', { class: 'pair' }, ...this.orbits.map((one, k) => make('div', { class: 'orbit', tabindex: 0, 'aria-label': 'Orbits; arrows turn them in 3-D, Escape lets go of picked tokens' }, one.box, make('span', { class: 'corner', text: k ? 'with the cuts' : 'as it is' }))));
    this.orbitView = choice({ label: 'View', options: [['2', '2-D', 'drag to brush tokens'], ['3', '3-D', 'drag to turn']], value: '2', onvalue: v => this.app.state.set({ view: v === '2' ? null : v }) });
    this.orbitBar = make('div', { class: 'row spread' }, this.orbitView.box);
    this.depthInput = make('input', { type: 'range', min: 0, max: 1, step: 'any', 'aria-label': 'Depth' });
    this.depthWords = make('output');
    this.depthInput.addEventListener('input', () => { this.hide(); this.depth = Number(this.depthInput.value); this.drawOrbits(); });
    this.playButton = button('Play', 'Play the orbits through depth', () => { if (this.playing) { this.hide(); this.drawOrbits(); } else { this.play(); } }, { class: 'small' });
    this.orbitControls = make('div', { class: 'row' }, this.playButton, this.depthInput, this.depthWords);
    [...this.orbitPair.children].forEach((box, k) => this.brushable(box, this.orbits[k]));
  },
  play() {
    const last = this.reading.depths.length - 1, ms = Math.max(2200, Math.min(6000, 700 * last)), began = performance.now();
    cancelAnimationFrame(this.playing);
    const frame = now => {
      const share = Math.max(0, Math.min(1, (now - began) / ms)); // a frame may have begun before
      this.depth = share * last;
      this.playing = share < 1 ? requestAnimationFrame(frame) : 0;
      this.drawOrbits();
    };
    this.playing = requestAnimationFrame(frame);
  },
  view() { return this.app.state.get().view === '3' ? 3 : 2; },
  // Where tokens are on the screen, at a depth between two depths.
  placed(run, k, width, height) {
    const { positions } = run, tall = height - (this.view() === 2 ? 20 : 0), low = Math.floor(k), high = Math.min(positions.length - 1, low + 1), share = k - low, { yaw, pitch } = this.angles, flat = this.view() === 2;
    const size = flat ? Math.min(0.43 * width / (this.reach[0] || 1), 0.43 * tall / (this.reach[1] || 1)) : 0.46 * Math.min(width, 1.2 * height) / (this.reach[2] || 1);
    return positions[low].map((a, i) => {
      const [x, y, z] = a.map((v, c) => v + share * (positions[high][i][c] - v) - this.middle[c]);
      if (flat) { return [width / 2 + size * x, tall / 2 - size * y, 0]; } // the words on its axes stand below
      const u = x * Math.cos(yaw) + z * Math.sin(yaw), w = -x * Math.sin(yaw) + z * Math.cos(yaw);
      return [width / 2 + size * u, height / 2 - size * (y * Math.cos(pitch) - w * Math.sin(pitch)), size * (y * Math.sin(pitch) + w * Math.cos(pitch))];
    });
  },
  measureOrbits() {
    const runs = [this.reading.before, this.reading.after].filter(Boolean), all = runs.flatMap(run => run.positions.flat());
    const ends = [0, 1, 2].map(c => [Math.min(...all.map(p => p[c])), Math.max(...all.map(p => p[c]))]), middle = ends.map(([a, b]) => (a + b) / 2);
    this.middle = middle;
    this.reach = [(ends[0][1] - ends[0][0]) / 2, (ends[1][1] - ends[1][0]) / 2, Math.max(...all.map(p => Math.hypot(...p.map((v, c) => v - middle[c]))))];
  },
  drawOrbit(pen, width, height, which) {
    const run = this.reading?.[which];
    if (!run || !this.reach) { return; }
    const n = this.reading.tokens.length, picked = pickedOf(this.app.state.get()), at = Math.min(this.depth ?? 0, run.positions.length - 1), active = this.hovered !== null && this.hovered !== undefined ? new Set([this.hovered]) : picked;
    if (this.view() === 3) { this.drawAxes(pen, width, height); }
    else { pen.text(width - 8, height - 8, `axes of most variance: ${Math.round(100 * this.reading.explained[0])} % across, ${Math.round(100 * this.reading.explained[1])} % up`, { fill: colour('muted'), size: 10.5, align: 'right' }); }
    const steps = [];
    for (let d = 0; d < at; d += 0.125) { steps.push(d); }
    steps.push(at);
    const ways = steps.map(d => this.placed(run, d, width, height)), now = ways[ways.length - 1], order = [...Array(n).keys()].sort((a, b) => now[a][2] - now[b][2]);
    for (const i of order) {
      const on = !active.size || active.has(i), tint = placeColour(n > 1 ? i / (n - 1) : 0);
      pen.line(ways.flatMap(row => [row[i][0], row[i][1]]), { stroke: tint, width: on && active.size ? 2 : 1.1, opacity: on ? (active.size ? 0.85 : 0.42) : 0.07 });
    }
    for (const i of order) {
      const on = !active.size || active.has(i), tint = placeColour(n > 1 ? i / (n - 1) : 0), [x, y] = now[i];
      pen.circle(ways[0][i][0], ways[0][i][1], 1.6, { fill: tint, opacity: on ? 0.6 : 0.12 });
      pen.circle(x, y, on ? 4.4 : 3, { fill: tint, stroke: colour('paper'), width: 1.2, opacity: on ? 1 : 0.2 });
      if (i === this.reading.place) { pen.circle(x, y, 7.5, { stroke: tint, width: 1.4, opacity: on ? 0.9 : 0.2 }); }
    }
    this.drawNames(pen, width, [...Array(n).keys()].filter(i => !active.size || active.has(i)), now);
    if (this.brush && this.brush.which === which) { const { x0, y0, x1, y1 } = this.brush; pen.rect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0), { fill: colour('accent'), opacity: 0.12 }); pen.rect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0), { stroke: colour('accent'), opacity: 0.7 }); }
  },
  // As many names as have room; the token that is asked first.
  drawNames(pen, width, tokens, now) {
    const taken = [], order = [this.reading.place, ...tokens.filter(i => i !== this.reading.place)].filter(i => tokens.includes(i));
    for (const i of order) {
      const text = short(this.reading.tokens[i], 10), wide = 7.2 * [...text].length + 4, [px, py] = now[i], x = px + 7 + wide > width ? px - 7 - wide : px + 7, y = py - 5;
      if (taken.some(([a, b, w]) => x < a + w && a < x + wide && Math.abs(y - b) < 12)) { continue; }
      taken.push([x, y, wide]);
      pen.text(x, y, text, { fill: colour('ink'), size: 11.5, opacity: 0.85 });
    }
  },
  drawAxes(pen, width, height) {
    const fake = { positions: [[0, 1, 2].flatMap(c => [-1, 1].map(s => [0, 1, 2].map(k => this.middle[k] + (k === c ? s * 0.8 * this.reach[2] : 0))))] }, ends = this.placed(fake, 0, width, height);
    for (let c = 0; c < 3; c += 1) {
      pen.line([...ends[2 * c].slice(0, 2), ...ends[2 * c + 1].slice(0, 2)], { stroke: colour('grid'), width: 1.2 });
      pen.text(ends[2 * c + 1][0] + 3, ends[2 * c + 1][1] - 3, `${Math.round(100 * this.reading.explained[c])} %`, { fill: colour('muted'), size: 10.5 });
    }
  },
  drawOrbits() {
    const { reading } = this, last = reading.depths.length - 1, cut = reading.after !== null;
    this.orbitView.set(String(this.view()));
    this.orbitPair.children[1].hidden = !cut;
    this.orbitPair.classList.toggle('two', cut);
    [...this.orbitPair.children].forEach(box => { box.querySelector('.corner').hidden = !cut; box.classList.toggle('turns', this.view() === 3); });
    this.depth = Math.min(this.depth ?? last, last);
    this.depthInput.max = last;
    this.depthInput.value = this.depth;
    const k = Math.round(this.depth), c = run => run.cosine[k].toFixed(2).replace('-', '−');
    this.depthWords.textContent = `${reading.depths[k]}: C ${c(reading.before)}${cut ? ` → ${c(reading.after)}` : ''}`;
    this.depthInput.setAttribute('aria-valuetext', this.depthWords.textContent);
    this.playButton.textContent = this.playing ? 'Pause' : 'Play';
    this.measureOrbits();
    this.orbits.forEach(one => { one.fit(); one.now(); });
    this.curve.soon();
  },
  brushable(box, one) {
    let held = null;
    const at = event => { const { left, top } = box.getBoundingClientRect(); return [event.clientX - left, event.clientY - top]; }, which = one === this.orbits[0] ? 'before' : 'after';
    const near = ([x, y]) => {
      const [width, height] = one.size(), places = this.placed(this.reading[which], this.depth, width, height);
      const found = places.map((p, i) => [Math.hypot(p[0] - x, p[1] - y), i]).sort((a, b) => a[0] - b[0])[0];
      return found && found[0] < 14 ? found[1] : null;
    };
    box.addEventListener('pointerdown', event => { if (this.reading) { held = { at: at(event), moved: false }; box.setPointerCapture(event.pointerId); this.last = one; } });
    box.addEventListener('pointermove', event => {
      if (!this.reading?.[which]) { return; }
      const [x, y] = at(event);
      if (held === null) { const found = near([x, y]); if (found !== (this.hovered ?? null)) { this.hovered = found; this.redraw(); } return; }
      held.moved ||= Math.hypot(x - held.at[0], y - held.at[1]) > 4;
      if (this.view() === 3) { this.turn((x - (held.last ?? held.at)[0]) / 160, (y - (held.last ?? held.at)[1]) / 160); held.last = [x, y]; return; }
      if (held.moved) { this.brush = { which, x0: held.at[0], y0: held.at[1], x1: x, y1: y }; one.soon(); }
    });
    const end = event => {
      if (held === null) { return; }
      const was = held, [x, y] = at(event);
      held = null;
      if (this.view() === 2 && was.moved && this.brush) {
        const { x0, y0, x1, y1 } = this.brush, [width, height] = one.size(), inside = this.placed(this.reading[which], this.depth, width, height).flatMap((p, i) => (p[0] - x0) * (p[0] - x1) <= 0 && (p[1] - y0) * (p[1] - y1) <= 0 ? [i] : []);
        this.brush = null;
        this.pick(inside);
      } else if (!was.moved) { const found = near([x, y]); if (found === null) { this.pick([]); } else { this.pick([found], event.shiftKey); } }
      this.redraw();
    };
    box.addEventListener('pointerup', end);
    box.addEventListener('pointercancel', () => { held = null; this.brush = null; });
    box.addEventListener('pointerleave', () => { if (held === null && this.hovered !== null && this.hovered !== undefined) { this.hovered = null; this.redraw(); } });
    box.addEventListener('keydown', event => {
      if (event.key === 'Escape') { this.pick([]); }
      if (this.view() === 3 && STEPS[event.key]) { event.preventDefault(); this.turn(...STEPS[event.key]); }
    });
  },
  turn(right, up) { this.angles.yaw += right; this.angles.pitch = Math.max(-1.5, Math.min(1.5, this.angles.pitch + up)); this.orbits.forEach(one => one.soon()); },

  // --- the waterfall, and C through depth ---

  makeCourse() {
    this.waterfall = drawing('Waterfall: how attention and MLP of each block change S. Arrows go through them', (pen, width, height) => this.drawWaterfall(pen, width, height));
    this.curve = drawing('C through depth', (pen, width, height) => {
      if (!this.reading) { return; }
      const x = this.reading.depths.map((_, k) => k), curves = [{ x, y: this.reading.before.cosine, colour: colour('accent') }];
      if (this.reading.after) { curves.push({ x, y: this.reading.after.cosine, colour: colour('orange'), dash: [5, 4] }); }
      drawCurves(pen, width, height, { curves, xRange: [0, Math.max(1, x.length - 1)], now: this.depth });
    });
    this.stepWords = make('p', { class: 'explains', role: 'status' });
    this.curveWords = make('p', { class: 'explains' });
    this.waterfall.canvas.addEventListener('pointermove', event => { const found = this.bars?.find(bar => event.offsetX >= bar.x && event.offsetX <= bar.x + bar.w); if (found !== this.pointed) { this.pointed = found; this.sayStep(); } });
    this.waterfall.canvas.tabIndex = 0;
    this.waterfall.canvas.addEventListener('keydown', event => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined || !this.bars?.length) { return; }
      event.preventDefault();
      this.pointed = this.bars[((this.pointed?.k ?? (by > 0 ? -1 : 0)) + by + this.bars.length) % this.bars.length];
      this.sayStep();
    });
    for (const one of [this.waterfall, this.curve]) { one.canvas.addEventListener('pointerdown', () => { this.last = one; }); }
  },
  drawCourse() {
    const { before, after } = this.reading, sum = run => run.steps.reduce((total, step) => total + (step.change ?? 0), 0);
    this.waterfall.fit(); this.waterfall.now();
    this.curve.fit(); this.curve.now();
    this.curveWords.textContent = `From ${before.cosine[0].toFixed(2)} to ${before.cosine.at(-1).toFixed(2)}${after ? `; with the cuts to ${after.cosine.at(-1).toFixed(2)} (dashed)` : ''}. Across: layers passed. C = 1: all tokens point the same way.`.replaceAll('-', '−');
    this.total = `All blocks together: ${signed(sum(before))}${after ? `; with the cuts ${signed(sum(after))}` : ''}. Below zero tokens gather, above they spread.`;
    this.sayStep();
  },
  sayStep() {
    const bar = this.pointed, step = bar && this.reading.before.steps[bar.k], cut = bar && this.reading.after?.steps[bar.k];
    this.stepWords.textContent = step ? `Layer ${step.layer}, ${PARTS[step.part]}: ${signed(step.change)}, C behind it ${step.cosine.toFixed(2)}${cut ? `; with the cuts ${signed(cut.change)}` : ''}.` : this.total ?? '';
  },
  drawWaterfall(pen, width, height) {
    const { before, after } = this.reading ?? {};
    if (!before) { return; }
    const left = 38, right = 6, top = 8, bottom = 34, n = before.steps.length, runs = [before, after].filter(Boolean), levels = run => run.steps.reduce((all, step) => [...all, all.at(-1) + (step.change ?? 0)], [0]);
    const courses = runs.map(levels), low = Math.min(0, ...courses.flat()), high = Math.max(0, ...courses.flat()), span = high - low || 1;
    const y = v => top + (high - v) / span * (height - top - bottom), slot = (width - left - right) / n, x = k => left + k * slot;
    pen.line([left, y(0), width - right, y(0)], { stroke: colour('muted'), opacity: 0.6 });
    for (const v of [low, 0, high]) { pen.text(left - 5, y(v) + 4, signed(v).replace('+0.000', '0'), { fill: colour('muted'), size: 11, align: 'right' }); }
    const wide = Math.max(1.5, slot * (after ? 0.42 : 0.72));
    this.bars = before.steps.map((_, k) => ({ k, x: x(k), w: slot }));
    const layers = new Map();
    before.steps.forEach((step, k) => layers.set(step.layer, [...(layers.get(step.layer) ?? []), k]));
    const every = Math.ceil(layers.size / Math.max(1, Math.floor((width - left) / 26)));
    for (const [layer, ks] of layers) {
      const from = x(ks[0]), to = x(ks.at(-1)) + slot;
      if (layer % 2) { pen.rect(from, top, to - from, height - top - bottom, { fill: colour('soft'), opacity: 0.8 }); }
      if (layer % every === 0) { pen.text((from + to) / 2, height - 18, String(layer), { fill: colour('muted'), size: 11, align: 'center' }); }
    }
    pen.text(width - right, height - 4, `layer: ${before.steps.filter(step => step.layer === before.steps[0].layer).map(step => PARTS[step.part]).join(', ')}`, { fill: colour('muted'), size: 11, align: 'right' });
    runs.forEach((run, r) => run.steps.forEach((step, k) => {
      const a = courses[r][k], b = courses[r][k + 1], at = x(k) + slot * 0.14 + r * (wide + 1), tint = colour(b < a ? 'gather' : 'spread'), tall = Math.max(1.2, Math.abs(y(a) - y(b)));
      pen.rect(at, Math.min(y(a), y(b)), wide, tall, r ? { stroke: tint, width: 1.3, fill: colour('paper') } : { fill: tint, opacity: step.part === 'mlp' ? 0.55 : 1 });
      if (!r && k + 1 < n) { pen.line([at + wide, y(b), x(k + 1) + slot * 0.14, y(b)], { stroke: colour('muted'), width: 0.8, opacity: 0.6 }); }
    }));
  },

  // --- prediction ---

  drawPrediction() {
    const { before, after, asked, change, in_bits: inBits, tokens, place } = this.reading, at = tokens[place] === undefined ? '' : ` after “${short(tokens[place])}”`;
    const words = make('p', { class: 'explains', text: `Asked: ${asked.startsWith('the next token') ? `the next token${at}` : asked}.` });
    if (!inBits) {
      this.prediction.replaceChildren(words, make('p', { text: after ? `With the cuts this vector moves by ${bits(change, false)} of its length.` : 'This model predicts no words or classes: what moves is a vector.' }));
      return;
    }
    const big = after ? make('p', { class: 'big', text: bits(change, true) }) : null;
    this.prediction.replaceChildren(...[words, big, big && make('p', { class: 'explains', text: 'is how far the prediction moves (Jensen–Shannon; 1 is the most).' }), outcomeList(before.outcomes, after?.outcomes ?? null, ['as it is', 'cut']),
      make('p', { class: 'explains', text: `Entropy ${before.entropy.toFixed(2)} bits${after ? ` → ${after.entropy.toFixed(2)} bits` : ''}.` })].filter(Boolean));
  },

  // --- cuts ---

  toggleCut(name) {
    const now = new Set(this.cutsNow());
    if (now.has(name)) { now.delete(name); } else { if (!this.app.data.live) { now.clear(); } now.add(name); } // a frozen page knows one cut at a time
    this.app.state.set({ cuts: [...now].sort().join(',') });
  },
  makeCuts() {
    // Norms by their names where these are short; the whole name is in the title.
    const normName = (name, k) => { const text = name.replaceAll('_', ' ').replace('layernorm', 'norm'); return text.length > 9 ? `norm ${k}` : text; };
    this.cutWords = make('div', { class: 'chips' });
    this.cutBoard = make('div', { class: 'cut-board' });
    const { cuts, not_cut: why } = this.app.data.rooms.model, rows = new Map();
    const one = (name, text, title) => { const made = button(text, title, () => this.toggleCut(name), { class: 'cut', 'aria-pressed': 'false' }); made.dataset.cut = name; if (why[name]) { made.disabled = true; made.title = why[name]; } return made; };
    for (const name of cuts) {
      const [part, layer, norm] = name.split(' ');
      if (part === 'head' || layer === 'final') { continue; }
      rows.set(layer, [...(rows.get(layer) ?? []), one(name, norm ? normName(norm, (rows.get(layer) ?? []).length - 1) : PARTS[part] ?? part, `Cut the ${norm ?? part} of layer ${layer}`)]);
    }
    const whole = [one('encoding', 'positions', 'Give all tokens the same position'), one('mask', 'mask', 'Let every token see all others'), ...(cuts.includes('norm final') ? [one('norm final', 'final norm', 'Cut the norm behind the last layer')] : [])];
    this.cutBoard.append(make('div', { class: 'cut-row' }, make('span', { class: 'layer', text: 'all' }), ...whole), ...[...rows].map(([layer, parts]) => make('div', { class: 'cut-row', 'data-layer': layer }, make('span', { class: 'layer', text: layer, title: `layer ${layer}` }), ...parts)));
    if (rows.size > MANY) { this.cutBoard.append(make('p', { class: 'explains', text: 'Of the layer that is chosen on the map of heads.' })); }
  },
  drawCuts() {
    const cuts = this.cutsNow(), { layer } = headOf(this.app.state.get(), this.app.data.model), rows = [...this.cutBoard.querySelectorAll('[data-layer]')];
    rows.forEach(row => { row.hidden = rows.length > MANY && Number(row.dataset.layer) !== layer; });
    this.cutBoard.querySelectorAll('[data-cut]').forEach(one => one.setAttribute('aria-pressed', cuts.includes(one.dataset.cut)));
    const intro = this.app.data.live ? 'Cut parts here, heads on their map. A norm that is cut divides all tokens by one number.' : 'This frozen page knows one cut at a time. A norm that is cut divides all tokens by one number.';
    this.cutWords.replaceChildren(...(cuts.length ? [...cuts.map(name => button(`${name === 'encoding' ? 'positions' : name} ×`, `Put ${name} back`, () => this.toggleCut(name), { class: 'chip' })), button('Restore all', 'Put all back', () => this.app.state.set({ cuts: null }), { class: 'small' })] : [make('span', { class: 'muted', text: intro })]));
  },

  // --- what can be taken along ---

  picture() { return (this.last ?? this.orbits[0]).canvas; },
  python() { return this.reading ? withLevels(this.reading.python, givenOf(this.app)) : '# nothing was run yet'; },
  rows() {
    const { reading } = this;
    if (!reading) { return [['nothing was run yet']]; }
    const runs = [['as it is', reading.before], ...(reading.after ? [[`without ${reading.cuts.join(', ')}`, reading.after]] : [])];
    return [['run', 'what', 'layer', 'part', 'value'],
      ...runs.flatMap(([name, run]) => [
        ...run.cosine.map((c, k) => [name, 'C', reading.depths[k], '', c]),
        ...run.steps.map(step => [name, 'change of S', step.layer, step.part, step.change]),
        ...run.heads.flatMap((row, l) => row.map((v, h) => [name, 'change of S', l, `head ${h}`, v])),
        ...run.outcomes.map(one => [name, 'probability', '', one.name, one.probability])])];
  },
};
