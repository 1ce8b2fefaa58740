"""Sums -> readings: one `LayerTrace` a layer, and the replay of the flow.

Enters: the tallies of all layers, for fitting and for judging. Leaves: result dataclasses.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import InputError
from orbitlens.heads.attention import attention_pattern
from orbitlens.running.capture import few_logits
from orbitlens.running.inputs import Batch
from orbitlens.theory.clouds import cosine_clusters, interaction_energy, shuffled_cosine
from orbitlens.theory.ranks import (
    anisotropy,
    entropy_rank,
    moment_spectrum,
    participation_ratio,
    stable_rank,
)
from orbitlens.tracing.closures import ClosurePrediction, frozen_closure, plain_closure
from orbitlens.tracing.direction_closures import DIRECTION_CLOSURES
from orbitlens.tracing.direction_tally import DirectionTally
from orbitlens.tracing.directions import PathSums
from orbitlens.tracing.forecast import FORECASTS, Forecast
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.patterns import attention_entropy, overlap, sharpness, sink_share
from orbitlens.tracing.replay import (
    attention_drift,
    attention_step,
    flow,
    noting_blocks,
    replay_blocks,
)
from orbitlens.tracing.steps import carried_tangent, random_tangent
from orbitlens.tracing.streams import SpreadSums
from orbitlens.tracing.surrogates import SURROGATES, sampled_closure
from orbitlens.tracing.tally import LayerTally
from orbitlens.tracing.trace_result import (
    DEFAULT_CLOSURE,
    AttentionTrace,
    DirectionTrace,
    HeadTrace,
    LayerTrace,
    MlpTrace,
    NormTrace,
    ReplayTrace,
)

Tallies = Mapping[tuple[str, int], LayerTally]
N_FLOWN = 2  # contexts that flows are run on
CLOSED_FORM = {"plain": plain_closure, "frozen": frozen_closure}


def traced_layers(
    fitted: Tallies,
    judged: Tallies,
    options: TraceOptions,
    *,
    forecasts: Mapping[str, Forecast],
    generator: torch.Generator,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LayerTrace, ...]:
    """Return the readings of every layer; `forecasts` are those that needed no text."""
    growth = dict(_tangent_growth(judged, generator))
    layers = []
    for done, (place, tally) in enumerate(judged.items()):
        found = {name: paths[place] for name, paths in forecasts.items() if paths}
        with tally.layer.unfolded():  # all that follows asks for the same heads
            layers.append(
                _one_layer(
                    place,
                    fitted[place],
                    tally,
                    options,
                    forecasts=found,
                    growth=growth[place],
                    generator=generator,
                )
            )
        if progress is not None:
            progress(done + 1, len(judged))
    return tuple(layers)


def _one_layer(  # noqa: PLR0913 - what a layer is read from
    place: tuple[str, int],
    fit: LayerTally,
    tally: LayerTally,
    options: TraceOptions,
    *,
    forecasts: Mapping[str, PathSums],
    growth: float,
    generator: torch.Generator,
) -> LayerTrace:
    directions = predicted_directions(fit, options, generator=generator) | dict(forecasts)
    beside = _Beside(
        raw=predict(fit, options, generator=generator),
        directions=_all_that_ran(fit, tally).reading(
            tally.directions.path, directions, contexts=tally.kept
        ),
        growth=growth,
    )
    return _layer(place, fit, tally, beside, options)


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """What stands beside the measurements of one layer."""

    raw: Mapping[str, ClosurePrediction]
    directions: DirectionTrace
    growth: float  # of a tangent vector


def predicted_directions(
    tally: LayerTally, options: TraceOptions, *, generator: torch.Generator
) -> dict[str, PathSums]:
    """Return what each closure for directions says, and the ceiling."""
    names = (*options.direction_closures, "itself")
    return {name: DIRECTION_CLOSURES[name].predict(tally, generator) for name in names}


def predict(
    tally: LayerTally, options: TraceOptions, *, generator: torch.Generator
) -> dict[str, ClosurePrediction]:
    """Return what each closure says, from the statistics of the text it is fitted on."""
    return {
        name: CLOSED_FORM[name](tally)
        if name in CLOSED_FORM
        else sampled_closure(tally, name, generator=generator)
        for name in options.closures
    }


def check_closures(options: TraceOptions) -> None:
    """Refuse closures that do not exist, before anything runs.

    Raises:
        InputError: with the names of those that do.
    """
    asked = {
        (*CLOSED_FORM, *SURROGATES): options.closures,
        tuple(DIRECTION_CLOSURES): options.direction_closures,
        tuple(FORECASTS): options.forecasts,
    }
    for known, names in asked.items():
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"there is no closure {unknown[0]!r}; expected {', '.join(known)}.")
    if DEFAULT_CLOSURE not in options.direction_closures:
        raise InputError(
            f"predictions of directions are those of the closure {DEFAULT_CLOSURE!r}, which is "
            f"not among those asked for: {', '.join(options.direction_closures) or 'none'}."
        )
    if options.closure not in options.closures:
        raise InputError(
            f"predictions are to be those of the closure {options.closure!r}, which is not among "
            f"the closures asked for: {', '.join(options.closures) or 'none'}."
        )


def _layer(
    place: tuple[str, int],
    fitted: LayerTally,
    tally: LayerTally,
    beside: _Beside,
    options: TraceOptions,
) -> LayerTrace:
    norms = tally.norm_changes
    patterns = _Patterns(tally)
    predictions = beside.raw
    default = predictions[options.closure]
    return LayerTrace(
        layer=place[1],
        stack=place[0],
        attention=AttentionTrace(
            measured_log_change=tally.attention_change,
            predicted_log_change=default.log_change,
            simulated_log_change=simulated_change(tally, options.flow_steps),
            closures={name: p.log_change for name, p in predictions.items()},
        ),
        mlp=MlpTrace(measured_log_change=tally.mlp_change),
        norm=NormTrace(measured_log_change=math.fsum(norms.values()), places=norms),
        metrics={**layer_metrics(fitted, tally), **patterns.means(), "lyapunov": beside.growth},
        heads=tuple(
            HeadTrace(
                head=h,
                measured=measured,
                predicted=default.heads[h],
                closures={name: p.heads[h] for name, p in predictions.items()},
                sharpness=patterns.sharpness[h],
                predicted_sharpness=default.sharpness[h],
                sharpness_closures={name: p.sharpness[h] for name, p in predictions.items()},
                entropy=patterns.entropy[h],
                sink=patterns.sink[h],
            )
            for h, measured in enumerate(tally.head_changes)
        ),
        directions=beside.directions,
    )


def _all_that_ran(fitted: LayerTally, judged: LayerTally) -> DirectionTally:
    if fitted is judged:
        return judged.directions
    return fitted.directions.merged(judged.directions)


class _Patterns:
    """Attention weights on the kept contexts, read head by head."""

    def __init__(self, tally: LayerTally) -> None:
        layer = tally.layer
        patterns = [attention_pattern(layer, layer.normalise(x)) for x in tally.kept]

        def mean(function: Callable[[Tensor], Tensor]) -> list[float]:
            values: list[float] = torch.stack([function(p) for p in patterns]).mean(dim=0).tolist()
            return values

        self.sharpness, self.entropy = mean(sharpness), mean(attention_entropy)
        self.sink, self.overlap = mean(sink_share), mean(overlap)

    def means(self) -> dict[str, float]:
        """Return the means over heads."""
        named = {
            "attention_sharpness": self.sharpness,
            "attention_entropy": self.entropy,
            "attention_sink": self.sink,
            "attention_overlap": self.overlap,
        }
        return {name: sum(values) / len(values) for name, values in named.items()}


def layer_metrics(fitted: LayerTally, judged: LayerTally) -> dict[str, float]:
    """Return the metrics of the stream that enters a layer, over all that was run."""
    both = judged.before if fitted is judged else fitted.before.merged(judged.before)
    tallies = [judged] if fitted is judged else [fitted, judged]
    contexts = sum(t.contexts for t in tallies)
    variances = moment_spectrum(both.covariance.value).square()
    values = moment_spectrum(both.second_moment)
    sample = judged.kept[0]
    rng = torch.Generator().manual_seed(0)
    within = both.spread.within
    # The same sums as metrics.dispersion and metrics.rank_one_distance, over contexts.
    freedom = both.spread.freedom / both.n_tokens
    return {
        "mean_norm": both.norms / both.n_tokens,
        "largest_norm": both.largest_norm,
        "mean_squared_distance": both.spread.mean_squared_distance,
        "mean_cosine": both.cosines / both.n_pairs,
        "centred_cosine": both.centred_cosines / both.n_pairs,
        "shuffled_cosine": shuffled_cosine(sample, generator=rng),
        "effective_rank": entropy_rank(values),
        "stable_rank": stable_rank(values),
        "participation_ratio": participation_ratio(variances),
        "anisotropy": anisotropy(variances),
        "rank_one_distance": math.sqrt(within / both.squares) if both.squares else 0.0,
        "dispersion": within / both.squares / freedom if both.squares else 0.0,
        "clusters": float(cosine_clusters(sample)),
        "interaction_energy": interaction_energy(_unit(sample), 1.0),
        "update_size": math.sqrt(sum(t.updates for t in tallies) / both.squares),
        "update_cosine": sum(t.update_cosines for t in tallies) / both.n_tokens,
        "pair_contraction": sum(t.contractions for t in tallies) / contexts,
    }


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def _tangent_growth(
    judged: Tallies, generator: torch.Generator
) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield how attention stretches a tangent vector that is carried along the real states."""
    v: Tensor | None = None
    stack = ""
    for place, tally in judged.items():
        x = tally.kept[0]
        if v is None or place[0] != stack or v.shape != x.shape:
            v, stack = random_tangent(x, generator), place[0]
        _, v, growth = carried_tangent(partial(attention_step, tally.layer), x, v)
        yield place, growth


