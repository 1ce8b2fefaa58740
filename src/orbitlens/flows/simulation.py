"""simulate: a head, a layer or a system -> what tokens do under it, beside what theory predicts.

Enters: whose flow it is, and options. Leaves: a `Simulation`: trajectory, prediction, outcome and
whether the two agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows.agreement import FlowAgreement, agreement_of
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate, log_sizes
from orbitlens.flows.prediction import Ground, Prediction, predict
from orbitlens.flows.setup import Setup, SimulateOptions, build
from orbitlens.flows.system import System, system_of_heads, system_of_layer
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


@dataclass(frozen=True, kw_only=True, repr=False)
class Simulation(Result):
    """What tokens did under a flow, and what was predicted of them."""

    KIND: ClassVar[str] = "simulation"
    DERIVED: ClassVar[tuple[str, ...]] = ("ending",)

    name: str  # whose flow it is
    options: SimulateOptions
    trajectory: Trajectory
    prediction: Prediction
    outcome: Fate  # which way the size of the cloud went
    agreement: FlowAgreement

    @property
    def ending(self) -> str:
        """How the run ended, in words."""
        return self.trajectory.ending

    def lines(self) -> list[tuple[str, str]]:
        """Return what there is to say, as pairs of a heading and its words."""
        prediction, run = self.prediction, self.trajectory
        expected = "nothing" if prediction.source is Ground.NONE else prediction.fate.value
        rows = [
            (CERTAINTY[prediction.source], f"{expected}; {prediction.why}"),
            ("happened", f"{self.outcome.value}; {self.ending}"),
            ("agreement", self.agreement.value),
            ("cost", f"{run.n_evaluations} evaluations in {run.n_steps} steps"),
        ]
        rows += [("event", f"t = {event.time:.4g}: {event.what}") for event in run.events]
        return rows + [("held", f"{c.name}: {c.why}") for c in prediction.certificates if c.holds]

    @property
    def title(self) -> str:
        """Whose flow it is, of how many tokens, and how long."""
        n_tokens = self.trajectory.unit_tokens.shape[1]
        return f"{self.name}: {n_tokens} tokens to t = {self.options.until:g}"

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
    tokens: Tokens | None = None,
    name: str | None = None,
) -> Simulation:
    """Follow tokens under the flow of a head, a layer, a `System` or a named example system.

    Args:
        target: a `Head`, an `AttentionLayer`, a `System`, or a name in `examples.EXAMPLES`.
        options: how many tokens, how long, in which geometry.
        tokens: where they start, one a row; normal ones if not given.
        name: what titles call the target.

    Raises:
        InputError: the target has no flow, or settings do not fit it.
    """
    options = options or SimulateOptions()
    system, start = build_flow(target, options)
    start = start if tokens is None else tokens
    prediction = predict(system, start)
    numerics = IntegrateOptions(rtol=options.rtol)
    trajectory = integrate_flow(system, start, until=options.until, options=numerics)
    return Simulation(
        name=name or _name_of(target),
        options=options,
        trajectory=trajectory,
        prediction=prediction,
        outcome=fate(trajectory),
        agreement=agreement_of(prediction, trajectory),
    )


def build_flow(target: object, options: SimulateOptions) -> tuple[System, Tokens]:
    """Return the system of a target under some options, and the tokens it starts with."""
    if isinstance(target, str):
        return build(Setup.of(target, options))
    if isinstance(target, Head):
        return build(options, system_of_heads([target]))
    if isinstance(target, AttentionLayer):
        return build(options, system_of_layer(target))
    if isinstance(target, System):
        return build(options, target)
    raise InputError(
        f"a {type(target).__name__} has no flow of its own; expected a head, an attention layer, a "
        "System or the name of an example system. A model's are model.head(layer, head) and "
        "model.layer(layer)."
    )


def _name_of(target: object) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, Head):
        return f"head {target.layer}.{target.index}"
    if isinstance(target, AttentionLayer):
        return f"a layer of {target.n_heads} heads"
    return "a system"
