"""What the rooms Model and Order begin with, and what a frozen page knows of them.

Enters: an explored model and the sentence that the page begins with. Leaves: what can be cut, which
cells can be reached; and the answers to all single cuts, all swaps of neighbours and a few random
orders of that one sentence, which a frozen page has in place of a model.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from orbitlens.errors import OrbitlensError
from orbitlens.exploring.answers import PageQuestion, frozen_answers
from orbitlens.exploring.model_data import possible_cuts
from orbitlens.exploring.order_data import ALL, SEED, why_not
from orbitlens.exploring.passes import ENCODING, MASK, Explored
from orbitlens.exploring.sentence import N_SAMPLES, Prompt, Sentence, sentence_of
from orbitlens.order.permutations import shuffles
from orbitlens.order.subject import Cell, Subject
from orbitlens.running.images import image_shape
from orbitlens.running.inputs import n_positions, random_ids

FROZEN_SHUFFLES = 8
FROZEN_CUTS = 96  # single cuts that a frozen page has the answers to
START_IDS = 16  # random ones, for a model without a tokenizer
Told = Callable[[int, int | None], None]


def start_of(explored: Explored, text: str) -> dict[str, Any]:
    """Return the parameters of the sentence that a page begins with."""
    model = explored.model
    if model.main_input == "pixel_values":
        return {"sample": 0}
    if model.tokenizer is not None:
        return {"text": text}
    generator = torch.Generator().manual_seed(SEED)
    length = min(START_IDS, n_positions(model.module.config) or START_IDS)
    ids = random_ids(model.module.config, 1, length, generator)[0].tolist()
    return {"ids": " ".join(map(str, ids))}


def room_data(explored: Explored, start: dict[str, Any]) -> dict[str, Any]:
    """Return what the rooms begin with."""
    sentence = sentence_of(explored.model, Prompt(**start))
    subject = sentence.subject(explored.model)
    not_reached = {cell.value: why for cell in Cell if (why := why_not(subject, cell))}
    rooms: dict[str, Any] = {
        "start": start,
        "model": {"cuts": possible_cuts(explored), "not_cut": _not_cut(subject)},
        "order": {
            "own_cell": subject.own_cell.value,
            "not_reached": not_reached,
            "shuffles": _some_orders(sentence, subject),
        },
    }
    if explored.model.main_input == "pixel_values":
        shape = image_shape(explored.model.module.config)
        rooms["image"] = {"shape": shape, "n_samples": N_SAMPLES}
    return rooms


def _not_cut(subject: Subject) -> dict[str, str]:
    """Return why encoding or mask cannot be cut, where they cannot."""
    own = subject.own_cell
    cells = {
        ENCODING: Cell.NOPE_CAUSAL if own.causal else Cell.NOPE_FULL,
        MASK: Cell.PE_FULL,
    }
    reasons = {name: why_not(subject, cell) for name, cell in cells.items()}
    if not own.causal:
        reasons[MASK] = "this model attends in full and has no mask"
    return {name: why for name, why in reasons.items() if why}


def _some_orders(sentence: Sentence, subject: Subject) -> list[list[int]]:
    generator = torch.Generator().manual_seed(SEED)
    movable = subject.movable(sentence.n_items)
    found: list[list[int]] = shuffles(
        sentence.n_items, movable, FROZEN_SHUFFLES, generator
    ).tolist()
    return found


def frozen_rooms(
    explored: Explored,
    rooms: dict[str, Any],
    told: Told | None = None,
    *,
    shown: PageQuestion | None = None,
) -> dict[str, dict[str, Any]]:
    """Return all answers that a frozen page has, by question and parameters.

    Args:
        explored: the model.
        rooms: what the rooms begin with.
        told: called with answers done and their number.
        shown: cuts and order that a page shows when it is frozen: it knows these as well.
    """
    if "why" in rooms:
        return {}
    return frozen_answers(
        explored, _questions(explored, rooms, shown), told or (lambda done, total: None)
    )


def _questions(
    explored: Explored, rooms: dict[str, Any], shown: PageQuestion | None
) -> dict[str, list[dict[str, Any]]]:
    start = rooms["start"]
    sentence = sentence_of(explored.model, Prompt(**start))
    subject = sentence.subject(explored.model)
    single = [*rooms["model"]["cuts"][:FROZEN_CUTS], ENCODING, MASK]
    cuts = [cut for cut in single if cut not in rooms["model"]["not_cut"]]
    cells = [cell.value for cell in Cell if cell.value not in rooms["order"]["not_reached"]]
    layers = range(explored.model.architecture.stacks[-1].n_layers)
    orders = [*rooms["order"]["shuffles"], *_neighbours(subject, sentence.n_items)]
    together = [[cut] for cut in cuts]
    if shown is not None:
        together += [list(shown.cuts)] if len(shown.cuts) > 1 else []
        orders += [list(shown.order)] if shown.order and list(shown.order) not in orders else []
    return {
        "model": [start, *({**start, "cuts": names} for names in together)],
        "attention": [{**start, "layer": layer} for layer in layers],
        "heads": [{}],
        "order": [start, *({**start, "order": order} for order in orders)],
        "usual": [start],
        "swaps": [{**start, "cell": cell, "which": ALL} for cell in cells],
    }


def _neighbours(subject: Subject, n_items: int) -> list[list[int]]:
    orders = []
    for first, second in pairwise(subject.movable(n_items)):
        order = list(range(n_items))
        order[first], order[second] = second, first
        orders.append(order)
    return orders


def rooms_or_why(explored: Explored, start: dict[str, Any]) -> dict[str, Any]:
    """Return what the rooms begin with, or {"why": they cannot}, for a model that cannot be run."""
    try:
        return room_data(explored, start)
    except OrbitlensError as error:
        return {"why": str(error)}
