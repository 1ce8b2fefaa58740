"""Every alarm: planted, it is raised where it was planted; in a sound model it is not."""

import math
from dataclasses import replace

import pytest
import torch
import transformers

import tiny_models
from orbitlens.errors import InputError
from orbitlens.watching.alarm import ADVICE, TITLES, AlarmKind, Sureness, evidence
from orbitlens.watching.alarm_book import AlarmBook
from orbitlens.watching.api import Watch
from orbitlens.watching.thresholds import DEFAULT
from orbitlens.watching.words import grouped_alarms

SIZES = {**tiny_models.GPT2, "n_embd": 32, "bos_token_id": 0, "eos_token_id": 0}


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).train()


def ids_at(step):
    return torch.randint(0, 40, (3, 16), generator=torch.Generator().manual_seed(step))


def alarms_after(module, change, steps=5, **options):
    """Read a module, change it, and read on; return the alarms of the last reading."""
    watch = Watch(every=1, tokens_every=1, **options)
    watch(module, 0, ids_at(0))
    with torch.no_grad():
        change(module)
    for step in range(1, steps):
        watch(module, step, ids_at(step))
    return watch.last


def drawn_direction():
    return torch.randn(32, generator=torch.Generator().manual_seed(3))


def kinds(reading):
    return {alarm.kind for alarm in reading.alarms}


