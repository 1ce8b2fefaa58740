// The shell: rooms and their tabs, one selection kept in the address, the theme, questions to the server, files.
import { button, forgetColours, make } from './charts.js';
import { flow } from './flow.js';
import { model } from './model.js';
import { order } from './order.js';
import { saveCSV, savePage, savePNG, saveSVG } from './files.js';
import { asker, givenOf, statusLine } from './sentence.js';
import { tour } from './tour.js';

const data = JSON.parse(document.getElementById('explorer-data').textContent);
const rooms = window.rooms = { flow, model, order };
const NAMES = { flow: 'Flow', model: 'Model', order: 'Order' }, THEMES = { auto: 'Theme: as the system', light: 'Theme: light', dark: 'Theme: dark' };
const root = document.documentElement, main = document.getElementById('main');

// --- one selection, in the address -----------------------------------------------------------

const parsed = text => Object.fromEntries(new URLSearchParams(text)), read = () => parsed(location.hash.slice(1));
const DEFAULTS = { room: 'flow' };
let selection = { ...DEFAULTS, ...(location.hash.length > 1 ? read() : parsed(data.opens)) };
const listeners = new Set();
const address = () => new URLSearchParams(Object.entries(selection).filter(([key, value]) => value !== undefined && value !== null && value !== '' && DEFAULTS[key] !== value)).toString();
let written = null;
function write() {
  const text = address();
  written = text;
  try { history.replaceState(null, '', text ? `#${text}` : '#'); }
  catch (error) { if (!(error instanceof DOMException)) { throw error; } } // a frame in a notebook has no address of its own: the selection stays in memory
}
let writing = 0;
const state = {
  get: () => ({ ...selection }),
  set(patch) {
    const next = { ...selection };
    for (const [key, value] of Object.entries(patch)) {
      if (value === undefined || value === null || value === '') { delete next[key]; } else { next[key] = String(value); }
    }
    if (Object.keys({ ...next, ...selection }).every(key => next[key] === selection[key])) { return; }
    const before = selection;
    selection = next;
    clearTimeout(writing);
    writing = setTimeout(write, 120); // browsers count how often an address changes
    listeners.forEach(one => one(state.get(), before));
  },
  // Another state altogether: a stop of the tour, a link.
  replace(whole) { const gone = Object.keys(selection).filter(key => !(key in whole) && key !== 'theme'); state.set({ ...Object.fromEntries(gone.map(key => [key, null])), ...DEFAULTS, ...whole }); },
  subscribe(one) { listeners.add(one); return () => listeners.delete(one); },
};
addEventListener('hashchange', () => { if (location.hash.slice(1) !== written) { state.replace(read()); } });

// --- questions -------------------------------------------------------------------------------

const token = new URLSearchParams(location.search).get('token') ?? '';
const keyOf = params => JSON.stringify(Object.fromEntries(Object.entries(params).sort(([a], [b]) => a < b ? -1 : 1)));
const LOST = 'The connection was lost. Is `orbitlens explore` still running? What is on the page stays.';

// A frozen page knows one sentence, and some questions about it.
function frozenAnswer(name, { text, ids, sample, levels, ...rest }) {
  const own = data.rooms.start ?? {}, same = Object.entries({ text, ids, sample, levels }).every(([key, value]) => value === undefined || JSON.stringify(value) === JSON.stringify(own[key]));
  const found = same ? data.frozen?.[name]?.[keyOf(rest)] : undefined;
  if (found === undefined) { throw new Error(data.why_frozen); }
  return found;
}
async function api(name, params = {}, { signal, progress } = {}) {
  if (!data.live) { return frozenAnswer(name, params); }
  let response;
  try {
    response = await fetch(`api/${name}`, { method: 'POST', signal, headers: { 'Content-Type': 'application/json', 'X-Token': token }, body: JSON.stringify(params) });
  } catch (error) {
    if (error.name === 'AbortError') { throw error; }
    throw new Error(LOST);
  }
  return answerOf(response, progress);
}
// An answer is lines of JSON: any number of {progress, what}, then {result} or {error}.
async function answerOf(response, progress) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let text = '', last = null;
  const take = line => {
    if (!line.trim()) { return; }
    const said = JSON.parse(line);
    if ('progress' in said) { progress?.(said.progress, said.what); } else { last = said; }
  };
  for (;;) {
    let part;
    try { part = await reader.read(); }
    catch (error) { if (error.name === 'AbortError') { throw error; } throw new Error(LOST); }
    text += decoder.decode(part.value ?? new Uint8Array(), { stream: !part.done });
    const lines = text.split('\n');
    text = lines.pop();
    lines.forEach(take);
    if (part.done) { take(text); break; }
  }
  if (last === null) { throw new Error(LOST); }
  if (last.error !== undefined) { throw new Error(last.error); }
  return last.result;
}

// --- words and files -------------------------------------------------------------------------

const toast = document.querySelector('.toast');
let fading = 0;
function say(words) {
  toast.textContent = words;
  toast.classList.add('on');
  clearTimeout(fading);
  fading = setTimeout(() => toast.classList.remove('on'), 2600);
}
async function copyPython(code) {
  const show = document.querySelector('.code') ?? make('dialog', { class: 'code', 'aria-label': 'Python' });
  try {
    await navigator.clipboard.writeText(code);
    say('Python copied.');
  } catch { // no permission, or no clipboard at all: show it, so that it can be copied by hand
    show.replaceChildren(make('p', { text: 'This state as Python:' }), make('textarea', { readonly: true, rows: 16, 'aria-label': 'Python' }), button('Close', 'Close', () => show.close()));
    show.querySelector('textarea').value = code;
    document.body.append(show);
    show.showModal();
    show.querySelector('textarea').select();
  }
  return code;
}

