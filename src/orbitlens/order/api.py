"""`audit`: does a prediction depend on the order of earlier tokens, how much, and through what?

Enters: a model and a text. Leaves: an `Audit`. Self-checks come first; one that fails stops it.
"""

from collections.abc import Callable
from typing import Any

import torch

from orbitlens.errors import InputError
from orbitlens.order.audit_result import Audit
from orbitlens.order.measuring import Origin, measure_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.questions import subject_for
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import load
from orbitlens.running.samples import samples_of
from orbitlens.running.threads import threads_for


def audit(
    model: Any,  # noqa: ANN401 - a `Model`, or what `load` takes
    text: Any = None,  # noqa: ANN401 - what `inputs_of` takes
    *,
    options: AuditOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Return how much a model's predictions depend on the order of its tokens, and through what.

    Args:
        model: a `Model`, or anything `load` takes.
        text: a string, strings, a path object, token ids, images or batches; by default the
            package's passage.
        options: how many inputs, how long, under how many permutations.
        progress: called with (done, total) sequences of the 2 x 2.

    Raises:
        InputError: the inputs do not fit the model, are too short or too few, or there is no
            sensible question to ask of the model.
        UnknownFamilyError: nothing is known about how the family takes positions and masks.
        AuditError: a self-check failed, so that the numbers would mean nothing.
    """
    chosen = options or AuditOptions()
    if chosen.samples < 2 or chosen.permutations < 1:
        raise InputError(
            f"{chosen.samples} samples and {chosen.permutations} permutations: an audit needs at "
            "least 2 samples and 1 permutation."
        )
    opened = load(model)
    _ = opened.feed  # a family nobody knows how to feed is refused before anything is read
    inputs = inputs_of(opened, text, normalise=chosen.normalise, seed=chosen.seed)
    generator = torch.Generator().manual_seed(chosen.seed)
    samples = samples_of(opened, inputs, chosen.samples, length=chosen.length, generator=generator)
    with threads_for(opened.n_parameters), opened.evaluating() as module:
        notes = (*opened.notes, *samples.notes)
        origin = Origin(name=opened.name, source=samples.source, notes=notes)
        return measure_order(
            subject_for(opened, module, samples),
            samples.items,
            options=chosen,
            origin=origin,
            progress=progress,
        )
