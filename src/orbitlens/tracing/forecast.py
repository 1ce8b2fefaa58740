"""A forecast from the weights alone: the model's own layers on tokens drawn from its vocabulary.

Enters: a model, no text. Leaves: for every layer the sums of what heads do to directions when ids
are drawn at random, each as likely as any (`embedding`) or by Zipf's law over the order of ids
(`embedding-zipf`: vocabularies list frequent tokens first, or nearly so). Special tokens stand
where the tokenizer puts them. Embedding, attention, MLPs and norms are exact; no statistics of any
text are used, and no token says anything about its neighbours.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.running.batches import Limits, limits_for
from orbitlens.running.capture import LayerStates, capturing, few_logits
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch, Inputs, Source, vocabulary_size
from orbitlens.running.model import Model
from orbitlens.running.texts import special_tokens
from orbitlens.tracing.collector import on_device, with_decoder_inputs
from orbitlens.tracing.direction_tally import DirectionTally
from orbitlens.tracing.directions import PathSums

FORECASTS = {
    "embedding": "nothing: ids are drawn from the vocabulary, each as likely as any",
    "embedding-zipf": "nothing: ids are drawn by Zipf's law over the order of the vocabulary",
}
TOKENS_AT_ONCE = 1024  # in one pass, where contexts are short
Forecast = dict[tuple[str, int], PathSums]  # by stack and layer


def weights_only_forecast(
    model: Model, law: str, *, limits: Limits, generator: torch.Generator
) -> Forecast:
    """Return what heads do to directions on drawn tokens; nothing for models without a vocabulary.

    Args:
        model: the model, which is run.
        law: a name of `FORECASTS`.
        limits: how many tokens are drawn, in which contexts.
        generator: of the draws.
    """
    if model.main_input != "input_ids":
        return {}
    return measured_directions(model, drawn_batches(model, law, limits, generator))


def measured_directions(model: Model, batches: Iterable[Batch]) -> Forecast:
    """Return the sums of what heads do to directions on batches, and of nothing else."""
    tallies = {
        (layer.stack.name, layer.index): DirectionTally(layer, n_attributed=10**9)
        for layer in model.layers()
    }

    def sink(stack: Stack, layer: int, states: LayerStates) -> None:
        tallies[stack.name, layer].attribute(states)

    device = input_device(model.module)
    with model.evaluating() as module, capturing(module, model.checkpoint, sink):
        for batch in _gathered(batches):
            module(**with_decoder_inputs(module, on_device(batch, device)), **few_logits(module))
    return {place: tally.path for place, tally in tallies.items()}


def _gathered(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Put short contexts of one length together: a pass costs more than their tokens do."""
    waiting: list[Tensor] = []
    for batch in batches:
        ids = batch["input_ids"]
        if set(batch) != {"input_ids"} or (waiting and waiting[0].shape[1] != ids.shape[1]):
            yield from _joined(waiting)
            waiting = []
        if set(batch) != {"input_ids"}:
            yield batch
            continue
        waiting.append(ids)
        if sum(each.numel() for each in waiting) >= TOKENS_AT_ONCE:
            yield from _joined(waiting)
            waiting = []
    yield from _joined(waiting)


def _joined(waiting: list[Tensor]) -> Iterator[Batch]:
    if waiting:
        yield {"input_ids": torch.cat(waiting)}


def text_free_inputs(
    model: Model,
    law: str,
    *,
    max_tokens: int = 4096,
    context: int | None = None,
    batch: int = 8,
    seed: int = 0,
) -> Inputs:
    """Return drawn ids in place of a text, for a whole trace from the weights alone.

    Raises:
        InputError: there is no such law, or the model has no vocabulary.
    """
    if law not in FORECASTS:
        raise InputError(f"there is no law {law!r} of tokens; expected {', '.join(FORECASTS)}.")
    if model.main_input != "input_ids":
        raise InputError(
            f"{model.name}: this model has no vocabulary to draw tokens from. Give it inputs."
        )
    limits = limits_for(model, context=context, batch=batch, max_tokens=max_tokens)
    batches = drawn_batches(model, law, limits, torch.Generator().manual_seed(seed))
    note = f"no text was used: ids were drawn from the vocabulary ({law})"
    return Inputs(source=Source.RANDOM, batches=tuple(batches), notes=(note,))


def drawn_batches(
    model: Model, law: str, limits: Limits, generator: torch.Generator
) -> Iterator[Batch]:
    """Yield batches of contexts of drawn ids, framed as the tokenizer frames a text."""
    tokenizer = model.tokenizer
    frame = special_tokens(tokenizer) if tokenizer is not None else None
    before, after = (torch.tensor(ids, dtype=torch.long) for ids in frame or ([], []))
    ids, weights = ordinary_ids(model), id_weights(law, model)
    width = limits.context - len(before) - len(after)
    left = max(1, limits.max_tokens // limits.context)
    while left > 0:
        rows = min(limits.batch, left)
        drawn = torch.multinomial(weights, rows * width, replacement=True, generator=generator)
        inner = ids[drawn].view(rows, width)
        ends = [edge.expand(rows, -1) for edge in (before, after)]
        yield {"input_ids": torch.cat([ends[0], inner, ends[1]], dim=1)}
        left -= rows


def ordinary_ids(model: Model) -> Int[Tensor, " id"]:
    """Return the ids that stand for text: all but the tokenizer's special ones and padding."""
    special = set(getattr(model.tokenizer, "all_special_ids", None) or ())
    special.add(getattr(model.module.config, "pad_token_id", None))
    ids = [k for k in range(vocabulary_size(model.module.config)) if k not in special]
    return torch.tensor(ids)


def id_weights(law: str, model: Model) -> Float[Tensor, " id"]:
    """Return how likely each ordinary id is under a law."""
    n = len(ordinary_ids(model))
    if law == "embedding":
        return torch.ones(n, dtype=torch.float64)
    return 1 / torch.arange(1, n + 1, dtype=torch.float64)
