"""N1 to N3: tokens on one side gather in one direction, and a causal flow follows its first token.

Enters: `Directions`. Leaves: a certificate each, proved in docs/certificates.md.
"""

import math

import numpy as np

from orbitlens.flows.directions import Directions
from orbitlens.theory.certificates import Certificate, Hypothesis, certify, rounded_down
from orbitlens.theory.dominance import Lag, Leading, compressed, in_basis
from orbitlens.theory.eigenpairs import Matrix, Vector
from orbitlens.theory.half_spaces import CLEAR, half_space

SAFE = 1e-3  # share by which spreads are enlarged, for what rounding does to eigenvectors


def gathering_certificate(flow: Directions) -> Certificate:
    """N1: with V_h = v_h I, tokens in one half-space gather in one direction.

    Without a drift, |y_i - y_k| <= spread exp(-rate t); with one, in whose half-space the tokens
    start, y_i . b >= |b| tanh(rate t + artanh(cosine)). The margin is the smallest w . y_i.
    """
    if flow.drift.any():
        return _drawn(flow)
    found = half_space(flow.tokens)
    side = Hypothesis(
        name="all tokens start in one half-space", holds=found is not None, detail="they do not"
    )
    hypotheses = [flow.scalar_values(), flow.no_window(), side]
    if found is None or not all(h.holds for h in hypotheses):
        return certify("N1", hypotheses, margin=0.0, conclusion="")
    w, margin = found
    spread, links = _chart_spread(flow, w)
    floor = sum(v * flow.least_weight(h) for h, v in enumerate(flow.scalars or ()))
    rate = links * floor * margin * (1 - SAFE)
    where = "the first one's direction" if flow.is_causal else "one direction"
    pace = f", at least like exp(-{rounded_down(rate)} t)" if flow.has_unit_speed else ""
    numbers = {"spread": spread}
    if flow.has_unit_speed:
        numbers["rate"] = rate
    conclusion = f"all tokens converge to {where}{pace}"
    return certify("N1", hypotheses, margin=margin, conclusion=conclusion, numbers=numbers)


def _chart_spread(flow: Directions, w: Vector) -> tuple[float, int]:
    """Return the spread of z = y / (w . y), and how many weights bring two tokens together.

    Under a causal mask distances to the first token count, and the weight on that one.
    """
    z = flow.tokens / (flow.tokens @ w)[:, None]
    if flow.is_causal:
        return 2 * float(np.linalg.norm(z - z[0], axis=1).max()) * (1 + SAFE), 1
    gaps = np.linalg.norm(z[:, None] - z[None], axis=2)
    return float(gaps.max()) * (1 + SAFE), flow.n_tokens


def _drawn(flow: Directions) -> Certificate:
    """N1 with a drift b: all tokens converge to its direction."""
    pull = float(np.linalg.norm(flow.drift))
    least = float((flow.tokens @ flow.drift).min()) / pull
    side = Hypothesis(
        name="all tokens start on the drift's side",
        holds=least > CLEAR,
        detail=f"one has cosine {least:.2g} with it",
    )
    numbers = {"cosine": least * (1 - CLEAR)}
    if flow.has_unit_speed:
        numbers["pull"] = pull * (1 - CLEAR)
    return certify(
        "N1",
        [flow.scalar_values(), side],
        margin=least,
        conclusion="all tokens converge to the direction of the drift",
        numbers=numbers,
    )


# --- N1c and N2 ------------------------------------------------------------------------------


