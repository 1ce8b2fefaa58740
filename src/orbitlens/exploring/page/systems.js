// The selection -> a system to integrate, its tokens, and Python that makes the same.
import { givenPython, py, withLevels } from './sentence.js';

const floats = text => text ? Float64Array.from(new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)) : null;
const numberIn = (text, low, high, usual) => { const v = Number(text); return text === undefined || !Number.isFinite(v) ? usual : Math.min(high, Math.max(low, v)); };
const oneOf = (text, known, usual) => known.includes(text) ? text : usual;

export const HEAD = 'head';
export const MIXED = 'mixed';
export const MOST_TOKENS = 128;
export const ENCODINGS = ['none', 'rotary', 'alibi', 'absolute', 'reinjected'];
// What the switches offer; a head of the model has its own mask and encoding, which may be taken away.
export const LIMITS = { beta: [0.125, 16], until: [1, 40], v: [-1.5, 1.5], a: [-1, 1], base: [2, 1e6] };

export function settingsOf(state, flow) {
  const names = flow.examples.map(one => one.name), isHead = state.system === HEAD && flow.model.layers.length > 0;
  const system = isHead ? HEAD : oneOf(state.system, [...names, MIXED], 'aligned');
  const layer = isHead ? flow.model.layers.find(one => one.layer === Number(state.layer ?? 0)) ?? flow.model.layers[0] : null;
  const most = layer ? layer.n_tokens : MOST_TOKENS, causal = layer?.causal ? 'causal' : 'full';
  const norms = layer && !layer.normed ? ['free', 'sphere'] : layer ? ['sphere', 'pre-ln', 'free'] : ['sphere', 'free'];
  return {
    system, layer, head: layer ? Math.round(numberIn(state.head, 0, layer.n_heads - 1, 0)) : 0,
    d: layer ? layer.d_model : Number(oneOf(state.d, flow.widths.map(String), '3')),
    n: Math.round(numberIn(state.n, 1, most, layer ? most : 64)),
    most,
    beta: numberIn(state.beta, ...LIMITS.beta, layer ? 1 : 4),
    until: numberIn(state.until, ...LIMITS.until, layer ? 8 : 12),
    v: numberIn(state.v, ...LIMITS.v, 1),
    a: numberIn(state.a, ...LIMITS.a, 0.5),
    mask: oneOf(state.mask, ['full', 'causal'], causal),
    enc: layer ? oneOf(state.enc, ['own', 'none'], 'own') : oneOf(state.enc, ENCODINGS, 'none'),
    base: numberIn(state.base, ...LIMITS.base, layer?.rotary?.base ?? 10000),
    norm: oneOf(state.norm, norms, norms[0]),
    norms,
    heads: layer ? oneOf(state.heads, ['one', 'all'], 'one') : Number(oneOf(state.heads, ['1', '2', '4'], '1')),
    moved: movedOf(state.moved, most),
  };
}
// "7:0.1,0.2,0;9:…": tokens that were dragged, and how far along the axes of the picture.
export function movedOf(text, most) {
  const found = new Map();
  for (const part of (text ?? '').split(';').slice(0, MOST_TOKENS)) {
    const [token, rest] = part.split(':'), by = (rest ?? '').split(',').map(Number);
    if (/^\d+$/.test(token) && Number(token) < most && by.length === 3 && by.every(v => Number.isFinite(v) && Math.abs(v) < 100)) { found.set(Number(token), by); }
  }
  return found;
}
export const movedText = moved => [...moved].map(([token, by]) => `${token}:${by.map(v => Number(v.toFixed(4))).join(',')}`).join(';');

export const isUsualHead = s => s.layer && s.heads === 'one' && s.beta === 1 && s.v === 1 && s.n === s.most && !s.moved.size && s.enc === 'own'
  && s.mask === (s.layer.causal ? 'causal' : 'full') && s.base === (s.layer.rotary?.base ?? 10000);

// --- systems ---------------------------------------------------------------------------------

const eye = d => Float64Array.from({ length: d * d }, (_, k) => Math.floor(k / d) === k % d ? 1 : 0);
const transposed = (m, d) => Float64Array.from({ length: d * d }, (_, k) => m[(k % d) * d + Math.floor(k / d)]);
const times = (x, factor) => x && x.map(v => v * factor);
export const rotaryOf = (width, base, halves = true) => ({ frequencies: Array.from({ length: width / 2 }, (_, k) => base ** (-2 * k / width)), factor: 1, halves });

