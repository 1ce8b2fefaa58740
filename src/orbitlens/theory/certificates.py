"""Certificates T1 to T5: rigorous statements about a head's flow, each hypothesis checked apart.

Enters: a `Head` (or a layer's heads). Leaves: for each theorem a `Certificate`: whether every
hypothesis holds, by what margin, and what follows. Proofs are in docs/certificates.md, of the flow
d/dt x_i = V sum_j softmax_j(x_i^T W x_j + c . x_j) x_j + b (theory section 2).

A sign pattern alone (`alignment_signs`, the expansion index) is an indication, never a certificate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.families.architecture import Position
from orbitlens.heads.head import Head
from orbitlens.theory.maps import HeadMaps

# What a hypothesis of equality may miss by, relative to the size of what it compares. Residuals of
# low-rank maps come from Gram matrices, whose rounding is the square root of float64's.
EQUALITY = 1e-6
ABSOLUTE_POSITIONS = {Position.NONE, Position.LEARNED, Position.SINUSOIDAL}


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """What a certificate says and which settings it survives."""

    statement: str
    survives_rotary: bool
    survives_mask: str  # which masks it is proved for


THEOREMS: dict[str, Theorem] = {
    "T1": Theorem(
        statement="pair distances in the metric |A| never shrink (A > 0) or never grow (A < 0)",
        survives_rotary=False,
        survives_mask="full only",
    ),
    "T2": Theorem(
        statement="the cloud of tokens diverges (A > 0), or all tokens converge to 0 (A < 0)",
        survives_rotary=False,
        survives_mask="full; causal if W is symmetric",
    ),
    "T3": Theorem(
        statement="tokens on one side of a hyperplane diverge at least like exp(lambda t)",
        survives_rotary=True,
        survives_mask="any",
    ),
    "T4": Theorem(
        statement="the first token follows V alone: diverges or converges with V's abscissa",
        survives_rotary=True,
        survives_mask="causal only",
    ),
    "T5": Theorem(
        statement="no token grows faster than exp(|V| t)",
        survives_rotary=True,
        survives_mask="any",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One condition of a theorem, checked on its own."""

    name: str
    holds: bool
    detail: str  # why it fails; empty where it holds


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A theorem applied to one head or layer."""

    name: str
    holds: bool
    margin: float  # signed distance to failing; its unit is the theorem's (see `why`)
    why: str  # the conclusion, or the hypotheses that fail
    hypotheses: tuple[Hypothesis, ...]


def _certificate(
    name: str, hypotheses: Sequence[Hypothesis], margin: float, conclusion: str
) -> Certificate:
    failed = [f"{h.name}: {h.detail}" for h in hypotheses if not h.holds]
    return Certificate(
        name=name,
        holds=not failed,
        margin=margin,
        why=conclusion if not failed else "no certificate; " + "; ".join(failed),
        hypotheses=tuple(replace(h, detail="") if h.holds else h for h in hypotheses),
    )


def restricted(certificate: Certificate, *extra: Hypothesis) -> Certificate:
    """Return a certificate under more hypotheses, about the flow that the head is part of."""
    failed = [f"{h.name}: {h.detail}" for h in extra if not h.holds]
    if not failed:
        return replace(certificate, hypotheses=(*certificate.hypotheses, *extra))
    before = certificate.why if not certificate.holds else "no certificate"
    return replace(
        certificate,
        holds=False,
        why="; ".join([before, *failed]),
        hypotheses=(*certificate.hypotheses, *extra),
    )


def head_certificates(head: Head, maps: HeadMaps | None = None) -> tuple[Certificate, ...]:
    """Check T1 to T5 on the flow of one head alone."""
    maps = maps or HeadMaps.of(head)
    form = _Alignment.of(maps)
    return (
        pair_certificate(head, maps, form),
        cloud_certificate(head, maps, form),
        half_space_certificate(head, maps),
        leader_certificate([head], maps.value_abscissa, maps.speed_limit),
        speed_certificate([head], maps.speed_limit),
    )


# --- hypotheses that several theorems share --------------------------------------------------


def _plain_scores(head: Head) -> list[Hypothesis]:
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


def _linear_values(heads: Iterable[Head]) -> Hypothesis:
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


def _full_attention(head: Head) -> Hypothesis:
    seen = "a causal mask" if head.causal else f"a window of {head.window} tokens"
    return Hypothesis(
        name="every token sees every token",
        holds=not head.causal and head.window is None,
        detail=f"{seen} gives each token its own potential",
    )


@dataclass(frozen=True, kw_only=True)
class _Alignment:
    """The alignment A = W V^+ of a head: does it exist, is it symmetric, what are its signs?"""

    leak: float  # share of W that V's kernel does not kill: A V = W is impossible unless 0
    asymmetry: float  # |anti(V^T W)| / |V^T W|
    definiteness: float  # in [-1, 1]; positive iff the form is definite
    is_positive: bool  # the sign it is nearer to

    @classmethod
    def of(cls, maps: HeadMaps) -> "_Alignment":
        basis = _row_basis(maps)
        eigenvalues = torch.linalg.eigvalsh(basis.T @ maps.alignment_form @ basis).tolist() or [0.0]
        low, high = eigenvalues[0], eigenvalues[-1]
        size = max(-low, high)
        return cls(
            leak=_leak(maps, basis),
            asymmetry=_asymmetry(maps),
            definiteness=max(low, -high) / size if size > 0 else 0.0,
            is_positive=low >= -high,
        )

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(
                name="W = A V for some A",
                holds=self.leak < EQUALITY,
                detail=f"{self.leak:.0%} of W reads directions that V does not",
            ),
            Hypothesis(
                name="A is symmetric",
                holds=self.asymmetry < EQUALITY,
                detail=f"its antisymmetric part is {self.asymmetry:.0%} of it",
            ),
            Hypothesis(
                name="A is definite",
                holds=self.definiteness > EQUALITY,
                detail="it has directions of both signs"
                if self.definiteness < 0
                else "it is singular",
            ),
        ]


def _row_basis(maps: HeadMaps) -> Float[Tensor, "d_head rank"]:
    """Return X with U X an orthonormal basis of the span of U, so that no gauge matters in it."""
    eigenvalues, vectors = torch.linalg.eigh(maps.value_value)
    kept = eigenvalues > 1e-12 * eigenvalues[-1]
    return vectors[:, kept] * eigenvalues[kept].rsqrt()


def _leak(maps: HeadMaps, basis: Float[Tensor, "d_head rank"]) -> float:
    """Return |W - W V^+ V| / |W|: what of R lies outside the span of U."""
    if maps.score_norm == 0 or maps.value_norm == 0:
        return 1.0
    inside = basis.T @ maps.value_right
    outside = maps.right_right - inside.T @ inside
    square = (maps.left_left * outside).sum().item()
    return max(square, 0.0) ** 0.5 / maps.score_norm


def _asymmetry(maps: HeadMaps) -> float:
    """Return |anti(M)| / |M| for M = V^T W = U E R^T, E = O^T L."""
    e = maps.out_left
    square = ((e.T @ maps.value_value @ e) * maps.right_right).sum().item()
    inner = maps.value_right.T @ e
    twist = (inner * inner.T).sum().item()
    return max((square - twist) / 2, 0.0) ** 0.5 / square**0.5 if square > 0 else 0.0


# --- the theorems ----------------------------------------------------------------------------


def pair_certificate(head: Head, maps: HeadMaps, form: "_Alignment | None" = None) -> Certificate:
    """T1: with full attention and no rotary encoding, A definite orders all pair distances.

    The margin is the smallest over the largest modulus of the eigenvalues of sym(V^T W) where V
    acts, negative where they have both signs.
    """
    form = form or _Alignment.of(maps)
    kind, verb = ("aligned", "shrink") if form.is_positive else ("anti-aligned", "grow")
    return _certificate(
        "T1",
        [_full_attention(head), *_plain_scores(head), _linear_values([head]), *form.hypotheses()],
        form.definiteness,
        f"{kind} by {form.definiteness:.2g}: distances (x_i - x_k)^T |A| (x_i - x_k) never {verb}",
    )


def cloud_certificate(head: Head, maps: HeadMaps, form: "_Alignment | None" = None) -> Certificate:
    """T2: with sym(W) > 0 as well and no biases, the cloud diverges, or all tokens converge to 0.

    The margin is the smaller of the definiteness of the alignment and that of sym(W).
    """
    form = form or _Alignment.of(maps)
    positive = _score_definiteness(maps)
    symmetric = maps.score_symmetry > 1 - EQUALITY**2  # it is 1 - 2 |anti W|^2 / |W|^2
    # Not every token need leave: one at the centre of a symmetric cloud stays there.
    # The slow approach is that of full attention: uniform causal attention leaves no difference be.
    pace = "" if head.causal else ", like t^(-1/2)"
    fate = "the tokens diverge" if form.is_positive else f"all tokens converge to 0{pace}"
    hypotheses = [
        Hypothesis(
            name="every token sees every token, or the mask is causal and W symmetric",
            holds=head.window is None and (not head.causal or symmetric),
            detail="a mask, and W is not symmetric",
        ),
        *_plain_scores(head),
        _linear_values([head]),
        Hypothesis(
            name="no biases",
            holds=_is_zero(head.score_shift) and _is_zero(head.value_shift),
            detail="the head has biases",
        ),
        Hypothesis(
            name="sym(W) is positive definite",
            holds=positive > EQUALITY,
            detail=_score_detail(maps),
        ),
        *form.hypotheses(),
    ]
    margin = min(positive, form.definiteness)
    return _certificate("T2", hypotheses, margin, f"{fate} (margin {margin:.2g})")


def _is_zero(vector: torch.Tensor) -> bool:
    return vector.abs().max().item() == 0.0


def _score_definiteness(maps: HeadMaps) -> float:
    """Return the smallest over the largest eigenvalue of sym(W); -1 where rank rules it out."""
    if maps.rank < maps.d_model:
        return -1.0
    w = maps.left @ maps.right.T
    eigenvalues = torch.linalg.eigvalsh((w + w.T) / 2)
    size = eigenvalues.abs().max().item()
    return eigenvalues[0].item() / size if size > 0 else 0.0


def _score_detail(maps: HeadMaps) -> str:
    if maps.rank < maps.d_model:
        return f"W has rank {maps.rank} at most and acts on {maps.d_model} directions"
    return "it is not"


def half_space_certificate(head: Head, maps: HeadMaps) -> Certificate:
    """T3: a positive real eigenvalue of V makes tokens on one side of a hyperplane diverge.

    Holds under any queries, keys, encoding and mask. The margin is the largest positive real
    eigenvalue; where there is none, the largest real one (or -radius).
    """
    spectrum = maps.value_spectrum
    real = spectrum.real[spectrum.imag == 0]
    largest = real.max().item() if real.numel() else -maps.value_radius
    side = "" if _is_zero(head.value_shift) else ", on the side the head's bias points to"
    hypotheses = [
        _linear_values([head]),
        Hypothesis(
            name="V has a positive real eigenvalue",
            # Eigenvalues are rounded relative to |V|_2, which a nilpotent V's radius is far below.
            holds=largest > EQUALITY * maps.speed_limit,
            detail="it has none",
        ),
    ]
    return _certificate(
        "T3",
        hypotheses,
        largest,
        f"tokens that start on one side of a hyperplane{side} diverge at least like "
        f"exp({largest:.3g} t)",
    )


def leader_certificate(
    heads: Sequence[Head], abscissa: float | None, size: float | None
) -> Certificate:
    """T4: under a causal mask the first token follows the sum of the value maps alone.

    The margin is the spectral abscissa of that sum: positive, the leader diverges from almost every
    start; negative, it converges from every start. `abscissa` is None where it was not computed;
    `size` is what its rounding is measured against.
    """
    causal = all(head.causal for head in heads)
    known = abscissa is not None and size is not None
    value = abscissa if abscissa is not None else 0.0
    decided = known and abs(value) > EQUALITY * (size or 0.0)
    hypotheses = [
        Hypothesis(
            name="the mask is causal", holds=causal, detail="the first token sees the others too"
        ),
        _linear_values(heads),
        Hypothesis(
            name="the abscissa of V is not 0",
            holds=decided,
            detail="it is 0: the leader keeps what lies in V's kernel"
            if known
            else "its sign was not computed; ask for exact spectra",
        ),
    ]
    fate = "diverges from almost every start" if value > 0 else "converges from every start"
    return _certificate("T4", hypotheses, value, f"the first token {fate}, like exp({value:.3g} t)")


def speed_certificate(heads: Sequence[Head], limit: float) -> Certificate:
    """T5: no token outgrows exp(t sum_h |V_h|_2), biases adding |b| (exp(Lt) - 1) / L.

    The margin is the exponent L, the growth that cannot be exceeded.
    """
    conclusion = f"no token grows faster than exp({limit:.3g} t)"
    if any(not _is_zero(head.value_shift) for head in heads):
        conclusion += ", the drift of the biases apart"
    return _certificate("T5", [_linear_values(heads)], limit, conclusion)


def layer_certificates(
    heads: Sequence[Head], *, speed_limit: float, abscissa: float | None, radius: float | None
) -> tuple[Certificate, ...]:
    """Return T4 and T5 for all heads of a layer at once; T1 to T3 are proved for one head only."""
    return (
        leader_certificate(heads, abscissa, radius),
        speed_certificate(heads, speed_limit),
    )
