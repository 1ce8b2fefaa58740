// Which theorems hold of the flow in front of the reader: T1 to T5 of free tokens, N1 to N6 of directions (docs/certificates.md).
//
// In two and three dimensions every hypothesis is checked here, each with room for rounding, so that no badge is lit that the library would not
// light; a head of the model has the library's own verdicts, at its own settings. Anything else says that it is not checked.
import { isUsualHead, mapsOf } from './systems.js';

const CLEAR = 1e-6, EQUAL = 1e-12, GAP = 1e-9;
const NAMES = { T1: 'Pairs', T2: 'The cloud', T3: 'Half-space', T4: 'First token', T5: 'Speed limit', N1: 'Half-space', N1c: 'Leading direction', N2: 'First token',
  N3: 'Followers', N4: 'Sharpness', N5: 'Equiangular', N6: 'Energy' };
const FREE = ['T1', 'T2', 'T3', 'T4', 'T5'], TURNING = ['N1', 'N1c', 'N2', 'N3', 'N4', 'N5', 'N6'];

// --- small matrices, rows flat ---------------------------------------------------------------

const dims = m => Math.round(Math.sqrt(m.length));
const at = (d, f) => Float64Array.from({ length: d * d }, (_, k) => f(Math.floor(k / d), k % d));
const flip = m => { const d = dims(m); return at(d, (i, j) => m[j * d + i]); };
const dot = (a, b) => { const d = dims(a); return at(d, (i, j) => { let s = 0; for (let k = 0; k < d; k += 1) { s += a[i * d + k] * b[k * d + j]; } return s; }); };
const plus = (a, b) => a.map((v, i) => v + b[i]);
const norm = m => Math.hypot(...m);
const inner = (a, b) => a.reduce((s, v, i) => s + v * b[i], 0);
const symmetric = m => { const t = flip(m); return m.map((v, i) => (v + t[i]) / 2); };
const asymmetry = m => { const t = flip(m); return norm(m.map((v, i) => (v - t[i]) / 2)) / (norm(m) || 1); };
const scalarOf = m => { const d = dims(m); return m.every((v, k) => Math.floor(k / d) === k % d ? v === m[0] : v === 0) ? m[0] : null; };

