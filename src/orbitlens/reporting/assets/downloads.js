// Every chart as a file: its drawing as SVG that stands alone, its numbers as CSV.
import { element } from '../../draw/assets/svg.js';

const KEPT = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-opacity', 'stroke-dasharray', 'stroke-linecap', 'stroke-linejoin', 'opacity',
  'font-family', 'font-size', 'text-anchor', 'paint-order'];

export function standaloneSvg(drawing, title) {
  const copy = drawing.cloneNode(true), from = [drawing, ...drawing.querySelectorAll('*')];
  [copy, ...copy.querySelectorAll('*')].forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    node.removeAttribute('class');
    node.style.cssText = KEPT.map(name => `${name}:${style.getPropertyValue(name)}`).join(';');
  });
  const paper = document.createElementNS('http://www.w3.org/2000/svg', 'rect'), name = document.createElementNS('http://www.w3.org/2000/svg', 'title');
  paper.setAttribute('width', '100%');
  paper.setAttribute('height', '100%');
  paper.style.cssText = `fill:${getComputedStyle(document.documentElement).getPropertyValue('--paper')}`;
  name.textContent = title;
  copy.prepend(name, paper);
  return new XMLSerializer().serializeToString(copy);
}
// A text that a spreadsheet would take for a formula gets an apostrophe in front.
const harmless = text => /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
const quoted = text => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
const field = cell => cell.dataset.v !== undefined ? cell.dataset.v : quoted(harmless(cell.textContent.trim()));
export const csvOf = table => [...table.rows].map(row => [...row.cells].map(field).join(',')).join('\n') + '\n';

export function download(name, type, text) {
  const link = element('a'), address = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(link, { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
const nameOf = text => text.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '').slice(0, 60) || 'chart';

export function downloadable(part) {
  part.querySelectorAll('figure').forEach(figure => {
    const caption = figure.querySelector('figcaption')?.textContent ?? 'chart', numbers = figure.querySelector('details');
    if (!numbers || figure.querySelector('.files')) { return; }
    const model = figure.closest('[data-model]')?.getAttribute('aria-label') ?? '', name = nameOf(`${model} ${caption}`), box = element('span', undefined, 'files');
    const button = (text, title, work) => {
      const made = element('button', text);
      Object.assign(made, { type: 'button', title });
      made.addEventListener('click', work);
      box.append(made);
    };
    button('SVG', 'Download this chart as SVG', () => download(`${name}.svg`, 'image/svg+xml', standaloneSvg(figure.querySelector('.plot svg'), caption)));
    button('CSV', 'Download its numbers as CSV', () => download(`${name}.csv`, 'text/csv', csvOf(numbers.numbers?.() ?? numbers.querySelector('table'))));
    const below = element('div', undefined, 'below');
    numbers.replaceWith(below);
    below.append(numbers, box);
  });
}
