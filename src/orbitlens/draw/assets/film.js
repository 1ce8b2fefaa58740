// A film: points with trails over a panel, and the moment marked in the curves beside it.
import { drawPanel, moveLayers } from './figure.js';
import { player } from './player.js';
import { show } from './svg.js';

const film = JSON.parse(document.getElementById('film-data').textContent), last = film.times.length - 1, n = film.n_points;
const floats = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
const place = floats(film.positions), near = film.near && floats(film.near), NOW = '#D55E00';
const groups = [...new Set(film.colours)].map(colour => ({ colour, points: film.colours.flatMap((own, i) => own === colour ? [i] : []) }));

function trail(points, k, { length, opacity }, colour) {
  const x = [], y = [], hides = near && length < film.trails[0].length;
  for (const i of points) {
    for (let f = Math.max(0, k - length); f <= k; f++) {
      const at = f * n + i, seen = !(hides && near[at] < 0.5);
      x.push(seen ? place[2 * at] : null);
      y.push(seen ? place[2 * at + 1] : null);
    }
    x.push(null);
    y.push(null);
  }
  return { kind: 'curve', x, y, colour, opacity, width: 1.2, silent: true };
}
function pointsAt(k) {
  const all = film.colours.map((_, i) => k * n + i), share = i => near ? near[i] : 1;
  return { kind: 'points', x: all.map(i => place[2 * i]), y: all.map(i => place[2 * i + 1]), colours: film.colours, symbols: film.symbols,
    texts: film.texts, only_texts: true, opacities: all.map(i => 0.4 + 0.6 * share(i)), sizes: all.map(i => film.size * (film.far_size + (1 - film.far_size) * share(i))) };
}
const planeLayers = k => [...film.plane.layers, ...film.trails.flatMap(band => groups.map(({ colour, points }) => trail(points, k, band, colour))), pointsAt(k)];
function sideLayers(side, k) {
  const t = film.times[k], y = side.layers[0].y[k];
  return [...side.layers, { kind: 'level', at: t, vertical: true, colour: NOW, solid: true },
    ...(y === null ? [] : [{ kind: 'points', x: [t], y: [y], colour: NOW, size: 7, opacity: 1, silent: true }])];
}

const plane = document.getElementById('plane'), sides = [...document.querySelectorAll('.sides .plot')];
drawPanel(plane, { ...film.plane, zero: false, layers: planeLayers(last) });
sides.forEach((box, i) => drawPanel(box, { ...film.sides[i], zero: false, x_range: [film.times[0], film.times[last] || 1], layers: sideLayers(film.sides[i], last) }));
let shown = last;
const frame = moment => {
  const k = Math.floor(moment);
  if (k === shown) { return; }
  shown = k;
  moveLayers(plane, planeLayers(k));
  sides.forEach((box, i) => moveLayers(box, sideLayers(film.sides[i], k)));
};
const controls = player(document.querySelector('.player'), { last, frame, name: k => `t = ${show(film.times[k])}`, ms: film.frame_ms });
controls.go(last);
document.documentElement.dataset.ready = 'yes';
if (!controls.calm()) { controls.play(); }
