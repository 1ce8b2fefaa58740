"""How to stretch a rotary encoding for a longer context, chosen from short texts alone.

Enters: a model with one rotary encoding, short contexts, a multiple of the trained context. Leaves:
an `Advice`: position interpolation, an NTK-aware base or YaRN with a factor, by the loss that
stand-ins for a long context have under each (`stand_in.py`), averaged over its positions.
"""

import torch

from orbitlens.encodings.long_run import row_losses
from orbitlens.encodings.reach_result import Advice, ScalingTrial
from orbitlens.encodings.scalings import (
    Scaling,
    all_scalings,
    config_setting,
    one_encoding,
    scaled,
)
from orbitlens.encodings.stand_in import StandIns, stand_in_losses, stand_ins
from orbitlens.running.model import Model
from orbitlens.running.surprise import Rows

NODES = (1.5, 2.0, 3.0, 4.0)  # multiples of the trained context at which losses are predicted
SHARES = (0.5, 1.0, 1.5, 2.0)  # of the multiple asked for: the factors that are tried
MARGIN = 0.0  # nats that a scaling must gain over the model as it is


def advise(model: Model, rows: Rows, trained: int, ratio: float, *, seed: int = 0) -> Advice:
    """Return the scaling with the least predicted loss over a context `ratio` times as long.

    Raises:
        InputError: there is not one plain rotary encoding, or it cannot be tried.
    """
    plain = one_encoding(model.architecture.stacks[0])
    factors = [ratio * share for share in SHARES if ratio * share > 1]
    candidates = all_scalings(plain, trained, factors)
    made = stand_ins(rows, torch.Generator().manual_seed(seed))
    start = stand_in_losses(model, made, None, torch.Generator()).mean()
    short = row_losses(model, rows).mean()
    trials = []
    for each in candidates:
        with scaled(model, plain, each):
            within = float(row_losses(model, rows).mean() - short)
            beyond = _beyond(model, made, trained, ratio, seed)
        predicted = mean_increase(within, {r: loss - float(start) for r, loss in beyond.items()})
        trials.append(_trial(each, predicted))
    ranked = sorted(trials, key=lambda trial: trial.predicted)
    unchanged = trials[0]
    best = ranked[0] if unchanged.predicted - ranked[0].predicted > MARGIN else unchanged
    chosen = next(each for each in candidates if each.name == best.name)
    return Advice(
        ratio=ratio,
        chosen=best.name,
        setting=config_setting(model, plain, chosen),
        trials=tuple(ranked),
    )


def _trial(each: Scaling, predicted: float) -> ScalingTrial:
    return ScalingTrial(name=each.name, kind=each.kind, factor=each.factor, predicted=predicted)


def _beyond(
    model: Model, made: StandIns, trained: int, ratio: float, seed: int
) -> dict[float, float]:
    """Return the loss of stand-ins at each length; the same places for every scaling."""
    generator = torch.Generator().manual_seed(seed)
    return {
        node: float(stand_in_losses(model, made, round(node * trained), generator).mean())
        for node in NODES
        if node <= ratio
    }


def mean_increase(within: float, beyond: dict[float, float]) -> float:
    """Return the mean over all positions of a long context: trapezia between the lengths.

    >>> mean_increase(0.0, {2.0: 1.0})
    0.25
    """
    total, last, value = within, 1.0, within
    for ratio, increase in sorted(beyond.items()):
        total += (ratio - last) * (value + increase) / 2
        last, value = ratio, increase
    return total / last
