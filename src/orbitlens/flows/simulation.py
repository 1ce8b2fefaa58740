"""simulate: a head, a layer or a system -> what tokens do under it, beside what theory predicts.

Enters: whose flow it is, options, and where tokens start. Leaves: a `Simulation`: trajectory,
prediction, outcome, whether the two agree, and what the model itself did to the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens._types import Tokens
from orbitlens.flows.agreement import FlowAgreement, agreement_of
from orbitlens.flows.flow import Flow, build_flow
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.measured import MeasuredStep, direction_change, one_layer
from orbitlens.flows.outcome import Fate, fate, log_sizes
from orbitlens.flows.prediction import Ground, Prediction, predict
from orbitlens.flows.real_tokens import LayerTokens
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.system import Geometry
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.theory.clouds import over_time
from orbitlens.trajectory import Trajectory

if TYPE_CHECKING:
    import pandas

CERTAINTY = {
    Ground.CERTIFICATE: "proved",
    Ground.INDICATION: "indicated",
    Ground.CLOSURE: "expected",
    Ground.NONE: "predicted",
}
PLACES = {
    Geometry.FREE: "",
    Geometry.SPHERE: " on the sphere",
    Geometry.POST_LN: " on the sphere (post-ln)",
    Geometry.NGPT: " on the sphere (ngpt)",
    Geometry.PRE_LN: " behind a norm (pre-ln)",
    Geometry.PERI_LN: " behind a norm (peri-ln)",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Simulation(Result):
    """What tokens did under a flow, and what was predicted of them."""

    KIND: ClassVar[str] = "simulation"
    DERIVED: ClassVar[tuple[str, ...]] = ("ending",)

    name: str  # whose flow it is
    options: SimulateOptions
    geometry: Geometry  # where tokens lived
    setting: str  # what is simulated of a model with norms, in words; else empty
    trajectory: Trajectory
    prediction: Prediction
    outcome: Fate  # which way the size of the cloud went, or its directions
    agreement: FlowAgreement
    measured: MeasuredStep | None  # what the model did to the same tokens, where they are its own

    @property
    def ending(self) -> str:
        """How the run ended, in words."""
        return self.trajectory.ending

    def lines(self) -> list[tuple[str, str]]:
        """Return what there is to say, as pairs of a heading and its words."""
        prediction, run = self.prediction, self.trajectory
        rows = [("setting", self.setting)] if self.setting else []
        rows += [
            (CERTAINTY[prediction.source], f"{self._expected}; {prediction.why}"),
            ("happened", f"{self._happened}; {self.ending}"),
            ("agreement", self.agreement.value),
        ]
        if self.measured is not None:
            rows += self.measured.lines()
        rows.append(("cost", f"{run.n_evaluations} evaluations in {run.n_steps} steps"))
        rows += [("event", f"t = {event.time:.4g}: {event.what}") for event in run.events]
        return rows + [("held", f"{c.name}: {c.why}") for c in prediction.certificates if c.holds]

    @property
    def _expected(self) -> str:
        if self.prediction.source is Ground.NONE:
            return "nothing"
        return self.prediction.fate.words(self.geometry)

    @property
    def _happened(self) -> str:
        words = self.outcome.words(self.geometry)
        if self.geometry is Geometry.FREE:
            return words
        first, last = self.trajectory.unit_tokens[0], self.trajectory.unit_tokens[-1]
        return f"{words}: {direction_change(first, last)}"

    @property
    def title(self) -> str:
        """Whose flow it is, of how many tokens, where, and how long."""
        n_tokens = self.trajectory.unit_tokens.shape[1]
        where = PLACES[self.geometry]
        return f"{self.name}: {n_tokens} tokens{where} to t = {self.options.until:g}"

    def summary(self) -> str:
        """Return what was predicted, what happened, and whether they agree."""
        return "\n".join([self.title, *(f"{left}: {right}" for left, right in self.lines())])

    def _rows(self) -> list[dict[str, object]]:
        run = self.trajectory
        columns = {
            "time": run.times.tolist(),
            "log_size": log_sizes(run.unit_tokens, run.log_scale).tolist(),
            "log_scale": run.log_scale.tolist(),
            **over_time(run.unit_tokens),
        }
        names = list(columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a saved time: the largest token's size, and metrics of the cloud."""
        return data_frame(self._rows())

    def _tables(self) -> Sequence[HtmlTable]:
        rows = [[left, right] for left, right in self.lines()]
        return [HtmlTable(caption=self.title, columns=["", ""], rows=rows)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        return self.trajectory._figure(go).update_layout(title=self.title)


def simulate(
    target: object,
    options: SimulateOptions | None = None,
    *,
    tokens: Tokens | LayerTokens | None = None,
    name: str | None = None,
) -> Simulation:
    """Follow tokens under the flow of a head, a layer, a `System` or a named example system.

    Heads and layers of a model with norms move directions, unless another geometry is asked for.

    Args:
        target: a `Head`, an `AttentionLayer`, a `System`, or a name in `examples.EXAMPLES`.
        options: how many tokens, how long, in which geometry.
        tokens: where they start, one a row, in the stream of a model; or the tokens of one of its
            layers (`layer_tokens`), whose own step is then set beside one unit of time. Normal ones
            if not given.
        name: what titles call the target.

    Raises:
        InputError: the target has no flow, or settings do not fit it.
    """
    options = options or SimulateOptions()
    flow = build_flow(target, options, tokens)
    numerics = IntegrateOptions(rtol=options.rtol)
    prediction = predict(flow.system, flow.start)
    trajectory = integrate_flow(flow.system, flow.start, until=options.until, options=numerics)
    geometry = flow.system.geometry
    return Simulation(
        name=name or flow.name,
        options=options,
        geometry=geometry,
        setting=flow.setting,
        trajectory=trajectory,
        prediction=prediction,
        outcome=fate(trajectory, geometry),
        agreement=agreement_of(prediction, trajectory, geometry),
        measured=_measured(target, flow, tokens, trajectory, options),
    )


def _measured(
    target: object,
    flow: Flow,
    tokens: Tokens | LayerTokens | None,
    trajectory: Trajectory,
    options: SimulateOptions,
) -> MeasuredStep | None:
    """Return the model's own step beside the flow after one unit of time, where there is one."""
    if not isinstance(tokens, LayerTokens) or not isinstance(target, (Head, AttentionLayer)):
        return None
    if not flow.counts_layers:
        return None
    if options.until != 1.0:
        numerics = IntegrateOptions(rtol=options.rtol, n_saved=2)
        trajectory = integrate_flow(flow.system, flow.start, until=1.0, options=numerics)
    return one_layer(target, tokens, trajectory)
