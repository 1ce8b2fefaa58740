"""T1 to T5 of a head or a layer: the flow of tokens in the raw stream, each hypothesis apart.

Enters: a `Head` (or a layer's heads). Leaves: for each theorem a `Certificate`. Proofs are in
docs/certificates.md, of the flow d/dt x_i = V sum_j softmax_j(x_i^T W x_j + c . x_j) x_j + b
(theory section 2).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from orbitlens.families.architecture import Position
from orbitlens.heads.head import Head
from orbitlens.theory.alignment import COARSE, EQUALITY, Alignment
from orbitlens.theory.certificates import (
    Certificate,
    Hypothesis,
    certify,
    rounded_down,
    rounded_up,
)
from orbitlens.theory.eigenpairs import EPS, Growth, Matrix, certain_eigenpairs, exact_product
from orbitlens.theory.maps import HeadMaps

ABSOLUTE_POSITIONS = {Position.NONE, Position.LEARNED, Position.SINUSOIDAL}
SLACK = 1e-3  # log-change of a distance per unit of depth that T1 leaves to what A V misses of W
SMALLEST = 1e-140  # speed limit whose square floats hold with all its digits
CONTEXT = 128  # tokens for which T2 is stated where their number is not known


def head_certificates(head: Head, maps: HeadMaps | None = None) -> tuple[Certificate, ...]:
    """Check T1 to T5 on the flow of one head alone."""
    maps = maps or HeadMaps.of(head)
    form = Alignment.of(maps)
    return (
        pair_certificate(head, form),
        cloud_certificate(head, maps, form),
        half_space_certificate(head, maps),
        leader_certificate([head], head_growth(maps)),
        speed_certificate([head], speed_bound(maps)),
    )


def layer_certificates(
    heads: Sequence[Head], *, speed_limit: float, growth: Growth, drift: torch.Tensor
) -> tuple[Certificate, ...]:
    """Return T4 and T5 for all heads of a layer at once; T1 to T3 are proved for one head only."""
    return leader_certificate(heads, growth), speed_certificate(heads, speed_limit, drift)


def is_raw(head: Head) -> bool:
    """Whether tokens are normalised neither in front of attention nor behind it.

    T1 to T5 speak of such a stream; of others N1c, N2 and N4 do (`orbitlens.theory.normalised`).
    """
    return head.norm is None and not head.post_norm


def value_matrix(maps: HeadMaps) -> tuple[Matrix, float, bool]:
    """Return a small matrix with V's eigenvalues, the size of its parts, and if V has a kernel.

    U^T O has the eigenvalues of V = O U^T that its rank does not force to zero; where heads are as
    wide as tokens it has no fewer, and V itself is taken. The size is 0 where nothing was rounded.
    """
    out, value = (f.detach().cpu().numpy() for f in (maps.out, maps.value))
    scale = float(np.linalg.norm(out) * np.linalg.norm(value))
    d, r = out.shape
    if r < d:
        return value.T @ out, scale, True
    exact = exact_product(out, value.T)
    return (out @ value.T, scale, False) if exact is None else (exact, 0.0, False)


def head_growth(maps: HeadMaps) -> Growth:
    """Return what is certain of the abscissa of a head's value map."""
    matrix, scale, kernel = value_matrix(maps)
    return Growth.of(matrix, scale, kernel=kernel)


# --- hypotheses that several theorems share --------------------------------------------------


def plain_scores(head: Head) -> list[Hypothesis]:
    """T1 and T2 need scores x_i^T W x_j and nothing else."""
    position = head.position
    return [
        Hypothesis(
            name="scores do not depend on positions",
            holds=position in ABSOLUTE_POSITIONS,
            detail=f"the {position.value} encoding changes them with the offset",
        ),
        Hypothesis(
            name="scores are bilinear",
            holds=head.has_bilinear_scores,
            detail=_nonlinearities(head),
        ),
    ]


