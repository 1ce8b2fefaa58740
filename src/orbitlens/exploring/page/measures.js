// What is read off a moment of a flow: mean cosine, clusters, energy, size; and whom a token attends to.
import { lengthOf } from './integrator.js';

export const GAP = 0.05; // between directions, or in units of the largest token: closer tokens are one cluster

const directions = (x, n, d) => { const y = Float64Array.from(x); for (let i = 0; i < n; i += 1) { const size = lengthOf(x, i, d); for (let c = 0; c < d; c += 1) { y[i * d + c] /= size; } } return y; };

// C, the mean over pairs of the cosine; 1 − C from distances to the mean, so that no near numbers are subtracted.
export function meanCosine(x, n, d) {
  if (n < 2) { return NaN; }
  const y = directions(x, n, d), mean = new Float64Array(d);
  for (let i = 0; i < n * d; i += 1) { mean[i % d] += y[i] / n; }
  let apart = 0;
  for (let i = 0; i < n * d; i += 1) { apart += (y[i] - mean[i % d]) ** 2; }
  return 1 - apart / (n - 1);
}
export function largest(x, n, d) { let most = 1e-300; for (let i = 0; i < n; i += 1) { most = Math.max(most, lengthOf(x, i, d)); } return most; }

export function clusterLabels(x, n, d, free) {
  const y = free ? x : directions(x, n, d), radius = GAP * (free ? largest(x, n, d) : 1), label = new Int32Array(n).fill(-1), queue = new Int32Array(n);
  let count = 0;
  for (let i = 0; i < n; i += 1) {
    if (label[i] >= 0) { continue; }
    let head = 0, tail = 0;
    queue[tail++] = i;
    label[i] = count;
    while (head < tail) {
      const a = queue[head++];
      for (let b = 0; b < n; b += 1) {
        if (label[b] >= 0) { continue; }
        let s = 0;
        for (let c = 0; c < d && s < radius * radius; c += 1) { s += (y[a * d + c] - y[b * d + c]) ** 2; }
        if (s < radius * radius) { label[b] = count; queue[tail++] = b; }
      }
    }
    count += 1;
  }
  return { label, count };
}

// Scores of every query and key that it sees, head by head: `visit(head, i, j, score)`.
export function eachScore(system, x, n, s, visit, only = null) {
  const { d, r, beta, mask, window, rotary, slopes } = system, pairs = rotary ? rotary.frequencies.length : 0, growth = Math.min(beta * Math.exp(Math.min(2 * s, 640)), 1e280), shrink = Math.exp(Math.min(-s, 700));
  let y = x;
  if (system.reinjected && system.positions) { y = x.map((v, i) => v + system.positions[i] * shrink); }
  if (system.geometry === 'pre-ln') { y = directions(y, n, d); }
  const turned = (w, i, bias) => {
    const z = new Float64Array(r);
    for (let a = 0; a < d; a += 1) { const v = y[i * d + a]; for (let c = 0; c < r; c += 1) { z[c] += v * w[a * r + c]; } }
    if (bias) { for (let c = 0; c < r; c += 1) { z[c] += bias[c] * shrink; } }
    for (let p = 0; p < pairs; p += 1) {
      const a = rotary.halves ? p : 2 * p, b = rotary.halves ? p + pairs : 2 * p + 1, co = Math.cos(i * rotary.frequencies[p]) * rotary.factor, si = Math.sin(i * rotary.frequencies[p]) * rotary.factor;
      const [u, v] = [z[a], z[b]];
      z[a] = u * co - v * si;
      z[b] = v * co + u * si;
    }
    return z;
  };
  system.heads.forEach((head, h) => {
    const keys = Array.from({ length: n }, (_, j) => turned(head.wk, j, system.bk?.[h]));
    for (let i = only ?? 0; i < (only === null ? n : only + 1); i += 1) {
      const q = turned(head.wq, i, system.bq?.[h]), low = window ? Math.max(0, i - window + 1) : 0, high = mask === 'causal' ? i : window ? Math.min(n - 1, i + window - 1) : n - 1;
      for (let j = low; j <= high; j += 1) {
        let score = 0;
        for (let c = 0; c < r; c += 1) { score += q[c] * keys[j][c]; }
        visit(h, i, j, score * growth - (slopes ? beta * slopes[h] : 0) * Math.abs(i - j));
      }
    }
  });
}
// The energy of N6, as ln of the mean of exp(score) over the pairs that see each other.
export function energy(system, x, n, s) {
  let top = -Infinity, total = 0, count = 0;
  eachScore(system, x, n, s, (h, i, j, score) => { if (score > top) { total *= Math.exp(top - score); top = score; } total += Math.exp(score - top); count += 1; });
  return top + Math.log(total / count);
}
// Attention of one token, summed over heads and divided by their number.
export function attentionOf(system, x, n, s, token) {
  const rows = system.heads.map(() => new Float64Array(n).fill(-Infinity)), p = new Float64Array(n);
  eachScore(system, x, n, s, (h, i, j, score) => { rows[h][j] = score; }, token);
  for (const row of rows) {
    const top = Math.max(...row);
    let total = 0;
    row.forEach(v => { total += Math.exp(v - top); });
    row.forEach((v, j) => { p[j] += Math.exp(v - top) / total / rows.length; });
  }
  return p;
}
