"""Sentences of six reports against their own tables; a planted contradiction is found."""

import math
import random
import re
from pathlib import Path

import pytest

from orbitlens.reporting.gather import gather_report
from orbitlens.reporting.motion import Motion, PartStep, headline, layers_sentence
from orbitlens.reporting.options import ReportOptions
from page_claims import contradictions, headline_contradictions, layer_contradictions

SHARED_MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
QUICK = ReportOptions(max_tokens=96, context=12, samples=6, permutations=2, flows=0, controls=0)
# Real weights where they lie beside the checkout, else a tiny model of the same kind.
SIX = {
    "orbit-nano-rotary": None,
    "orbit-nano-none": None,
    "t5": "t5",
    "bert": "bert",
    "stories260K-llama-hf": "llama-grouped",
    "vit-mnist-3class-hf": "vit",
}


@pytest.fixture(scope="module")
def pages(model_folder):
    """Return the pages of six models, made once."""
    made = {}

    def get(name):
        if name not in made:
            tiny = SIX[name]
            real = SHARED_MODELS / name
            place = name if tiny is None else str(real) if real.exists() else model_folder(tiny)
            made[name] = gather_report([place], QUICK).html
        return made[name]

    return get


@pytest.mark.parametrize("name", SIX)
def test_no_sentence_of_a_report_contradicts_its_tables(pages, name):
    assert contradictions(pages(name)) == []


PLANTED = {
    "another sign": ("brings directions", "spreads directions"),
    "another size": ("% closer", "% nearer"),
    "a part left out": ("MLPs ", "They "),
    "other layers": ("</p>", " Attention spreads directions in layers 0, 1.</p>"),
    "another count": ("<li>Measured, ", "<li>Measured, 9"),
    "another word for a head": ("<td>neither", "<td>spreads"),
    "words for weights": ("</h4>", " gathers tokens</h4>"),
    "another correlation": ("correlation 0.", "correlation 0.0"),
    "another end": ("cosine\u00a00.", "cosine\u00a00.9"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_contradiction_is_found(pages, kind):
    page = pages("orbit-nano-rotary")
    old, new = PLANTED[kind]
    assert old in page
    assert contradictions(page.replace(old, new)) != []


def test_a_number_of_the_waterfall_that_is_turned_round_is_found(pages):
    page = pages("orbit-nano-rotary")
    start = page.index('data-table="waterfall"')
    cell = re.compile(r'data-v="(-?)([\d.e-]+)"').search(page, start)
    turned = f'data-v="{"" if cell[1] else "-"}{cell[2]}"'
    assert contradictions(page[: cell.start()] + turned + page[cell.end() :]) != []


def random_motion(rng):
    """Return a motion of any signs and sizes, with layers that stand still among them."""
    parts = rng.sample(["mlp", "norm", "between"], rng.randrange(4))
    steps, level = [], 0.0
    for layer in range(rng.randrange(1, 7)):
        for part in ["attention", *parts]:
            size = rng.choice([0.0, 0.001, 0.02, 0.2, 1.5])
            change = size * rng.uniform(-1, 1)
            steps.append(PartStep(place=layer, layer=layer, part=part, change=change, start=level))
            level += change
    # 1 - C stays between 0.02 and 1.9 at both ends, as that of tokens does.
    least, most = max(0.02, 0.02 * math.exp(-level)), min(1.9, 1.9 * math.exp(-level))
    room = rng.uniform(least, most) if least < most else least
    first, last = 1 - room, 1 - room * math.exp(level)
    return Motion(stack="decoder", steps=tuple(steps), cosine_first=first, cosine_last=last)


def changes_of(motion):
    named = {"attention": "attention", "mlp": "MLPs", "norm": "norms", "between": "other blocks"}
    return {
        named[part]: {str(layer): change for layer, change in motion.by_layer(part).items()}
        for part in motion.totals
    }


def test_headlines_have_the_signs_of_any_changes():
    rng = random.Random(0)
    seen = set()
    for _ in range(400):
        motion = random_motion(rng)
        text, layers = headline(motion).replace("\u00a0", " "), layers_sentence(motion)
        assert headline_contradictions(text, changes_of(motion)) == [], (text, motion.totals)
        assert layer_contradictions(layers, changes_of(motion)) == [], (layers, motion)
        seen |= {word for word in ("closer", "by ", "-fold", "as they are") if word in text}
    assert len(seen) == 4  # every kind of clause was met


def test_a_headline_of_the_other_sign_is_found():
    rng = random.Random(1)
    found = 0
    for _ in range(50):
        motion = random_motion(rng)
        turned = {p: {k: -v for k, v in x.items()} for p, x in changes_of(motion).items()}
        clear = any(abs(total) > 0.01 for total in motion.totals.values())
        text = headline(motion).replace("\u00a0", " ")
        found += clear and headline_contradictions(text, turned) != []
        assert not clear or headline_contradictions(text, turned) != []
    assert found > 20
