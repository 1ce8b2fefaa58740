"""Agreement: whether what was predicted of a flow happened, as far as the run can tell.

Enters: a `Prediction` and a `Trajectory`. Leaves: yes, no, too early to tell, or nothing predicted.
"""

from enum import StrEnum

from orbitlens.flows.outcome import Fate, fate, growth
from orbitlens.flows.prediction import Ground, Prediction
from orbitlens.trajectory import Status, Trajectory

OPPOSITE = {Fate.DIVERGING: Fate.CONVERGING, Fate.CONVERGING: Fate.DIVERGING}
STILL = 1e-3  # change of the logarithm of the size between the last moments: no trend is left


class FlowAgreement(StrEnum):
    """What a run says of a prediction."""

    YES = "yes"
    NO = "no"
    TOO_EARLY = "too early to tell"
    NONE = "nothing was predicted"


def agreement_of(prediction: Prediction, trajectory: Trajectory) -> FlowAgreement:
    """Compare a prediction with a run.

    A predicted divergence or convergence has failed when the opposite happened, or when tokens have
    settled, or move the other way, without a sign of it. A theorem speaks of the long run: a run
    that does not show it yet, its opposite excepted, is too short.
    """
    if prediction.source is Ground.NONE:
        return FlowAgreement.NONE
    happened = fate(trajectory)
    if happened is prediction.fate:
        return FlowAgreement.YES
    if prediction.fate is Fate.MIXED or happened is OPPOSITE[prediction.fate]:
        return FlowAgreement.NO
    if prediction.source is Ground.CERTIFICATE or trajectory.status is Status.STEP_LIMIT:
        return FlowAgreement.TOO_EARLY
    towards = 1.0 if prediction.fate is Fate.DIVERGING else -1.0
    return FlowAgreement.TOO_EARLY if towards * growth(trajectory)[1] > STILL else FlowAgreement.NO
