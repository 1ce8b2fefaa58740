// The tour: five stops of two minutes, each a state of the page with one paragraph.
import { button, make } from './charts.js';

const STOPS = [
  { title: 'Why tokens cluster', state: { room: 'flow', system: 'aligned', norm: 'sphere', d: '3', n: '64', beta: '4', until: '12', v: '1', mask: 'full', enc: 'none', heads: '1' },
    text: 'Each point is the direction of a token; a norm in front of every block lets a Transformer see nothing else. Attention moves a token towards a mean of the tokens it looks at, and it looks most at those that are near. So near tokens draw together, and only later do the groups meet: the curve of clusters falls in steps. Lower β, and attention looks at everyone: all meet at once. Turn v negative, and the value map pushes away what attention chose. Drag a token to another group and watch both answer.' },
  { title: 'Why the first token is special', state: { room: 'flow', system: 'aligned', norm: 'sphere', d: '3', n: '48', beta: '1', until: '12', v: '1', mask: 'causal', enc: 'none', heads: '1' },
    text: 'Under a causal mask the first token (blue) sees nobody but itself. With V = I it does not turn at all, and everyone sees it. Token 2 can only turn towards token 1, token 3 towards the two before it, and so on: for almost every start all of them end in the direction of the first (N3, and that is a theorem). Its word hardly matters. Trained models use such a token as a place to look at when there is nothing to say. Drag the blue token: you steer the whole context.' },
  { title: 'What rotary changes', state: { room: 'flow', system: 'symmetric-nd', norm: 'free', d: '2', n: '32', beta: '1', until: '20', v: '1', mask: 'full', enc: 'rotary', base: '10000', heads: '1' },
    text: 'Without positions this system is certified to converge: T1 and T2 hold, and all tokens fall to 0. A rotary encoding turns queries and keys by an angle that grows with the position, so a score depends on how far apart two tokens stand. That breaks the hypotheses of T1 and T2: their badges go out, and nothing is proved any more of where the cloud goes. T3 to T5 never asked about scores, so they are unmoved. Switch the encoding to none to light the badges again; change the base to turn faster or slower.' },
  { title: 'What order costs', state: { room: 'order' },
    text: 'Full attention without positions treats a sentence as a set: its last prediction cannot change when the tokens before it change places. That is a symmetry, and it can be proved. Two things break it: an encoding of positions, and a causal mask once there are two layers. Here the model reads your sentence in another order, and the change of its prediction is counted in bits, with and without its encoding, with and without its mask: what is left in the corner without either is rounding.' },
  { title: 'What a proof covers', state: { room: 'flow', system: 'symmetric-pd', norm: 'free', d: '3', n: '40', beta: '1', until: '4', v: '1', mask: 'full', enc: 'none', heads: '1' },
    text: 'A green badge is a theorem whose every hypothesis was checked for this flow and this start, with the margin by which it holds. It speaks of this idealised flow: one head, repeated at every depth, and no MLP. Switch the mask to causal and T1 goes out, because each token now has a potential of its own; take two heads, and T2 goes too. Choose a head of the model instead: few badges stay, and that is the honest answer. What is left open there is measured, in the room Model.' },
];

let app, place, at = -1;
const here = () => STOPS.findIndex(stop => Object.entries(stop.state).every(([key, value]) => (app.state.get()[key] ?? 'flow') === value));

function go(k) {
  at = k;
  place.hidden = k < 0;
  document.documentElement.classList.toggle('touring', k >= 0);
  if (k < 0) { app.state.set({ tour: null }); return; }
  app.state.replace({ ...STOPS[k].state, tour: String(k + 1) });
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
    if (first >= 1 && first <= STOPS.length) { at = first - 1; place.hidden = false; document.documentElement.classList.add('touring'); draw(); }
    app.state.subscribe(() => { if (at >= 0) { draw(); } });
    addEventListener('keydown', event => { if (event.key === 'Escape' && at >= 0 && !event.defaultPrevented) { go(-1); } });
  },
  toggle() { go(at < 0 ? 0 : -1); if (at >= 0) { place.querySelector('h2').focus(); } },
};
