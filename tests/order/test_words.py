"""Words of an audit name what a model has, and no share lies outside 0 to 100 %."""

from dataclasses import replace

import pytest
from rich.console import Console

from orbitlens.order.divergence import Effects, Mean
from orbitlens.order.measuring import measure_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.words import cell_names, square_of
from orbitlens.terminal.audit import audit_view
from symmetry_subjects import subject_of, without_positions

QUICK = AuditOptions(permutations=2, slices=False, details=False)


def audit_of(name, change=lambda model: model):
    subject, items = subject_of(name)
    return measure_order(replace(subject, model=change(subject.model)), items, options=QUICK)


def printed(audit):
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as taken:
        for part in audit_view(audit, console):
            console.print(part)
    return " ".join(taken.get().split())


def test_rows_and_columns_are_what_the_model_has():
    alibi, encoder = audit_of("bloom"), audit_of("roberta")
    blind = audit_of("gpt2", without_positions)
    assert list(square_of(alibi)[1]) == ["with ALiBi", "without it"]
    assert "rotary" not in printed(alibi)
    assert square_of(encoder)[0] == ["full attention"]
    assert set(cell_names(encoder).values()) == {"absolute position encoding", "without it"}
    assert "mask" not in " ".join(cell_names(encoder).values())
    assert list(square_of(blind)[1]) == ["no position encoding"]
    assert square_of(blind)[0] == ["causal mask", "full attention"]


def test_what_full_attention_makes_true_is_said_to_be_so():
    encoder = audit_of("roberta")
    assert encoder.shapley is None and encoder.effects is None
    assert "by construction" in encoder.summary()
    assert "100 %" not in printed(encoder)


def mean(value):
    return Mean(mean=value, low=value - 0.01, high=value + 0.01)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_mechanisms_that_undo_each_other_are_shown_as_an_interaction(name):
    """Alone 0.7 and 0.1, together 0.5: Shapley shares would be 110 % and -10 %."""
    effects = Effects(encoding=mean(0.7), mask=mean(0.1), interaction=mean(-0.3))
    found = replace(audit_of(name), effects=effects, shapley=None)
    text = printed(found)
    assert "interaction -0.3" in text
    assert "no shares: encoding alone 0.7, mask alone 0.1" in text
    assert "110 %" not in text and "-10 %" not in text
    assert "work against each other" in found.summary()
