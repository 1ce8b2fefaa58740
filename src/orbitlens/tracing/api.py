"""`trace`: run a model on text or images and set measured beside predicted and simulated.

Enters: a model and a text. Leaves: a `Trace`. One pass over the text; what is kept is sums, and a
few whole contexts a layer.
"""

import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import InputError
from orbitlens.running.batches import Limits, batches_of, limits_for
from orbitlens.running.info import Cost, model_info, peak_rss_bytes
from orbitlens.running.inputs import Batch, Inputs, inputs_of
from orbitlens.running.model import Model, load
from orbitlens.running.threads import threads_for, threads_for_layers
from orbitlens.tracing.collector import Collector, Progress
from orbitlens.tracing.forecast import Forecast, weights_only_forecast
from orbitlens.tracing.mechanism_result import Mechanisms
from orbitlens.tracing.mechanisms import MechanismOptions, mechanism_scores
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.readings import Tallies, check_closures, replay_traces, traced_layers
from orbitlens.tracing.reports import agreement_report, direction_report, energy_course
from orbitlens.tracing.token_courses import token_traces
from orbitlens.tracing.trace_result import SelfCheck, Trace

ROUNDING = 1e-12  # squared distances this small beside squared norms are rounding, in float32


def trace(
    model: Any,  # noqa: ANN401 - a `Model`, or what `load` takes
    text: Any = None,  # noqa: ANN401 - what `inputs_of` takes
    *,
    fit: Any = None,  # noqa: ANN401
    options: TraceOptions | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Run a model and return what its layers did, what was predicted, and how the two agree.

    Args:
        model: a `Model`, or anything `load` takes.
        text: a string, strings, a path object, token ids, images or batches; by default the
            package's passage.
        fit: another text, on which closures take their statistics. Without it the first half of the
            contexts of every batch is for fitting and the second for judging.
        options: how much to run, and what to work out.
        progress: called with what is done and of how much.

    Raises:
        InputError: the inputs do not fit the model, or are too short.
    """
    return trace_and_covariances(model, text, fit=fit, options=options, progress=progress)[0]


def trace_and_covariances(
    model: Any,  # noqa: ANN401
    text: Any = None,  # noqa: ANN401
    *,
    fit: Any = None,  # noqa: ANN401
    options: TraceOptions | None = None,
    progress: Progress | None = None,
) -> tuple[Trace, dict[str, Tensor]]:
    """Return the trace, and the covariances of what heads see, named for a data-aware scan."""
    chosen = options or TraceOptions()
    check_closures(chosen)
    given = load(model)
    opened = given.running
    passes = _Passes(opened, text, fit, chosen)
    with threads_for(opened.n_parameters):
        collector, result = passes.run(opened, progress)
        if chosen.twin or chosen.mechanisms:
            control = opened.twin(chosen.seed)
            if chosen.twin:
                result = replace(result, twin=passes.run(control, progress)[1])
            if chosen.mechanisms:
                result = replace(result, mechanisms=passes.mechanisms(opened, control, progress))
    flags = (*result.flags, *given.notes, *passes.inputs.notes)
    return replace(result, flags=flags), collector.covariances()


class _Passes:
    """Runs the same inputs through a model and its controls."""

    def __init__(self, model: Model, text: Any, fit: Any, options: TraceOptions) -> None:  # noqa: ANN401
        self.model, self.options = model, options
        self.inputs = inputs_of(model, text, normalise=options.normalise, seed=options.seed)
        self.fit = None if fit is None else inputs_of(model, fit, normalise=options.normalise)
        self.limits: Limits = limits_for(
            model, context=options.context, batch=options.batch, max_tokens=options.max_tokens
        )

    def batches(self, inputs: Inputs | None = None) -> Iterator[Batch]:
        seed = self.options.seed if self.options.shuffle else None
        return batches_of(self.model, inputs or self.inputs, self.limits, shuffle_seed=seed)

    def run(self, model: Model, progress: Progress | None) -> tuple[Collector, Trace]:
        fit = None if self.fit is None else self.batches(self.fit)
        collector = Collector(model, n_kept=self.options.n_kept)
        collector.run(fit, self.batches(), progress)
        with threads_for_layers(model.architecture.widest), model.evaluating():
            return collector, assembled(collector, self.options, progress)

    def mechanisms(self, model: Model, twin: Model, progress: Progress | None) -> Mechanisms:
        options = MechanismOptions(batch=self.limits.batch, seed=self.options.seed)
        return mechanism_scores(model, twin, self.batches, options=options, progress=progress)


def assembled(
    collector: Collector, options: TraceOptions, progress: Progress | None = None
) -> Trace:
    """Return the trace of what a collector has gathered."""
    checkpoint, module = collector.checkpoint, collector.model.module
    fitted, judged = collector.halves()
    _refuse_equal_tokens(fitted)
    _refuse_equal_tokens(judged)
    rng = torch.Generator().manual_seed(options.seed)
    forecasts = _forecasts(collector, options)
    layers = traced_layers(
        fitted, judged, options, forecasts=forecasts, generator=rng, progress=progress
    )
    return Trace(
        model=model_info(checkpoint),
        n_tokens=collector.n_tokens,
        n_contexts=collector.n_contexts,
        context=collector.context,
        layers=layers,
        agreement=agreement_report(layers, options.closure, held_out=collector.held_out),
        direction_agreement=direction_report(layers),
        replay=replay_traces(checkpoint, module, collector.first_batch, options),
        energy=energy_course(checkpoint, judged),
        twin=None,
        self_check=_self_check(collector, options),
        cost=Cost(
            seconds=time.perf_counter() - collector.started,
            bytes_read=_bytes_on_disk(checkpoint.local_path),
            peak_rss_bytes=peak_rss_bytes(),
        ),
        flags=_flags(checkpoint, collector),
        tokens=token_traces(collector.model, collector.first_batch) if options.by_token else (),
    )


def _forecasts(collector: Collector, options: TraceOptions) -> dict[str, Forecast]:
    """Return the forecasts that need no text, on as many tokens as are kept."""
    limits = Limits(context=collector.context, batch=options.batch, max_tokens=options.n_kept)
    return {
        law: weights_only_forecast(
            collector.model,
            law,
            limits=limits,
            generator=torch.Generator().manual_seed(options.seed),
        )
        for law in options.forecasts
    }


def _refuse_equal_tokens(tallies: Tallies) -> None:
    for (stack, layer), tally in tallies.items():
        square = tally.before.squares / tally.before.n_tokens
        if tally.mean_squared_distance <= ROUNDING * square:
            raise InputError(
                f"all tokens of a context are the same in layer {layer} of the {stack}, so there "
                "are no distances to follow. Give a text with different tokens."
            )


def _self_check(collector: Collector, options: TraceOptions) -> SelfCheck:
    import transformers

    stacks = collector.checkpoint.architecture.stacks
    return SelfCheck(
        max_logit_difference=collector.difference or 0.0,
        max_head_sum_error=collector.head_error,
        dtype=str(next(collector.model.module.parameters()).dtype).removeprefix("torch."),
        mask={s.name: "causal" if s.causal else "full" for s in stacks},
        seeds={"surrogates": options.seed},
        versions={
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    )


def _bytes_on_disk(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))


def _flags(checkpoint: Checkpoint, collector: Collector) -> tuple[str, ...]:
    flags = list(checkpoint.architecture.flags)
    if not collector.held_out:
        flags.append("one context only: predictions are judged on the text they were fitted on")
    if len(checkpoint.architecture.stacks) > 1:
        flags.append("the decoder's MLP column includes its cross-attention")
    if any(stack.output_norm for stack in checkpoint.architecture.stacks):
        flags.append(
            "a norm on attention's output is taken at its typical length in predictions and heads"
        )
    return tuple(flags)