def _nonlinearities(head: Head) -> str:
    names = {
        "soft cap": head.softcap is not None,
        "query-key norm": head.qk_norm is not None,
        "clipping": head.clip is not None,
        "norm on the latent": head.q_latent is not None or head.kv_latent is not None,
    }
    return " and ".join(name for name, there in names.items() if there) or "they are"


def linear_values(heads: Iterable[Head]) -> Hypothesis:
    """Say whether attention's output is linear in the tokens it averages."""
    listed = list(heads)
    reasons = {
        "they are clipped to a fixed range": any(head.clip is not None for head in listed),
        "the latent they come from is normalised": any(
            head.kv_latent is not None for head in listed
        ),
        "attention's output is normalised": any(head.output_gain is not None for head in listed),
    }
    present = [reason for reason, there in reasons.items() if there]
    return Hypothesis(
        name="values are linear", holds=not present, detail=" and ".join(present) or "they are"
    )


def full_attention(head: Head) -> Hypothesis:
    """Say whether every token sees every token."""
    seen = "a causal mask" if head.causal else f"a window of {head.window} tokens"
    return Hypothesis(
        name="every token sees every token",
        holds=not head.causal and head.window is None,
        detail=f"{seen} gives each token its own potential",
    )


def _aligned(form: Alignment) -> list[Hypothesis]:
    """W = A V, A symmetric and definite: coarsely first, then to rounding."""
    coarse = [
        Hypothesis(
            name="W = A V for some A",
            holds=form.leak < COARSE,
            detail=f"{form.leak:.0%} of W reads directions that V does not",
        ),
        Hypothesis(
            name="A is symmetric",
            holds=form.asymmetry < COARSE,
            detail=f"its antisymmetric part is {form.asymmetry:.0%} of it",
        ),
        Hypothesis(
            name="A is definite",
            holds=form.definiteness > EQUALITY,
            detail="it has directions of both signs" if form.definiteness < 0 else "it is singular",
        ),
    ]
    if not all(h.holds for h in coarse):
        return coarse
    share = form.missed / form.score_norm
    return [
        *coarse,
        Hypothesis(
            name="W = A V to rounding",
            holds=form.holds,
            detail=f"the nearest symmetric A misses {share:.0e} of W",
        ),
    ]


def is_zero(vector: torch.Tensor) -> bool:
    """Whether a vector is exactly 0."""
    return vector.abs().max().item() == 0.0


# --- the theorems ----------------------------------------------------------------------------


def pair_certificate(head: Head, form: Alignment) -> Certificate:
    """T1: with full attention and no rotary encoding, A definite orders all pair distances.

    Where A V misses E of W, the logarithm of a squared distance moves against the theorem by at
    most 2 |E| |W| R^2 / min|A| per unit of depth, for tokens within R of one point: R is that of
    `SLACK`. The margin is the smallest over the largest modulus of the eigenvalues of sym(V^T W)
    where V acts, negative where they have both signs.
    """
    kind, verb = ("aligned", "shrink") if form.is_positive else ("anti-aligned", "grow")
    wrong = 2 * form.missed * form.score_norm
    radius = math.sqrt(SLACK * max(form.smallest, 0.0) / wrong) if 0 < wrong < math.inf else 0.0
    return certify(
        "T1",
        [full_attention(head), *plain_scores(head), linear_values([head]), *_aligned(form)],
        margin=form.definiteness,
        conclusion=f"{kind} by {rounded_down(form.definiteness)}: distances (x_i - x_k)^T |A| "
        f"(x_i - x_k) never {verb} while tokens are within {rounded_down(radius)} of one point "
        f"(to {SLACK:.1%} per unit of depth)",
        numbers={"radius": radius, "slack": SLACK, "sign": 1.0 if form.is_positive else -1.0},
    )


