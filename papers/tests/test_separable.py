"""The study of separable attention: sounds, spoken digits, groups, costs, runs, and its claims."""

import io
import itertools
import math
import wave
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from orbitlens.errors import InputError
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.jobs import Job
from orbitlens_papers.separable import (
    claims,
    comparisons,
    cost,
    fitted,
    groups,
    sound,
    speech,
    training,
)
from orbitlens_papers.separable.training import SoundSetup, Split, build, rate, train_and_judge

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
GRID = (2, 3)


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE), tmp_path)


def every_permutation():
    return torch.tensor(list(itertools.permutations(range(math.prod(GRID)))))


# --- sounds ----------------------------------------------------------------------------------


def test_pitch_and_frequency_are_inverse_and_a_thousand_hertz_are_a_thousand_mels():
    frequency = np.array([100.0, 1000.0, 3800.0])
    np.testing.assert_allclose(sound.from_mel(sound.mel(frequency)), frequency)
    assert abs(float(sound.mel(np.array(1000.0))) - 1000) < 0.1


def test_linear_bands_are_triangles_that_sum_to_one_between_their_middles():
    filters = sound.bands(10, (0.0, 2200.0), mels=False)
    hertz = np.linspace(0, 4000, 129)
    inside = (hertz >= 200) & (hertz <= 2000)
    np.testing.assert_allclose(filters.sum(axis=0)[inside], 1.0)
    assert (filters.sum(axis=0)[hertz > 2200] == 0).all()
    assert (sound.bands(12, (100.0, 3800.0), mels=True).max(axis=1) > 0.5).all()


def test_a_tone_lights_its_band_and_high_bands_are_on_top():
    filters = sound.bands(10, (0.0, 2200.0), mels=False)
    time = np.arange(8000) / 8000
    for band in (1, 5, 9):
        shown = sound.picture(np.sin(2 * np.pi * 200 * (band + 1) * time), filters, 12)
        assert shown.shape == (10, 12)
        assert shown.mean(dim=1).argmax() == 9 - band
        assert abs(float(shown.mean())) < 1e-5 and abs(float(shown.std()) - 1) < 1e-5


def test_silence_and_a_short_click_make_pictures_too():
    filters = sound.bands(10, (0.0, 2200.0), mels=False)
    assert (sound.picture(np.zeros(4000), filters, 12) == 0).all()
    assert torch.isfinite(sound.picture(np.ones(3), filters, 12)).all()


def test_an_attack_is_a_decay_backwards_and_no_other_envelope_is():
    time = torch.arange(8000, dtype=torch.float64) / 8000

    def shape(name):
        return sound._shape(name, time, lambda low, high: (low + high) / 2)

    assert torch.equal(shape("attacks"), shape("decays").flip(0))
    assert not torch.equal(shape("attacks"), shape("decays"))
    assert set(shape("pulses").tolist()) == {0.0, 1.0}
    assert shape("steady")[-1] == 1.0 and shape("steady")[0] == 0.0


def test_made_sounds_have_all_classes_equally_often_and_depend_on_the_seed_alone():
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return sound.made_sounds(24, height=6, width=6, generator=generator)

    (x, labels), (same, _), (other, _) = draw(0), draw(0), draw(1)
    assert torch.bincount(labels).tolist() == [2] * 12
    assert torch.equal(x, same) and not torch.equal(x, other)


# --- spoken digits ---------------------------------------------------------------------------


def wav(samples=800, *, rate=8000, channels=1, width=2):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        noise = np.random.default_rng(0).integers(-9000, 9000, samples * channels)
        file.writeframes(noise.astype("<i2").tobytes()[: samples * channels * width])
    return out.getvalue()


def archive(folder, *, speakers=("ann", "bob", "cas"), digits=range(10), odd=None, takes=1):
    folder.mkdir(exist_ok=True)
    file = folder / claims.FILE
    clip = wav()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for digit, speaker, take in itertools.product(digits, speakers, range(takes)):
            out.writestr(f"recordings/{digit}_{speaker}_{take}.wav", clip)
        out.writestr("recordings/README.md", "no clip")
        if odd is not None:
            out.writestr("recordings/0_ann_0.wav" if odd[0] is None else odd[0], odd[1])
    return file


def read(file, takes=5):
    return speech.read_speech(file, height=6, width=6, takes=takes)


