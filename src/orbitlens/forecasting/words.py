"""What an `ArchitectureForecast` says, in sentences."""

from collections.abc import Iterator

from orbitlens.forecasting.forecast_result import ArchitectureForecast
from orbitlens.forecasting.trainability import learnt, measured_words

COLLAPSED = 0.95  # mean cosine above which tokens can hardly be told apart by direction
UNEVEN = 1e3  # a ratio of gradients between two ends that is worth a sentence


def summary_sentences(result: ArchitectureForecast) -> Iterator[str]:
    """Yield the fate of tokens, of gradients and of attention, then remedies."""
    first, last, n = result.depths[0], result.last, result.blueprint.layers
    where = result.collapsed_at
    if where is None:
        yield (
            f"Untrained, {result.name} takes the mean cosine of tokens from {first.cosine:.2f} to "
            f"{last.cosine:.2f} in {n} layers: directions do not collapse."
        )
    else:
        yield (
            f"Untrained, {result.name} gathers directions until they cannot be told apart: the "
            f"mean cosine of tokens passes {COLLAPSED} in front of layer {where} of {n} and ends "
            f"at {last.cosine:.3f}."
        )
    yield _gradients(first.gradient)
    frozen = [each for each in result.depths if each.freezing is not None and each.freezing > 1]
    if frozen:
        yield (
            f"Attention of {len(frozen)} of {n} layers rests on a few tokens: scores have a "
            f"standard deviation of {max(each.score_deviation or 0 for each in frozen):.1f}."
        )
    yield from _verdict(result)
    if result.remedies:
        best = result.remedies[0]
        yield (
            f"The nearest change that leaves this side: {best.change} (then a mean cosine of "
            f"{best.cosine:.2f} behind the last layer, and it is forecast to train)."
        )


WHY = {
    "erasure": "hardly anything of a token's own embedding is left at the end",
    "faintness": "what leaves the last layer is too small, and no norm follows",
    "sensitivity": "a slight change of the first stream is a large one at the end",
    "collapse": "tokens end in one direction",
}


def _verdict(result: ArchitectureForecast) -> Iterator[str]:
    thresholds = learnt().thresholds
    high = [k for k, t in thresholds.items() if result.readings[k] >= t.fails_from]
    near = [k for k, t in thresholds.items() if result.readings[k] > t.trains_to]
    named = high or near
    why = f" ({', and '.join(WHY[name] for name in named)})" if named else ""
    yield f"Forecast of a short training: {result.verdict.value}{why}. {measured_words()}"


def _gradients(ratio: float) -> str:
    times = f"{ratio:.3g} times" if ratio >= 1 else f"1/{1 / ratio:.3g} of"
    note = " That is uneven: expect to need warm-up or a smaller rate." if _uneven(ratio) else ""
    return f"A gradient is {times} as large in front of the first layer as behind the last.{note}"


def _uneven(ratio: float) -> bool:
    return ratio > UNEVEN or ratio < 1 / UNEVEN
