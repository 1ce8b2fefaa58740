// A page with one figure: its panels are JSON inside the page.
import { drawPanel } from './figure.js';

const panels = JSON.parse(document.getElementById('figure-data').textContent);
document.querySelectorAll('[data-panel]').forEach(box => drawPanel(box, panels[Number(box.dataset.panel)]));
document.documentElement.dataset.ready = 'yes';
