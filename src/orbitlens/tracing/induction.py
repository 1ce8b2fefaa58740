"""Do heads find what followed a token before? Random tokens, run twice in a row.

Enters: a model, its tokenizer, a seed. Leaves: sequences of random tokens whose second half repeats
the first, and what is read off attention on them. An induction head (arXiv 2409.10559: it matches
what stood in front, which an earlier head copied there) looks from a token to the one *behind* its
earlier occurrence:

    x_0 x_1 ... x_i x_i+1 ... x_T-1 | x_0 x_1 ... x_i       from here to x_i+1 in the first half

Tokens are drawn without repeats, so nothing else can tell where to look. The control is a second
half of the same tokens in another order, no token in its old place: a head that looks back by a
fixed distance, or evenly, does the same on both, and an induction head does not.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.families.architecture import Stack
from orbitlens.running.inputs import Batch, n_positions
from orbitlens.running.texts import special_tokens

SHORTEST_HALF = 8
Patterns = Float[Tensor, "head tokens tokens"]
Seen = Int[Tensor, "head tokens"]  # how many tokens each row sees
PerHead = Float[Tensor, " head"]


@dataclass(frozen=True, kw_only=True)
class TokenPool:
    """What sequences for a model can be made of."""

    ids: tuple[int, ...]  # of tokens to draw from
    from_text: bool = False  # whether those are the tokens of the text, or all ordinary ones
    prefix: tuple[int, ...]  # what its tokenizer puts in front of a text
    positions: int | None  # most tokens of a sequence


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Draws of random tokens; each row is the prefix and two halves."""

    repeated: Int[Tensor, "draw tokens"]
    reordered: Int[Tensor, "draw tokens"]
    prefix: int  # tokens in front of the first half
    half: int  # tokens of a half

    def batches(self, kind: str, size: int) -> Iterator[Batch]:
        """Yield the draws of one kind, `size` at a time."""
        rows: Tensor = getattr(self, kind)
        for block in rows.split(size):
            yield {"input_ids": block}


def material(model: Any, tokenizer: Any | None) -> TokenPool:  # noqa: ANN401 - of transformers
    """Return the ordinary tokens of a model and what stands in front of its texts."""
    config = model.config.get_text_config()
    size = int(getattr(config, "vocab_size", 0) or 0)
    if tokenizer is None:
        named = (getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
        special = {i for value in named for i in (value if isinstance(value, list) else [value])}
        prefix: Sequence[int] = ()
    else:
        size = min(size, len(tokenizer))  # tables are padded: no text has what is beyond
        special = set(tokenizer.all_special_ids)
        prefix = (special_tokens(tokenizer) or ([], []))[0]
    ids = tuple(i for i in range(size) if i not in special)
    return TokenPool(ids=ids, prefix=tuple(prefix), positions=n_positions(model.config))


def met_in_text(given: TokenPool, met: Set[int], wanted: int) -> TokenPool:
    """Keep the tokens that the text has, where these are enough for a half as long as wanted.

    A vocabulary holds tokens that training never met, such as single bytes; a head cannot know
    them.
    """
    known = tuple(i for i in given.ids if i in met)
    return replace(given, ids=known, from_text=True) if len(known) >= wanted else given


def half_length(stacks: Sequence[Stack], given: TokenPool, wanted: int) -> int:
    """Return how many tokens a half can have: as wanted, or fewer where something is shorter.

    Vocabulary, positions and the narrowest sliding window bound it: every token of the second half
    must see the place behind its earlier occurrence, half - 1 tokens back.
    """
    bounds = [wanted, len(given.ids)]
    if given.positions is not None:
        bounds.append((given.positions - len(given.prefix)) // 2)
    bounds += [spec.window for stack in stacks for spec in stack.layers if spec.window is not None]
    return max(0, min(bounds))


def obstacle(model: Any, stacks: Sequence[Stack], given: TokenPool, wanted: int) -> str | None:  # noqa: ANN401
    """Return why induction cannot be measured in a model, or None."""
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        return "this model does not read tokens"
    if len(stacks) > 1:
        return "the decoder reads an encoder, which has seen both halves"
    if not stacks[0].causal:
        return "no causal mask: every token sees what follows it, so there is nothing to predict"
    half = half_length(stacks, given, wanted)
    if half >= SHORTEST_HALF:
        return None
    return (
        f"a half of {half} tokens is all that {len(given.ids)} ordinary tokens, "
        f"{given.positions or 'any number of'} positions and the sliding windows leave room for; "
        f"expected at least {SHORTEST_HALF}"
    )


def draw_sequences(
    given: TokenPool, *, half: int, n_draws: int, generator: torch.Generator
) -> Sequences:
    """Return random halves without repeated tokens, each followed by itself and by its reorder."""
    ids, front = torch.tensor(given.ids), torch.tensor(given.prefix, dtype=torch.long)
    repeated, reordered = [], []
    for _ in range(n_draws):
        first = ids[torch.randperm(len(ids), generator=generator)[:half]]
        other = first[derangement(half, generator=generator)]
        repeated.append(torch.cat([front, first, first]))
        reordered.append(torch.cat([front, first, other]))
    return Sequences(
        repeated=torch.stack(repeated),
        reordered=torch.stack(reordered),
        prefix=len(front),
        half=half,
    )


def derangement(n: int, *, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return a random order of 0 to n - 1, n >= 2, that leaves nothing in its place."""
    places = torch.arange(n)
    while True:  # a random order is one in 37 of 100 cases
        order = torch.randperm(n, generator=generator)
        if not bool((order == places).any()):
            return order


# --- what is read off ------------------------------------------------------------------------


def behind_earlier(p: Patterns, *, prefix: int, half: int) -> PerHead:
    """Return the mean attention from the second half to the place behind each token's earlier one.

    Row prefix + half + i, column prefix + i + 1, for i from 0 to half - 1.
    """
    i = torch.arange(half)
    return p[:, prefix + half + i, prefix + i + 1].mean(dim=-1)


def even_share(n_seen: Seen, *, prefix: int, half: int) -> PerHead:
    """Return the same for a head that looks at all tokens it sees evenly: the chance level."""
    return (1 / n_seen[:, prefix + half : prefix + 2 * half].double()).mean(dim=-1)


def previous_token(p: Patterns, n_seen: Seen) -> PerHead:
    """Return mean attention to the token in front, less an even share of it: the copying half.

    The first rows that see one token or two say nothing or little; rows from the third on count.
    """
    i = torch.arange(2, p.shape[-1])
    return (p[:, i, i - 1] - 1 / n_seen[:, i].double()).mean(dim=-1)


def half_losses(
    logits: Float[Tensor, "draw tokens vocabulary"], ids: Int[Tensor, "draw tokens"], half: int
) -> tuple[float, float]:
    """Return the mean loss, in nats, on the tokens of the first and of the second half.

    The first token of each half is not judged: nothing in front of it tells which it is.
    """
    flat = logits[:, :-1].float().flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(flat, ids[:, 1:].flatten(), reduction="none")
    by_token = loss.view(ids.shape[0], -1)
    second = by_token[:, -(half - 1) :]
    first = by_token[:, -(2 * half - 1) : -half]
    return first.mean().item(), second.mean().item()
