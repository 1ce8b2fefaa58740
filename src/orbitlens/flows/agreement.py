"""Agreement: whether what was predicted of a flow happened, as far as the run can tell.

Enters: a `Prediction` and a `Trajectory`. Leaves: yes, no, too early to tell, or nothing predicted.
"""

from enum import StrEnum

from orbitlens.flows.outcome import Fate, course, fate, log_sizes
from orbitlens.flows.prediction import Ground, Prediction
from orbitlens.flows.system import Geometry
from orbitlens.trajectory import Status, Trajectory

STILL = 0.05  # change of the course, in a run as long again at the last pace: no trend is left
MOVED = 0.1  # way of the token that went farthest, in units of the largest: something happened


class FlowAgreement(StrEnum):
    """What a run says of a prediction."""

    YES = "yes"
    NO = "no"
    TOO_EARLY = "too early to tell"
    NONE = "nothing was predicted"


def agreement_of(
    prediction: Prediction, trajectory: Trajectory, geometry: Geometry = Geometry.FREE
) -> FlowAgreement:
    """Compare a prediction with a run in a geometry.

    Yes is for a cloud that went the predicted way. A theorem speaks of the long run, before which
    tokens may go another way: only tokens that ran away where convergence was proved refute it.
    What is not proved has failed when the opposite happened, or when tokens moved and have settled,
    or go the other way, without a sign of it.
    """
    if prediction.source is Ground.NONE:
        return FlowAgreement.NONE
    expected, happened = prediction.fate, fate(trajectory, geometry)
    proved = prediction.source is Ground.CERTIFICATE
    if happened is not Fate.MIXED:
        if happened is expected:
            return FlowAgreement.YES
        refuted = not proved or trajectory.status is Status.DIVERGED
        if prediction.source is Ground.INDICATION and geometry is not Geometry.FREE:
            refuted = abs(_pace(trajectory, geometry)) <= STILL  # of almost every start, in the end
        return FlowAgreement.NO if refuted else FlowAgreement.TOO_EARLY
    if proved or trajectory.status is Status.STEP_LIMIT or not _has_moved(trajectory):
        return FlowAgreement.TOO_EARLY
    pace = _pace(trajectory, geometry)
    if expected is Fate.MIXED:
        return FlowAgreement.TOO_EARLY if abs(pace) > STILL else FlowAgreement.YES
    towards = 1.0 if expected is Fate.DIVERGING else -1.0
    return FlowAgreement.TOO_EARLY if towards * pace > STILL else FlowAgreement.NO


def _pace(trajectory: Trajectory, geometry: Geometry) -> float:
    """Return by how much the course would change in a run as long again at its last speed."""
    values, times = course(trajectory, geometry), trajectory.times
    if len(values) < 2:
        return 0.0
    last = (times[-1] - times[-2]).item()
    return float(values[-1] - values[-2]) * (times[-1] - times[0]).item() / last


def _has_moved(trajectory: Trajectory) -> bool:
    """Say whether any token is elsewhere than at the start."""
    if bool((trajectory.log_scale != 0).any()):
        return True
    sizes = log_sizes(trajectory.unit_tokens[:1], trajectory.log_scale[:1])
    unit = trajectory.unit_tokens / sizes.exp()
    way = (unit - unit[:1]).norm(dim=-1)
    return bool(way.max() > MOVED)
