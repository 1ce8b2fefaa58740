// The sentence that the rooms Model and Order share: its box, what is asked of the server about it, and how that goes.
import { button, make } from './charts.js';

const percent = share => `${Math.round(100 * share)} %`;
const picture = { levels: null, name: '' }; // an image that the reader chose stays in the page, not in its address

// What is run, as parameters of every question; what a page begins with where nothing was typed.
export function givenOf(app, state = app.state.get()) {
  const start = app.data.rooms.start ?? { text: app.data.text };
  if (!app.data.live) { return start; } // a frozen page has one, whatever a link from elsewhere says
  if (app.data.model.reads === 'images') {
    const levels = picture.levels ?? (state.sample === undefined ? start.levels : undefined);
    return levels ? { levels } : { sample: Number(state.sample ?? start.sample ?? 0) };
  }
  const kind = 'ids' in start ? 'ids' : 'text';
  return { [kind]: state.text ?? start[kind] };
}
// The sentence in words, and as Python.
export const givenWords = given => given.text !== undefined ? `“${given.text.length > 44 ? `${given.text.slice(0, 42)}…` : given.text}”` : given.ids !== undefined ? 'a row of token ids' : given.levels ? 'your picture' : `image ${given.sample + 1} of noise`;
// What this model reads, in a word.
export const nounOf = app => app.data.model.reads === 'images' ? 'image' : app.data.model.reads === 'tokens' ? 'row of tokens' : 'sentence';
const quoted = text => JSON.stringify(text).replace(/[\u007f-\uffff]/g, c => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
export const py = value => typeof value === 'string' ? quoted(value) : String(value);
export const givenPython = given => `Prompt(${Object.entries(given).map(([name, value]) => `${name}=${name === 'levels' ? LEVELS : py(value)}`).join(', ')})`;
const LEVELS = 'LEVELS';
// The levels of a picture stand in front of the Python that names them.
export const withLevels = (code, given) => given.levels ? `${LEVELS} = (${given.levels.join(', ')})\n\n${code}` : code;
export const sameGiven = (a, b) => a !== null && b !== null && JSON.stringify(a) === JSON.stringify(b);

// A line that says what goes on: progress with a way to stop, a cost with a way to agree, an error, or nothing.
export function statusLine() {
  const box = make('p', { class: 'status', role: 'status', 'aria-live': 'polite' });
  let stopNow = () => {};
  const bar = make('progress', { max: 1 }), said = make('span'), halt = button('Stop', 'Stop this', () => stopNow(), { class: 'small' });
  const only = (kind, ...parts) => { box.className = `status ${kind}`; box.replaceChildren(...parts); };
  return {
    box,
    clear: () => only(''),
    // What was said of an earlier question is not true of the next one; progress is, and stays.
    anew: () => { if (!box.classList.contains('busy')) { only(''); } },
    // The parts stay while progress comes: a button that is made anew many times a second cannot be pressed.
    busy(what, share, stop) {
      stopNow = stop;
      if (!box.classList.contains('busy')) { only('busy', bar, said, halt); }
      bar.setAttribute('aria-label', what);
      if (share === null || share === undefined) { bar.removeAttribute('value'); } else { bar.value = share; }
      said.textContent = share ? `${what}, ${percent(share)}` : `${what} …`;
    },
    cost: (words, go) => only('cost', make('span', { text: `This takes ${words} with this model.` }), button('Run it', 'Run it now', go, { class: 'small' })),
    fail: (message, again) => only('fail', make('span', { text: message }), ...(again ? [button('Try again', 'Ask again', again, { class: 'small' })] : [])),
  };
}

// What is wrong with a sentence is wrong for every question about it: it is said by the first.
export function sayOnce(first, second) { if (first.box.classList.contains('fail') && first.box.textContent === second.box.textContent) { second.clear(); } }

// Asks one kind of question: a newer one stops the older; nothing is thrown, null means that there is no answer.
export function asker(app, name, status) {
  let now = null;
  const ask = async (params, done) => {
    now?.abort();
    const mine = now = new AbortController(), stop = () => { mine.abort(); status.clear(); };
    const late = setTimeout(() => { if (mine === now) { status.busy('asking the model', null, stop); } }, 180); // what is quick needs no bar
    let result = null;
    try {
      result = await app.api(name, params, { signal: mine.signal, progress: (share, what) => { if (mine === now && performance.now() - began > 180) { status.busy(what, share, stop); } } });
      if (mine !== now) { return; }
      if (result?.cost) { status.cost(result.cost.words, () => ask({ ...params, agreed: true }, done)); return; }
      status.clear();
    } catch (error) {
      if (mine === now && error.name !== 'AbortError') { status.fail(error.message, app.data.live ? () => ask(params, done) : null); done(null); }
      return;
    } finally { clearTimeout(late); }
    done(result);
  };
  let began = 0;
  const start = (params, done) => { began = performance.now(); status.anew(); return ask(params, done); };
  start.stop = () => { now?.abort(); now = null; status.clear(); };
  return start;
}

// --- the box ---------------------------------------------------------------------------------

export function sentenceBox(app, { what }) {
  return app.data.model.reads === 'images' ? imageBox(app, what) : textBox(app, what);
}
function textBox(app, what) {
  const isIds = 'ids' in (app.data.rooms.start ?? {}), frozen = !app.data.live;
  const field = make('textarea', { rows: 1, class: 'words', dir: 'auto', spellcheck: 'false', autocomplete: 'off', 'aria-label': isIds ? 'Token ids' : 'Your sentence', readonly: frozen,
    title: frozen ? app.data.why_frozen : isIds ? 'This model has no tokenizer beside its weights: type token ids, such as 5 17 3' : 'Type, then press Enter' });
  const grow = () => { field.style.height = 'auto'; field.style.height = `${Math.min(160, field.scrollHeight + 2)}px`; };
  const run = () => app.state.set({ text: field.value === (app.data.rooms.start?.text ?? app.data.rooms.start?.ids) ? null : field.value.slice(0, 200000) || ' ', order: null, picked: null, moved: null });
  field.addEventListener('keydown', event => { if (event.key === 'Enter' && !event.shiftKey) { event.preventDefault(); run(); } });
  field.addEventListener('input', grow);
  const go = button('Run', 'Run this sentence (Enter)', run, { class: 'go', disabled: frozen });
  const label = make('span', { class: 'label', text: isIds ? 'Token ids' : what });
  const hint = make('span', { class: 'hint', text: frozen ? app.data.why_frozen.replace(/^This needs/, 'Another sentence needs') : isIds ? 'No tokenizer lies beside these weights: type ids, separated by blanks or commas.' : '' });
  return {
    box: make('div', { class: 'sentence' }, make('label', {}, label, field), go, hint),
    set(state) { const given = givenOf(app, state), text = given.text ?? given.ids; if (field.value !== text) { field.value = text; } requestAnimationFrame(grow); },
  };
}
function imageBox(app, what) {
  const { shape, n_samples: n } = app.data.rooms.image, hint = make('span', { class: 'hint', text: app.data.live ? '' : app.data.why_frozen });
  const list = make('select', { 'aria-label': 'Sample', onchange: () => { picture.levels = null; app.state.set({ sample: list.value, order: null, picked: null, own: null }); } });
  for (let k = 0; k < n; k += 1) { list.append(make('option', { value: k, text: `noise ${k + 1}`, disabled: !app.data.live && k > 0 })); }
  list.append(make('option', { value: 'own', text: 'your picture', disabled: true, hidden: true }));
  const file = make('input', { type: 'file', accept: 'image/*', 'aria-label': 'Choose a picture', disabled: !app.data.live });
  file.addEventListener('change', async () => {
    if (!file.files.length) { return; }
    try {
      picture.levels = await levelsOf(file.files[0], shape);
      hint.textContent = '';
      app.state.set({ own: String(Date.now()), order: null, picked: null });
    } catch (error) {
      if (!(error instanceof DOMException)) { throw error; }
      hint.textContent = 'This file is no picture that the browser can read. Choose a PNG or JPEG.';
    }
  });
  const small = make('img', { class: 'chosen', alt: 'The picture as the model gets it', hidden: true });
  return {
    box: make('div', { class: 'sentence' }, make('span', { class: 'label', text: what.replace('sentence', 'image') }), small, list, make('label', { class: 'file' }, make('span', { text: 'or a picture of yours, scaled to the model:' }), file), hint),
    set(state) { list.value = state.sample ?? '0'; const url = pictureOf(app, givenOf(app, state)); small.hidden = url === null; if (url !== null) { small.src = url; list.value = 'own'; } },
  };
}
// A picture as the levels of a model's pixels, channels last; it never leaves this machine.
async function levelsOf(file, [channels, height, width]) {
  const bitmap = await createImageBitmap(file), canvas = make('canvas', { width, height }), context = canvas.getContext('2d');
  context.drawImage(bitmap, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height), levels = [];
  for (let i = 0; i < data.length; i += 4) {
    const rgb = [data[i], data[i + 1], data[i + 2]];
    levels.push(...(channels === 1 ? [Math.round(0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2])] : rgb));
  }
  return levels;
}
// The picture that a model is given, as an address that an element can be painted with; null for noise, whose levels only the model knows.
const painted = { levels: null, url: null };
export function pictureOf(app, { levels } = givenOf(app)) {
  if (!levels) { return null; }
  if (painted.levels !== levels) {
    const [channels, height, width] = app.data.rooms.image.shape, canvas = make('canvas', { width, height }), context = canvas.getContext('2d'), image = context.createImageData(width, height);
    for (let k = 0; k < width * height; k += 1) { for (let c = 0; c < 3; c += 1) { image.data[4 * k + c] = levels[channels * k + Math.min(c, channels - 1)]; } image.data[4 * k + 3] = 255; }
    context.putImageData(image, 0, 0);
    Object.assign(painted, { levels, url: canvas.toDataURL() });
  }
  return painted.url;
}
export const noteList = notes => make('p', { class: 'notes', text: notes.length ? `Note: ${notes.join('; ')}.` : '' });