// W and V of each head of a named system, rows of d × d numbers; V carries the value slider and the share of each head.
export function mapsOf(s, flow) {
  const k = flow.widths.indexOf(s.d), d = s.d;
  if (s.system === MIXED) {
    const turn = Math.sqrt(1 - s.a * s.a) / Math.sqrt(d), noise = flow.noise[k];
    const v = eye(d).map((one, i) => s.a * one + turn * noise[i]);
    return Array.from({ length: s.heads }, () => ({ w: eye(d), v: times(v, s.v / s.heads) }));
  }
  const one = flow.examples.find(example => example.name === s.system);
  return Array.from({ length: s.heads }, (_, h) => ({ w: Float64Array.from(one.score[k][h]), v: times(Float64Array.from(one.value[k][h]), s.v / s.heads) }));
}
function namedSystem(s, flow) {
  const d = s.d, k = flow.widths.indexOf(d), maps = mapsOf(s, flow), turned = d - d % 2;
  const placed = s.enc === 'absolute' || s.enc === 'reinjected';
  return {
    d, r: d, beta: s.beta, mask: s.mask, window: null, geometry: s.norm, bq: null, bk: null, drift: null,
    heads: maps.map(({ w, v }) => ({ wq: w, wk: eye(d), wv: eye(d), wo: transposed(v, d) })),
    rotary: s.enc === 'rotary' ? rotaryOf(turned, s.base) : null,
    slopes: s.enc === 'alibi' ? maps.map((_, h) => 2 ** (-8 * (h + 1) / maps.length)) : null,
    positions: placed ? Float64Array.from(flow.points[k].slice(0, s.n * d), v => v / Math.sqrt(d)) : null,
    reinjected: s.enc === 'reinjected',
  };
}
const unpacked = new WeakMap();
function unpack(layer) {
  if (!unpacked.has(layer)) {
    const { n_heads: h, d_model: d, d_head: r } = layer, all = floats(layer.weights), size = d * r;
    const heads = Array.from({ length: h }, (_, k) => { const at = 4 * size * k, cut = i => all.subarray(at + i * size, at + (i + 1) * size); return { wq: cut(0), wk: cut(1), wv: cut(2), wo: cut(3) }; });
    unpacked.set(layer, { heads, bq: floats(layer.b_q), bk: floats(layer.b_k), drift: floats(layer.drift), bo: floats(layer.b_o), tokens: floats(layer.tokens), axes: floats(layer.axes), ghost: layer.ghost.map(floats) });
  }
  return unpacked.get(layer);
}
const centred = (rows, d) => { const out = Float64Array.from(rows); for (let i = 0; i < rows.length; i += d) { let m = 0; for (let c = 0; c < d; c += 1) { m += rows[i + c] / d; } for (let c = 0; c < d; c += 1) { out[i + c] -= m; } } return out; };