def test_a_sound_model_raises_no_alarm_while_it_learns():
    module = gpt2()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    watch = Watch(every=5, tokens_every=5)
    for step in range(40):
        ids = ids_at(step % 4)
        loss = module(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert watch(module, step, ids, loss).alarms == ()


FREEZE = 1e6  # a factor of queries: a ratio of 0.01 to 0.1 goes far beyond the threshold


def test_scores_scaled_up_freeze_the_head_they_belong_to():
    def plant(module):  # queries of head 2 in layer 1
        module.transformer.h[1].attn.c_attn.weight[:, 2 * 8 : 3 * 8] *= FREEZE

    reading = alarms_after(gpt2(), plant)
    assert [(a.kind, a.layer, a.head) for a in reading.alarms] == [(AlarmKind.FREEZING, 1, 2)]
    (alarm,) = reading.alarms
    assert (alarm.since, alarm.raised, alarm.readings) == (1, 1, 4)
    assert alarm.place == "layer 1 head 2"
    assert alarm.sure is Sureness.ESTIMATED
    assert "sum of squared weights is 1.00" in alarm.reason  # attention sits on single tokens
    assert reading.tokens.sharpness[1][2] > 0.9 > 0.5 > max(reading.tokens.sharpness[0])


def test_a_ratio_beyond_that_at_which_a_softmax_freezes_is_a_reading_and_no_alarm():
    def plant(module):
        module.transformer.h[1].attn.c_attn.weight[:, :32] *= 1000.0

    reading = alarms_after(gpt2(), plant)
    assert min(reading.heads["freezing"][1]) > 1.0
    assert reading.alarms == ()


def test_freezing_is_not_taken_for_collapse_nor_collapse_for_freezing():
    def freeze(module):
        module.transformer.h[1].attn.c_attn.weight[:, :32] *= FREEZE

    def collapse(module):  # one direction is added to every token, far longer than they are
        module.transformer.h[1].mlp.c_proj.bias += 1000.0 * drawn_direction()

    assert kinds(alarms_after(gpt2(), freeze)) == {AlarmKind.FREEZING}
    reading = alarms_after(gpt2(), collapse)
    assert AlarmKind.COLLAPSE in kinds(reading) and AlarmKind.FREEZING not in kinds(reading)
    for kind in (AlarmKind.COLLAPSE, AlarmKind.GATHERING):
        collapsed = [a.layer for a in reading.alarms if a.kind is kind]
        assert collapsed == [1, 2]  # behind the layer and all that follow


def test_tokens_that_were_one_direction_from_the_start_have_collapsed_and_do_not_gather():
    module = gpt2()
    with torch.no_grad():
        module.transformer.h[1].mlp.c_proj.bias += 1000.0 * drawn_direction()
    reading = alarms_after(module, lambda module: None)
    assert AlarmKind.COLLAPSE in kinds(reading) and AlarmKind.GATHERING not in kinds(reading)


def test_a_head_whose_output_vanishes_is_dying_and_one_that_never_wrote_is_not():
    def plant(module):
        module.transformer.h[2].attn.c_proj.weight[3 * 8 : 4 * 8] *= 1e-4

    reading = alarms_after(gpt2(), plant)
    assert [(a.kind, a.layer, a.head) for a in reading.alarms] == [(AlarmKind.DEAD_HEAD, 2, 3)]
    silent = gpt2()
    plant_now = silent.transformer.h[2].attn.c_proj.weight
    with torch.no_grad():
        plant_now[3 * 8 : 4 * 8] *= 1e-4
    assert alarms_after(silent, lambda module: None).alarms == ()


def test_a_token_that_grows_long_is_massive_and_one_that_was_so_from_the_start_is_not_born():
    def plant(module):
        module.transformer.wpe.weight[0] *= 100.0

    reading = alarms_after(gpt2(), plant)
    massive = [a for a in reading.alarms if a.kind is AlarmKind.MASSIVE]
    assert [a.layer for a in massive] == [0, 1, 2]
    assert "position 0 " in massive[0].reason
    born_so = gpt2()
    with torch.no_grad():
        plant(born_so)
    assert AlarmKind.MASSIVE not in kinds(alarms_after(born_so, lambda module: None))


def test_a_layer_that_adds_nothing_is_idle():
    def plant(module):
        module.transformer.h[1].attn.c_proj.weight *= 1e-6
        module.transformer.h[1].mlp.c_proj.weight *= 1e-6

    reading = alarms_after(gpt2(), plant)
    idle = [a.layer for a in reading.alarms if a.kind is AlarmKind.IDLE_LAYER]
    assert idle == [1]


def test_weights_that_become_nan_raise_an_alarm_at_once_and_no_exception():
    def plant(module):
        module.transformer.h[1].mlp.c_fc.weight[0, 0] = math.nan  # not of attention
        module.transformer.h[2].attn.c_attn.weight[0, 0] = math.nan

    reading = alarms_after(gpt2(), plant, steps=2, stop_on=["not-finite"])
    assert [(a.kind, a.layer) for a in reading.alarms] == [
        (AlarmKind.NOT_FINITE, 2),
        (AlarmKind.NOT_FINITE, 1),
    ]
    assert [a.sure for a in reading.alarms] == [Sureness.CERTAIN, Sureness.MEASURED]
    assert reading.stop and reading.tokens is None


def test_training_stops_on_the_kinds_that_were_named_only():
    def plant(module):
        module.transformer.h[1].attn.c_attn.weight[:, :32] *= FREEZE

    assert alarms_after(gpt2(), plant, stop_on="freezing").stop
    assert not alarms_after(gpt2(), plant, stop_on=("collapse", "not-finite")).stop
    with pytest.raises(InputError, match="no kind of alarm"):
        Watch(stop_on=["frost"])


def test_an_alarm_goes_off_when_its_number_is_back_and_comes_again_as_a_new_one():
    watch = Watch(every=1, tokens_every=1)
    reading = watch(gpt2(), 0, ids_at(0))
    frozen = {"freezing": tuple((1e4,) * 4 for _ in range(3))}
    book, on = AlarmBook(watch.header, replace(DEFAULT, readings=2)), []
    for step, is_frozen in enumerate([False, True, True, False, True, True]):
        heads = {**reading.heads, **(frozen if is_frozen else {})}
        on.append(book.update(replace(reading, step=step, heads=heads)))
    assert [len(alarms) for alarms in on] == [0, 0, 12, 0, 0, 12]
    assert {a.since for a in on[2]} == {1} and {a.since for a in on[5]} == {4}


def test_readings_without_tokens_leave_alarms_of_tokens_as_they_are():
    module = gpt2()
    watch = Watch(every=1, tokens_every=1)
    watch(module, 0, ids_at(0))
    with torch.no_grad():
        module.transformer.h[1].attn.c_proj.weight *= 1e-6
        module.transformer.h[1].mlp.c_proj.weight *= 1e-6
    for step in (1, 2):
        watch(module, step, ids_at(step))
    on = kinds(watch.last)
    assert AlarmKind.IDLE_LAYER in on
    assert kinds(watch(module, 3)) == on  # no batch
    assert watch.last.step == 3


def test_every_kind_has_a_title_and_advice_and_words_name_places_and_reasons():
    assert set(TITLES) == set(ADVICE) == set(AlarmKind)

    def plant(module):
        module.transformer.h[1].attn.c_attn.weight[:, :32] *= FREEZE

    (line,) = grouped_alarms(alarms_after(gpt2(), plant).alarms)
    assert line.startswith("attention is freezing: layer 1 head 0, layer 1 head 1")
    assert "QK-norm" in line and "softmax over 16 tokens" in line
    assert "In test runs this alarm came in time in" in line  # how sure


def test_an_alarm_tells_how_often_it_was_right_at_the_threshold_that_was_judged_only():
    def plant(module):
        module.transformer.h[1].attn.c_attn.weight[:, :8] *= FREEZE

    (alarm,) = alarms_after(gpt2(), plant).alarms
    known = evidence()[AlarmKind.FREEZING]
    assert f"{known.false} of {known.sound} sound ones" in alarm.track_record
    own = replace(DEFAULT, freezing=100.0)
    (alarm,) = alarms_after(gpt2(), plant, thresholds=own).alarms
    assert alarm.track_record == ""


def test_a_head_that_grows_steadily_is_told_when_it_will_freeze():
    module = gpt2()
    watch = Watch(every=10, tokens_every=1000, thresholds=replace(DEFAULT, freezing=1.0))
    weight = module.transformer.h[0].attn.c_attn.weight
    now = Watch()(module, 0, ids_at(0)).heads["freezing"][0][0]
    with torch.no_grad():
        weight[:, :8] *= 0.2 / now  # near, but not so near that it is told at once
    assert watch(module, 0, ids_at(0)).expected == ()
    for step in range(10, 60, 10):
        with torch.no_grad():
            weight[:, :8] *= math.exp(0.2)  # queries of head 0: 2 % a step
        watch(module, step, ids_at(0))
    ratio = watch.last.heads["freezing"][0][0]
    (expected,) = [one for one in watch.last.expected if (one.layer, one.head) == (0, 0)]
    assert expected.steps == pytest.approx(math.log(1 / ratio) / 0.02, rel=0.02)


def test_a_batch_that_no_longer_fits_is_noted_and_weights_are_read_all_the_same(caplog):
    module = gpt2()
    watch = Watch(every=1, tokens_every=1)
    watch(module, 0, ids_at(0))
    reading = watch(module, 1, torch.full((1, 4), 10_000))  # ids beyond the table
    assert reading.step == 1 and reading.tokens is None
    assert "No tokens were read" in reading.notes[0] and "No tokens were read" in caplog.text


def test_a_disk_that_takes_nothing_more_is_noted_and_not_raised(tmp_path):
    module, watch = gpt2(), Watch(every=1, path=tmp_path / "run")
    watch(module, 0)
    (tmp_path / "run" / "watch.jsonl").unlink()
    (tmp_path / "run").rmdir()
    reading = watch(module, 1)
    assert "not written" in reading.notes[0]