def simulated_change(tally: LayerTally, n_steps: int) -> float:
    """Return the log-change of pair distance when the layer's attention flows for one unit."""
    first, last = SpreadSums(), SpreadSums()
    for x in tally.kept[:N_FLOWN]:
        end = flow(partial(attention_drift, tally.layer), x, n_steps=n_steps)
        first.add(x[None])
        last.add(end[None])
    if first.within == 0 or last.within == 0:
        return 0.0
    return math.log(last.mean_squared_distance / first.mean_squared_distance)


# --- the whole stack -------------------------------------------------------------------------


def replay_traces(
    checkpoint: Checkpoint,
    model: Any,  # noqa: ANN401
    batch: Batch,
    options: TraceOptions,
) -> tuple[ReplayTrace, ...]:
    """Return the flow of whole blocks from the real first states, beside the real stream."""
    with torch.no_grad(), noting_blocks(model, checkpoint) as noted:
        model(**batch, **few_logits(model))
    traces = []
    for name, blocks in noted.items():
        last = blocks.states[-1] + blocks.field(len(blocks.states) - 1)(blocks.states[-1])
        real = [*blocks.states[1:], last.detach()]
        flown = replay_blocks(blocks, n_steps=options.flow_steps)
        pairs = list(zip(flown, real, strict=True))
        traces.append(
            ReplayTrace(
                stack=name,
                relative_error=tuple(((a - b).norm() / b.norm()).item() for a, b in pairs),
                cosine=tuple(
                    torch.nn.functional.cosine_similarity(a, b, dim=-1).mean().item()
                    for a, b in pairs
                ),
                log_spread=tuple(_log_spread(a) for a, _ in pairs),
                real_log_spread=tuple(_log_spread(b) for _, b in pairs),
            )
        )
    return tuple(traces)


def _log_spread(x: Tensor) -> float:
    sums = SpreadSums()
    sums.add(x)
    return math.log(max(sums.mean_squared_distance, 1e-300))
