"""Agreement: whether what was predicted of a flow happened, as far as the run can tell.

Enters: a `Prediction` and a `Trajectory`. Leaves: yes, no, too early to tell, or nothing predicted.
"""

from enum import StrEnum

from orbitlens.flows.outcome import Fate, fate, growth
from orbitlens.flows.predict import Prediction, Source
from orbitlens.trajectory import Status, Trajectory

OPPOSITE = {Fate.DIVERGING: Fate.CONVERGING, Fate.CONVERGING: Fate.DIVERGING}
STILL = 1e-3  # change of the logarithm of the size between the last moments: no trend is left


class Agreement(StrEnum):
    """What a run says of a prediction."""

    YES = "yes"
    NO = "no"
    TOO_EARLY = "too early to tell"
    NONE = "nothing was predicted"


def agreement_of(prediction: Prediction, trajectory: Trajectory) -> Agreement:
    """Compare a prediction with a run.

    A predicted divergence or convergence has failed when the opposite happened, or when tokens have
    settled, or move the other way, without a sign of it. A theorem speaks of the long run: a run
    that does not show it yet, its opposite excepted, is too short.
    """
    if prediction.source is Source.NONE:
        return Agreement.NONE
    happened = fate(trajectory)
    if happened is prediction.fate:
        return Agreement.YES
    if prediction.fate is Fate.MIXED or happened is OPPOSITE[prediction.fate]:
        return Agreement.NO
    if prediction.source is Source.CERTIFICATE or trajectory.status is Status.STEP_LIMIT:
        return Agreement.TOO_EARLY
    towards = 1.0 if prediction.fate is Fate.DIVERGING else -1.0
    return Agreement.TOO_EARLY if towards * growth(trajectory)[1] > STILL else Agreement.NO