const app = { tour: tour.stops, data, state, api, say, copyPython, saveSVG, savePNG, saveCSV, calm: () => matchMedia('(prefers-reduced-motion: reduce)').matches };

window.explorer = app; // for who wants to ask the page from a console

// --- rooms -----------------------------------------------------------------------------------

const tabs = document.querySelector('.tabs'), places = {};
for (const [name, title] of Object.entries(NAMES)) {
  const tab = button(title, `The room ${title}`, () => state.set({ room: name }), { role: 'tab', id: `tab-${name}`, 'aria-controls': `room-${name}` });
  const place = make('section', { class: `room room-${name}`, id: `room-${name}`, role: 'tabpanel', 'aria-labelledby': `tab-${name}`, hidden: true });
  tabs.append(tab);
  main.append(place);
  places[name] = { tab, place, mounted: false };
}
tabs.addEventListener('keydown', event => {
  const names = Object.keys(NAMES), k = names.indexOf(selection.room), step = { ArrowRight: 1, ArrowLeft: -1, Home: -k, End: names.length - 1 - k }[event.key];
  if (step === undefined) { return; }
  event.preventDefault();
  const next = names[(k + step + names.length) % names.length];
  state.set({ room: next });
  places[next].tab.focus();
});
function showRoom() {
  const wanted = NAMES[selection.room] ? selection.room : 'flow';
  for (const [name, one] of Object.entries(places)) {
    const on = name === wanted;
    one.tab.setAttribute('aria-selected', on);
    one.tab.tabIndex = on ? 0 : -1;
    if (!on && !one.place.hidden) { one.place.hidden = true; rooms[name].hide(); }
    if (!on) { continue; }
    one.place.hidden = false;
    if (!one.mounted) { rooms[name].mount(one.place, app); one.mounted = true; }
    rooms[name].show(state.get());
  }
  tools();
}

// --- theme and tools -------------------------------------------------------------------------

const themed = () => { root.dataset.theme = THEMES[selection.theme] ? selection.theme : 'auto'; forgetColours(); };
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { forgetColours(); rooms[selection.room]?.show(state.get()); });
const bar = document.querySelector('.tools');
const current = () => rooms[NAMES[selection.room] ? selection.room : 'flow'];
const nameOf = () => `${data.model.name}-${selection.room}`.toLowerCase().replace(/[^a-z0-9]+/g, '-');
const save = { SVG: () => saveSVG(`${nameOf()}.svg`, current().picture()), PNG: () => savePNG(`${nameOf()}.png`, current().picture()), CSV: () => saveCSV(`${nameOf()}.csv`, current().rows()) };
const parts = {
  freeze: data.live && data.rooms.model ? button('Freeze', 'This page as one offline file, as it is now', () => freeze()) : null,
  tour: button('Tour', 'A tour of two minutes, five stops', () => tour.toggle()),
  python: button('Copy as Python', 'Copy this state as Python that gives the same numbers', () => copyPython(current().python())),
  ...Object.fromEntries(Object.keys(save).map(kind => [kind, button(kind, `Save this picture as ${kind}`, () => save[kind]())])),
  theme: button('◐', '', () => state.set({ theme: { auto: 'dark', dark: 'light', light: null }[root.dataset.theme] }), { class: 'round' }),
};
parts.CSV.title = 'Save its numbers as CSV';
bar.append(...[parts.tour, parts.python, make('span', { class: 'files', role: 'group', 'aria-label': 'Save' }, parts.SVG, parts.PNG, parts.CSV), parts.freeze, parts.theme].filter(Boolean));
// The server runs all that a page in a file needs to know of the sentence in front; the file opens in this state.
const freezing = statusLine(), askToFreeze = asker(app, 'freeze', freezing);
document.querySelector('.bar').after(make('div', { class: 'under' }, freezing.box));
function freeze() {
  const { text, sample, own, tour: stop, ...shown } = selection, cuts = (selection.cuts ?? '').split(',').filter(Boolean).sort(), order = (selection.order ?? '').split('.').filter(Boolean).map(Number);
  askToFreeze({ ...givenOf(app), cuts, ...(order.length ? { order } : {}), state: new URLSearchParams(shown).toString() }, found => {
    if (!found) { return; }
    savePage(`${nameOf().replace(/-[a-z]+$/, '')}-explorer.html`, found.html);
    say('Frozen: the page is saved as one file.');
  });
}
function tools() {
  parts.python.disabled = !current().python;
  parts.SVG.disabled = parts.PNG.disabled = !current().picture;
  parts.CSV.disabled = !current().rows;
  parts.theme.title = `${THEMES[root.dataset.theme]}. Change it`;
  parts.theme.setAttribute('aria-label', parts.theme.title);
}

document.querySelector('.skip').addEventListener('click', event => { event.preventDefault(); main.focus(); });
state.subscribe((now, before) => {
  if (now.theme !== before.theme) { themed(); }
  showRoom();
});
themed();
tour.mount(document.querySelector('.tour'), app);
showRoom();
root.dataset.ready = 'yes';