def _leading(flow: Directions) -> tuple[Leading | None, Matrix]:
    """Return the leading eigenvalue of the sum of value maps, and the tokens in its coordinates."""
    h, d, r = flow.system.w_v.shape
    reads = flow.system.w_v.permute(1, 0, 2).reshape(d, h * r).numpy()
    writes = flow.system.w_o.reshape(h * r, d).numpy()
    matrix, basis = compressed(reads, writes)
    pairs = zip(flow.system.w_v.numpy(), flow.system.w_o.numpy(), strict=True)
    scale = sum(float(np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs)
    return Leading.of(matrix, scale), in_basis(flow.tokens, basis)


def _lag_behind(leading: Leading, lag: Lag, tokens: Matrix) -> tuple[float, float] | None:
    """Return the largest distance from the leading direction in the chart, and the longest z.

    None where a token is not clearly on the positive side of w's hyperplane.
    """
    sides = tokens @ leading.left
    unsure = leading.pair.radius * (1 + float(np.linalg.norm(leading.section)))
    if float(sides.min()) <= max(CLEAR, 1e6 * unsure):
        return None
    behind = tokens / sides[:, None] - leading.section
    norms = lag.metric.norms(behind @ leading.across)
    far = float(norms.max()) / math.sqrt(lag.metric.smallest) * (1 + SAFE)
    return far, (float(np.linalg.norm(leading.section)) + far) * (1 + SAFE)


def cone_certificate(flow: Directions) -> Certificate:
    """N1c: one head whose leading eigenvalue is real, positive and largest in modulus.

    Tokens on one side of its left eigenvector's hyperplane converge to its right eigenvector:
    |y_i - y_k| <= spread exp(-rate t). The margin is the eigenvalue's lead, 1 - |next| / value.
    """
    leading, tokens = _leading(flow)
    lag = None if leading is None else leading.in_size
    bounds = None
    if leading is not None and lag is not None:
        sign = 1.0 if tokens[0] @ leading.left > 0 else -1.0
        bounds = _lag_behind(leading, lag, sign * tokens)
    hypotheses = [
        Hypothesis(name="one head", holds=len(flow.heads) == 1, detail="several value maps"),
        flow.no_drift(),
        Hypothesis(
            name="V's largest eigenvalue is real, positive and alone",
            holds=lag is not None,
            detail="it is not, or cannot be told from its neighbours",
        ),
        Hypothesis(
            name="all tokens start on one side of it",
            holds=lag is None or bounds is not None,
            detail="they do not",
        ),
    ]
    if leading is None or lag is None or bounds is None:
        return certify("N1c", hypotheses, margin=0.0, conclusion="")
    far, longest = bounds
    rate = lag.rate / longest * (1 - SAFE)
    pace = f", at least like exp(-{rounded_down(rate)} t)" if flow.has_unit_speed else ""
    numbers = {"spread": 2 * far} | ({"rate": rate} if flow.has_unit_speed else {})
    return certify(
        "N1c",
        hypotheses,
        margin=2 * (1 - lag.factor),
        conclusion=f"all tokens converge to V's leading direction{pace}",
        numbers=numbers,
    )


def first_direction_certificate(flow: Directions) -> Certificate:
    """N2: the first token's direction converges to the leading eigenvector of the sum of V_h.

    |y_1 - v| <= spread exp(-rate t), v one of the two eigenvectors. The margin is the gap between
    the real parts.
    """
    leading, tokens = _leading(flow)
    lag = None if leading is None else leading.in_time
    bounds = None
    if leading is not None and lag is not None:
        sign = 1.0 if tokens[0] @ leading.left > 0 else -1.0
        bounds = _lag_behind(leading, lag, sign * tokens[:1])
    rises = leading is not None and leading.value > leading.error
    hypotheses = [
        flow.causal(),
        flow.no_drift(),
        Hypothesis(
            name="the leading eigenvalue of V is real and alone",
            holds=lag is not None,
            detail="it is not, or cannot be told from its neighbours",
        ),
        Hypothesis(
            name="it is positive, or tokens stay on the sphere",
            holds=lag is None or rises or flow.has_unit_speed,
            detail="a token that shrinks may reach 0, which has no direction",
        ),
        Hypothesis(
            name="the first token has a part in its direction",
            holds=lag is None or bounds is not None,
            detail="it has none that is certain",
        ),
    ]
    if lag is None or bounds is None:
        return certify("N2", hypotheses, margin=0.0, conclusion="")
    pace = f", at least like exp(-{rounded_down(lag.rate)} t)" if flow.has_unit_speed else ""
    numbers = {"spread": bounds[0]} | ({"rate": lag.rate} if flow.has_unit_speed else {})
    return certify(
        "N2",
        hypotheses,
        margin=2 * lag.rate,
        conclusion=f"the first token converges to V's leading direction{pace}",
        numbers=numbers,
    )


def followers_certificate(flow: Directions) -> Certificate:
    """N3: causal, V_h = v_h I: from almost every start, all tokens take the first one's direction.

    It says nothing certain of one start; N1 does, where tokens lie in a half-space. The margin is
    the sum of v_h.
    """
    hypotheses = [
        flow.causal(),
        flow.no_window(),
        flow.scalar_values(),
        flow.no_drift(),
        Hypothesis(
            name="tokens stay on the sphere",
            holds=flow.has_unit_speed,
            detail=f"the geometry is {flow.system.geometry.value}",
        ),
        Hypothesis(
            name="two dimensions or more", holds=flow.tokens.shape[1] > 1, detail="there is one"
        ),
    ]
    return certify(
        "N3",
        hypotheses,
        margin=sum(flow.scalars or (0.0,)),
        conclusion="from almost every start all tokens converge to the first one's direction",
    )
