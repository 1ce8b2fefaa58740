// Tables sort by a click or a key on a heading, and rows that are heads choose them.
import { sortable } from './sorting.js';
import { choose, findHead, onChoice } from './selection.js';

const modelOf = node => Number(node.closest('[data-model]')?.dataset.model ?? 0);

export function startTables() {
  document.querySelectorAll('table[data-table]').forEach(sortable);
  const rows = [...document.querySelectorAll('tr[data-head]')].filter(row => findHead(modelOf(row), row.dataset.head));
  rows.forEach(row => {
    row.tabIndex = 0;
    row.addEventListener('click', () => choose(modelOf(row), row.dataset.head));
    row.addEventListener('keydown', event => { if (event.key === 'Enter') { choose(modelOf(row), row.dataset.head); } });
  });
  onChoice(({ k, key }) => rows.forEach(row => row.classList.toggle('chosen', modelOf(row) === k && row.dataset.head === key)));
}