// A token as a reader can see it: blanks and breaks get a sign; patches of images a short name.
export function tokenText(name) {
  const patch = /^patch at row (\d+), column (\d+)$/.exec(name);
  if (patch) { return `${patch[1]},${patch[2]}`; }
  return { ' ': '␣', '\n': '↵', '\t': '⇥', '': '∅' }[name] ?? name.replaceAll('\n', '↵').replace(/^ /, '␣').replace(/ $/, '␣');
}
export const short = (name, most = 14) => { const text = tokenText(name), signs = [...text]; return signs.length > most ? `${signs.slice(0, most - 1).join('')}…` : text; };
// The bars of two predictions, side by side.
export function outcomeList(before, after, labels = ['as it is', 'now']) {
  const rows = new Map();
  for (const one of before) { rows.set(one.name, [one.probability, 0]); }
  for (const one of after ?? []) { const row = rows.get(one.name) ?? [0, 0]; row[1] = one.probability; rows.set(one.name, row); }
  const ranked = [...rows].sort((a, b) => Math.max(...b[1]) - Math.max(...a[1])).slice(0, 10), most = Math.max(1e-9, ...ranked.flatMap(([, values]) => values));
  const bar = (value, kind) => { const made = make('i', { class: kind }); made.style.width = `${(100 * value / most).toFixed(2)}%`; return made; };
  const list = make('table', { class: 'outcomes' }, make('thead', {}, make('tr', {}, make('th', { scope: 'col', text: 'outcome' }), make('th', { scope: 'col', text: '' }), make('th', { scope: 'col', text: labels[0] }), ...(after ? [make('th', { scope: 'col', text: labels[1] })] : []))));
  const body = make('tbody');
  for (const [name, [first, second]] of ranked) {
    body.append(make('tr', {}, make('th', { scope: 'row' }, make('bdi', { text: short(name, 12), title: name })), make('td', { class: 'bars' }, bar(first, 'first'), ...(after ? [bar(second, 'second')] : [])),
      make('td', { text: sharePercent(first) }), ...(after ? [make('td', { text: sharePercent(second) })] : [])));
  }
  list.append(body);
  return list;
}
export const sharePercent = p => p >= 0.0995 ? `${Math.round(100 * p)} %` : p >= 0.0005 ? `${(100 * p).toFixed(1)} %` : p > 0 ? '< 0.1 %' : '–';
export const bits = (value, inBits) => value === null || value === undefined ? '–' : inBits ? (value < 1e-9 ? '0 bits' : `${value >= 0.0995 ? value.toFixed(2) : value >= 0.001 ? value.toPrecision(2) : value.toExponential(0).replace('e-', '·10⁻').replace(/\d+$/, d => [...d].map(c => '⁰¹²³⁴⁵⁶⁷⁸⁹'[c]).join(''))} bits`) : value < 1e-5 ? '< 0.001\u00a0%' : `${(100 * value).toPrecision(2)}\u00a0%`;