function symmetricEigenvalues(m) { // Jacobi
  const d = dims(m), a = Float64Array.from(m);
  for (let sweep = 0; sweep < 60; sweep += 1) {
    let off = 0;
    for (let p = 0; p < d; p += 1) {
      for (let q = p + 1; q < d; q += 1) {
        const v = a[p * d + q];
        off += v * v;
        if (v === 0) { continue; }
        const theta = (a[q * d + q] - a[p * d + p]) / (2 * v), t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1)), c = 1 / Math.sqrt(t * t + 1), s = t * c;
        for (let k = 0; k < d; k += 1) { const x = a[k * d + p], y = a[k * d + q]; a[k * d + p] = c * x - s * y; a[k * d + q] = s * x + c * y; }
        for (let k = 0; k < d; k += 1) { const x = a[p * d + k], y = a[q * d + k]; a[p * d + k] = c * x - s * y; a[q * d + k] = s * x + c * y; }
      }
    }
    if (off < 1e-30 * norm(m) ** 2) { break; }
  }
  return Array.from({ length: d }, (_, k) => a[k * d + k]).sort((x, y) => x - y);
}
const spectralNorm = m => Math.sqrt(Math.max(0, symmetricEigenvalues(dot(flip(m), m)).at(-1)));
function inverse(m) {
  const d = dims(m);
  if (d === 2) { const det = m[0] * m[3] - m[1] * m[2]; return Math.abs(det) < 1e-12 * norm(m) ** 2 ? null : Float64Array.from([m[3], -m[1], -m[2], m[0]], v => v / det); }
  const minor = (i, j) => { const r = [0, 1, 2].filter(k => k !== i), c = [0, 1, 2].filter(k => k !== j); return m[r[0] * 3 + c[0]] * m[r[1] * 3 + c[1]] - m[r[0] * 3 + c[1]] * m[r[1] * 3 + c[0]]; };
  const det = m[0] * minor(0, 0) - m[1] * minor(0, 1) + m[2] * minor(0, 2);
  return Math.abs(det) < 1e-12 * norm(m) ** 3 ? null : at(3, (i, j) => ((i + j) % 2 ? -1 : 1) * minor(j, i) / det);
}
// Eigenvalues of a 2 × 2 or 3 × 3 matrix as {re, im}, real ones first by falling size.
function eigenvalues(m) {
  const pair = (t, det) => { const gap = t * t / 4 - det; return gap >= 0 ? [t / 2 + Math.sqrt(gap), t / 2 - Math.sqrt(gap)].map(re => ({ re, im: 0 })) : [1, -1].map(s => ({ re: t / 2, im: s * Math.sqrt(-gap) })); };
  if (dims(m) === 2) { return pair(m[0] + m[3], m[0] * m[3] - m[1] * m[2]); }
  const t = m[0] + m[4] + m[8], square = dot(m, m), c = (t * t - (square[0] + square[4] + square[8])) / 2;
  const det = m[0] * (m[4] * m[8] - m[5] * m[7]) - m[1] * (m[3] * m[8] - m[5] * m[6]) + m[2] * (m[3] * m[7] - m[4] * m[6]);
  const f = x => ((x - t) * x + c) * x - det, slope = x => (3 * x - 2 * t) * x + c, far = 1 + Math.max(Math.abs(t), Math.abs(c), Math.abs(det));
  let low = -far, high = far;
  for (let k = 0; k < 200; k += 1) { const mid = (low + high) / 2; if (f(mid) > 0) { high = mid; } else { low = mid; } }
  let root = (low + high) / 2;
  for (let k = 0; k < 3; k += 1) { const s = slope(root); if (Math.abs(s) > 1e-6) { root -= f(root) / s; } }
  return [{ re: root, im: 0 }, ...pair(t - root, c - root * (t - root))].sort((a, b) => b.re - a.re);
}
// A unit w with m w = x w, or null where it is not certain.
function eigenvector(m, x) {
  const d = dims(m), rows = Array.from({ length: d }, (_, i) => Array.from({ length: d }, (_, j) => m[i * d + j] - (i === j ? x : 0)));
  const tries = d === 2 ? rows.map(([a, b]) => [-b, a]) : [[0, 1], [0, 2], [1, 2]].map(([i, j]) => [rows[i][1] * rows[j][2] - rows[i][2] * rows[j][1], rows[i][2] * rows[j][0] - rows[i][0] * rows[j][2], rows[i][0] * rows[j][1] - rows[i][1] * rows[j][0]]);
  const best = tries.reduce((a, b) => Math.hypot(...a) >= Math.hypot(...b) ? a : b), size = Math.hypot(...best);
  if (size < 1e-5 * norm(m) ** (d - 1)) { return null; }
  const w = best.map(v => v / size), miss = Math.hypot(...rows.map(row => inner(row, w)));
  return miss <= 1e-10 * norm(m) ? w : null;
}
// Unit w with w · y_i > 0 for all tokens: towards the nearest point to 0 of their hull (Frank and Wolfe's steps, with Wolfe's pairs), or null.
export function halfSpace(x, n, d) {
  const y = Array.from({ length: n }, (_, i) => { const row = Array.from({ length: d }, (_, c) => x[i * d + c]), s = Math.hypot(...row); return row.map(v => v / s); });
  const weight = new Float64Array(n);
  let p = [...y[0]];
  weight[0] = 1;
  for (let k = 0; k < 4000; k += 1) {
    let low = 0, high = -1, least = Infinity, most = -Infinity;
    for (let i = 0; i < n; i += 1) { const v = inner(p, y[i]); if (v < least) { least = v; low = i; } if (weight[i] > 0 && v > most) { most = v; high = i; } }
    if (least > CLEAR && most - least < 1e-9) { break; }
    const way = y[low].map((v, c) => v - y[high][c]), q = inner(way, way);
    if (low === high || q < 1e-24) { break; }
    const step = Math.min(weight[high], Math.max(0, -inner(p, way) / q));
    weight[low] += step;
    weight[high] -= step;
    p = p.map((v, c) => v + step * way[c]);
    if (step === 0 || Math.hypot(...p) < 1e-9) { break; }
  }
  const size = Math.hypot(...p), w = p.map(v => v / size), margin = size < 1e-9 ? -1 : Math.min(...y.map(row => inner(w, row)));
  return margin > CLEAR ? { w, margin } : null;
}

