// Files that a reader takes along: pictures as SVG and PNG, numbers as CSV.
import { csvOf, download, standaloneSvg } from '../../reporting/assets/downloads.js';
import { make } from './charts.js';

// A canvas of `drawing` draws itself anew as SVG; an SVG element is copied with its computed styles.
const svgOf = (element, name) => element.asSvg ? new XMLSerializer().serializeToString(element.asSvg(name)) : standaloneSvg(element, name);

export const saveSVG = (name, element) => download(name, 'image/svg+xml', svgOf(element, name));

export const savePage = (name, html) => download(name, 'text/html', html);

export function savePNG(name, element) {
  const text = svgOf(element, name), picture = new Image(), { width, height } = element.getBoundingClientRect(), ratio = 2;
  return new Promise((resolve, reject) => {
    picture.onload = () => {
      const canvas = make('canvas', { width: Math.round(ratio * width), height: Math.round(ratio * height) });
      canvas.getContext('2d').drawImage(picture, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => { download(name, 'image/png', blob); resolve(); }, 'image/png');
    };
    picture.onerror = () => reject(new Error('The picture could not be drawn.'));
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
}
// Rows of plain values, the first of them names; what a spreadsheet would take for a formula is made text, as in reports.
export function saveCSV(name, rows) {
  const table = make('table', {}, ...rows.map(row => make('tr', {}, ...row.map(value => {
    const cell = make('td', { text: String(value ?? '') });
    if (typeof value === 'number') { cell.dataset.v = value; }
    return cell;
  }))));
  download(name, 'text/csv', csvOf(table));
}
