// What is drawn when: first what the reader sees, then the rest while the page is idle, so that
// printing, searching and screenshots find everything; all of it anew for another theme and on paper.
const figures = [...document.querySelectorAll('[data-chart]')], drawn = new Set();
const drawOnce = figure => { if (!drawn.has(figure)) { drawn.add(figure); draw(figure); } };
const idle = window.requestIdleCallback ?? (work => setTimeout(work, 20));
const root = document.documentElement;

function drawRest() {
  const next = figures.find(figure => !drawn.has(figure));
  if (next === undefined) { root.dataset.drawn = 'all'; return; }
  drawOnce(next);
  idle(drawRest);
}
if ('IntersectionObserver' in window) {
  const watch = new IntersectionObserver(seen => {
    seen.forEach(({ isIntersecting, target }) => { if (isIntersecting) { watch.unobserve(target); drawOnce(target); } });
  }, { rootMargin: '200px' });
  figures.forEach(figure => watch.observe(figure));
}
function redraw() { figures.forEach(figure => { drawn.add(figure); draw(figure); }); maps(); }
// On paper: light colours and the width of a sheet. A size that is given is drawn at once, where
// plotly's own resizing would come after the browser has taken its picture.
addEventListener('beforeprint', () => {
  root.classList.add('printing');
  redraw();
  document.querySelectorAll('.js-plotly-plot').forEach(plot =>
    Plotly.relayout(plot, { width: plot.clientWidth, height: plot.clientHeight }));
});
addEventListener('afterprint', () => {
  root.classList.remove('printing');
  redraw();
  document.querySelectorAll('.js-plotly-plot').forEach(plot =>
    Plotly.relayout(plot, { width: null, height: null, autosize: true }));
});
dark.addEventListener('change', redraw);
requestAnimationFrame(() => setTimeout(() => { maps(); root.dataset.ready = 'yes'; idle(drawRest); }));