// As `direction_system` has it: what a norm hands on has length √d, and a layer turns a direction by what it adds over the token's length.
function headSystem(s) {
  const layer = s.layer, { d_model: d, d_head: r } = layer, parts = unpack(layer), chosen = s.heads === 'all' ? parts.heads.map((_, k) => k) : [s.head];
  const turns = layer.normed && s.norm !== 'free', seen = !turns ? 1 : layer.in_front ? Math.sqrt(d) : layer.length, slow = turns && s.norm === 'sphere' ? 1 / layer.length : 1;
  const seenBy = x => turns && layer.centred ? centred(x, d) : x, rows = (x, k, w) => x && x.subarray(k * w, (k + 1) * w);
  let drift = null;
  const add = x => { if (x) { drift = drift ?? new Float64Array(d); for (let c = 0; c < d; c += 1) { drift[c] += x[c]; } } };
  chosen.forEach(k => add(rows(parts.drift, k, d)));
  if (s.heads === 'all') { add(parts.bo); }
  const rotary = s.enc === 'none' || !layer.rotary ? null : s.base === layer.rotary.base || !layer.rotary.plain ? layer.rotary : rotaryOf(layer.rotary.d_rotary, s.base, layer.rotary.halves);
  return {
    d, r, beta: s.beta, mask: s.mask, window: layer.window, geometry: s.norm,
    heads: chosen.map(k => ({ wq: times(parts.heads[k].wq, seen), wk: times(parts.heads[k].wk, seen), wv: times(parts.heads[k].wv, seen), wo: times(seenBy(parts.heads[k].wo), slow * s.v) })),
    bq: parts.bq ? chosen.map(k => rows(parts.bq, k, r)) : null,
    bk: parts.bk ? chosen.map(k => rows(parts.bk, k, r)) : null,
    drift: drift && times(seenBy(drift), slow * s.v),
    rotary, slopes: s.enc !== 'none' && layer.slopes ? chosen.map(k => layer.slopes[k]) : null, positions: null, reinjected: false,
  };
}
function headTokens(s) {
  const { tokens } = unpack(s.layer), d = s.d, out = Float64Array.from(tokens.subarray(0, s.n * d));
  if (s.layer.normed && s.norm === 'free' && s.layer.in_front) {
    for (let i = 0; i < s.n; i += 1) { let size = 0; for (let c = 0; c < d; c += 1) { size += out[i * d + c] ** 2; } for (let c = 0; c < d; c += 1) { out[i * d + c] *= Math.sqrt(d / size); } }
  }
  return out;
}
// What is integrated: the system, where tokens start, and the axes of the picture (null: the coordinates themselves).
export function flowOf(s, flow) {
  const isHead = s.layer !== null, system = isHead ? headSystem(s) : namedSystem(s, flow), parts = isHead ? unpack(s.layer) : null;
  const tokens = isHead ? headTokens(s) : Float64Array.from(flow.tokens[flow.widths.indexOf(s.d)].slice(0, s.n * s.d));
  const axes = parts ? parts.axes : null, d = s.d;
  if (!isHead && s.norm === 'sphere') { unit(tokens, s.n, d); } // so that a drag is a distance on the sphere
  const scale = isHead ? s.norm === 'sphere' ? (unit(tokens, s.n, d), 1) : size(tokens, s.n, d) : 1; // a drag is in units of what the picture shows
  for (const [i, by] of s.moved) {
    if (i >= s.n) { continue; }
    for (let c = 0; c < d; c += 1) { tokens[i * d + c] += scale * (axes ? by[0] * axes[c] + by[1] * axes[d + c] + by[2] * axes[2 * d + c] : by[c] ?? 0); }
  }
  return { system, tokens, n: s.n, axes, scale, ghost: parts ? parts.ghost : [], names: isHead ? flow.model.tokens : [] };
}
const unit = (x, n, d) => { for (let i = 0; i < n; i += 1) { let q = 0; for (let c = 0; c < d; c += 1) { q += x[i * d + c] ** 2; } for (let c = 0; c < d; c += 1) { x[i * d + c] /= Math.sqrt(q) || 1; } } };
const size = (x, n, d) => { let total = 0; for (let i = 0; i < n; i += 1) { let q = 0; for (let c = 0; c < d; c += 1) { q += x[i * d + c] ** 2; } total += Math.sqrt(q); } return total / n; };

// --- the same in Python ----------------------------------------------------------------------

const num = v => Number.isInteger(v) ? `${v}.0` : String(v);

