// The flow of tokens, integrated in the page: d/dt x_i = Σ_h V_h Σ_j p^h_ij x_j + b, as `orbitlens.flows` has it.
//
// A system is { d, r, heads: [{ wq, wk, wv: d×r, wo: r×d }], bq, bk: per head or null, drift, beta, mask, window, geometry, rotary: { frequencies,
// factor, halves }, slopes, positions, reinjected }, rows of numbers flat. Three charts: tokens as they are; e^s u where free tokens run away; and
// the head's own few dimensions: a token moves only where W_O writes, x_i = x_i(0) + c_i W_O, so c_i (r numbers a head) is all there is to follow,
// whatever the width of the model. Steps are Dormand and Prince's 5(4) pair with its dense output (Hairer, Nørsett, Wanner, section II.5).
//
// Work is cut into slices: what takes longer than a fraction of a millisecond is a generator that yields on its way, so that a page can stop it
// anywhere to draw a frame, whatever the number of tokens, heads and dimensions.
const LARGEST_LOGIT = 1e280, RUNAWAY = Math.log(1e6), BACK = Math.log(1e2), LARGEST = Math.log(1e100);
const SAFETY = 0.9, GROW = 10, SHRINK = 0.2, BIT_LONGER = 1.05, MOST_STEPS = 100000, LONG = 1e3, SLICE = 1.5e5; // multiplications
const A = [[], [1 / 5], [3 / 40, 9 / 40], [44 / 45, -56 / 15, 32 / 9], [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
  [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656], [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84]];
const E = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];
const D = [-12715105075 / 11282082432, 0, 87487479700 / 32700410799, -10690763975 / 1880347072, 701980252875 / 199316789632, -1453857185 / 822651844, 69997945 / 29380423];

const zeros = n => new Float64Array(n);
// out (n×b) = x (n×a) times w (a×b), or some rows of it.
function product(x, w, n, a, b, out, from = 0) {
  for (let i = from; i < n; i += 1) {
    const row = i * b;
    for (let c = 0; c < b; c += 1) { out[row + c] = 0; }
    for (let k = 0; k < a; k += 1) {
      const v = x[i * a + k], from = k * b;
      if (v === 0) { continue; }
      for (let c = 0; c < b; c += 1) { out[row + c] += v * w[from + c]; }
    }
  }
  return out;
}
function* slicedProduct(x, w, n, a, b, out) {
  const rows = Math.max(1, Math.floor(SLICE / (a * b)));
  for (let i = 0; i < n; i += rows) {
    product(x, w, Math.min(n, i + rows), a, b, out, i);
    if (i + rows < n) { yield; }
  }
  return out;
}
export const lengthOf = (x, i, d) => {
  let top = 0;
  for (let k = 0; k < d; k += 1) { const v = Math.abs(x[i * d + k]); if (v > top) { top = v; } }
  if (top < 1e-300) { return 1e-300; }
  if (top > 1e-140 && top < 1e140) { let s = 0; for (let k = 0; k < d; k += 1) { s += x[i * d + k] ** 2; } return Math.sqrt(s); }
  let sum = 0;
  for (let k = 0; k < d; k += 1) { sum += (x[i * d + k] / top) ** 2; }
  return top * Math.sqrt(sum);
};
const logSize = (x, n, d) => { let most = 1e-300; for (let i = 0; i < n; i += 1) { most = Math.max(most, lengthOf(x, i, d)); } return Math.log(most); };

// --- attention -------------------------------------------------------------------------------

