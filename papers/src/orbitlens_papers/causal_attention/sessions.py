"""Sessions of a shop whose causes are known: which items lead to which, and hidden tastes.

Enters: a generator. Leaves: a `World` and sessions of items drawn from it. An item is as likely as
the user's kind, which is hidden, likes it, and `RAISE` times as likely again for each parent that
stands earlier in the session; no item comes twice.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

RAISE = 15.0
SPREAD = 0.7  # of the logarithm of tastes
ROOTS = 0.25  # share of items without parents
SHORTEST, LONGEST = 8, 12


@dataclass(frozen=True, kw_only=True)
class World:
    """Which items are parents of which, and how each kind of user likes them."""

    parents: Bool[Tensor, "item parent"]
    tastes: Float[Tensor, "kind item"]

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self.parents)

    def weights(
        self, kinds: Int[Tensor, " session"], present: Bool[Tensor, "session item"]
    ) -> Float[Tensor, "session item"]:
        """Return how likely each item is to come next, up to a factor."""
        raised = 1 + RAISE * (present.double() @ self.parents.double().T)
        return self.tastes[kinds] * raised * ~present

    def parents_in(self, item: int, session: list[int]) -> tuple[int, ...]:
        """Return the places of a session at which a parent of the item stands."""
        return tuple(k for k, other in enumerate(session) if bool(self.parents[item, other]))


def random_world(n_items: int, n_kinds: int, *, generator: torch.Generator) -> World:
    """Draw a world: all items but the first few have one or two parents among earlier ones."""
    parents = torch.zeros(n_items, n_items, dtype=torch.bool)
    for item in range(max(2, round(ROOTS * n_items)), n_items):
        n_parents = int(torch.randint(1, 3, (), generator=generator))
        parents[item, torch.randperm(item, generator=generator)[:n_parents]] = True
    names = torch.randperm(n_items, generator=generator)
    tastes = (SPREAD * torch.randn(n_kinds, n_items, generator=generator).double()).exp()
    return World(parents=parents[names][:, names], tastes=tastes)


def draw_sessions(
    world: World, n_sessions: int, length: int, *, generator: torch.Generator
) -> tuple[Int[Tensor, "session place"], Int[Tensor, " session"]]:
    """Return sessions of one length, and the hidden kind of each user."""
    kinds = torch.randint(0, len(world.tastes), (n_sessions,), generator=generator)
    present = torch.zeros(n_sessions, world.n_items, dtype=torch.bool)
    items = torch.zeros(n_sessions, length, dtype=torch.long)
    for place in range(length):
        drawn = torch.multinomial(world.weights(kinds, present), 1, generator=generator)
        items[:, place] = drawn[:, 0]
        present.scatter_(1, drawn, True)
    return items, kinds


def renamed(world: World, *, generator: torch.Generator) -> World:
    """Return a world in which items have changed names: its parents say nothing about the first."""
    names = torch.randperm(world.n_items, generator=generator)
    return World(parents=world.parents[names][:, names], tastes=world.tastes[:, names])
