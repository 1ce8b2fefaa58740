"""Packed inputs: what changed versions of an input have in common with it is computed once.

Enters: a subject with a causal mask, inputs, and changed versions of them. Leaves: the prediction
on every changed one. Under a causal mask tokens before the first change keep their states. So one
sequence holds the beginning of an input, and behind it the ends of several changed versions: each
end has the position ids it would have, and an explicit mask lets it see its own tokens and that
part of the beginning which it shares. Of neighbour swaps half of the tokens need not be run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.families.feed import Kind
from orbitlens.order.asked import Asked
from orbitlens.order.subject import Cell, Subject
from orbitlens.running.switches import some_states

PACK_PART = 8  # tokens of a pack, in inputs: attention within longer ones costs more than it saves
MOST_PADDING = 8  # packs run together if the shorter lacks at most 1 / 8 of the longer's tokens


def can_pack(subject: Subject, cell: Cell) -> bool:
    """Say whether ends can be packed: a causal decoder whose ids and mask are all it goes by."""
    feed = subject.feed
    takes_arguments = feed.ids is not None and feed.mask is not None and not feed.by_layer_type
    return (
        cell.causal
        and cell is subject.own_cell
        and feed.kind is Kind.DECODER
        and takes_arguments
        and feed.mask_buffers is None  # these count tokens in the sequence, not positions
        and feed.window is None
        and subject.asked is Asked.NEXT
        and subject.query == -1
        and getattr(subject.model, "get_output_embeddings", lambda: None)() is not None
    )


def n_shared(
    rows: Int[Tensor, "rows items"], originals: Int[Tensor, "rows items"]
) -> Int[Tensor, " rows"]:
    """Return how many items of each row stand before the first that differs from its original."""
    return (rows == originals).long().cumprod(dim=1).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The beginning of an input, and ends of changed versions of it, in one sequence."""

    rows: tuple[int, ...]  # the versions whose ends are here
    shared: tuple[int, ...]  # how many tokens each has in common with the input
    n_items: int

    @property
    def n_front(self) -> int:
        """Tokens of the input in front."""
        return max(self.shared)

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return self.n_front + sum(self.n_items - shared for shared in self.shared)

    @property
    def ends(self) -> list[int]:
        """The place of the last token of each version."""
        tails = torch.tensor([self.n_items - shared for shared in self.shared])
        places: list[int] = (self.n_front - 1 + tails.cumsum(0)).tolist()
        return places

    def tokens(self, rows: Int[Tensor, "rows items"]) -> Int[Tensor, " packed"]:
        """Return what is run; any version begins as its input does, as far as it shares it."""
        longest = self.rows[self.shared.index(self.n_front)]
        tails = [rows[row, shared:] for row, shared in zip(self.rows, self.shared, strict=True)]
        return torch.cat([rows[longest, : self.n_front], *tails])

    def positions(self) -> Int[Tensor, " packed"]:
        """Return the place that each token has in its own version."""
        starts = (0, *self.shared)
        stops = (self.n_front, *(self.n_items for _ in self.shared))
        spans = zip(starts, stops, strict=True)
        return torch.cat([torch.arange(start, stop) for start, stop in spans])

    def visible(self) -> Bool[Tensor, "packed packed"]:
        """Return who sees whom: own tokens that are earlier, and the part of the front shared."""
        lengths = torch.tensor([self.n_front, *(self.n_items - shared for shared in self.shared)])
        segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        reach = torch.tensor([0, *self.shared])[segment]
        places = self.positions()
        is_own = segment[:, None] == segment
        is_front = (segment == 0) & (places < reach[:, None])
        return (is_own & (places[:, None] >= places)) | is_front


def packs(owners: Int[Tensor, " rows"], shared: Int[Tensor, " rows"], n_items: int) -> list[Pack]:
    """Deal versions out to packs, those of one input that share the most with it first."""
    found: list[Pack] = []
    for owner in owners.unique().tolist():
        mine = (owners == owner).nonzero()[:, 0]
        waiting: list[int] = []
        n_tokens = 0
        for row in mine[shared[mine].argsort(descending=True, stable=True)].tolist():
            n_tail = n_items - int(shared[row])
            if waiting and n_tokens + n_tail > PACK_PART * n_items:
                found.append(_pack(waiting, shared, n_items))
                waiting = []
            n_tokens = n_tokens + n_tail if waiting else n_items
            waiting.append(row)
        found.append(_pack(waiting, shared, n_items))
    return found


def _pack(rows: list[int], shared: Tensor, n_items: int) -> Pack:
    return Pack(rows=tuple(rows), shared=tuple(shared[rows].tolist()), n_items=n_items)


def run_packed(
    subject: Subject, rows: Int[Tensor, "rows items"], these: Sequence[Pack], *, n_tokens: int
) -> Iterator[tuple[list[int], Int[Tensor, "packs packed"], Float[Tensor, "some outputs"]]]:
    """Yield predictions on changed inputs: which rows, what was run, the predictions.

    Args:
        subject: the model.
        rows: changed inputs.
        these: from `packs`.
        n_tokens: tokens of one forward call.
    """
    for group in _alike(these, n_tokens):
        longest = max(len(pack) for pack in group)
        tokens = torch.stack([_padded(pack.tokens(rows), longest) for pack in group])
        ids = torch.stack([_padded(pack.positions(), longest) for pack in group])
        ends = [(k, end) for k, pack in enumerate(group) for end in pack.ends]
        which = [row for pack in group for row in pack.rows]
        yield which, tokens, _run(subject, tokens, ids, _mask(subject, group, longest), ends)


def _alike(these: Sequence[Pack], n_tokens: int) -> Iterator[list[Pack]]:
    """Cut packs into groups of about one length."""
    waiting: list[Pack] = []
    for pack in sorted(these, key=len, reverse=True):
        if waiting:
            longest = len(waiting[0])
            is_full = (len(waiting) + 1) * longest > n_tokens
            if is_full or (longest - len(pack)) * MOST_PADDING > longest:
                yield waiting
                waiting = []
        waiting.append(pack)
    if waiting:
        yield waiting


def _padded(row: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(row, (0, length - len(row)))


def _mask(subject: Subject, group: Sequence[Pack], length: int) -> Tensor:
    """Return the additive mask; what fills up a pack sees itself alone, and nothing sees it."""
    dtype = next(subject.model.parameters()).dtype
    visible = torch.eye(length, dtype=torch.bool).repeat(len(group), 1, 1)
    for own, pack in zip(visible, group, strict=True):
        own[: len(pack), : len(pack)] = pack.visible()
    mask = torch.zeros(visible.shape, dtype=dtype)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def _run(
    subject: Subject, tokens: Tensor, ids: Tensor, mask: Tensor, ends: list[tuple[int, int]]
) -> Tensor:
    feed = subject.feed
    assert feed.ids is not None
    assert feed.mask is not None
    arguments = {feed.ids: ids + feed.first_id, feed.mask: mask, "use_cache": False}
    with torch.inference_mode(), some_states(subject.model, ends):
        output = subject.model(input_ids=tokens, **arguments)
    logits: Tensor = output.logits
    assert logits.shape[:2] == (len(ends), 1)
    return logits[:, 0]
