// A player: a button, a slider and a word for the moment. `frame(k)` draws a moment, which may lie between two where
// motion is welcome.
const calm = matchMedia('(prefers-reduced-motion: reduce)');

export function player(box, { last, frame, name, ms }) {
  const button = box.querySelector('button'), slider = box.querySelector('input'), word = box.querySelector('output');
  let playing = null;
  const now = () => Number(slider.value);
  const label = () => { button.textContent = playing !== null ? 'Pause' : now() === last ? 'Replay' : 'Play'; };
  const go = k => {
    const whole = Math.round(k);
    slider.value = whole;
    word.textContent = name(whole);
    slider.setAttribute('aria-valuetext', name(whole));
    frame(k);
    label();
  };
  const stop = () => { cancelAnimationFrame(playing); playing = null; label(); };
  const play = () => {
    let k = now() === last ? 0 : now(), before = performance.now();
    go(k);
    // A slow machine leaves moments out rather than play in slow motion.
    const step = moment => {
      if (!box.isConnected) { stop(); return; }
      k = Math.min(last, k + Math.max(0, moment - before) / ms);
      before = moment;
      go(calm.matches ? Math.floor(k) : k);
      if (k >= last) { go(last); stop(); } else { playing = requestAnimationFrame(step); }
    };
    playing = requestAnimationFrame(step);
    label();
  };
  button.addEventListener('click', () => playing !== null ? stop() : play());
  slider.addEventListener('input', () => { stop(); go(now()); });
  label();
  return { go, now, play, stop, calm: () => calm.matches };
}
// Places between two moments.
export const between = (frames, k) => {
  const low = Math.floor(k), share = k - low;
  if (share === 0) { return frames[low]; }
  return frames[low].map((p, i) => p.map((v, j) => v + share * (frames[low + 1][i][j] - v)));
};
