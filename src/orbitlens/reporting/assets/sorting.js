// Tables sort by a click or a key on a heading.
import { element } from '../../draw/assets/svg.js';

const valueOf = cell => cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent.trim();
const empty = v => v === '–' || v === '';
function compared(a, b) {
  if (empty(a) || empty(b)) { return Number(empty(a)) - Number(empty(b)); } // what is not there stays last
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
}
function sortBy(table, column, heading) {
  const up = heading.getAttribute('aria-sort') !== 'ascending', body = table.tBodies[0];
  table.querySelectorAll('thead th').forEach(th => th.removeAttribute('aria-sort'));
  heading.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const rows = [...body.rows].map(row => [valueOf(row.cells[column]), row]);
  rows.sort(([a], [b]) => empty(a) || empty(b) || up ? compared(a, b) : compared(b, a));
  body.append(...rows.map(([, row]) => row));
}
export function sortable(table) {
  [...table.querySelectorAll('thead th')].forEach((th, column) => {
    const button = element('button', th.textContent);
    button.type = 'button';
    th.replaceChildren(button);
    button.addEventListener('click', () => sortBy(table, column, th));
  });
}
