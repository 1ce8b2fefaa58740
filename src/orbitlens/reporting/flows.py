"""Simulated flows of single heads, as frames that a page plays.

Enters: a model and its scan. Leaves: a `FlowFrames` for each head that is drawn: all of a
small model, and the most aligned and opposed of a large one. Heads with the same weights are
simulated once.
"""

from orbitlens.flows.flow import build_flow
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.picture import flow_picture
from orbitlens.flows.prediction import Ground, predict
from orbitlens.flows.setup import SimulateOptions
from orbitlens.reporting.data import FlowFrames
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.spectra import MANY_HEADS, weights_of
from orbitlens.running.model import Model
from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan
from orbitlens.theory.maps import HeadMaps

WIDEST_FLOW = 512  # d_model up to which the flow of single heads is simulated
MOST_FLOWS = 96  # of single heads in one report
SOME_FLOWS = 16  # of a model with many heads, whose report is large already
FLOW_TOKENS = 24
FLOW_FRAMES = 25
FLOW_STEPS = 400  # of the integrator; a flow that is stiffer than that is shown as far as it got


def chosen_heads(
    model: Model, scanned: Scan, asked: int | None
) -> list[tuple[LayerScan, HeadScan]]:
    """Return the heads to simulate: all, or those at both ends of the expansion index."""
    first = {stack.name: weights_of(stack) for stack in model.architecture.stacks}
    own = [pair for pair in scanned.heads() if first[pair[0].stack][pair[0].layer] == pair[0].layer]
    most = asked if asked is not None else SOME_FLOWS if len(own) > MANY_HEADS else MOST_FLOWS
    ranked = sorted(own, key=lambda pair: pair[1].expansion_index)
    n_low = min((most + 1) // 2, len(ranked))
    n_high = min(most // 2, len(ranked) - n_low)
    return ranked[:n_low] + ranked[len(ranked) - n_high :]


def flow_frames(model: Model, place: tuple[str, int, int], options: ReportOptions) -> FlowFrames:
    """Simulate one head by itself, repeated at every depth.

    Raises:
        InputError: the simulator has no field for such a head.
    """
    stack, layer, number = place
    head = model.head(layer, number, stack=stack)
    speed = HeadMaps.of(head).speed_limit  # no token grows faster than exp(speed t)
    until = options.flow_growth / speed if speed > 0 else 1.0
    asked = SimulateOptions(n_tokens=FLOW_TOKENS, until=until, rtol=1e-4, seed=options.seed)
    flow = build_flow(head, asked)
    saved = IntegrateOptions(rtol=asked.rtol, n_saved=FLOW_FRAMES, max_steps=FLOW_STEPS)
    trajectory = integrate_flow(flow.system, flow.start, until=until, options=saved)
    title = f"{stack} {layer}.{number}"
    picture = flow_picture(trajectory, title=title, n_frames=FLOW_FRAMES, system=flow.system)
    foreseen = predict(flow.system, flow.start)
    said = f"{foreseen.fate.words(flow.system.geometry)} ({foreseen.source.value}): {foreseen.why}"
    return FlowFrames(
        stack=stack,
        layer=layer,
        head=number,
        times=tuple(picture.times.tolist()),
        positions=tuple(
            tuple((_short(x), _short(y)) for x, y in frame)
            for frame in picture.plane.positions.tolist()
        ),
        clusters=tuple(picture.labels.tolist()),
        ending=picture.ending,
        predicted=f"nothing: {foreseen.why}" if foreseen.source is Ground.NONE else said,
        notes=(*((flow.setting,) if flow.setting else ()), *picture.notes),
    )


def _short(value: float) -> float:
    """Return a place on the screen: three digits are as fine as it shows."""
    return float(f"{value:.3g}")
