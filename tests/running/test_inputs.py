"""What can be run, and what is refused with advice."""

import gzip

import numpy as np
import pytest
import torch

from orbitlens.cli.inputs import token_ids
from orbitlens.errors import InputError
from orbitlens.running.batches import Limits, id_batches, image_batches, shuffled, text_contexts
from orbitlens.running.images import read_images
from orbitlens.running.inputs import inputs_of, parse_ids
from orbitlens.running.model import load
from orbitlens.running.texts import PIECE, passage, read_text, special_tokens

LIMITS = Limits(context=6, batch=2, max_tokens=1000)


class Letters:
    """A tokenizer of letters that puts 1 in front and 2 behind."""

    def __call__(self, text, add_special_tokens=True, verbose=True):
        ids = [ord(c) for c in text]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}


def contexts(text, limits=LIMITS):
    return list(text_contexts([text], Letters(), limits))


def test_contexts_have_one_length_and_their_special_tokens():
    found = contexts("abcdefgh")
    assert found == [[1, *map(ord, "abcd"), 2], [1, *map(ord, "efgh"), 2]]
    assert special_tokens(Letters()) == ([1], [2])


def test_a_long_remainder_is_run_and_a_short_one_dropped():
    wide = Limits(context=12, batch=2, max_tokens=1000)
    assert len(contexts("a" * 15, wide)[-1]) == 7  # 5 letters are half of 10
    assert len(contexts("a" * 14, wide)) == 1


def test_max_tokens_ends_the_text():
    short = Limits(context=6, batch=2, max_tokens=12)
    assert len(contexts("a" * 100, short)) == 2


def test_a_text_is_streamed_in_pieces_that_lose_nothing(tmp_path):
    file = tmp_path / "long.txt"
    text = "".join(f"line {k} with ünïcode\n" for k in range(20_000))
    file.write_text(text, encoding="utf-8")
    pieces = list(read_text(file))
    assert len(pieces) > 1
    assert "".join(pieces) == text
    assert all(len(piece) <= PIECE + 100 for piece in pieces)


def test_the_packages_own_passage_is_there():
    assert len("".join(read_text(passage()))) > 2000


def test_text_that_is_not_utf8_is_refused(tmp_path):
    file = tmp_path / "latin.txt"
    file.write_bytes("größe".encode("latin-1") * 10)
    with pytest.raises(InputError, match=r"not UTF-8.*iconv"):
        list(read_text(file))


def test_a_missing_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        list(read_text(tmp_path / "none.txt"))


def test_a_context_without_room_for_text_is_refused():
    with pytest.raises(InputError, match="no room"):
        contexts("abc", Limits(context=2, batch=1, max_tokens=9))


def test_ids_come_from_numbers_or_a_file(tmp_path):
    assert parse_ids("5, 17 3") == token_ids("5, 17 3") == ((5, 17, 3),)
    file = tmp_path / "ids.txt"
    file.write_text("1 2 3 4\n\n5,6,7,8\n")
    assert token_ids(str(file)) == ((1, 2, 3, 4), (5, 6, 7, 8))


def test_a_list_of_ids_may_be_longer_than_the_name_of_a_file():
    ids = ",".join(str(k) for k in range(2000))
    assert token_ids(ids) == (tuple(range(2000)),)


@pytest.mark.parametrize("text", ["a,b", "-1,2", "1.5", "", "9" * 30])
def test_what_is_no_id_is_refused(text):
    with pytest.raises(InputError, match="id"):
        parse_ids(text)


def batches(rows, **sizes):
    return list(id_batches(rows, LIMITS, **{"vocabulary": 10, "positions": 8, **sizes}))


def test_batches_hold_contexts_of_one_length():
    rows = [[1, 2, 3, 4], [5, 6, 7, 8], [1, 1, 1, 1], [2, 2, 2, 2, 2]]
    assert [b["input_ids"].shape for b in batches(rows)] == [(2, 4), (1, 4), (1, 5)]


def test_ids_out_of_range_long_and_short_contexts_are_refused():
    with pytest.raises(InputError, match=r"id 10 is out of range.*0 to 9"):
        batches([[1, 2, 3, 10]])
    with pytest.raises(InputError, match="9 tokens and the model 8 positions"):
        batches([[1] * 9])
    with pytest.raises(InputError, match="at least 4"):
        batches([[1, 2, 3]])


def test_shuffling_keeps_the_tokens_and_the_ends():
    context = list(range(20))
    (found,) = shuffled([context], seed=1)
    assert sorted(found) == context
    assert (found[0], found[-1]) == (0, 19)
    assert found != context
    assert list(shuffled([context], seed=1)) == [found]


# --- images ----------------------------------------------------------------------------------


def write_idx(file, array):
    head = b"\x00\x00\x08\x03" + b"".join(int(s).to_bytes(4, "big") for s in array.shape)
    file.write_bytes(gzip.compress(head + array.tobytes()))


def test_images_of_both_formats(tmp_path):
    grey = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    write_idx(tmp_path / "a.gz", grey)
    np.save(tmp_path / "b.npy", grey)
    found = [read_images(tmp_path / n, mean=0.5, std=0.25) for n in ("a.gz", "b.npy")]
    assert found[0].shape == (2, 1, 4, 3)
    assert torch.equal(*found)
    assert found[0][0, 0, 0, 1].item() == pytest.approx((1 / 255 - 0.5) / 0.25)


def test_numbers_with_a_point_are_taken_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 3, 2, 2), 7.5))
    assert read_images(tmp_path / "x.npy", mean=0.5, std=0.5).unique().tolist() == [7.5]


def test_broken_images_are_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(b"no gzip")
    (tmp_path / "b.idx").write_bytes(b"\x00\x00\x08\x03" + b"\x00\x00\x00\x09" * 3)
    (tmp_path / "c.png").write_bytes(b"\x89PNG and so on, longer than sixteen bytes")
    np.save(tmp_path / "d.npy", np.zeros((3, 3)))
    for name in ("a.gz", "b.idx", "c.png", "d.npy", "missing.npy"):
        with pytest.raises(InputError, match=name):
            read_images(tmp_path / name, mean=0.5, std=0.5)


def test_images_of_the_wrong_size_are_refused(model_folder):
    model = load(model_folder("vit"))
    with pytest.raises(InputError, match=r"\[1, 5, 5\].*takes \[1, 12, 12\]"):
        inputs_of(model, torch.zeros(3, 1, 5, 5))
    images = inputs_of(model, torch.zeros(3, 1, 12, 12)).images
    assert len(list(image_batches(images, LIMITS, model.module.config))) == 2
