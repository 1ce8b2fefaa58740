// The tour: five stops of two minutes, each a state of the page with one paragraph.
import { button, make } from './charts.js';

const STOPS = [
  { title: 'Why tokens cluster', state: { room: 'flow', system: 'aligned', norm: 'sphere', d: '3', n: '64', beta: '4', until: '12', v: '1', mask: 'full', enc: 'none', heads: '1' },
    text: 'Each point is the direction of a token: with a norm in front of every block, that is all a block sees of it. Here W = V = I, so a token looks most at those that point its way, and attention moves it towards the mean of what it looks at. Near tokens draw together first, and only later do the groups meet: the curve of clusters falls, rests and falls again. Lower β, and attention looks at everyone: all meet at once. Make v negative, and tokens are pushed away from what they look at. Drag a token to another group and watch both answer.' },
  { title: 'Why the first token is special', state: { room: 'flow', system: 'aligned', norm: 'sphere', d: '3', n: '48', beta: '1', until: '12', v: '1', mask: 'causal', enc: 'none', heads: '1' },
    text: 'Under a causal mask the first token (blue) sees nobody but itself, and with V = I it does not turn at all. Everyone else sees it. The second token can only turn towards the first, the third towards these two, and so on: from almost every start all of them end in the direction of the first. That is a theorem, N3, and it asks nothing of the scores. Drag the blue token: you steer the whole context. Trained models are not this flow, but many look at their first token more than its word deserves (arXiv 2309.17453).' },
  { title: 'What rotary changes', state: { room: 'flow', system: 'aligned', norm: 'sphere', d: '3', n: '64', beta: '4', until: '12', v: '1', mask: 'full', enc: 'rotary', heads: '1' },
    text: 'The flow of the first stop, with a rotary encoding: queries and keys are turned about the upright axis by an angle that grows with their position, so that a score depends on how far apart two tokens stand. Around the axis each token now looks at partners of its own, and their pulls nearly cancel. Along the axis nothing is turned, so tokens go on agreeing there, and almost all of them end at one of the two poles. N6, by which the energy cannot fall, needs scores that know no positions: its badge is out. N4 asks only how large scores can be, and stays. Set the encoding to none, and the groups of the first stop come back. A head of a model turns many planes at different speeds: choose one, and move its base.' },
  { title: 'What order costs', state: { room: 'order' },
    text: 'Full attention without positions reads a sentence as a set: its last prediction cannot change when the tokens before it change places. That is a symmetry, and it is proved. Two things break it: an encoding of positions, and a causal mask once there are two layers. Here the model reads a sentence in another order, and the change of its prediction is counted in bits, with and without its encoding, with and without its mask. What is left where both are gone is rounding. Drag a token, or shuffle again; the map beside it shows what every single swap would do.' },
  { title: 'What a proof covers', state: { room: 'flow', system: 'symmetric-pd', norm: 'free', d: '3', n: '40', beta: '1', until: '4', v: '1', mask: 'full', enc: 'none', heads: '1' },
    text: 'A green badge is a theorem whose every hypothesis was checked for this flow and this start, with the margin by which it holds. It speaks of an idealised flow: one head, repeated at every depth, without an MLP. Make the mask causal, and T1 goes out, since every token then has a potential of its own; take two heads, and T2 goes too. Choose a head of the model instead, and few badges are lit: that is the honest answer. What theorems leave open is measured, in the room Model.' },
];

let app, place, at = -1;
// The reader's own sentence stays; where it is the page's own, the stop about order shows one that the page knows.
function stateOf(k) {
  const { text, sample, own } = app.state.get(), shuffled = app.data.rooms.order?.shuffles?.[0], isOwn = text === undefined && sample === undefined && own === undefined;
  return { text, sample, own, ...STOPS[k].state, ...(STOPS[k].state.room === 'order' && isOwn && shuffled ? { order: shuffled.join('.') } : {}), tour: String(k + 1) };
}
const here = () => STOPS.findIndex(stop => Object.entries(stop.state).every(([key, value]) => (app.state.get()[key] ?? 'flow') === value));

function go(k) {
  at = k;
  place.hidden = k < 0;
  document.body.classList.toggle('touring', k >= 0);
  if (k < 0) { app.state.set({ tour: null }); return; }
  app.state.replace(stateOf(k));
  draw();
}
function draw() {
  const stop = STOPS[at], dots = STOPS.map((one, k) => button('', `${k + 1}. ${one.title}`, () => go(k), { class: 'dot', 'aria-label': `Stop ${k + 1}: ${one.title}`, 'aria-current': k === at ? 'step' : null }));
  const away = here() !== at;
  place.replaceChildren(make('p', { class: 'count', text: `Stop ${at + 1} of ${STOPS.length}` }), make('h2', { tabindex: -1, text: stop.title }), make('p', { class: 'text', text: stop.text }),
    make('div', { class: 'ways' }, make('span', { class: 'dots' }, ...dots), away ? button('Back to this stop', 'Set the page as this stop has it', () => go(at)) : null,
      button('Previous', 'The stop before', () => go(at - 1), { disabled: at === 0 }), at < STOPS.length - 1 ? button('Next', 'The next stop', () => go(at + 1), { class: 'strong' }) : button('Done', 'End the tour', () => go(-1), { class: 'strong' }),
      button('✕', 'End the tour', () => go(-1), { class: 'close', 'aria-label': 'End the tour' })));
}

export const tour = {
  stops: STOPS,
  mount(element, given) {
    [place, app] = [element, given];
    const first = Number(app.state.get().tour);
    if (first >= 1 && first <= STOPS.length) {
      at = first - 1;
      place.hidden = false;
      document.body.classList.add('touring');
      if (Object.keys(app.state.get()).every(key => ['room', 'tour', 'theme'].includes(key))) { app.state.replace(stateOf(at)); }
      draw();
    }
    app.state.subscribe(() => { if (at >= 0) { draw(); } });
    addEventListener('keydown', event => { if (event.key === 'Escape' && at >= 0 && !event.defaultPrevented) { go(-1); } });
  },
  toggle() { go(at < 0 ? 0 : -1); if (at >= 0) { place.querySelector('h2').focus(); } },
};
