"""Episodes: a few labelled pictures of classes never seen before, and others to be named.

Enters: drawings, a generator. Leaves: which classes are held out, and batches of episodes. Labels
are drawn anew for every episode, so that no weight can store a class.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens_papers.on_chip.drawings import Drawings, Pictures

SIZE = 20  # pixels of what models see
N_LABELS = 20  # label neurons; an episode uses some of them
HELD_OUT = 1  # alphabet, of drawings
HELD_SHARE = 0.2  # of classes, of glyphs
POSES = 12  # pictures a held-out class of glyphs is shown in
QUARTERS = 4  # turns by 90 degrees make further classes, for training


@dataclass(frozen=True)
class Pose:
    """How far pictures are turned (radians), sheared, grown and moved (shares), at most."""

    turn: float
    shear: float
    grow: float
    move: float


OF_DRAWINGS = Pose(turn=0.35, shear=0.2, grow=0.15, move=0.1)  # drawings differ of themselves
OF_GLYPHS = Pose(turn=0.35, shear=0.3, grow=0.25, move=0.2)


@dataclass(frozen=True)
class Split:
    """Pictures to train on, pictures of other classes to judge on, and how they were parted."""

    train: Pictures
    held: Float[Tensor, "held shown size size"]  # as models see them
    is_drawn: bool
    words: str


@dataclass(frozen=True)
class Episodes:
    """A batch of episodes, as numbers of pictures or the pictures themselves."""

    context: Int[Tensor, "episodes tokens"]  # rows of a table of pictures
    labels: Int[Tensor, "episodes tokens"]
    queries: Int[Tensor, "episodes queries"]
    answers: Int[Tensor, "episodes queries"]
    used: Int[Tensor, "episodes way"]  # labels that an episode uses


def split(drawings: Drawings, generator: torch.Generator, *, turn: int) -> Split:
    """Hold out one alphabet, or a fifth of the classes where there are none.

    Args:
        drawings: all classes.
        generator: of the order in which alphabets or classes take turns; the same for all turns.
        turn: whose turn it is; with another turn others are held out, until all were.
    """
    n_classes = len(drawings.pictures)
    if drawings.alphabets:
        names = sorted(set(drawings.alphabets))
        out = sorted(names[k] for k in _turn_of(len(names), HELD_OUT, generator, turn))
        held = torch.tensor([name in out for name in drawings.alphabets])
        words = " and ".join(name.replace("_", " ") for name in out)
    else:
        held = torch.zeros(n_classes, dtype=torch.bool)
        held[_turn_of(n_classes, int(HELD_SHARE * n_classes), generator, turn)] = True
        words = f"{int(held.sum())} of {n_classes} letters"
    kept = drawings.pictures[held]
    shown = kept
    if not drawings.is_drawn:
        shown = posed(kept.expand(-1, POSES, -1, -1), OF_GLYPHS, generator)
    return Split(drawings.pictures[~held], resized(shown), drawings.is_drawn, words)


def _turn_of(n: int, size: int, generator: torch.Generator, turn: int) -> list[int]:
    """Return the numbers below n that have this turn, `size` at a time."""
    order: list[int] = torch.randperm(n, generator=generator).tolist()
    return [order[(turn * size + k) % n] for k in range(size)]


# --- what is shown ---------------------------------------------------------------------------


def draw(
    generator: torch.Generator, *, n: int, way: int, shots: int, of: tuple[int, int]
) -> Episodes:
    """Return episodes of `way` classes, `shots` pictures each and one query each.

    Args:
        generator: of all choices.
        n: how many episodes.
        way: classes an episode.
        shots: pictures a class in the context.
        of: classes, and pictures a class, in the table that is chosen from.
    """
    n_classes, n_pictures = of
    classes = torch.rand(n, n_classes, generator=generator).topk(way).indices
    pictures = torch.rand(n, way, n_pictures, generator=generator).topk(shots + 1).indices
    rows = classes[..., None] * n_pictures + pictures
    used = torch.rand(n, N_LABELS, generator=generator).topk(way).indices
    order = torch.rand(n, way * shots, generator=generator).argsort()
    context = rows[..., :shots].reshape(n, -1)
    labels = used[..., None].expand(-1, -1, shots).reshape(n, -1)
    return Episodes(
        context=context.gather(1, order),
        labels=labels.gather(1, order),
        queries=rows[..., shots],
        answers=used,
        used=used,
    )


def relabelled(episodes: Episodes, generator: torch.Generator) -> Episodes:
    """Return the episodes with context labels at random: nothing is left to learn."""
    chosen = torch.randint(episodes.used.shape[1], episodes.labels.shape, generator=generator)
    return Episodes(
        episodes.context,
        episodes.used.gather(1, chosen),
        episodes.queries,
        episodes.answers,
        episodes.used,
    )


def resized(pictures: Float[Tensor, "*any height width"]) -> Float[Tensor, "*any size size"]:
    """Return pictures at the size that models see: means over areas.

    As `interpolate(mode="area")` has them, but by two products with a matrix: a ninth of the time.
    """
    high, wide = (_means_of(n) for n in pictures.shape[-2:])
    return high @ pictures @ wide.T


@cache
def _means_of(n: int) -> Float[Tensor, "size pixels"]:
    """Return the matrix that takes n pixels to means over SIZE stretches, which may overlap."""
    means = torch.zeros(SIZE, n)
    for k in range(SIZE):
        first, end = k * n // SIZE, -(-(k + 1) * n // SIZE)
        means[k, first:end] = 1 / (end - first)
    return means


def posed(
    pictures: Float[Tensor, "*any height width"], pose: Pose, generator: torch.Generator
) -> Float[Tensor, "*any height width"]:
    """Return every picture turned, sheared, sized and moved at random."""
    flat = pictures.flatten(0, -3)[:, None]
    maps = affine_maps(len(flat), pose, generator)
    grid = functional.affine_grid(maps, list(flat.shape), align_corners=False)
    moved = functional.grid_sample(flat, grid, align_corners=False)
    return moved[:, 0].unflatten(0, pictures.shape[:-2])


def affine_maps(n: int, pose: Pose, generator: torch.Generator) -> Float[Tensor, "n two three"]:
    """Return random maps of the plane near the identity."""
    turn, shear, wide, high, x, y = (2 * torch.rand(6, n, generator=generator) - 1).unbind()
    angle = pose.turn * turn
    cos, sin = torch.cos(angle), torch.sin(angle)
    wide, high = 1 + pose.grow * wide, 1 + pose.grow * high
    first = torch.stack([cos * wide, -sin * high + pose.shear * shear, pose.move * x], dim=-1)
    second = torch.stack([sin * wide, cos * high, pose.move * y], dim=-1)
    return torch.stack([first, second], dim=1)


@dataclass(frozen=True)
class Training:
    """Pictures to train on; quarter turns of drawings count as classes of their own."""

    pictures: Pictures
    quarters: int
    pose: Pose
    per_class: int  # pictures a class, or as many poses of its one picture

    @property
    def size(self) -> tuple[int, int]:
        """Classes and pictures a class to draw episodes from."""
        return self.quarters * len(self.pictures), self.per_class

    def shown(
        self, rows: Int[Tensor, "episodes tokens"], generator: torch.Generator
    ) -> Float[Tensor, "episodes tokens size size"]:
        """Return the pictures of these rows in random poses, as models see them."""
        n_classes, n_pictures = self.pictures.shape[:2]
        classes, picture = rows // self.per_class, rows % self.per_class % n_pictures
        chosen = self.pictures[classes % n_classes, picture]
        for turns in range(1, self.quarters):
            where = classes // n_classes == turns
            chosen[where] = chosen[where].rot90(turns, dims=(-2, -1))
        return resized(posed(chosen, self.pose, generator))


def training_of(parts: Split, shots: int) -> Training:
    """Return what to train on, with enough pictures a class for that many shots and a query."""
    if parts.is_drawn:
        return Training(parts.train, QUARTERS, OF_DRAWINGS, parts.train.shape[1])
    return Training(parts.train, 1, OF_GLYPHS, shots + 1)