// --- the theorems ----------------------------------------------------------------------------

const badge = (name, holds, margin, why) => ({ name, title: NAMES[name], holds, margin, why });
const short = v => Number(v.toPrecision(3));

export function certificatesOf(s, flow, made) {
  const wanted = s.norm === 'free' ? FREE : TURNING;
  if (s.layer) {
    const own = isUsualHead(s) && s.layer.certificates[s.norm];
    if (own) { return own[s.head].map(c => badge(c.name, c.holds, c.margin, c.why)); }
    const why = 'not checked here: the library checks this head at its own settings, on the text, on the sphere and free';
    return wanted.map(name => badge(name, null, null, why));
  }
  if (s.enc === 'reinjected') { return wanted.map(name => badge(name, null, null, 'not checked: the theorems are for flows without re-injected positions')); }
  const facts = factsOf(s, flow, made);
  return wanted.map(name => ({ ...CHECKS[name](s, facts), name, title: NAMES[name] }));
}
function factsOf(s, flow, { system, tokens, n }) {
  const maps = mapsOf(s, flow), d = s.d, x = Float64Array.from(tokens);
  if (system.positions) { for (let i = 0; i < n * d; i += 1) { x[i] += system.positions[i]; } }
  const sum = maps.map(m => m.v).reduce(plus), scalars = maps.map(m => scalarOf(m.v));
  const row = i => Array.from({ length: d }, (_, c) => x[i * d + c]);
  return { maps, d, n, x, sum, row, w: maps[0].w.map(v => s.beta * v), v: maps[0].v, one: maps.length === 1, scalars: scalars.every(v => v !== null) ? scalars : null,
    plain: s.enc === 'none' || s.enc === 'absolute', full: s.mask === 'full', spectrum: eigenvalues(sum), rows: Array.from({ length: n }, (_, i) => row(i)) };
}
const all = (conditions, margin, conclusion) => {
  const failed = conditions.filter(([holds]) => !holds).map(([, why]) => why);
  return { holds: failed.length === 0, margin: Number.isFinite(margin) ? margin : null, why: failed.length ? `breaks: ${failed.join('; ')}` : conclusion };
};
const alignment = f => { // sym(VᵀW) has the signs of sym(A), A = W V⁻¹
  const back = inverse(f.v), a = back && dot(f.w, back), e = symmetricEigenvalues(symmetric(dot(flip(f.v), f.w))), low = Math.min(...e.map(Math.abs)), high = Math.max(...e.map(Math.abs)) || 1;
  const definite = e[0] > 0 || e.at(-1) < 0;
  return { symmetric: a !== null && asymmetry(a) < EQUAL, definite: definite && low > GAP * high, positive: e[0] > 0, margin: definite ? low / high : -low / high, off: a === null ? 1 : asymmetry(a) };
};
const aligned = (f, a) => [[f.one, 'proved for one head'], [f.plain, 'the encoding changes scores with the offset'],
  [a.symmetric, `A = W V⁻¹ is not symmetric (${short(100 * a.off)} %)`], [a.definite, 'A has directions of both signs']];
