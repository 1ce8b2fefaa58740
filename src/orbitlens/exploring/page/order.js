// The room Order: the sentence's tokens in another order, and what the prediction makes of it.
import { button, choice, colour, drawing, make, mixed, placeColour } from './charts.js';
import { asker, bits, givenOf, nounOf, noteList, outcomeList, pictureOf, sameGiven, sayOnce, sentenceBox, short, statusLine, tokenText, withLevels } from './sentence.js';

const CELLS = { pe_causal: 'positions + mask', nope_causal: 'mask only', pe_full: 'positions only', nope_full: 'neither' };
const SMALL = 20e6; // parameters up to which all pairs are swapped unasked
const identity = n => [...Array(n).keys()];
const card = (name, title, ...parts) => make('section', { class: `card ${name}`, 'aria-label': title }, make('h2', { text: title }), ...parts);
const isSame = order => order.every((k, i) => k === i);

export const order = {
  mount(place, app) {
    this.absent = !app.data.rooms.model;
    if (this.absent) { place.append(make('p', { class: 'absent', text: app.data.rooms.why ?? 'This model cannot be run here.' })); return; }
    Object.assign(this, { place, app, reading: null, means: null, maps: [], held: null, shuffled: 0, last: null, key: null, mapKey: null });
    this.statuses = { order: statusLine(), usual: statusLine(), swaps: statusLine() };
    this.ask = Object.fromEntries(Object.entries(this.statuses).map(([name, status]) => [name, asker(app, name, status)]));
    this.sentence = sentenceBox(app, { what: 'The same sentence' });
    this.notes = make('div');
    this.row = make('div', { class: 'token-row movable', role: 'list', 'aria-label': 'Tokens: drag them, or focus one and move it with the arrows' });
    this.words = make('p', { class: 'explains' });
    this.big = make('p', { class: 'big' });
    this.bigWords = make('p', { class: 'explains' });
    this.table = make('div', { class: 'two-by-two', role: 'table', 'aria-label': 'Change of the prediction by positions and mask' });
    this.prediction = make('div', { class: 'prediction' });
    this.map = drawing('Map of swaps: row and column are two positions. Arrows choose two, Enter swaps them', (pen, width, height) => this.drawMap(pen, width, height));
    this.mapWords = make('p', { class: 'explains', role: 'status' });
    this.mapCell = choice({ label: 'In', options: Object.entries(CELLS), value: 'pe_causal', onvalue: v => app.state.set({ cell: v === app.data.rooms.order.own_cell ? null : v }) });
    this.mapWhich = choice({ label: 'Swaps', options: [['neighbours', 'neighbours'], ['all', 'all pairs']], value: 'all', onvalue: v => app.state.set({ which: v }) });
    if (!app.data.live) { this.mapWhich.enable('neighbours', false, app.data.why_frozen); }
    for (const [cell, why] of Object.entries(app.data.rooms.order.not_reached)) { this.mapCell.enable(cell, false, why); }
    this.buttons = make('div', { class: 'row' },
      button('Shuffle', 'A random order', () => this.shuffle()),
      button('Swap neighbours', 'Swap two neighbours drawn at random', () => this.swapNeighbours()),
      button('Reverse', 'From the last to the first', () => this.reverse(), { disabled: !app.data.live, ...(app.data.live ? {} : { title: app.data.why_frozen }) }),
      button('As written', 'Back to the sentence', () => this.go(null)));
    place.append(
      make('div', { class: 'card wide' }, this.sentence.box, this.notes),
      make('div', { class: 'order-grid' },
        card('order-tokens', 'Drag tokens into another order', this.row, this.buttons, this.words, this.statuses.order.box),
        card('order-change', 'The prediction moves by', this.big, this.bigWords, this.prediction),
        card('order-cells', 'Through positions or through the mask?', this.table, this.statuses.usual.box, make('p', { class: 'explains', text: 'The same order in the model as it is, without its positions (all tokens get one), without its mask (every token sees all), and without both. Marks: the mean over random orders.' })),
        card('order-map', 'Which swaps can the model tell apart?', make('div', { class: 'row spread' }, this.mapCell.box, this.mapWhich.box), this.statuses.swaps.box, make('div', { class: 'chart square' }, this.map.box), this.mapWords)));
    this.draggable();
    this.mapPointing();
  },

  show(state) {
    if (this.absent) { return; }
    const { app } = this, given = givenOf(app, state), moved = this.orderOf(state), params = { ...given, ...(moved ? { order: moved } : {}) };
    this.sentence.set(state);
    if (this.key !== JSON.stringify(params)) {
      this.key = JSON.stringify(params);
      const other = !sameGiven(this.given ?? null, given);
      this.given = given;
      if (other) { this.mapKey = null; }
      this.ask.order(params, reading => {
        this.unknown = reading === null;
        sayOnce(this.statuses.order, this.statuses.swaps);
        if (reading) { this.reading = reading; this.readingOf = JSON.stringify(given); if (other || !this.usual) { this.askUsual(given); } if (this.dropped) { app.say('That order is none of this sentence: here it is as written.'); } this.dropped = false; }
        else if (moved && other && !this.dropped) { this.given = null; this.dropped = true; this.go(null); return; } // a link of another sentence
        this.draw();
      });
    }
    const own = app.data.rooms.order.own_cell, cell = CELLS[state.cell] && !app.data.rooms.order.not_reached[state.cell] ? state.cell : own, which = !app.data.live ? 'all' : ['all', 'neighbours'].includes(state.which) ? state.which : app.data.model.parameters <= SMALL ? 'all' : 'neighbours', mapKey = JSON.stringify([given, cell, which]);
    Object.assign(this, { cell, which });
    this.mapCell.set(cell);
    this.mapWhich.set(which);
    if (this.mapKey !== mapKey) { this.mapKey = mapKey; this.ask.swaps({ ...given, cell, which }, swaps => { sayOnce(this.statuses.order, this.statuses.swaps); if (swaps) { this.maps = [{ ...swaps, of: JSON.stringify(given) }, ...this.maps.slice(0, 1)]; } this.map.soon(); this.sayMap(); }); }
    this.draw();
  },
  hide() { this.held = null; },
  askUsual(given) { this.ask.usual(given, usual => { if (usual) { this.means = { ...usual, of: JSON.stringify(given) }; } this.drawCells(); }); },
  // Those of the sentence that is shown: what cannot be answered about another takes nothing away.
  get swaps() { return this.maps.find(one => one.of === this.readingOf && one.cell === this.cell && one.which === this.which) ?? null; },
  get usual() { return this.means?.of === this.readingOf ? this.means : null; },
  orderOf(state) {
    const order = (state.order ?? '').split('.').filter(Boolean).map(Number);
    return order.length && !isSame(order) && isSame([...order].sort((a, b) => a - b)) ? order : null;
  },
  now() { return this.orderOf(this.app.state.get()) ?? identity(this.reading?.tokens.length ?? 0); },
  go(order) { this.app.state.set({ order: order && !isSame(order) ? order.join('.') : null }); },

  // --- other orders ---

  shuffle() {
    const { movable, tokens } = this.reading ?? {}, known = this.app.data.rooms.order.shuffles;
    if (!movable) { return; }
    if (!this.app.data.live) { this.go(known[this.shuffled++ % known.length]); return; }
    const places = [...movable], order = identity(tokens.length);
    for (let i = places.length - 1; i > 0; i -= 1) { const j = Math.floor(Math.random() * (i + 1)); [places[i], places[j]] = [places[j], places[i]]; }
    movable.forEach((place, k) => { order[place] = places[k]; });
    this.go(order);
  },
  swapNeighbours() {
    const { movable } = this.reading ?? {};
    if (!movable) { return; }
    const order = this.app.data.live ? this.now() : identity(this.reading.tokens.length), k = Math.floor(Math.random() * (movable.length - 1)), [a, b] = [movable[k], movable[k + 1]];
    [order[a], order[b]] = [order[b], order[a]];
    this.go(order);
  },
  reverse() {
    const { movable, tokens } = this.reading ?? {};
    if (!movable) { return; }
    const order = identity(tokens.length);
    movable.forEach((place, k) => { order[place] = movable[movable.length - 1 - k]; });
    this.go(order);
  },
  // Takes the token at one place of the row to another; those between make room, pinned ones stay.
  moved(order, from, to) {
    const places = this.reading.movable, a = places.indexOf(from), b = places.indexOf(to);
    if (a < 0 || b < 0 || a === b) { return order; }
    const line = places.map(place => order[place]), [one] = line.splice(a, 1), next = [...order];
    line.splice(b, 0, one);
    places.forEach((place, k) => { next[place] = line[k]; });
    return next;
  },

  // --- the row of tokens ---

  draw() {
    if (!this.reading) { return; }
    this.notes.replaceChildren(noteList(this.reading.notes));
    this.drawRow();
    this.drawChange();
    this.drawCells();
    this.map.fit();
    this.map.soon();
    this.sayMap();
  },
  drawRow() {
    const { tokens, movable, place } = this.reading, order = this.held?.order ?? this.now(), free = new Set(movable), n = tokens.length;
    if (order.length !== n) { return; } // of another sentence, whose answer is on its way
    const focused = [...this.row.children].indexOf(document.activeElement), image = this.app.data.model.reads === 'images';
    this.row.classList.toggle('patches', image);
    if (image) { this.row.style.setProperty('--side', Math.round(Math.sqrt(n))); }
    if (this.row.children.length !== n) { this.row.replaceChildren(...tokens.map(() => make('button', { type: 'button', class: 'token', role: 'listitem' }, make('bdi')))); }
    const url = image ? pictureOf(this.app) : null, side = Math.round(Math.sqrt(n)), part = k => `${100 * k / Math.max(1, side - 1)}%`;
    this.row.classList.toggle('painted', url !== null);
    order.forEach((k, at) => {
      const one = this.row.children[at], held = !free.has(at);
      if (image) { Object.assign(one.style, url === null ? { backgroundImage: '' } : { backgroundImage: `url(${url})`, backgroundSize: `${100 * side}% ${100 * side}%`, backgroundPosition: `${part(k % side)} ${part(Math.floor(k / side))}` }); }
      one.firstChild.textContent = short(tokens[k]);
      one.style.setProperty('--place', placeColour(n > 1 ? k / (n - 1) : 0));
      one.classList.toggle('pinned', held);
      one.classList.toggle('asked', at === place);
      one.classList.toggle('away', k !== at);
      one.classList.toggle('held', this.held?.at === at);
      one.setAttribute('aria-disabled', held);
      one.title = held ? `“${tokens[k]}” stays: ${at === place ? 'the prediction is read here' : 'a special token'}` : `“${tokens[k]}”, place ${at}${k === at ? '' : `, was at ${k}`}`;
      one.setAttribute('aria-label', one.title);
    });
    if (focused >= 0 && this.refocus !== undefined) { this.row.children[this.refocus]?.focus(); this.refocus = undefined; }
    const away = order.filter((k, at) => k !== at).length;
    this.words.textContent = away ? `${away} of ${n} tokens are elsewhere. Colour: where a token stood.` : 'As written. Drag a token, or focus one and press ← or →.';
  },
  draggable() {
    const at = event => [...this.row.children].findIndex(one => { const box = one.getBoundingClientRect(); return event.clientX >= box.left - 3 && event.clientX <= box.right + 3 && event.clientY >= box.top - 3 && event.clientY <= box.bottom + 3; });
    this.row.addEventListener('pointerdown', event => {
      const from = at(event);
      if (!this.reading || from < 0 || !this.reading.movable.includes(from)) { return; }
      this.held = { at: from, order: this.now() };
      this.row.setPointerCapture(event.pointerId);
      this.drawRow();
    });
    this.row.addEventListener('pointermove', event => {
      if (!this.held) { return; }
      const to = at(event);
      if (to < 0 || to === this.held.at || !this.reading.movable.includes(to)) { return; }
      this.held = { at: to, order: this.moved(this.held.order, this.held.at, to) };
      this.drawRow();
      this.go(this.held.order); // the prediction is asked for as tokens move
    });
    for (const name of ['pointerup', 'pointercancel']) { this.row.addEventListener(name, () => { this.held = null; this.drawRow(); }); }
    this.row.addEventListener('keydown', event => {
      const all = [...this.row.children], from = all.indexOf(document.activeElement), by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (from < 0 || by === undefined || !this.reading) { return; }
      event.preventDefault();
      const places = this.reading.movable, to = places[places.indexOf(from) + by];
      if (!places.includes(from) || to === undefined) { all[from + by]?.focus(); return; }
      this.refocus = to;
      this.go(this.moved(this.now(), from, to));
    });
  },

  // --- what it does ---

  // Whether the tokens stand in an order that was asked for in vain: the numbers are of another.
  isUnknown() { return this.unknown && this.now().join() !== this.reading.order.join(); },
  own() { return this.reading.cells.find(one => one.cell === this.reading.own_cell); },
  drawChange() {
    const { reading } = this, change = this.own().change, same = isSame(reading.order), unknown = this.isUnknown(), usual = this.usual?.cells.find(one => one.cell === reading.own_cell)?.change;
    this.big.textContent = unknown ? this.app.data.live ? 'no answer' : 'not known on this page' : same ? 'Drag a token, or shuffle.' : bits(change, reading.in_bits);
    this.big.classList.toggle('waits', same || unknown);
    this.bigWords.textContent = `${same || unknown ? `This is the prediction of the ${nounOf(this.app)} as it is.` : reading.in_bits ? 'Jensen–Shannon, between the two predictions; 1 bit is the most.' : 'of the length of the vector that is asked for.'} Asked: ${reading.asked}.${usual !== undefined && usual !== null && !same ? ` Random orders: ${bits(usual, reading.in_bits)} on average.` : ''}`;
    this.prediction.replaceChildren(reading.in_bits ? outcomeList(reading.before, same || unknown ? null : reading.after, ['as written', 'in this order']) : make('span'));
  },
  drawCells() {
    const { reading } = this;
    if (!reading) { return; }
    const usual = new Map((this.usual?.cells ?? []).map(one => [one.cell, one.change])), most = Math.max(1e-6, ...reading.cells.map(one => one.change ?? 0), ...[...usual.values()].map(v => v ?? 0));
    const corner = text => make('span', { class: 'head-of', role: 'columnheader', text });
    const cellOf = name => {
      const one = reading.cells.find(cell => cell.cell === name), own = name === reading.own_cell, box = make('div', { class: `cell${own ? ' own' : ''}${one.change === null ? ' off' : ''}`, role: 'cell' });
      if (one.change === null) { box.append(make('span', { class: 'muted', text: one.why })); return box; }
      const bar = make('i'), mark = make('b', { class: 'mark', title: 'mean over random orders', hidden: !usual.has(name) });
      bar.style.width = `${(this.isUnknown() ? 0 : 100 * one.change / most).toFixed(2)}%`;
      mark.style.left = `${(100 * (usual.get(name) ?? 0) / most).toFixed(2)}%`;
      box.append(make('strong', { text: isSame(reading.order) || this.isUnknown() ? '–' : bits(one.change, reading.in_bits) }), make('span', { class: 'bar-of' }, bar, mark),
        make('small', { text: usual.has(name) && usual.get(name) !== null ? `random orders ${bits(usual.get(name), reading.in_bits)}` : own ? 'the model as it is' : '' }));
      if (own) { box.title = 'The model as it is'; }
      return box;
    };
    this.table.replaceChildren(corner(''), corner('positions'), corner('no positions'), corner('mask'), cellOf('pe_causal'), cellOf('nope_causal'), corner('no mask'), cellOf('pe_full'), cellOf('nope_full'));
  },

  // --- the map of swaps ---

  grid(width, height) { const n = this.reading.tokens.length, left = 12 + 8 * Math.max(...this.reading.tokens.map(name => [...short(name, 3)].length)), side = Math.min(width - left - 4, height - 26) / n; return { n, side, left, top: 4 }; },
  shade(swap) {
    if (swap.same) { return colour('paper'); }
    if (swap.change <= this.swaps.rounding) { return colour('zero'); }
    const top = Math.log10(Math.max(1e-6, this.largest)), share = Math.max(0.05, Math.min(1, 1 - (top - Math.log10(swap.change)) / 5)); // five powers of ten
    return mixed(colour('zero'), colour('accent'), share);
  },
  drawMap(pen, width, height) {
    if (!this.reading || !this.swaps) { return; }
    const { n, side, left, top } = this.grid(width, height), gap = side > 6 ? 1 : 0.3, last = this.swaps.swaps.reduce((most, one) => Math.max(most, one.second), 0);
    if (last >= n) { return; }
    this.largest = Math.max(...this.swaps.swaps.map(one => one.change));
    for (const one of this.swaps.swaps) {
      const x = left + one.first * side, y = top + one.second * side, free = !one.same && one.change <= this.swaps.threshold;
      pen.rect(x, y, side - gap, side - gap, { fill: this.shade(one) });
      if (one.same) { pen.line([x + 0.2 * side, y + 0.8 * side, x + 0.8 * side, y + 0.2 * side], { stroke: colour('grid'), width: 1 }); }
      else if (one.change <= this.swaps.rounding) { pen.circle(x + side / 2, y + side / 2, Math.max(1, 0.14 * side), { fill: colour('muted') }); }
      else if (free) { pen.circle(x + side / 2, y + side / 2, Math.max(1, 0.12 * side), { stroke: colour('muted'), width: 1 }); }
    }
    const every = Math.ceil(12 / side), { tokens } = this.reading;
    let free = 0; // where the next name below the map has room
    tokens.forEach((name, k) => {
      if (k % every) { return; }
      const text = short(name, side > 18 ? 3 : 2);
      pen.text(left - 4, top + (k + 0.72) * side, text, { fill: placeColour(n > 1 ? k / (n - 1) : 0), size: Math.max(8, Math.min(12, 0.8 * side * every)), align: 'right', weight: 600 });
      const half = 4 * [...text].length, middle = left + (k + 0.5) * side;
      if (middle - half < free) { return; }
      free = middle + half;
      pen.text(middle, top + n * side + 12, text, { fill: placeColour(n > 1 ? k / (n - 1) : 0), size: Math.max(8, Math.min(12, 0.8 * side * every)), align: 'center', weight: 600 });
    });
    this.drawKey(pen, width, Math.max(left + 112, Math.min(left + 0.52 * n * side, width - 186)), top + 4);
    if (this.pointed) { const { first, second } = this.pointed; pen.rect(left + first * side, top + second * side, side - gap, side - gap, { stroke: colour('ink'), width: 1.6 }); }
  },
  drawKey(pen, width, x, y) {
    const rows = [[0.9, `${bits(this.largest, this.swaps.in_bits)}, the most`], [0.1, 'little'], ['free', `under 1 % of random orders`], ['none', 'none at all, but rounding'], ['same', 'the same token twice']];
    rows.forEach(([kind, text], k) => {
      const top = y + 19 * k;
      if (x + 120 > width || x < 22 + (top + 12) * 1.05) { return; } // no room beside the map
      pen.rect(x, top, 12, 12, { fill: typeof kind === 'number' ? mixed(colour('zero'), colour('accent'), kind) : kind === 'same' ? colour('paper') : kind === 'free' ? mixed(colour('zero'), colour('accent'), 0.1) : colour('zero') });
      if (kind === 'free') { pen.circle(x + 6, top + 6, 2, { stroke: colour('muted') }); }
      if (kind === 'none') { pen.circle(x + 6, top + 6, 2, { fill: colour('muted') }); }
      if (kind === 'same') { pen.line([x + 2, top + 10, x + 10, top + 2], { stroke: colour('grid') }); }
      pen.text(x + 18, top + 10, text, { fill: colour('muted'), size: 11.5 });
    });
  },
  mapPointing() {
    const { canvas } = this.map;
    const at = event => {
      if (!this.swaps || !this.reading) { return null; }
      const { side, left, top } = this.grid(...this.map.size()), a = Math.floor((event.offsetX - left) / side), b = Math.floor((event.offsetY - top) / side);
      return this.swaps.swaps.find(one => one.first === Math.min(a, b) && one.second === Math.max(a, b)) ?? null;
    };
    canvas.addEventListener('pointermove', event => { const found = at(event); if (found !== this.pointed) { this.pointed = found; this.map.soon(); this.sayMap(); } });
    canvas.addEventListener('pointerleave', () => { this.pointed = null; this.map.soon(); this.sayMap(); });
    const swap = found => {
      if (!found) { return; }
      const order = identity(this.reading.tokens.length);
      [order[found.first], order[found.second]] = [order[found.second], order[found.first]];
      this.go(order);
    };
    canvas.addEventListener('click', event => swap(at(event)));
    canvas.tabIndex = 0;
    canvas.addEventListener('keydown', event => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key], all = this.swaps?.swaps ?? [];
      if (event.key === 'Enter') { swap(this.pointed); }
      if (!step || !all.length) { return; }
      event.preventDefault();
      const ahead = one => (one.first - this.pointed.first) * step[0] + (one.second - this.pointed.second) * step[1], aside = one => Math.abs((one.first - this.pointed.first) * step[1]) + Math.abs((one.second - this.pointed.second) * step[0]);
      // The nearest that way: some places cannot be swapped, and of neighbours only a diagonal is there.
      this.pointed = this.pointed ? all.filter(one => ahead(one) > 0).sort((a, b) => ahead(a) + 2 * aside(a) - ahead(b) - 2 * aside(b))[0] ?? this.pointed : all[0];
      this.map.soon();
      this.sayMap();
    });
  },
  sayMap() {
    const { swaps, reading, pointed } = this;
    if (!swaps || !reading) { this.mapWords.textContent = ''; return; }
    if (pointed) {
      const name = k => `“${tokenText(reading.tokens[k])}” (${k})`;
      this.mapWords.textContent = `${name(pointed.first)} and ${name(pointed.second)} swapped: ${pointed.same ? 'the same token, nothing changes' : bits(pointed.change, swaps.in_bits)}. Click, or Enter, to see it.`;
      return;
    }
    const real = swaps.swaps.filter(one => !one.same), none = real.filter(one => one.change <= swaps.rounding).length, free = real.filter(one => one.change <= swaps.threshold).length;
    this.mapWords.textContent = `Of ${real.length} swaps of ${swaps.which === 'all' ? 'two different tokens' : 'different neighbours'} the model cannot tell ${none} from the ${nounOf(this.app)} at all (beyond rounding), and ${free} move the prediction by less than 1 % of what a random order does (${bits(swaps.threshold, swaps.in_bits)}).`;
  },

  // --- what can be taken along ---

  picture() { return this.map.canvas; },
  python() { return this.reading ? withLevels(this.reading.python, givenOf(this.app)) : '# nothing was run yet'; },
  rows() {
    const { reading, swaps, usual } = this;
    if (!reading) { return [['nothing was run yet']]; }
    return [['what', 'cell', 'first', 'second', 'value'],
      ['order', '', '', '', reading.order.join(' ')],
      ...reading.cells.map(one => ['change', one.cell, '', '', one.change]),
      ...(usual?.cells ?? []).map(one => ['mean over random orders', one.cell, '', '', one.change]),
      ...(swaps?.swaps ?? []).map(one => ['swap', swaps.cell, one.first, one.second, one.change])];
  },
};
