"""Readings -> how well predictions and measurements agree.

Enters: the readings of all layers. Leaves: correlations, agreement of signs.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.theory.clouds import interaction_energy
from orbitlens.tracing.patterns import is_monotone
from orbitlens.tracing.tally import LayerTally
from orbitlens.tracing.trace_result import (
    Agreement,
    AgreementReport,
    ClosureAgreement,
    DirectionAgreement,
    DirectionReport,
    LayerTrace,
)

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Return correlations, the share of equal signs, and the mean error.

    >>> agreement([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).pearson
    1.0
    """
    a, b = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    n = len(a)
    if n == 0:
        return Agreement(pearson=None, spearman=None, sign=None, mean_error=None, n=0)
    pearson, spearman = _correlations(a, b)
    return Agreement(
        pearson=pearson,
        spearman=spearman,
        sign=float((np.sign(a) == np.sign(b)).mean()),
        mean_error=float(np.abs(a - b).mean()),
        n=n,
    )


def _correlations(a: Values, b: Values) -> tuple[float | None, float | None]:
    """Return Pearson's and Spearman's correlation; None where there is nothing to correlate."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None, None
    return round(_pearson(a, b), 12), round(_pearson(_ranks(a), _ranks(b)), 12)


def _pearson(a: Values, b: Values) -> float:
    """Return the cosine of what is left of both without their means."""
    a, b = a - a.mean(), b - b.mean()
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)  # in turn: squares of small ones underflow
    return float(np.clip(a @ b, -1.0, 1.0))


def _ranks(values: Values) -> Values:
    """Return ranks from 1; equal values share the mean of theirs.

    SciPy has this too; its statistics take a second to import.
    """
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def agreement_report(
    layers: Sequence[LayerTrace], closure: str, *, held_out: bool
) -> AgreementReport:
    """Return the agreement of every closure, over layers and over heads."""
    measured = [layer.attention.measured_log_change for layer in layers]
    heads = [head for layer in layers for head in layer.heads]
    per_closure = {
        name: ClosureAgreement(
            layers=agreement([layer.attention.closures[name] for layer in layers], measured),
            heads=agreement([h.closures[name] for h in heads], [h.measured for h in heads]),
            sharpness=agreement(
                [h.sharpness_closures[name] for h in heads], [h.sharpness for h in heads]
            ),
        )
        for name in layers[0].attention.closures
    }
    default = per_closure[closure].layers
    return AgreementReport(
        closure=closure,
        held_out=held_out,
        pearson=default.pearson,
        spearman=default.spearman,
        sign=default.sign,
        per_closure=per_closure,
        simulated=agreement([a.attention.simulated_log_change for a in layers], measured),
    )


CLEAR = 0.01  # measured share of ln(1 - C) beyond which the sign of a head is asked for


def direction_report(layers: Sequence[LayerTrace]) -> DirectionReport:
    """Return the agreement of every closure for directions, over layers and over heads."""
    heads = [head for layer in layers for head in layer.directions.heads]
    clear = [head for head in heads if abs(head.judged) > CLEAR]
    per_closure = {
        name: DirectionAgreement(
            layers=agreement(
                [layer.directions.predicted[name] for layer in layers],
                [layer.directions.judged for layer in layers],
            ),
            heads=agreement([h.predicted[name] for h in heads], [h.judged for h in heads]),
            clear_heads=agreement([h.predicted[name] for h in clear], [h.judged for h in clear]),
        )
        for name in layers[0].directions.predicted
    }
    gathering = sum(head.judged < 0 for head in clear)
    majority = max(gathering, len(clear) - gathering) / len(clear) if clear else None
    by_size = agreement([-head.size for head in heads], [h.judged for h in heads]).pearson
    return DirectionReport(per_closure=per_closure, majority_sign=majority, by_size=by_size)


def energy_course(
    checkpoint: Checkpoint, judged: Mapping[tuple[str, int], LayerTally]
) -> dict[str, str]:
    """Return whether the interaction energy of unit tokens rises or falls over depth, by stack."""
    courses = {}
    for stack in checkpoint.architecture.stacks:
        values = []
        for layer in range(stack.n_layers):
            x = judged[stack.name, layer].kept[0]
            unit = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)
            values.append(interaction_energy(unit, 1.0))
        courses[stack.name] = is_monotone(values)
    return courses