export function pythonOf(s, model, given) {
  const lines = [...(s.layer ? headPython(s, model, given) : namedPython(s)), ...movedPython(s),
    `result = ol.simulate(system, ol.SimulateOptions(n_tokens=${s.n}, until=${num(s.until)}, rtol=1e-8), tokens=tokens)`,
    'last = result.trajectory.unit_tokens[-1]',
    'print(result.summary())',
    `print("C", round(result.to_pandas()["mean_cosine"].iloc[-1], 4))`,
    `print("clusters", count_clusters(${s.norm === 'free' ? 'last / last.norm(dim=1).max()' : 'last / last.norm(dim=1, keepdim=True)'}, 0.05))`, ''];
  return s.layer ? withLevels(lines.join('\n'), given) : lines.join('\n');
}
function namedPython(s) {
  const d = s.d, lines = ['import torch', 'import orbitlens as ol', 'from orbitlens.flows.outcome import count_clusters'];
  const drawn = (rows, seed) => `torch.randn(${rows}, ${d}, generator=torch.Generator().manual_seed(${seed}), dtype=torch.float64)`, settings = [];
  settings.push(`beta=${num(s.beta)}`, `mask=Mask("${s.mask}")`, `geometry=Geometry("${s.norm}")`);
  if (s.enc === 'rotary') { lines.push('from orbitlens.families.architecture import Pairing, RotarySpec'); settings.push(`rotary=RotarySpec(base=${num(s.base)}, d_rotary=${d - d % 2}, d_head=${d}, pairing=Pairing.HALVES)`); }
  if (s.enc === 'alibi') { settings.push(`alibi_slopes=torch.tensor([${Array.from({ length: s.heads }, (_, h) => 2 ** (-8 * (h + 1) / s.heads)).join(', ')}], dtype=torch.float64)`); }
  if (s.enc === 'absolute' || s.enc === 'reinjected') { settings.push(`positions=${drawn(MOST_TOKENS, 1)}[:${s.n}] / ${d} ** 0.5`, ...(s.enc === 'reinjected' ? ['reinjected=True'] : [])); }
  lines.push(...(s.system === MIXED ? [] : ['from orbitlens.flows.examples import example_system']), 'from orbitlens.flows.system import Geometry, Mask, system_of_maps, with_settings', '');
  if (s.system === MIXED) {
    lines.push(`eye = torch.eye(${d}, dtype=torch.float64)`, `value = ${num(s.a)} * eye + (1 - ${num(s.a)} ** 2) ** 0.5 * ${drawn(d, 2)} / ${d} ** 0.5`,
      `score, value = torch.stack([eye] * ${s.heads}), torch.stack([value] * ${s.heads})`);
  } else {
    lines.push(`heads = [example_system("${s.system}", d_model=${d}, seed=k) for k in range(${s.heads})]`, 'score = torch.stack([one.w_q[0] for one in heads])', 'value = torch.stack([one.w_o[0].T for one in heads])');
  }
  lines.push(`system = system_of_maps(score, value * ${num(s.v)} / ${s.heads})`, `system = with_settings(\n    system,\n${settings.map(one => `    ${one},`).join('\n')}\n)`, `tokens = ${drawn(MOST_TOKENS, 0)}[:${s.n}]`);
  if (s.norm === 'sphere') { lines.push('tokens = tokens / tokens.norm(dim=1, keepdim=True)'); }
  return lines;
}
function headPython(s, model, given) {
  const target = s.heads === 'all' ? `model.layer(${s.layer.layer})` : `model.head(${s.layer.layer}, ${s.head})`, settings = [];
  settings.push(`beta=${num(s.beta)}`, `mask=Mask("${s.mask}")`);
  if (s.v !== 1) { settings.push(`w_o=flow.system.w_o * ${num(s.v)}`, `drift=flow.system.drift * ${num(s.v)}`); }
  if (s.enc === 'none') { settings.push('rotary=None', 'alibi_slopes=None'); }
  else if (s.layer.rotary && s.base !== s.layer.rotary.base) { settings.push(`rotary=replace(flow.system.rotary, base=${num(s.base)})`); }
  return ['from dataclasses import replace', '', 'import orbitlens as ol', ...(s.moved.size ? ['from orbitlens.exploring.head_flows import picture_axes'] : []), 'from orbitlens.exploring.sentence import Prompt, sentence_of', 'from orbitlens.flows.flow import build_flow', 'from orbitlens.flows.outcome import count_clusters',
    'from orbitlens.flows.real_tokens import layer_tokens', 'from orbitlens.flows.system import Geometry, Mask, with_settings', '',
    `model = ol.load(${py(model.source)})`, `sentence = sentence_of(model.running, ${givenPython(given)})`, `own = layer_tokens(model, sentence.fed, layer=${s.layer.layer})`,
    `flow = build_flow(${target}, ol.SimulateOptions(geometry=Geometry("${s.norm}")), own)`,
    `system = with_settings(\n    flow.system,\n${settings.map(one => `    ${one},`).join('\n')}\n)`, `tokens = flow.start[:${s.n}]`,
    ...(s.norm === 'sphere' ? ['tokens = tokens / tokens.norm(dim=1, keepdim=True)'] : [])];
}
function movedPython(s) {
  const moved = [...s.moved].filter(([i]) => i < s.n);
  if (!moved.length) { return []; }
  const lines = ['tokens = tokens.clone()'];
  if (s.layer) { lines.push('axes = picture_axes(flow.start)', ...(s.norm === 'sphere' ? [] : ['axes = axes * tokens.norm(dim=1).mean()'])); }
  for (const [i, by] of moved) { lines.push(`tokens[${i}] += torch.tensor([${(s.layer ? by : by.slice(0, s.d)).join(', ')}], dtype=torch.float64)${s.layer ? ' @ axes' : ''}`); }
  return s.layer ? ['import torch', ...lines] : lines;
}