def test_clips_are_read_with_their_digits_and_speakers(tmp_path):
    found = read(archive(tmp_path, takes=4), takes=2)
    assert found.names == ["ann", "bob", "cas"]
    assert found.pictures.shape == (60, 6, 6)
    assert torch.bincount(found.digits).tolist() == [6] * 10
    assert found.of("bob").sum() == 20


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (("recordings/1_dan_0.wav", wav(rate=16000)), "16000 Hz"),
        (("recordings/1_dan_0.wav", wav(channels=2)), "2 channels"),
        (("recordings/1_dan_0.wav", wav(width=1)), "8 bits"),
        (("recordings/1_dan_0.wav", wav(samples=0)), "0 bytes of sound"),
        (("recordings/1_dan_0.wav", b"RIFF nothing"), "no WAV file"),
        (("recordings/1_dan_0.wav", wav(samples=300_000)), "expected 400000 at most"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_clip_that_is_none_is_refused_by_name(tmp_path, odd, says):
    with pytest.raises(InputError, match=says) as refusal:
        read(archive(tmp_path, odd=odd))
    for word in (claims.FILE, "1_dan_0.wav", "leave the folder of data out", "made sounds"):
        assert word in str(refusal.value)


def test_an_archive_that_is_none_is_refused(tmp_path):
    file = archive(tmp_path)
    whole = file.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(InputError, match="not a zip file that can be read"):
            read(file)
    file.write_bytes(whole[:60] + bytes(40) + whole[100:])  # the first clip is overwritten
    with pytest.raises(InputError, match="leave the folder of data out"):
        read(file)


def test_missing_digits_or_speakers_are_refused(tmp_path):
    with pytest.raises(InputError, match="20 clips of 2 speakers"):
        read(archive(tmp_path, speakers=("ann", "bob")))
    with pytest.raises(InputError, match=r"the digits \[0, 1, 2\]"):
        read(archive(tmp_path, digits=range(3)))


def test_nobody_is_both_trained_on_and_judged(tmp_path, bench):
    file = archive(tmp_path / "data", takes=2)
    splits = comparisons.speech_splits(file, bench)
    assert list(splits) == ["ann", "bob", "cas"]
    for split in splits.values():
        assert len(split.train) == 40 and len(split.test) == 20 and split.n_classes == 10


def test_with_the_file_digits_are_used_and_without_it_made_sounds(tmp_path):
    archive(tmp_path / "data", takes=2)
    settings = Settings(scale=Scale.SMOKE, data=str(tmp_path / "data"))
    found = comparisons.runs(Bench(settings, tmp_path))
    assert "fsdd.zip" in found["source"] and found["of"] == "speakers"
    assert found["chance"] == 0.1 and set(found["headline"]) == set(comparisons.HEADLINE)
    assert "pattern" in found["made"]["separable"][0]


def test_the_real_recordings_are_read():
    file = DATA / claims.FILE
    if not file.is_file():
        pytest.skip(f"spoken digits are not beside the checkout: {file}")
    found = read(file, takes=1)
    assert len(found.names) == 6 and len(found.digits) == 60


# --- groups ----------------------------------------------------------------------------------


def test_groups_have_the_orders_of_their_closed_forms():
    every = every_permutation()
    for name, size in groups.group_sizes(GRID).items():
        assert groups.expected_group(every, GRID, name).sum() == size
    assert groups.group_sizes(GRID) == {"separable": 12, "columns": 48, "rows": 72, "joint": 720}


def test_products_are_what_both_axes_keep():
    def one(*order):
        return torch.tensor([order])

    swapped_columns, swapped_rows = one(1, 0, 2, 4, 3, 5), one(3, 4, 5, 0, 1, 2)
    within_one_column, transposed = one(3, 1, 2, 0, 4, 5), one(0, 2, 4, 1, 3, 5)
    for order, columns, rows in (
        (swapped_columns, True, True),
        (swapped_rows, True, True),
        (within_one_column, True, False),
        (transposed, False, False),
    ):
        assert bool(groups.keeps(order, GRID, "columns")) is columns
        assert bool(groups.keeps(order, GRID, "rows")) is rows


def test_positions_show_in_the_census(generator):
    every = every_permutation()
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    model = groups.random_model(generator, GRID, attention="separable", **small)
    shown = torch.randn(GRID, generator=generator, dtype=torch.float64)
    assert (groups.changes(model, shown, every) < groups.SAME).sum() == 1  # the identity
    groups.silence_positions(model, "rows")
    blind = groups.changes(model, shown, every) < groups.SAME
    assert blind.sum() == math.factorial(GRID[1])  # columns may move, rows may not


# --- costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(3, 4), (7, 5)])
def test_what_is_counted_is_the_closed_form(grid):
    for kind, attention in cost.KINDS.items():
        assert cost.counted(grid, attention) == cost.formula(grid, kind)


def test_exponents_are_those_of_the_side_and_joint_attention_has_those_of_the_area(bench):
    found = cost.grows_like(bench, what="parameters")
    assert found.result.high < 0.05 < 0.9 < found.control.low
    slopes = cost.grows_like(bench, what="multiply-adds").data["slopes"]
    assert 2.95 < slopes["separable"] < 3 and 3.99 < slopes["joint"] < 4


# --- runs ------------------------------------------------------------------------------------


def easy_split(n=240):
    """Return clips whose class is their brightest row."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 4
    x = 0.3 * torch.randn(n, 4, 6, generator=generator)
    x[torch.arange(n), labels] += 2.0
    half = n // 2
    return Split(
        train=x[:half], labels=labels[:half], test=x[half:], wanted=labels[half:], n_classes=4
    )


def test_models_of_equal_size_are_within_a_tenth(tmp_path):
    bench = Bench(Settings(scale=Scale.DEFAULT), tmp_path)
    blank = torch.zeros(1, *comparisons._grid(bench))
    split = Split(train=blank, labels=torch.zeros(1, dtype=torch.long), test=blank,
                  wanted=torch.zeros(1, dtype=torch.long), n_classes=10)  # fmt: skip
    setups = comparisons.setups(bench, split, made=False)
    sizes = {
        name: sum(p.numel() for p in build(setups[name]).parameters())
        for name in ("separable", "joint", "patches", "rows first", "columns only")
    }
    assert all(abs(size / sizes["separable"] - 1) < comparisons.MOST_OFF for size in sizes.values())


@pytest.mark.parametrize("name", ["separable", "rows first", "patches"])
def test_models_of_the_full_scale_can_be_trained(tmp_path, name, generator):
    bench = Bench(Settings(scale=Scale.FULL), tmp_path)
    x = torch.randn(4, *comparisons._grid(bench), generator=generator)
    labels = torch.arange(4)
    split = Split(train=x, labels=labels, test=x, wanted=labels, n_classes=12)
    setup = comparisons.setups(bench, split, made=True)[name]
    setup = replace(setup, steps=2, batch=2, shows=name == "separable")
    row = train_and_judge(Job(setup=setup, seed=1))
    assert 0 <= row["accuracy"] <= 1 and row["parameters"] > 100_000
    assert name != "separable" or row["symmetry"]["without"] < 1e-9 < row["symmetry"]["with"]


def test_the_rate_goes_up_and_down_once():
    setup = SoundSetup(split=easy_split(), steps=100, rate=1.0)
    rates = [rate(setup, step) for step in range(100)]
    assert rates.index(max(rates)) in {8, 9} and rates[0] == pytest.approx(0.1)
    assert rates[-1] == 0.0 and max(rates) <= 1.0


@pytest.mark.parametrize("kind", ["separable", "cnn", "logistic"])
def test_an_easy_task_is_learned_and_shuffled_labels_are_not(kind):
    setup = SoundSetup(split=easy_split(), kind=kind, width=16, layers=2, steps=150)
    row = train_and_judge(Job(setup=setup, seed=5))
    assert row["accuracy"] > 0.85 and row["parameters"] > 0
    shuffled = train_and_judge(Job(setup=replace(setup, shuffled=True), seed=5))
    assert shuffled["accuracy"] < 0.6


def test_columns_alone_say_the_same_of_a_clip_and_of_it_backwards():
    split = easy_split()
    setup = SoundSetup(split=split, axes="columns", width=16, layers=2)
    model = build(setup).double().eval()
    x = split.test.double()[:, None]
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits, model(x.flip(3)).logits, rtol=0, atol=1e-12)
        assert (model(x).logits - model(x.flip(2)).logits).abs().max() > 1e-3


def test_the_size_of_a_difference_has_an_interval_of_sizes():
    def size(value, low, high):
        found = comparisons.size_of(Estimate(value=value, low=low, high=high, n=4, how="pairs"))
        return found.value, found.low, found.high

    assert size(-0.01, -0.03, 0.01) == (0.01, 0.0, 0.03)
    assert size(-0.05, -0.06, -0.04) == (0.05, 0.04, 0.06)
    assert size(0.05, 0.04, 0.06) == (0.05, 0.04, 0.06)


def test_seeds_of_one_speaker_are_one_unit():
    rows = {"ann": [{"accuracy": 0.5, "seconds": 1.0}, {"accuracy": 0.7, "seconds": 3.0}]}
    assert comparisons.by_unit(rows) == [{"accuracy": pytest.approx(0.6), "seconds": 2.0}]


# --- models trained until a linear one is no better ------------------------------------------


def test_a_voice_moved_up_is_seen_by_bands_moved_as_far():
    time = np.arange(8000) / 8000
    plain = sound.bands(10, (100.0, 3000.0), mels=True)
    moved = sound.bands(10, (100.0, 3000.0), mels=True, moved=1.25)
    low, high = (np.sin(2 * np.pi * f * time) for f in (800.0, 1000.0))
    seen = sound.picture(low, plain, 6)
    assert (sound.picture(high, moved, 6) - seen).abs().max() < 0.3
    assert (sound.picture(high, plain, 6) - seen).abs().max() > 1


def test_voices_are_read_beside_the_clips_and_those_of_who_is_judged_are_left_out(tmp_path, bench):
    file = archive(tmp_path / "data", takes=2)
    found = speech.read_speech(file, height=6, width=6, takes=2, voices=(0.9, 1.0, 1.1))
    assert found.voices.shape == (60, 3, 6, 6) and torch.equal(found.voices[:, 1], found.pictures)
    assert comparisons.speech_splits(file, bench)["ann"].voices is None
    split = comparisons.speech_splits(file, bench, voices=speech.VOICES)["ann"]
    assert split.voices.shape == (40, len(speech.VOICES), 6, 6)
    assert torch.equal(split.voices[:, len(speech.VOICES) // 2], split.train)


def test_a_voice_drawn_anew_lies_between_two_that_are_next_to_each_other(generator):
    voices = torch.arange(5.0)[None, :, None, None].expand(400, 5, 2, 3) ** 2
    seen = training.between_voices(voices, generator)
    place = seen[:, :1, :1]
    assert torch.equal(seen, place.expand_as(seen))
    assert 0 <= place.min() < 1 and 12 < place.max() <= 16
    # Straight between 0, 1, 4, 9, 16: the mean of even draws is that of the trapezia.
    assert abs(float(place.mean()) - 5.5) < 0.8


def test_a_mixed_clip_and_its_label_are_the_same_mixture(generator):
    clips, wanted = torch.randn(4, 2, 2, generator=generator), torch.eye(4)
    both, labels = training.mixed(clips, wanted, generator)
    torch.testing.assert_close(both, torch.einsum("ij,jkl->ikl", labels, clips))
    assert (labels.diagonal() >= 0.5).all() and torch.allclose(labels.sum(1), torch.ones(4))


def test_mixing_and_other_voices_do_not_keep_an_easy_task_from_being_learned():
    split = easy_split()
    noise = torch.randn(3, *split.train.shape, generator=torch.Generator().manual_seed(1))
    voices = torch.stack([split.train + 0.1 * own for own in noise], dim=1)
    setup = SoundSetup(
        split=replace(split, voices=voices),
        width=16,
        layers=2,
        steps=150,
        revoiced=True,
        mixed=True,
    )
    assert train_and_judge(Job(setup=setup, seed=5))["accuracy"] > 0.85
    shuffled = train_and_judge(Job(setup=replace(setup, shuffled=True), seed=5))
    assert shuffled["accuracy"] < 0.6


def test_models_over_patches_are_of_about_equal_size_and_show_their_tokens(tmp_path):
    bench = Bench(Settings(scale=Scale.DEFAULT), tmp_path)
    x = torch.randn(4, *comparisons._grid(bench), generator=torch.Generator().manual_seed(0))
    split = Split(train=x, labels=torch.arange(4), test=x, wanted=torch.arange(4), n_classes=10)
    arms = fitted.setups(bench, split)
    sizes = [
        sum(p.numel() for p in build(arms[name]).parameters())
        for name in ("separable", "rows first", "joint")
    ]
    assert max(sizes) / min(sizes) < 1 + comparisons.MOST_OFF
    row = train_and_judge(Job(setup=replace(arms["separable"], steps=2, shows=True), seed=1))
    assert len(row["maps"]) == 2 and len(row["maps"][0]) == 5 and "symmetry" not in row
