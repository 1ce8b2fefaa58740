// The page of a report: draw its charts, open the first head, and put it on paper.
import { drawPanel, repaintAll } from '../../draw/assets/figure.js';
import { startMaps } from './heads.js';
import { startAllOrbits } from './orbits.js';

const root = document.documentElement, panels = JSON.parse(document.getElementById('panel-data').textContent);

// After the text has been painted: a reader sees words first.
requestAnimationFrame(() => setTimeout(() => {
  startMaps();
  document.querySelectorAll('[data-panel]').forEach(box => { if (box.dataset.panel !== '-1') { drawPanel(box, panels[Number(box.dataset.panel)]); } });
  startAllOrbits();
  Object.assign(root.dataset, { ready: 'yes', drawn: 'all' });
}));
// On paper: light colours and the width of a sheet, drawn before the browser takes its picture.
addEventListener('beforeprint', () => { root.classList.add('printing'); repaintAll(); });
addEventListener('afterprint', () => { root.classList.remove('printing'); repaintAll(); });