// Queries, keys and values of all heads side by side: each n × (heads r). `mix` turns them into Σ_j p_ij v_j.
export function mixer(system, n) {
  const { r, beta, mask, window, rotary, slopes } = system, h = system.heads.length, w = h * r, causal = mask === 'causal';
  const score = zeros(n), mixed = zeros(n * w);
  let turns = null;
  if (rotary) {
    const pairs = rotary.frequencies.length, cosine = zeros(n * pairs), sine = zeros(n * pairs);
    for (let i = 0; i < n; i += 1) {
      for (let p = 0; p < pairs; p += 1) {
        cosine[i * pairs + p] = Math.cos(i * rotary.frequencies[p]) * rotary.factor;
        sine[i * pairs + p] = Math.sin(i * rotary.frequencies[p]) * rotary.factor;
      }
    }
    turns = { pairs, cosine, sine };
  }
  const turn = z => {
    const { pairs, cosine, sine } = turns;
    for (let i = 0; i < n; i += 1) {
      for (let head = 0; head < h; head += 1) {
        const at = i * w + head * r;
        for (let p = 0; p < pairs; p += 1) {
          const a = at + (rotary.halves ? p : 2 * p), b = at + (rotary.halves ? p + pairs : 2 * p + 1), c = cosine[i * pairs + p], s = sine[i * pairs + p];
          const [x, y] = [z[a], z[b]];
          z[a] = x * c - y * s;
          z[b] = y * c + x * s;
        }
      }
    }
  };
  const rows = Math.max(1, Math.floor(SLICE / (n * (2 * r + 8))));
  function* mix(q, k, v, growth) {
    if (turns) { turn(q); turn(k); }
    const scale = Math.min(beta * growth, LARGEST_LOGIT);
    for (let head = 0; head < h; head += 1) {
      for (let i = 0; i < n; i += rows) {
        mixRows(q, k, v, scale, head, i, Math.min(n, i + rows));
        if (i + rows < n || head + 1 < h) { yield; }
      }
    }
    return mixed;
  }
  function mixRows(q, k, v, scale, head, first, end) {
    const from = head * r, slope = slopes ? beta * slopes[head] : 0;
    for (let i = first; i < end; i += 1) {
      const low = window ? Math.max(0, i - window + 1) : 0, high = causal ? i : window ? Math.min(n - 1, i + window - 1) : n - 1, a = i * w + from;
      let top = -Infinity;
      for (let j = low; j <= high; j += 1) {
        const b = j * w + from;
        let s = 0;
        for (let c = 0; c < r; c += 1) { s += q[a + c] * k[b + c]; }
        s = s * scale - slope * Math.abs(i - j);
        score[j] = s;
        if (s > top) { top = s; }
      }
      let total = 0;
      for (let c = 0; c < r; c += 1) { mixed[a + c] = 0; }
      for (let j = low; j <= high; j += 1) {
        const p = Math.exp(score[j] - top), b = j * w + from;
        total += p;
        for (let c = 0; c < r; c += 1) { mixed[a + c] += p * v[b + c]; }
      }
      for (let c = 0; c < r; c += 1) { mixed[a + c] /= total; }
    }
  }
  return mix;
}
// The heads' maps side by side: d × (heads r), and (heads r) × d.
function sideBySide(system) {
  const { d, r } = system, h = system.heads.length, w = h * r, reads = { wq: zeros(d * w), wk: zeros(d * w), wv: zeros(d * w) }, writes = zeros(w * d);
  system.heads.forEach((head, k) => {
    for (const name of ['wq', 'wk', 'wv']) {
      for (let a = 0; a < d; a += 1) { for (let c = 0; c < r; c += 1) { reads[name][a * w + k * r + c] = head[name][a * r + c]; } }
    }
    for (let c = 0; c < r; c += 1) { for (let a = 0; a < d; a += 1) { writes[(k * r + c) * d + a] = head.wo[c * d + a]; } }
  });
  const biases = name => system[name] ? Float64Array.from(system[name].flatMap(b => [...b])) : null;
  return { ...reads, writes, bq: biases('bq'), bk: biases('bk'), w };
}
const addRow = (z, row, n, w, times) => { if (row) { for (let i = 0; i < n; i += 1) { for (let c = 0; c < w; c += 1) { z[i * w + c] += times * row[c]; } } } };

// A(e^s x) / e^s, in the raw stream.
export function attentionField(system, n) {
  const { d, drift, geometry } = system, parts = sideBySide(system), { w } = parts, mix = mixer(system, n);
  const q = zeros(n * w), k = zeros(n * w), v = zeros(n * w), seen = zeros(n * d);
  return function* field(x, s, out) {
    const shrink = Math.exp(Math.min(-s, 700));
    let y = x;
    if (system.reinjected && system.positions) {
      for (let i = 0; i < n * d; i += 1) { seen[i] = x[i] + system.positions[i] * shrink; }
      y = seen;
    }
    if (geometry === 'pre-ln') {
      for (let i = 0; i < n; i += 1) { const size = lengthOf(y, i, d); for (let c = 0; c < d; c += 1) { seen[i * d + c] = y[i * d + c] / size; } }
      y = seen;
    }
    yield* slicedProduct(y, parts.wq, n, d, w, q);
    yield* slicedProduct(y, parts.wk, n, d, w, k);
    yield* slicedProduct(y, parts.wv, n, d, w, v);
    addRow(q, parts.bq, n, w, shrink);
    addRow(k, parts.bk, n, w, shrink);
    yield* slicedProduct(yield* mix(q, k, v, Math.exp(Math.min(2 * s, 640))), parts.writes, n, w, d, out);
    addRow(out, drift, n, d, shrink);
    return out;
  };
}

