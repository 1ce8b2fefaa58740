"""One scale for the cloud, or one a token? What each chart knows of tokens that grow more slowly.

    python benchmarks/token_scales.py

Chart G writes all tokens as exp(s) u with |u| = 1 for the whole cloud; chart T writes each token as
exp(s_i) u_i with |u_i| = 1. orbitlens uses G. Both are integrated by SciPy's DOP853 at the same
tolerance. V has the eigenvalue 1 and a turning pair with real part 1/2, the mask is causal, and the
first six tokens lie in the plane of the pair: they grow like exp(t/2) and see nobody else, so their
own flow, alone and at a tolerance of 1e-10, is the reference.
"""

import math

import numpy as np
from scipy.integrate import solve_ivp

V = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, -0.3], [0.0, 0.3, 0.5]])
N_SLOW = 6


def causal_weights(scores):
    scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def rate_of_cloud(y, n):
    u, s = y[:-1].reshape(n, 3), y[-1]
    a = causal_weights(math.exp(min(2 * s, 640)) * u @ u.T) @ u @ V.T
    speed = (a * u).sum()
    return np.append((a - speed * u).ravel(), speed)


def rate_of_tokens(y, n):
    u, s = y[: 3 * n].reshape(n, 3), y[3 * n :]
    top = s.max()
    scores = np.exp(np.minimum(s[:, None] + s[None, :], 640)) * (u @ u.T)
    x = np.exp(s - top)[:, None] * u
    a = causal_weights(scores) @ x @ V.T * np.exp(top - s)[:, None]
    speed = (a * u).sum(axis=1)
    return np.concatenate([(a - speed[:, None] * u).ravel(), speed])


def run(chart, x, until, rtol):
    """Return directions, logarithms of lengths, and the number of evaluations."""
    n = len(x)
    if chart == "G":
        size = np.linalg.norm(x)
        y, rate = np.append(x.ravel() / size, math.log(size)), rate_of_cloud
    else:
        size = np.linalg.norm(x, axis=1)
        y, rate = np.concatenate([(x / size[:, None]).ravel(), np.log(size)]), rate_of_tokens
    atol = rtol / math.sqrt(n)
    found = solve_ivp(lambda _, z: rate(z, n), (0, until), y, "DOP853", rtol=rtol, atol=atol)
    y = found.y[:, -1]
    u = y[: 3 * n].reshape(n, 3)
    lengths = np.linalg.norm(u, axis=1)
    return (
        u / lengths[:, None],
        np.log(lengths) + (y[-1] if chart == "G" else y[3 * n :]),
        found.nfev,
    )


def main():
    x = np.random.default_rng(0).standard_normal((32, 3))
    x[:N_SLOW, 0] = 0
    print("| until | rtol | chart | evaluations | error of directions | error of ln lengths |")
    print("|---|---|---|---|---|---|")
    for until in (5.0, 10.0, 20.0, 40.0):
        exact, logs, _ = run("T", x[:N_SLOW], until, 1e-10)
        for rtol in (1e-6, 1e-8):
            for chart in "GT":
                u, found, count = run(chart, x, until, rtol)
                turned = np.abs(u[:N_SLOW] - exact).max()
                grown = np.abs(found[:N_SLOW] - logs).max()
                print(f"| {until:g} | {rtol:g} | {chart} | {count} | {turned:.1e} | {grown:.1e} |")


if __name__ == "__main__":
    main()
