"""Tasks: right answers, splits that share nothing, and no answer inside an input."""

import gzip
import struct

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.lab.tasks import TASKS, build_task, cut_at, judged_columns, task_options
from orbitlens.lab.tasks.base import SPLITS, in_split, row_keys, stream_seed

SEQUENCES = ("addition", "copy", "reverse", "sort", "index", "parity", "majority")


def rows(task, split="train", size=200, index=0, seed=0):
    batch = task.batch(split, index, size, seed)
    last = batch.targets[:, -1:]
    return torch.cat([batch.inputs, last], dim=1).tolist(), batch


def number(digits):
    return int("".join(map(str, digits)))


@pytest.mark.parametrize("reversed_answer", [True, False])
def test_additions_are_right(reversed_answer):
    for row in rows(build_task("addition", {"reversed_answer": reversed_answer}))[0]:
        answer = row[8:][::-1] if reversed_answer else row[8:]
        assert (row[3], row[7]) == (10, 11)
        assert number(row[:3]) + number(row[4:7]) == number(answer)


ANSWERS = {
    "copy": lambda q: q[:-1],
    "reverse": lambda q: q[:-1][::-1],
    "sort": lambda q: sorted(q[:-1]),
    "index": lambda q: [q[q[-1] - 16]],
    "parity": lambda q: [sum(q[:-1]) % 2],
    "majority": lambda q: [int(sum(q[:-1]) > len(q[:-1]) / 2)],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_right(name):
    task = build_task(name)
    for row in rows(task)[0]:
        assert row[task.n_question :] == ANSWERS[name](row[: task.n_question])


@pytest.mark.parametrize("name", SEQUENCES)
def test_only_the_answer_is_judged_and_targets_are_the_next_tokens(name):
    task = build_task(name)
    whole, batch = rows(task)
    assert batch.inputs.shape[1] == task.n_positions
    assert int(batch.inputs.max()) < task.vocab_size
    columns = judged_columns(batch.targets)
    assert columns == list(range(task.n_question - 1, task.n_positions))
    for column in columns:
        assert batch.targets[:, column].tolist() == [row[column + 1] for row in whole]


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_depends_on_its_arguments_alone(name):
    first, second = build_task(name), build_task(name)
    one = first.batch("train", 3, 16, 5)
    first.batch("train", 4, 16, 5)
    again = second.batch("train", 3, 16, 5)
    assert torch.equal(one.inputs, again.inputs)
    assert torch.equal(one.targets, again.targets)
    for other in (first.batch("train", 4, 16, 5), first.batch("train", 3, 16, 6)):
        assert not torch.equal(one.inputs, other.inputs)


@pytest.mark.parametrize("name", ["parity", "majority", "index", "addition"])
def test_no_question_is_in_two_splits(name):
    options = {"parity": {"length": 9}, "majority": {"length": 9}, "addition": {"digits": 2}}
    task = build_task(name, options.get(name, {"length": 2, "symbols": 12}))
    seen = {
        split: {tuple(row[: task.n_question]) for row in rows(task, split, 4000)[0]}
        for split in SPLITS
    }
    assert all(seen.values())
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["valid"]
    assert not seen["valid"] & seen["test"]
    # the same words in another batch and seed would overlap, were they not split by content
    assert seen["train"] & {tuple(r[: task.n_question]) for r in rows(task, "train", 4000, 1, 7)[0]}


def test_an_addition_and_its_mirror_image_are_in_one_split():
    task = build_task("addition", {"digits": 2})
    pairs = {split: set() for split in SPLITS}
    for split in SPLITS:
        for row in rows(task, split, 2000)[0]:
            pairs[split].add((number(row[:2]), number(row[3:5])))
    assert not {(b, a) for a, b in pairs["test"]} & pairs["train"]


def test_splits_are_a_partition_with_the_promised_shares():
    keys = row_keys(torch.arange(100_000)[:, None])
    member = torch.stack([in_split(keys, split) for split in SPLITS])
    assert bool((member.sum(dim=0) == 1).all())
    shares = member.float().mean(dim=1)
    assert torch.allclose(shares, torch.tensor([0.9, 0.05, 0.05]), atol=0.004)


def test_seeds_of_streams_differ():
    seeds = {
        stream_seed("a", split, i, s) for split in SPLITS for i in range(20) for s in range(20)
    }
    assert len(seeds) == 1200


@pytest.mark.parametrize("name", [*SEQUENCES, "text"])
def test_a_cut_batch_does_not_hold_the_answer(name):
    """Change every token after the cut: not one number of the input moves."""
    task = build_task(name)
    batch = task.batch("train", 0, 8, 0)
    for column in judged_columns(batch.targets):
        changed = type(batch)(inputs=batch.inputs.clone(), targets=batch.targets)
        changed.inputs[:, column + 1 :] = (changed.inputs[:, column + 1 :] + 1) % task.vocab_size
        one, other = cut_at(batch, column), cut_at(changed, column)
        assert torch.equal(one.inputs, other.inputs)
        assert one.inputs.shape[1] == column + 1
        assert judged_columns(one.targets) == [column]


# --- text ------------------------------------------------------------------------------------


def test_windows_of_a_text_stay_in_their_blocks(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(chr(0x4E00 + i) for i in range(2000)), encoding="utf-8")
    task = build_task("text", {"file": str(file), "context": 16})
    seen = {}
    for split in SPLITS:
        batch = task.batch(split, 0, 500, 0)
        seen[split] = set(batch.inputs.flatten().tolist()) | set(batch.targets.flatten().tolist())
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert not seen["train"] & seen["valid"]
    assert not seen["valid"] & seen["test"]
    assert max(seen["train"]) < min(seen["valid"]) <= max(seen["valid"]) < min(seen["test"])


def test_windows_that_judge_lie_side_by_side(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("ab" * 4000, encoding="utf-8")
    task = build_task("text", {"file": str(file), "context": 16})
    starts = task.starts("test", 0, 24, 0)
    assert starts.diff().unique().tolist() == [16]
    assert len(set(starts.tolist())) == 24


def test_a_text_too_small_is_refused(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be " * 20, encoding="utf-8")
    with pytest.raises(InputError, match=r"too small, 380 characters.*at least 1320"):
        build_task("text", {"file": str(file)})
    assert build_task("text", {"file": str(file), "context": 8}).vocab_size == 7


def test_a_text_that_is_none_is_refused(tmp_path):
    file = tmp_path / "text.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        build_task("text", {"file": str(file)})
    with pytest.raises(InputError, match="cannot be read"):
        build_task("text", {"file": str(tmp_path / "none.txt")})


# --- images ----------------------------------------------------------------------------------


def test_equal_images_are_never_in_two_splits():
    task = build_task("digits")
    pixels = {
        split: {image.numpy().tobytes() for image in task.images[task.members[split]]}
        for split in SPLITS
    }
    assert sum(len(places) for places in task.members.values()) == len(task.images) == 1797
    assert not pixels["train"] & pixels["test"]
    assert not pixels["train"] & pixels["valid"]
    assert task.image.labels == 10


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="the origin is an optional package")
    task, origin = build_task("digits"), datasets.load_digits()
    ours, theirs = task.images[:, 0], torch.from_numpy(origin.images).float()
    theirs = (theirs - theirs.mean()) / theirs.std()
    ours = (ours - ours.mean()) / ours.std()
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert task.labels.tolist() == origin.target.tolist()


def write_mnist(folder, images, labels):
    n, size = len(labels), images.shape[1]
    header = struct.pack(">iiii", 2051, n, size, size)
    (folder / "t-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
    (folder / "t-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, n) + bytes(labels))
    return str(folder / "t-images-idx3-ubyte")


def test_files_of_mnist_are_read(tmp_path, generator):
    images = torch.randint(0, 256, (300, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (300,), generator=generator).tolist()
    task = build_task("digits", {"file": write_mnist(tmp_path, images, labels), "patch": 2})
    assert task.labels.tolist() == labels
    assert (task.n_positions, task.image.size) == (4, 4)
    grey = task.images[:, 0]
    scale = (grey[0, 0, 0] - grey[0, 0, 1]) / (images[0, 0, 0].float() - images[0, 0, 1].float())
    assert torch.allclose(
        grey - grey[0, 0, 0], (images.float() - images[0, 0, 0]) * scale, atol=1e-4
    )


def test_equal_images_with_other_labels_are_another_task(tmp_path, generator):
    images = torch.randint(0, 256, (300, 4, 4), dtype=torch.uint8, generator=generator)
    names = []
    for labels in ([1] * 300, [2] * 300, [1] * 300):
        names.append(build_task("digits", {"file": write_mnist(tmp_path, images, labels)}).name)
    assert names[0] == names[2] != names[1]


def test_broken_files_of_mnist_are_refused(tmp_path):
    file = write_mnist(tmp_path, torch.zeros(50, 4, 4, dtype=torch.uint8), [1] * 50)
    with pytest.raises(InputError, match="do not split"):
        build_task("digits", {"file": file, "patch": 3})
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, 50) + b"short")
    with pytest.raises(InputError, match="Is it whole"):
        build_task("digits", {"file": file})
    with pytest.raises(InputError, match="images-idx3"):
        build_task("digits", {"file": str(tmp_path / "other")})
    packed = bytearray(gzip.compress((tmp_path / "t-images-idx3-ubyte").read_bytes()))
    packed[12:16] = b"\xff\xff\xff\xff"
    (tmp_path / "t-images-idx3-ubyte").write_bytes(packed)
    with pytest.raises(InputError, match="cannot be read"):
        build_task("digits", {"file": file})


# --- the ceiling -----------------------------------------------------------------------------


@pytest.mark.parametrize("reversed_answer", [True, False])
def test_the_ceiling_of_one_digit_is_that_of_counting_by_hand(reversed_answer):
    """One digit each: the multiset {a, b} fixes the sum, so order-blindness costs nothing."""
    ceiling = build_task("addition", {"digits": 1, "reversed_answer": reversed_answer}).ceiling
    assert ceiling.exact_match == 1
    assert ceiling.token_accuracy == pytest.approx(1)
    assert ceiling.loss == pytest.approx(0, abs=1e-12)


def test_the_ceiling_of_two_digits_agrees_with_a_count_of_all_pairs():
    from collections import Counter, defaultdict

    groups, first = defaultdict(Counter), defaultdict(Counter)
    for a in range(100):
        for b in range(100):
            seen = tuple(sorted(f"{a:02}{b:02}"))
            groups[seen][a + b] += 1
            first[seen][(a + b) % 10] += 1
    ceiling = build_task("addition", {"digits": 2}).ceiling
    best = sum(max(group.values()) for group in groups.values()) / 10_000
    assert ceiling.exact_match == pytest.approx(best, abs=1e-12)
    assert ceiling.exact_match < ceiling.token_accuracy < 1
    # a guess that sees the pairs in order is always right; the ceiling must not be that
    assert best < 0.5


def test_the_ceiling_of_three_digits_is_low():
    ceiling = build_task("addition").ceiling
    assert 0.02 < ceiling.exact_match < 0.2
    assert ceiling.loss > 0.5
    assert build_task("addition", {"digits": 4}).ceiling is None
    assert build_task("copy").ceiling is None


# --- bad input -------------------------------------------------------------------------------


def test_unknown_tasks_and_options_are_refused_with_the_known():
    with pytest.raises(InputError, match=r"'adition' is unknown. Known: addition, copy"):
        build_task("adition")
    with pytest.raises(InputError, match=r"no option 'size'. Options: length, symbols"):
        build_task("copy", {"size": 3})
    assert task_options("addition") == {"digits": 3, "reversed_answer": True}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("addition", {"digits": 0}),
        ("copy", {"length": 1}),
        ("sort", {"symbols": 1}),
        ("majority", {"length": 4}),
        ("text", {"context": 1}),
    ],
)
def test_sizes_out_of_range_are_refused(name, options):
    with pytest.raises(InputError, match="expected"):
        build_task(name, options)


def test_a_split_without_examples_is_refused():
    task = build_task("parity", {"length": 3})
    with pytest.raises(InputError, match="too few different questions"):
        for split in SPLITS:
            task.batch(split, 0, 4, 0)