// --- charts ----------------------------------------------------------------------------------

const unitRows = (x, n, d) => { for (let i = 0; i < n; i += 1) { const size = lengthOf(x, i, d); for (let c = 0; c < d; c += 1) { x[i * d + c] /= size; } } };
const rms = x => { let s = 0; for (let i = 0; i < x.length; i += 1) { s += x[i] * x[i]; } return Math.sqrt(s / x.length); };

function rawChart(system, n) {
  const { d, geometry } = system, field = attentionField(system, n), sphere = geometry === 'sphere';
  return {
    constrained: sphere,
    size: n * d,
    * rate(y, out) {
      yield* field(y, 0, out);
      if (!sphere) { return; }
      for (let i = 0; i < n; i += 1) {
        let along = 0;
        for (let c = 0; c < d; c += 1) { along += y[i * d + c] * out[i * d + c]; }
        for (let c = 0; c < d; c += 1) { out[i * d + c] -= along * y[i * d + c]; }
      }
    },
    tidy(y) { if (sphere) { unitRows(y, n, d); } },
    absolute: (rtol, y, f) => rtol * Math.max(rms(y) || rms(f), 1e-300),
    decode: y => [Float64Array.from(y), 0],
    logSize: y => logSize(y, n, d),
  };
}
function scaledChart(system, n) {
  const { d } = system, m = n * d, field = attentionField(system, n), u = zeros(m), a = zeros(m);
  return {
    constrained: true,
    size: m + 1,
    * rate(y, out) {
      u.set(y.subarray(0, m));
      yield* field(u, y[m], a);
      let speed = 0;
      for (let i = 0; i < m; i += 1) { speed += u[i] * a[i]; }
      for (let i = 0; i < m; i += 1) { out[i] = a[i] - speed * u[i]; }
      out[m] = speed;
    },
    tidy(y) {
      const size = rms(y.subarray(0, m)) * Math.sqrt(m);
      for (let i = 0; i < m; i += 1) { y[i] /= size; }
      y[m] += Math.log(size);
    },
    absolute: (rtol, y) => rtol / Math.sqrt(y.length),
    decode: y => [Float64Array.from(y.subarray(0, m)), y[m]],
    logSize: y => logSize(y.subarray(0, m), n, d) + y[m],
    encode(x, s) { const y = zeros(m + 1); y.set(x); y[m] = s; this.tidy(y); return y; },
  };
}
// x_i = x_i(0) + c_i W, W the heads' output maps and the drift as one more row. Directions obey y' = (I − y yᵀ) A(y) where x' = |x| A(x / |x|): what
// lies along x turns no direction. Queries, keys and values follow linearly from c, and |x|² is |x(0)|² + 2 c·(W x(0)) + c W Wᵀ c.
function closedChart(system, n, start) {
  const { d, geometry } = system, parts = sideBySide(system), { w } = parts, m = w + 1, mix = mixer(system, n), normed = geometry !== 'free';
  const writes = zeros(m * d), transposed = zeros(d * m);
  writes.set(parts.writes);
  if (system.drift) { writes.set(system.drift, w * d); }
  for (let k = 0; k < m; k += 1) { for (let c = 0; c < d; c += 1) { transposed[c * m + k] = writes[k * d + c]; } }
  const names = ['wq', 'wk', 'wv'], step = names.map(() => zeros(m * w)), gram = zeros(m * m);
  const origin = Float64Array.from(start), first = names.map(() => zeros(n * w)), reach = zeros(n * m), square = zeros(n), z = names.map(() => zeros(n * w)), size = zeros(n), bent = zeros(n * m);
  const rebase = () => {
    names.forEach((name, k) => product(origin, parts[name], n, d, w, first[k]));
    product(origin, transposed, n, d, m, reach);
    for (let i = 0; i < n; i += 1) { square[i] = lengthOf(origin, i, d) ** 2; }
  };
  let widest = 0;
  const measure = c => {
    product(c, gram, n, m, m, bent);
    for (let i = 0; i < n; i += 1) {
      let s = square[i];
      for (let k = 0; k < m; k += 1) { s += c[i * m + k] * (2 * reach[i * m + k] + bent[i * m + k]); }
      size[i] = Math.sqrt(Math.max(s, 1e-300));
    }
  };
  const decode = c => { const x = product(c, writes, n, m, d, zeros(n * d)); for (let i = 0; i < n * d; i += 1) { x[i] += origin[i]; } if (geometry === 'sphere') { unitRows(x, n, d); } return x; };
  return {
    constrained: false,
    size: n * m,
    * prepare() {
      for (let k = 0; k < 3; k += 1) { yield* slicedProduct(writes, parts[names[k]], m, d, w, step[k]); }
      yield* slicedProduct(writes, transposed, m, d, m, gram);
      rebase();
      for (let k = 0; k < m; k += 1) { widest = Math.max(widest, gram[k * m + k]); }
    },
    * rate(c, out) {
      if (normed) { measure(c); }
      for (let k = 0; k < 3; k += 1) {
        yield* slicedProduct(c, step[k], n, m, w, z[k]);
        for (let i = 0; i < n; i += 1) { const by = normed ? size[i] : 1; for (let a = i * w; a < (i + 1) * w; a += 1) { z[k][a] = (first[k][a] + z[k][a]) / by; } }
      }
      addRow(z[0], parts.bq, n, w, 1);
      addRow(z[1], parts.bk, n, w, 1);
      const mixed = yield* mix(z[0], z[1], z[2], 1);
      for (let i = 0; i < n; i += 1) {
        const by = geometry === 'sphere' ? size[i] : 1;
        for (let k = 0; k < w; k += 1) { out[i * m + k] = by * mixed[i * w + k]; }
        out[i * m + w] = by;
      }
    },
    // Directions stay where they are when a token that has grown long is written anew.
    tidy(c) {
      if (geometry !== 'sphere') { return false; }
      measure(c);
      if (size.every(s => s < LONG)) { return false; }
      origin.set(decode(c));
      rebase();
      c.fill(0);
      return true;
    },
    absolute: rtol => rtol * Math.max(rms(origin), 1e-300) / Math.sqrt(Math.max(widest, 1e-300)),
    decode: c => [decode(c), 0],
    logSize: c => geometry === 'free' ? logSize(decode(c), n, d) : 0,
  };
}