def cloud_certificate(
    head: Head, maps: HeadMaps, form: Alignment, *, n_tokens: int = CONTEXT
) -> Certificate:
    """T2: with sym(W) > 0 as well and no biases, the cloud diverges, or all tokens converge to 0.

    The margin is the smaller of the definiteness of the alignment and that of sym(W). What A V
    misses of W leaves a ball around 0 of which nothing is said: `within` is its radius.
    """
    score = _score_spectrum(maps)
    positive = -1.0 if score is None else score[0] / max(score[1], 1e-300)
    symmetric = maps.score_symmetry > 1 - EQUALITY  # it is 1 - 2 |anti W|^2 / |W|^2
    within = _undecided(form, maps, n_tokens, causal=head.causal)
    hypotheses = [
        Hypothesis(
            name="every token sees every token, or the mask is causal and W symmetric",
            holds=head.window is None and (not head.causal or symmetric),
            detail="a mask, and W is not symmetric",
        ),
        *plain_scores(head),
        linear_values([head]),
        Hypothesis(
            name="no biases",
            holds=is_zero(head.score_shift) and is_zero(head.value_shift),
            detail="the head has biases",
        ),
        Hypothesis(
            name="sym(W) is positive definite",
            holds=positive > EQUALITY,
            detail="it is not"
            if score is not None
            else f"W has rank {maps.rank} at most and acts on {maps.d_model} directions",
        ),
        *_aligned(form),
    ]
    if all(h.holds for h in hypotheses):
        told = within is not None
        detail = f"not to the precision that {n_tokens} tokens ask for"
        hypotheses.append(Hypothesis(name="rounding decides nothing", holds=told, detail=detail))
    ball = rounded_up(within or 0.0)
    return certify(
        "T2",
        hypotheses,
        margin=min(positive, form.definiteness),
        conclusion=f"the tokens diverge, up to {n_tokens} of them, if one starts beyond {ball} of 0"
        if form.is_positive
        else f"all tokens converge to 0, up to {n_tokens} of them, to within {ball}",
        numbers={"within": within or 0.0, "sign": 1.0 if form.is_positive else -1.0},
    )


def _score_spectrum(maps: HeadMaps) -> tuple[float, float] | None:
    """Return the smallest eigenvalue of sym(W) and the largest modulus; None where rank forbids."""
    if maps.rank < maps.d_model:
        return None
    w = maps.left @ maps.right.T
    eigenvalues = torch.linalg.eigvalsh((w + w.T) / 2)
    return eigenvalues[0].item(), eigenvalues.abs().max().item()


def _undecided(form: Alignment, maps: HeadMaps, n: int, *, causal: bool) -> float | None:
    """Return the radius of the ball of which T2 says nothing; None where it says nothing at all.

    With e = |W - A V| (and |anti W| under a mask) and s = min sym(W), the energy moves as the
    theorem says while some token is longer than n (8 exp(1) e)^(1/2) / s.
    """
    score = _score_spectrum(maps)
    if score is None or not math.isfinite(form.missed) or form.smallest <= 0 or score[0] <= 0:
        return None
    w = (maps.left @ maps.right.T).numpy()
    missed, least = form.missed, score[0] * (1 - 1e-6)
    if causal:
        missed += float(np.linalg.norm((w - w.T) / 2, 2)) + len(w) * EPS * form.score_norm
    clear = (
        missed < 0.3 * least / n**3
        and 4 * math.e * n**2 * missed < least
        and 16 * n * missed * form.score_norm**2 < least**3
    )
    longest = n * math.sqrt(8 * math.e * missed) / least
    return longest * math.sqrt(n * form.largest / form.smallest) if clear else None