const side = (f, w, d = f.d) => { // whether all tokens are clearly on one side of w
  const sign = inner(w, f.row(0)) > 0 ? 1 : -1;
  return Math.min(...f.rows.map(row => sign * inner(w, row) / Math.hypot(...row)));
};
const CHECKS = {
  T1(s, f) {
    const a = alignment(f);
    return all([[f.full, 'a causal mask gives each token its own potential'], ...aligned(f, a)], a.margin, `no distance between two tokens ever ${a.positive ? 'shrinks' : 'grows'}, measured by |A|`);
  },
  T2(s, f) {
    const a = alignment(f), e = symmetricEigenvalues(symmetric(f.w)), score = e[0] / Math.max(...e.map(Math.abs));
    return all([[f.full || asymmetry(f.w) < EQUAL, 'a mask, and W is not symmetric'], [score > GAP, 'sym(W) is not positive definite'], ...aligned(f, a)], Math.min(score, a.margin),
      a.positive ? 'the cloud of tokens diverges' : 'all tokens converge to 0');
  },
  T3(s, f) {
    if (f.scalars) {
      const total = f.scalars.reduce((a, b) => a + b), good = Math.min(...f.scalars) >= 0 && total > 0, found = good ? halfSpace(f.x, f.n, f.d) : null;
      return all([[good, 'V is no positive multiple of I'], [!good || found, 'tokens start on both sides of every plane through 0']], total, `all tokens diverge at least like e^(${short(total)} t)`);
    }
    if (!f.one) { return all([[false, 'several heads, and no direction that all of them keep']], 0, ''); }
    for (const { re, im } of f.spectrum) {
      const w = im === 0 && re > GAP ? eigenvector(flip(f.sum), re) : null;
      if (w && side(f, w) > CLEAR) { return all([], re, `all tokens start on one side of an eigenvector of V and diverge at least like e^(${short(re)} t)`); }
    }
    return all([[false, 'tokens do not start on one side of an eigenvector of V with a positive eigenvalue']], 0, '');
  },
  T4(s, f) {
    const lead = f.spectrum.reduce((a, b) => a.re >= b.re ? a : b), size = norm(f.sum) || 1, sure = Math.abs(lead.re) > GAP * size;
    return all([[!f.full, 'without a causal mask the first token sees the others'], [sure, 'the abscissa of V cannot be told from 0'], [!sure || lead.re < 0 || hasPart(f, lead), 'the first token has no certain part in a growing direction']],
      lead.re, lead.re > 0 ? `the first token diverges like e^(${short(lead.re)} t)` : 'the first token converges to 0');
  },
  T5(s, f) { const rate = f.maps.reduce((a, m) => a + spectralNorm(m.v), 0) * (1 + 1e-12); return all([], rate, `no token grows faster than e^(${short(rate * 1.0005)} t)`); },
  N1(s, f) {
    const good = f.scalars !== null && Math.min(...f.scalars) >= 0 && f.scalars.reduce((a, b) => a + b) > 0, found = good ? halfSpace(f.x, f.n, f.d) : null;
    return all([[good, 'V is no positive multiple of I'], [!good || found, 'tokens start on both sides of every plane through 0']], found?.margin, `all tokens converge to ${f.full ? 'one direction' : "the first one's direction"}`);
  },
  N1c(s, f) {
    const [lead, ...rest] = [...f.spectrum].sort((a, b) => Math.hypot(b.re, b.im) - Math.hypot(a.re, a.im)), next = Math.max(...rest.map(z => Math.hypot(z.re, z.im)));
    const alone = lead.im === 0 && lead.re > 0 && next < (1 - CLEAR) * lead.re, w = alone ? eigenvector(flip(f.sum), lead.re) : null;
    return all([[f.one, 'proved for one head'], [w, "V's largest eigenvalue is not real, positive and alone"], [!w || side(f, w) > CLEAR, 'tokens start on both sides of it']], alone ? 1 - next / lead.re : null, "all tokens converge to V's leading direction");
  },
  N2(s, f) {
    const [lead, ...rest] = [...f.spectrum].sort((a, b) => b.re - a.re), gap = lead.re - Math.max(...rest.map(z => z.re)), alone = lead.im === 0 && gap > CLEAR * (norm(f.sum) || 1), w = alone ? eigenvector(flip(f.sum), lead.re) : null;
    return all([[!f.full, 'without a causal mask the first token sees the others'], [w, 'the leading eigenvalue of V is not real and alone'], [!w || Math.abs(inner(w, f.row(0))) > CLEAR * Math.hypot(...f.row(0)), 'the first token has no part in its direction']],
      gap, "the first token converges to V's leading direction");
  },
  N3(s, f) {
    const good = f.scalars !== null && Math.min(...f.scalars) >= 0 && f.scalars.reduce((a, b) => a + b) > 0;
    return all([[!f.full, 'needs a causal mask'], [good, 'V is no positive multiple of I']], good ? f.scalars.reduce((a, b) => a + b) : null, "from almost every start, all tokens converge to the first one's direction");
  },
  N4(s, f) {
    const slopes = s.enc === 'alibi' ? Math.max(...f.maps.map((_, h) => 2 ** (-8 * (h + 1) / f.maps.length))) * s.beta : 0;
    const spread = (2 * s.beta * Math.max(...f.maps.map(m => spectralNorm(m.w))) + slopes * (f.n - 1)) * (1 + 1e-12), share = f.n > 1 ? entropyFloor(spread, f.n) / Math.log(f.n) : 0;
    return all([[share >= 0.01, `scores may differ by ${short(spread)}, which bounds nothing`]], share, `attention's entropy is never below ${short(99.9 * share)} % of ln n`);
  },
  N5(s, f) {
    const unit = f.rows.map(row => row.map(v => v / Math.hypot(...row))), cosines = unit.flatMap((a, i) => unit.slice(0, i).map(b => inner(a, b))), off = cosines.length ? Math.max(...cosines) - Math.min(...cosines) : 1;
    return all([[f.full, 'needs full attention'], [f.plain, 'the encoding changes scores with the offset'], [f.scalars !== null && f.maps.every(m => scalarOf(m.w) !== null), 'V or W is no multiple of I'], [off < 5e-10, 'pairs start at different angles']], off < 1 ? 1e-9 - off : null,
      'all pairs keep one cosine, which solves a scalar equation');
  },
  N6(s, f) {
    const k = inner(f.v, f.w) / inner(f.w, f.w), missed = norm(f.v.map((v, i) => v - k * f.w[i])) / (Math.abs(k) * norm(f.w) || 1);
    return all([[f.one, 'proved for one head'], [f.full, 'needs full attention'], [f.plain, 'the encoding changes scores with the offset'], [missed < EQUAL && asymmetry(f.w) < EQUAL && k !== 0, 'V is no multiple of a symmetric W']], k, `the energy never ${k > 0 ? 'falls' : 'rises'}`);
  },
};
function hasPart(f, lead) {
  const x = f.row(0), size = Math.hypot(...x);
  if (f.scalars) { return size > 0; }
  if (lead.im === 0) { const w = eigenvector(flip(f.sum), lead.re); return w !== null && Math.abs(inner(w, x)) > CLEAR * size; }
  if (f.d === 2) { return size > 0; }
  const real = f.spectrum.find(z => z.im === 0), e = real && eigenvector(f.sum, real.re); // the first token has a part in the turning plane unless it lies along the third direction
  return Boolean(e) && Math.hypot(e[1] * x[2] - e[2] * x[1], e[2] * x[0] - e[0] * x[2], e[0] * x[1] - e[1] * x[0]) > 1e-3 * size;
}
function entropyFloor(spread, n) {
  let least = Infinity;
  const s = Math.min(spread, 700);
  for (let high = 1; high < n; high += 1) { const low = (n - high) * Math.exp(-s), total = high + low; least = Math.min(least, Math.log(total) + low * s / total); }
  return least;
}
