// The report inside the page, and a table of numbers that is made when it is opened.
import { element, show } from '../../draw/assets/svg.js';

export const report = JSON.parse(document.getElementById('report-data').textContent);

export function numbersBehind(columns, rows) {
  const made = element('details');
  made.append(element('summary', 'The numbers behind this chart'));
  const whole = () => {
    if (!made.querySelector('table')) { made.append(tableOf(columns, rows())); }
    return made.querySelector('table');
  };
  made.addEventListener('toggle', () => { if (made.open) { whole(); } });
  made.numbers = whole; // also for downloads
  return made;
}
function tableOf(columns, rows) {
  const box = element('div', undefined, 'scroll'), table = element('table'), top = element('tr'), body = element('tbody'), head = element('thead');
  columns.forEach(name => { const th = element('th', name); th.scope = 'col'; top.append(th); });
  for (const values of rows) {
    const row = element('tr');
    row.append(...values.map(numberCell));
    body.append(row);
  }
  head.append(top);
  table.append(head, body);
  box.tabIndex = 0;
  box.append(table);
  return box;
}
export function numberCell(value) {
  const cell = element('td', typeof value === 'string' ? value : show(value), 'n');
  if (typeof value === 'number') { cell.dataset.v = value; }
  return cell;
}
