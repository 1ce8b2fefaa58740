"""Special tokens of a model: which ids stand for no word of a text, and which one is the mask.

Enters: a `Model`. Leaves: `SpecialTokens`, from its tokenizer, else from the vocabulary beside its
weights (vocab.txt, vocab.json, special_tokens_map.json), and from its config.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.bounds import beside_weights
from orbitlens.errors import CheckpointError
from orbitlens.running.inputs import vocabulary_size
from orbitlens.running.model import Model

ROLES = ("bos", "eos", "cls", "sep", "pad", "mask")  # not unk: an unknown word is a word
MASKS = ("[MASK]", "<mask>")
USUAL = (*MASKS, "[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<cls>", "<eos>", "<bos>", "<pad>")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Ids that stand for no word, and the one that hides a word."""

    named: frozenset[int]  # by a tokenizer or a vocabulary: special wherever they stand
    by_config: frozenset[int]  # by the config, whose defaults may be wrong: only at the ends
    mask: int | None


def special_tokens_of(model: Model) -> SpecialTokens:
    """Return the special tokens of a model that reads token ids.

    Raises:
        CheckpointError: a vocabulary beside the weights cannot be read.
    """
    config = model.module.config
    in_config = {role: getattr(config, f"{role}_token_id", None) for role in ROLES}
    known = {role: value for role, value in in_config.items() if isinstance(value, int)}
    named, mask = _of_tokenizer(model.tokenizer)
    if model.tokenizer is None and not model.is_live and Path(model.checkpoint.local_path).is_dir():
        named, mask = _of_folder(Path(model.checkpoint.local_path))
    ids = range(vocabulary_size(config))
    chosen = mask if mask is not None else known.get("mask")
    return SpecialTokens(
        named=frozenset(token for token in named if token in ids),
        by_config=frozenset(token for token in known.values() if token in ids) - named,
        mask=chosen if chosen in ids else None,
    )


def _of_tokenizer(tokenizer: Any) -> tuple[frozenset[int], int | None]:  # noqa: ANN401
    if tokenizer is None:
        return frozenset(), None
    roles = {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
    in_roles = {token for token in roles.values() if token is not None}
    unknown = {getattr(tokenizer, "unk_token_id", None)} - in_roles
    vocabulary = tokenizer.get_vocab()
    usual = {vocabulary[name] for name in USUAL if name in vocabulary}
    mask = roles["mask"]
    if mask is None:
        mask = _first(vocabulary, MASKS)
    return frozenset((set(tokenizer.all_special_ids) | in_roles | usual) - unknown), mask


def _of_folder(folder: Path) -> tuple[frozenset[int], int | None]:
    """Return what a vocabulary without a tokenizer names, by its roles or by the usual names."""
    vocabulary = _vocabulary(folder)
    written = _read_object(folder, "special_tokens_map.json")
    roles = {role: _content(written.get(f"{role}_token")) for role in ROLES}
    names = [name for name in (*roles.values(), *USUAL) if name is not None]
    masks = MASKS if roles["mask"] is None else (roles["mask"], *MASKS)
    found = frozenset(vocabulary[name] for name in names if name in vocabulary)
    return found, _first(vocabulary, masks)


def _vocabulary(folder: Path) -> Mapping[str, int]:
    file = beside_weights(folder, "vocab.txt")
    if file is None:
        entries = _read_object(folder, "vocab.json")
        return {name: value for name, value in entries.items() if isinstance(value, int)}
    lines = _read_text(file).split("\n")  # splitlines would cut at tokens such as U+2028, too
    return {name: number for number, name in enumerate(lines)}


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    file = beside_weights(folder, name)
    if file is None:
        return {}
    try:
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: this is not JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds a {type(value).__name__}, expected an object.")
    return value


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: this cannot be read ({error}). Fetch it again.") from error


def _content(token: object) -> str | None:
    """Return a token written as a string, or as an object that holds it."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _first(vocabulary: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((vocabulary[name] for name in names if name in vocabulary), None)
