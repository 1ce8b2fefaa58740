"""Which rows of stored weights belong to which coordinate of a head, and how to reorder them.

Enters: a stack, a layer, a pairing that the weights were trained with. Leaves: for every stored
tensor of queries and keys the order of its rows under which the pairing of the config turns the
right coordinates together. Applying it to a running module tests a conversion; applying it to a
file repairs one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.checkpoint.live import LiveSource
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import InputError
from orbitlens.families.architecture import LatentSpec, Pairing, Stack

Order = Int[Tensor, " _"]  # of rows


def coordinate_order(trained: Pairing, width: int, d_head: int) -> Order:
    """Return the order that moves coordinates paired by `trained` to where the other pairs them.

    >>> coordinate_order(Pairing.NEIGHBOURS, 4, 6).tolist()
    [0, 2, 1, 3, 4, 5]
    >>> coordinate_order(Pairing.HALVES, 6, 6).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    shape = (-1, 2) if trained is Pairing.NEIGHBOURS else (2, -1)
    return torch.cat([torch.arange(width).view(shape).T.flatten(), torch.arange(width, d_head)])


def row_orders(stack: Stack, layer: int, trained: Pairing, width: int) -> dict[str, Order]:
    """Return, by the name of each stored tensor, the order of its rows; values stay where they are.

    Raises:
        InputError: the layer keeps its queries and keys in a form that is not reordered here.
    """
    if stack.recipe is not None or stack.transposed:
        raise InputError(
            f"layer {layer} does not keep queries and keys as rows of plain weights; reordering "
            "them is not written for this family."
        )
    if stack.latent is not None:
        return _latent_orders(stack, stack.latent, layer, trained)
    names, spec = stack.tensors[layer], stack.layers[layer]
    order = coordinate_order(trained, width, stack.d_head)
    queries = _blocks(spec.n_heads, stack.d_head, order)
    keys = _blocks(spec.n_kv_heads, stack.d_head, order)
    orders: dict[str, Order] = {}
    for role, blocks in (("q", queries), ("k", keys)):
        for suffix in ("", "_bias"):
            if role + suffix in names:
                orders[names[role + suffix]] = blocks
        orders |= _norm_orders(names, role, order, blocks)
    for role in ("qkv", "qkv_bias"):
        if role in names:
            orders[names[role]] = _fused(stack, layer, queries, keys)
    return orders


def _latent_orders(
    stack: Stack, latent: LatentSpec, layer: int, trained: Pairing
) -> dict[str, Order]:
    """Rotated rows stand last in each head's queries, and last in the map to the latent of keys."""
    names, plain = stack.tensors[layer], latent.d_plain
    order = coordinate_order(trained, latent.d_rotary, latent.d_rotary)
    of_head = torch.cat([torch.arange(plain), plain + order])
    queries = _blocks(stack.layers[layer].n_heads, len(of_head), of_head)
    keys = torch.cat([torch.arange(latent.kv_rank), latent.kv_rank + order])
    rows = {"q": queries, "q_up": queries, "kv_down": keys, "kv_down_bias": keys}
    return {names[role]: rows[role] for role in rows if role in names}


def _blocks(n_blocks: int, d_head: int, order: Order) -> Order:
    return (torch.arange(n_blocks)[:, None] * d_head + order).flatten()


def _norm_orders(
    names: Mapping[str, str], role: str, order: Order, blocks: Order
) -> dict[str, Order]:
    """Gains of norms on queries or keys: one a coordinate for all heads, or one a row."""
    found = [name for key, name in names.items() if key.startswith(f"{role}_norm")]
    return {name: torch.cat([order, blocks[len(order) :]]) for name in found}


def _fused(stack: Stack, layer: int, queries: Order, keys: Order) -> Order:
    """Return the order of a fused tensor's rows: blocks q | k | v, or groups of them."""
    spec, r = stack.layers[layer], stack.d_head
    n, kv = spec.n_heads, spec.n_kv_heads
    rows = torch.arange((n + 2 * kv) * r)
    if stack.fused_order == "blocks":
        q, k, v = rows.split([n * r, kv * r, kv * r])
        return torch.cat([q[queries], k[keys], v])
    grouped = rows.unflatten(0, (kv, n // kv + 2, r))
    q, k, v = grouped.split([n // kv, 1, 1], dim=1)
    q = q.flatten()[queries].view(q.shape)
    k = k.flatten()[keys].view(k.shape)
    return torch.cat([q, k, v], dim=1).flatten()


def reordered(value: Tensor, order: Order) -> Tensor:
    """Return a tensor with its rows in an order; a gain that heads share takes the first part."""
    return value[order[: len(value)]]


@contextmanager
def reordered_rows(checkpoint: Checkpoint, orders: Mapping[str, Order]) -> Iterator[None]:
    """Reorder rows of a running module's own weights, and put them back behind it.

    `checkpoint` is that of the live module.
    """
    source = checkpoint.source
    assert isinstance(source, LiveSource)
    places = [source.place(name) for name in orders]
    kept = [place.detach().clone() for place in places]
    try:
        with torch.no_grad():
            for place, value, order in zip(places, kept, orders.values(), strict=True):
                place.copy_(reordered(value, order.to(value.device)))
        yield
    finally:
        with torch.no_grad():
            for place, value in zip(places, kept, strict=True):
                place.copy_(value)
