"""Sessions of a shop whose causes are known: what is looked at, and what is bought in the end.

Enters: a generator. Leaves: a `World` and sessions of items drawn from it. Every item but the last
is looked at, the last is bought. How likely an item comes next is the taste of the user's kind,
which is hidden, times a factor for each parent of it that stands earlier in the session; no item
comes twice. Parents of what is looked at are of its own family; those of what is bought are nearly
all of a family, and one of another. Several weak pieces of evidence decide together what is bought:
when one of them is masked, the others mostly still do.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# What a parent adds to the log-odds of an item that is looked at, and of one that is bought.
SEEN, BOUGHT = 3.0, 1.0
SPREAD = 0.5  # of the logarithm of tastes
FAMILY = 7  # items looked at for each that can be bought
MOST_PARENTS = 3  # of an item looked at
SHORTEST, LONGEST = 8, 12


@dataclass(frozen=True, kw_only=True)
class World:
    """Which items are parents of which, how each kind of user likes them, which can be bought."""

    parents: Bool[Tensor, "item parent"]
    tastes: Float[Tensor, "kind item"]
    bought: Bool[Tensor, " item"]

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self.parents)

    def weights(
        self,
        kinds: Int[Tensor, " session"],
        present: Bool[Tensor, "session item"],
        *,
        last: bool,
    ) -> Float[Tensor, "session item"]:
        """Return how likely each item is to come next, up to a factor."""
        evidence = present.double() @ self.parents.double().T
        raised = ((BOUGHT if last else SEEN) * evidence).exp()
        return self.tastes[kinds] * raised * ~present * (self.bought == last)

    def parents_in(self, item: int, session: list[int]) -> tuple[int, ...]:
        """Return the places of a session at which a parent of the item stands."""
        return tuple(k for k, other in enumerate(session) if bool(self.parents[item, other]))

    def edges_in(self, session: list[int]) -> frozenset[frozenset[int]]:
        """Return the pairs of places of which the earlier holds a parent of the later's item."""
        return frozenset(
            frozenset((place, later))
            for later, item in enumerate(session)
            for place in self.parents_in(item, session[:later])
        )


def random_world(n_items: int, n_kinds: int, *, generator: torch.Generator) -> World:
    """Draw a world: families of items that are looked at, and one item to buy for each."""
    n_families = max(2, n_items // (FAMILY + 1))
    n_seen = n_items - n_families
    family = torch.arange(n_seen) * n_families // n_seen
    parents = torch.zeros(n_items, n_items, dtype=torch.bool)
    for item in range(n_seen):
        earlier = (family[:item] == family[item]).nonzero()[:, 0]
        n_parents = int(torch.randint(1, MOST_PARENTS + 1, (), generator=generator))
        parents[item, _some(earlier, n_parents, generator)] = True
    for number in range(n_families):
        own = (family == number).nonzero()[:, 0]
        parents[n_seen + number, _some(own, len(own) - 1, generator)] = True
        parents[n_seen + number, _some((family != number).nonzero()[:, 0], 1, generator)] = True
    names = torch.randperm(n_items, generator=generator)
    tastes = (SPREAD * torch.randn(n_kinds, n_items, generator=generator).double()).exp()
    return World(parents=parents[names][:, names], tastes=tastes, bought=(names >= n_seen))


def _some(
    items: Int[Tensor, " items"], most: int, generator: torch.Generator
) -> Int[Tensor, " chosen"]:
    """Return as many of the items, at most, drawn at random."""
    return items[torch.randperm(len(items), generator=generator)[:most]]


def draw_sessions(
    world: World, n_sessions: int, length: int, *, generator: torch.Generator
) -> tuple[Int[Tensor, "session place"], Int[Tensor, " session"]]:
    """Return sessions of one length, and the hidden kind of each user."""
    kinds = torch.randint(0, len(world.tastes), (n_sessions,), generator=generator)
    present = torch.zeros(n_sessions, world.n_items, dtype=torch.bool)
    items = torch.zeros(n_sessions, length, dtype=torch.long)
    for place in range(length):
        weights = world.weights(kinds, present, last=place == length - 1)
        drawn = torch.multinomial(weights, 1, generator=generator)
        items[:, place] = drawn[:, 0]
        present.scatter_(1, drawn, True)
    return items, kinds


def renamed(world: World, *, generator: torch.Generator) -> World:
    """Return a world in which items have changed names: its parents say nothing about the first.

    What can be bought changes names among itself, so that recommended items still have parents.
    """
    names = torch.arange(world.n_items)
    for kind in (world.bought, ~world.bought):
        places = kind.nonzero()[:, 0]
        names[places] = _some(places, len(places), generator)
    return World(
        parents=world.parents[names][:, names], tastes=world.tastes[:, names], bought=world.bought
    )
