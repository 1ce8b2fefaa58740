"""Probes: is each cell of the 2 x 2 what it says? Nothing an audit reports is trusted before this.

Enters: a bench. Leaves: checks with their numbers; a failed one stops the audit with the reason.
Changes are relative to the size of what changes, and are compared within one batch, so that a mask
that works leaves exactly nothing. That batch holds the inputs as they are, too, which the bench
keeps: they are run once for probes and measurements.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from orbitlens.errors import AuditError
from orbitlens.families.feed import Kind
from orbitlens.order.comparing import Bench, run_beside, unpermuted
from orbitlens.order.permutations import shuffles
from orbitlens.order.subject import Cell, Subject, run, run_plain

STILL = 2e-5  # relative change up to which an output counts as unmoved (float32 rounding)
INVARIANT = 1e-4  # relative change under permutations up to which a model counts as order-blind
N_PROBED = 2  # inputs that a plain call is tried on
N_SHUFFLES = 2  # of one input


@dataclass(frozen=True, kw_only=True)
class Check:
    """One probe: what was measured, against which limit, and whether that is as it should be."""

    name: str
    value: float
    limit: float
    must: str  # "stay" at or below the limit, "move" above it
    passed: bool
    failure: str  # what a failure means

    def demand(self) -> "Check":
        """Return the check if it passed.

        Raises:
            AuditError: it did not.
        """
        if not self.passed:
            relation = "at most" if self.must == "stay" else "more than"
            raise AuditError(
                f"self-check failed: {self.name}: measured {self.value:.3g}, expected {relation} "
                f"{self.limit:.3g}. {self.failure}"
            )
        return self


def _stays(name: str, value: float, limit: float, failure: str) -> Check:
    return Check(
        name=name, value=value, limit=limit, must="stay", passed=value <= limit, failure=failure
    )


def _moves(name: str, value: float, limit: float, failure: str) -> Check:
    return Check(
        name=name, value=value, limit=limit, must="move", passed=value > limit, failure=failure
    )


def verify(bench: Bench, *, generator: torch.Generator, stop: bool = True) -> list[Check]:
    """Run every probe, each before what depends on it.

    Who sees whom, and what tells positions apart, does not depend on the tokens: one input is
    enough for that. What all inputs give as they are is kept by the bench.

    Args:
        bench: the model and its inputs.
        generator: source of changed tokens and shuffles.
        stop: raise at the first failure; otherwise return failed checks too.

    Raises:
        AuditError: a probe failed and `stop` is set.
    """
    subject, first = bench.subject, bench.items[:1]
    own, *others = sorted(subject.compared, key=lambda cell: cell is not subject.own_cell)
    masks = _mask_checks(bench, own, generator)  # looked at when calls are known to be repeatable
    probes: list[Callable[[], list[Check]]] = [lambda: _native(bench), lambda: masks]
    for cell in others:
        probes.append(lambda cell=cell: _mask_checks(bench, cell, generator))  # type: ignore[misc]
    probes.append(lambda: _shift_checks(subject, first))
    if Cell.NOPE_FULL in subject.cells:
        probes.append(lambda: [_invariance(subject, first, generator)])
    checks: list[Check] = []
    for probe in probes:
        probed = probe()
        checks += [check.demand() for check in probed] if stop else probed
    return checks


# --- the probes ------------------------------------------------------------------------------


def relative(first: Tensor, second: Tensor) -> float:
    """Return max |second - first| / max |first|."""
    size = first.abs().max().clamp_min(torch.finfo(first.dtype).tiny)
    return float((second - first).abs().max() / size)


def _native(bench: Bench) -> list[Check]:
    """Compare the model's own cell with a plain call, and with itself where these differ.

    A plain call that gives the same shows both: that calls can be repeated, and what they do.
    """
    subject, items = bench.subject, bench.items[:N_PROBED]
    found = unpermuted(bench, subject.own_cell, subject)[:N_PROBED]
    if not torch.isfinite(found).all():
        raise AuditError(
            "the model's predictions are not finite numbers. Expected weights without NaN or "
            "infinity; fetch the model again."
        )
    plain = relative(run_plain(subject, items).prediction, found)
    again = plain
    if plain > STILL:
        again = relative(found, run(subject, items, subject.own_cell).prediction)
    return [
        _stays(
            "the same input gives the same output",
            again,
            STILL,
            "Something random is on, such as dropout. Put the model in evaluation mode: "
            "model.eval().",
        ),
        _stays(
            f"{subject.own_cell.value} is the model as it is",
            plain,
            STILL,
            "Explicit position ids and mask do not reproduce a plain call of the model, so what "
            "they switch is not what the model uses. Padding tokens among the inputs do this, too.",
        ),
    ]


def _mask_checks(bench: Bench, cell: Cell, generator: torch.Generator) -> list[Check]:
    """Change an item and look at the outputs before it; change all, and look at the prediction.

    All changed inputs run in one batch with the unchanged one, so that a mask that works leaves
    exactly nothing. A single item may move the prediction of a sound model by no more than rounding
    (1.6e-5 was seen), all of them together do not. They become one and the same: other tokens for
    each could be the same ones in another order, which a model need not notice.
    """
    subject, items = bench.subject, bench.items[:1]
    movable = bench.movable
    places = sorted({movable[max(1, len(movable) // 2)], movable[-1]})
    changed = [_changed(subject, items, [place], generator) for place in (*places, movable[0])]
    changed[-1] = _made_alike(subject, changed[-1], movable)
    output = run_beside(bench, cell, torch.cat(changed))
    (states,), prediction = output.hidden, output.prediction
    before = [
        relative(states[0, :place], state[:place])
        for place, state in zip(places, states[1:], strict=False)
    ]
    return [_future(cell, before), _reach(cell, relative(prediction[0], prediction[-1]))]


def _future(cell: Cell, values: list[float]) -> Check:
    name = f"{cell.value}: a changed token moves earlier outputs"
    if cell.causal:
        failure = "The mask leaks: tokens see the future in a cell that should be causal."
        return _stays(name, max(values), STILL, failure)
    failure = "Tokens do not see later ones in a cell that should have full attention."
    return _moves(name, min(values), STILL, failure)


def _reach(cell: Cell, value: float) -> Check:
    return _moves(
        f"{cell.value}: other tokens move the prediction",
        value,
        STILL,
        "The prediction does not see other tokens at all, so it could not depend on their order. "
        "Constant position ids without an explicit 4-D mask do this in transformers 5: they are "
        "taken for packed sequences, and each token sees itself alone.",
    )


def _shift_checks(subject: Subject, items: Tensor) -> list[Check]:
    """Shift all position ids by one: absolute encodings must notice, relative ones must not."""
    expected = subject.feed.shift_matters
    cell = subject.own_cell
    if subject.feed.ids is None or expected is None or items.shape[1] < 3:
        return []
    spare = subject.movable(items.shape[1])[-1]
    shorter = torch.cat([items[:, :spare], items[:, spare + 1 :]], dim=1)  # room for one more id
    ids = torch.arange(shorter.shape[1])
    positions = torch.stack([ids, ids + 1, ids.flip(0)]).repeat_interleave(len(items), dim=0)
    output = run(subject, shorter.repeat(3, 1), cell, positions=positions)
    here, there, turned = output.prediction.chunk(3)
    if relative(here, turned) <= STILL:
        return []  # no encoding at all: nothing to shift; encoding_effect says so
    name, value = "all position ids shifted by one move the prediction", relative(here, there)
    if expected:
        failure = "Position ids do not reach this absolute encoding, or it was removed already."
        return [_moves(name, value, STILL, failure)]
    failure = "A relative encoding should not notice a common shift."
    return [_stays(name, value, INVARIANT, failure)]


def _invariance(subject: Subject, items: Tensor, generator: torch.Generator) -> Check:
    perms = shuffles(items.shape[1], subject.movable(items.shape[1]), N_SHUFFLES, generator)
    inputs = torch.cat([items, *(items[:, perm] for perm in perms)])
    start, *moved = run(subject, inputs, Cell.NOPE_FULL).prediction.split(len(items))
    worst = max(relative(start, prediction) for prediction in moved)
    return _stays(
        "without encoding and mask the order of tokens changes nothing",
        worst,
        INVARIANT,
        "With full attention and one position for all tokens a transformer cannot tell orders "
        "apart (S1). An encoding was not removed, or another mechanism sees order.",
    )


# --- changed inputs --------------------------------------------------------------------------


def _made_alike(subject: Subject, items: Tensor, places: Sequence[int]) -> Tensor:
    """Return the inputs with all items at some places like the first of these; images negated."""
    alike = items.clone()
    if subject.feed.kind is Kind.IMAGE:
        rest = list(places[1:])
        alike[:, rest] = 1.0 - 2.0 * alike[:, rest]
        return alike
    alike[:, list(places)] = alike[:, [places[0]]]
    return alike


def _changed(
    subject: Subject, items: Tensor, places: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Return the inputs with the items at some places replaced by other ones."""
    changed = items.clone()
    if subject.feed.kind is Kind.IMAGE:
        changed[:, list(places)] = 1.0 - 2.0 * changed[:, list(places)]
        return changed
    seen = items.unique()
    for row, place in product(changed, places):
        others = seen[seen != row[place]]
        if not len(others):  # a single token everywhere: any other will do
            n_vocabulary = int(subject.model.config.vocab_size)
            row[place] = (row[place] + 1) % n_vocabulary
            continue
        row[place] = others[int(torch.randint(len(others), (1,), generator=generator))]
    return changed
