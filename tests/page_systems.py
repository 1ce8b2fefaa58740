"""Random flows of every kind that the page has, as the library's systems and as the page's."""

import random

import torch

from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.rotary import resolve_rotary

GEOMETRIES = (Geometry.FREE, Geometry.SPHERE, Geometry.PRE_LN)
SAVED = 4


def drawn(seed):
    """Return a random system, its tokens, and how long to run: two in ten run away."""
    choose, torch_random = random.Random(seed), torch.Generator().manual_seed(seed)
    d, h, n = choose.choice((1, 2, 3, 4, 9, 24)), choose.choice((1, 1, 2, 3)), choose.randint(1, 8)
    r = choose.choice([r for r in (1, 2, 3, 4, 6) if r <= d])
    geometry = choose.choice(GEOMETRIES) if d > 1 else Geometry.FREE

    def normal(*shape):
        return torch.randn(*shape, generator=torch_random, dtype=torch.float64)

    size, often = d**-0.5, lambda share: choose.random() < share
    kind = choose.choice(("none", "none", "absolute", "reinjected", "rotary", "alibi"))
    system = System(
        w_q=normal(h, d, r) * size,
        w_k=normal(h, d, r) * size,
        w_v=normal(h, d, r) * size,
        w_o=normal(h, r, d) * size,
        b_q=normal(h, r) if often(0.3) else None,
        b_k=normal(h, r) if often(0.3) else None,
        drift=0.3 * normal(d) if often(0.3) else None,
        beta=choose.choice((0.0, 0.5, 1.0, 3.0)),
        mask=choose.choice((Mask.FULL, Mask.CAUSAL)),
        window=choose.choice((None, None, 2)),
        geometry=geometry,
        rotary=_rotary(choose, r) if kind == "rotary" and r > 1 else None,
        alibi_slopes=normal(h).abs() if kind == "alibi" else None,
        positions=normal(n, d) if kind in {"absolute", "reinjected"} else None,
        reinjected=kind == "reinjected",
    )
    if geometry is Geometry.FREE and often(0.4):  # grows by e^20, beyond the raw chart
        eye = torch.eye(d, dtype=torch.float64).expand(1, d, d)
        system = System(w_q=eye * 0.5, w_k=eye, w_v=eye, w_o=2 * eye, mask=system.mask)
        return system, normal(n, d), 10.0
    return system, normal(n, d), choose.choice((0.5, 1.0, 2.0))


def _rotary(choose, r):
    pairing = choose.choice((Pairing.HALVES, Pairing.NEIGHBOURS))
    return RotarySpec(
        base=choose.choice((10.0, 1e4)), d_rotary=2 * (r // 2), d_head=r, pairing=pairing
    )


def for_the_page(system, tokens, until):
    """Return a system as the page's integrator takes it."""
    spec, flat = system.rotary, lambda x: None if x is None else x.flatten().tolist()
    turns = None if spec is None else resolve_rotary(spec, len(tokens))
    names = {"wq": system.w_q, "wk": system.w_k, "wv": system.w_v, "wo": system.w_o}
    page = {
        "d": system.d_model,
        "r": system.d_head,
        "heads": [{k: flat(w[h]) for k, w in names.items()} for h in range(system.n_heads)],
        "bq": None if system.b_q is None else system.b_q.tolist(),
        "bk": None if system.b_k is None else system.b_k.tolist(),
        "drift": flat(system.drift),
        "beta": system.beta,
        "mask": system.mask.value,
        "window": system.window,
        "geometry": system.geometry.value,
        "rotary": None
        if turns is None
        else {
            "frequencies": turns.frequencies.tolist(),
            "factor": turns.factor,
            "halves": spec.pairing is Pairing.HALVES,
        },
        "slopes": flat(system.alibi_slopes),
        "positions": flat(system.positions),
        "reinjected": system.reinjected,
    }
    return {"system": page, "tokens": flat(tokens), "n": len(tokens), "until": until}


def reference(system, tokens, until):
    """Return the library's tokens at the saved moments, and the logarithm of their scale."""
    options = IntegrateOptions(rtol=1e-9, n_saved=SAVED)
    run = integrate_flow(system, tokens, until=until, options=options)
    return run.unit_tokens, run.log_scale
