// Elements, colours and numbers: what every drawing shares. Words reach the page as text, never as markup.
const NAMES = { '#0072B2': 'blue', '#D55E00': 'orange', '#009E73': 'green', '#CC79A7': 'pink', '#E69F00': 'yellow',
  '#56B4E9': 'sky', '#8A8F98': 'grey', '#22262E': 'ink', '#636A75': 'muted', '#E3E6EA': 'grid', '#FFFFFF': 'paper', '#F1F2F3': 'zero' };

// A colour of the theme by its name, so that it changes with the theme; any other as it is.
export const paint = colour => NAMES[colour] ? `var(--${NAMES[colour]})` : colour;

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) { // the page's policy forbids style attributes, not this
    if (key === 'style') { made.style.cssText = value; } else { made.setAttribute(key, value); }
  }
  made.append(...children);
  return made;
}
export function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) { made.textContent = text; }
  if (className) { made.className = className; }
  return made;
}
export const isNumber = v => v !== null && Number.isFinite(v);
export const show = v => !isNumber(v) ? '–'
  : (Number.isInteger(v) ? String(v) : String(Number(v.toPrecision(3)))).replace('-', '−');
export const px = v => Math.round(10 * v) / 10;