def half_space_certificate(head: Head, maps: HeadMaps) -> Certificate:
    """T3: a positive real eigenvalue of V makes tokens on one side of a hyperplane diverge.

    Holds under any queries, keys, encoding and mask. The margin is the largest positive real
    eigenvalue; where there is none, the largest real one (or -radius).
    """
    matrix, scale, _ = value_matrix(maps)
    spectrum = maps.value_spectrum
    real = spectrum.real[spectrum.imag == 0]
    margin = real.max().item() if real.numel() else -maps.value_radius
    pair = (
        next((p for p in certain_eigenpairs(matrix, scale, real=True)), None)
        if margin > 0
        else None
    )
    rate = pair.value.real - pair.error if pair is not None else 0.0
    side = "" if is_zero(head.value_shift) else ", on the side the head's bias points to"
    positive = Hypothesis(
        name="V has a positive real eigenvalue",
        holds=rate > 0,
        detail="it has none that is certain" if margin > 0 else "it has none",
    )
    return certify(
        "T3",
        [linear_values([head]), positive],
        margin=margin,
        conclusion=f"tokens that start on one side of a hyperplane{side} diverge at least like "
        f"exp({rounded_down(rate)} t)",
        numbers={"rate": rate},
    )


def leader_certificate(heads: Sequence[Head], growth: Growth) -> Certificate:
    """T4: under a causal mask the first token follows the sum of the value maps alone.

    The margin is the spectral abscissa of that sum, or where it was not computed a lower bound:
    positive, the leader diverges from almost every start; negative, it converges from every start.
    """
    rising = growth.at_least > 0
    hypotheses = [
        Hypothesis(
            name="the mask is causal",
            holds=all(head.causal for head in heads),
            detail="the first token sees the others too",
        ),
        linear_values(heads),
        Hypothesis(
            name="the abscissa of V is not 0",
            holds=rising or growth.decays,
            detail="its sign was not computed; ask for exact spectra"
            if growth.abscissa is None
            else "it cannot be told from 0: the leader keeps what lies in V's kernel",
        ),
    ]
    fate = (
        f"diverges from almost every start, at least like exp({rounded_down(growth.at_least)} t)"
        if rising
        else "converges from every start"
    )
    return certify(
        "T4",
        hypotheses,
        margin=growth.at_least if growth.abscissa is None else growth.abscissa,
        conclusion=f"the first token {fate}",
        numbers={"rate": growth.at_least} if rising else {},
    )


def speed_bound(maps: HeadMaps) -> float:
    """Return |V|_2, rounded up by what a Gram matrix may have lost of its square."""
    square = maps.out_out.trace().item() * maps.value_value.trace().item()
    return math.sqrt(maps.speed_limit**2 + 100 * maps.rank * EPS * square)


def _held_by_floats(heads: Sequence[Head], limit: float, push: torch.Tensor) -> Hypothesis:
    """Say whether floats hold the square of a speed limit, from which it is computed."""
    stands_still = all(not (head.w_v.any() and head.w_o.any()) for head in heads)
    size = push.abs().max().item()
    is_held = (stands_still or SMALLEST <= limit < math.inf) and (
        size == 0 or SMALLEST <= size <= 1 / SMALLEST
    )
    return Hypothesis(
        name="the limit is in the range of floats",
        holds=is_held,
        detail="its square is not",
    )


def speed_certificate(
    heads: Sequence[Head], limit: float, drift: torch.Tensor | None = None
) -> Certificate:
    """T5: no token outgrows exp(t sum_h |V_h|_2), a drift adding |b| (exp(Lt) - 1) / L.

    The margin is the exponent L, the growth that cannot be exceeded. `drift` is what moves every
    token, the biases of the heads if not given.
    """
    push = drift if drift is not None else sum((h.value_shift for h in heads), torch.zeros(()))
    length, shown = push.norm().item(), rounded_up(limit)
    extra = f", and {rounded_up(length)} (exp({shown} t) - 1) / {shown} by the biases"
    return certify(
        "T5",
        [linear_values(heads), _held_by_floats(heads, limit, push)],
        margin=limit,
        conclusion=f"no token grows faster than exp({shown} t)" + (extra if length > 0 else ""),
        numbers={"rate": limit, "drift": length},
    )