// --- steps -----------------------------------------------------------------------------------

export function startOf(system, tokens, n) {
  const x = Float64Array.from(tokens.subarray ? tokens.subarray(0, n * system.d) : tokens.slice(0, n * system.d));
  if (system.positions && !system.reinjected) { for (let i = 0; i < x.length; i += 1) { x[i] += system.positions[i]; } }
  if (system.geometry === 'sphere') { unitRows(x, n, system.d); }
  return x;
}
// Follow `n` tokens to `until`. `advance(ms)` works for about so long and says whether the end is reached; frames appear in `frames` as they come.
export function follow(system, tokens, n, { until, rtol = 1e-6, saved = 65, closed } = {}) {
  const { d } = system, first = startOf(system, tokens, n), narrow = system.heads.length * system.r + 1 < d && !system.reinjected;
  const run = { times: [0], frames: [Float64Array.from(first)], logScale: [0], t: 0, steps: 0, evaluations: 0, status: 'running', n, d, until };
  const free = system.geometry === 'free', mostRaw = free ? Math.min(Math.max(logSize(first, n, d), 0) + RUNAWAY, LARGEST) : Infinity;
  let chart = closed ?? narrow ? closedChart(system, n, first) : rawChart(system, n), scaled = false;
  let y = chart.size === n * d && !(closed ?? narrow) ? Float64Array.from(first) : zeros(chart.size), stages = null, h = 0, atol = 0;
  function* rate(at, out) { run.evaluations += 1; yield* chart.rate(at, out); yield; }
  const allowed = (a, b) => atol + rtol * Math.max(Math.abs(a), Math.abs(b));
  function* begin() {
    stages = Array.from({ length: 7 }, () => zeros(chart.size));
    if (chart.prepare) { yield* chart.prepare(); }
    yield* rate(y, stages[0]);
    atol = chart.absolute(rtol, y, stages[0]);
    h = yield* firstLength();
  }
  function* firstLength() {
    const left = until - run.t, trial = zeros(chart.size), ahead = zeros(chart.size), scaledRms = (x, other) => { let s = 0; for (let i = 0; i < x.length; i += 1) { s += ((x[i] - (other ? other[i] : 0)) / allowed(y[i], y[i])) ** 2; } return Math.sqrt(s / x.length); };
    const d0 = scaledRms(y), d1 = scaledRms(stages[0]), h0 = Math.min(left, d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : 0.01 * d0 / d1);
    for (let i = 0; i < y.length; i += 1) { trial[i] = y[i] + h0 * stages[0][i]; }
    yield* rate(trial, ahead);
    const most = Math.max(d1, scaledRms(ahead, stages[0]) / h0), h1 = most <= 1e-15 ? Math.max(1e-6, h0 * 1e-3) : (0.01 / most) ** 0.2;
    return Math.min(100 * h0, h1, left);
  }
  let trial = zeros(0);
  function* tryStep(length) {
    const to = trial.length === y.length ? trial : trial = zeros(y.length);
    for (let s = 1; s < 7; s += 1) {
      const row = A[s];
      for (let i = 0; i < y.length; i += 1) {
        let sum = 0;
        for (let k = 0; k < s; k += 1) { sum += row[k] * stages[k][i]; }
        to[i] = y[i] + length * sum;
      }
      yield* rate(to, stages[s]);
    }
    let total = 0;
    for (let i = 0; i < y.length; i += 1) {
      let e = 0;
      for (let k = 0; k < 7; k += 1) { e += E[k] * stages[k][i]; }
      total += (length * e / allowed(y[i], to[i])) ** 2;
    }
    return [to, Math.sqrt(total / y.length)];
  }
  function* keep(to, length) {
    const step = until / (saved - 1);
    while (run.times.length < saved) {
      const k = run.times.length, moment = k === saved - 1 ? until : k * step;
      if (moment > run.t + length * (1 + 1e-12)) { return; }
      const part = Math.min(1, (moment - run.t) / length), at = zeros(y.length), back = 1 - part;
      for (let i = 0; i < y.length; i += 1) {
        const change = to[i] - y[i], a = length * stages[0][i] - change, b = 2 * change - length * (stages[6][i] + stages[0][i]);
        let c = 0;
        for (let s = 0; s < 7; s += 1) { c += D[s] * stages[s][i]; }
        at[i] = part === 1 ? to[i] : y[i] + part * (change + back * (a + part * (b + back * length * c)));
      }
      if (chart.constrained) { chart.tidy(at); }
      const [x, s] = chart.decode(at);
      run.times.push(moment);
      run.frames.push(x);
      run.logScale.push(s);
      yield;
    }
  }
  function* change() { // to another chart, where tokens run away or come back
    const size = chart.logSize(y);
    if (!free || (!scaled && size <= mostRaw) || (scaled && size >= mostRaw - BACK)) { return false; }
    const [x, s] = chart.decode(y);
    scaled = !scaled;
    if (scaled) { chart = scaledChart(system, n); y = chart.encode(x, s); }
    else { chart = rawChart(system, n); y = x.map(v => v * Math.exp(s)); }
    yield* begin();
    return true;
  }
  function* step() {
    const left = until - run.t;
    let failed = false;
    for (;;) {
      const length = left <= BIT_LONGER * h ? left : left < 2 * h ? left / 2 : h;
      if (!(length > 1e-15 * Math.max(run.t, 1e-3)) || run.steps >= MOST_STEPS) { run.status = 'stuck'; return; }
      const [to, error] = yield* tryStep(length);
      run.steps += 1;
      const factor = error === 0 ? GROW : SAFETY * error ** -0.2;
      if (error < 1) {
        yield* keep(to, length);
        y.set(to);
        run.t = length === left ? until : run.t + length;
        h = length * Math.min(failed ? 1 : GROW, factor);
        const moved = chart.tidy(y);
        if (!(yield* change())) {
          if (chart.constrained || moved) { yield* rate(y, stages[0]); } else { stages[0].set(stages[6]); }
          atol = chart.absolute(rtol, y, stages[0]);
        }
        return;
      }
      failed = true;
      h = length * (factor > SHRINK ? Math.min(factor, 0.9) : SHRINK);
    }
  }
  function* toTheEnd() {
    yield* begin();
    while (run.t < until && run.status === 'running') { yield* step(); }
    if (run.status === 'running') { run.status = 'done'; }
  }
  const work = toTheEnd();
  run.advance = milliseconds => {
    const begun = performance.now();
    while (run.status === 'running' && !work.next().done) {
      if (performance.now() - begun > milliseconds) { break; }
    }
    return run.status !== 'running';
  };
  if (!(until > 0)) { run.status = 'done'; }
  return run;
}
