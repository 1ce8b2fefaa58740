// The page of a report: draw its charts, choose the first head, and put it on paper.
import { chooseMark, drawPanel, repaintAll } from '../../draw/assets/figure.js';
import { startDetail } from './detail.js';
import { downloadable } from './downloads.js';
import { startMaps } from './heads.js';
import { startAllOrbits } from './orbits.js';
import { choose, followAddress, fromAddress, onChoice } from './selection.js';
import { startTables } from './tables.js';

const root = document.documentElement, panels = JSON.parse(document.getElementById('panel-data').textContent);
const boxes = [...document.querySelectorAll('[data-panel]')].filter(box => box.dataset.panel !== '-1');
const modelOf = box => Number(box.closest('[data-model]')?.dataset.model ?? 0);

function startCharts() {
  boxes.forEach(box => {
    drawPanel(box, panels[Number(box.dataset.panel)]);
    box.addEventListener('choose', event => choose(modelOf(box), event.detail));
  });
  const marked = boxes.filter(box => box.panel.layers.some(layer => layer.keys));
  onChoice(({ k, key }) => marked.forEach(box => chooseMark(box, modelOf(box) === k ? key : null)));
}
// After the text has been painted: a reader sees words first.
requestAnimationFrame(() => setTimeout(() => {
  const strongest = startMaps(), asked = fromAddress();
  startDetail();
  startCharts();
  startTables();
  startAllOrbits({ playing: !asked });
  followAddress();
  const first = asked ?? strongest;
  if (first) { choose(first.k, first.key, { silent: true }); }
  downloadable(document);
  Object.assign(root.dataset, { ready: 'yes', drawn: 'all' });
}));
// A closed part has no size, so its charts are drawn when it is opened: the observer of `drawPanel` sees to that.
// On paper: light colours and the width of a sheet, drawn before the browser takes its picture.
addEventListener('beforeprint', () => { root.classList.add('printing'); repaintAll(); });
addEventListener('afterprint', () => { root.classList.remove('printing'); repaintAll(); });
