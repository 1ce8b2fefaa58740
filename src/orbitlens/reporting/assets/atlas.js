// The page of an atlas: small charts, and tables that sort.
import { drawPanel } from '../../draw/assets/figure.js';
import { sortable } from './sorting.js';

const panels = JSON.parse(document.getElementById('figure-data').textContent);
document.querySelectorAll('[data-panel]').forEach(box => drawPanel(box, panels[Number(box.dataset.panel)]));
document.querySelectorAll('table[data-table]').forEach(sortable);
document.documentElement.dataset.ready = 'yes';
