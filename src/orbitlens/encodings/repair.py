"""Write a repaired copy of a checkpoint: rows of queries and keys reordered, not a byte else.

Enters: a folder of safetensors files or a GGUF file and, by tensor, an order of rows. Leaves: a new
folder. Files are copied as they are; then the bytes of the named tensors are rewritten in place in
the copy, so that headers, types, other tensors and tokenizer are those of the original, and so is
the config unless a setting of it was the fault. A row is a whole number of blocks in quantised
files too, so that reordering rows is exact.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orbitlens.checkpoint.gguf_header import MAGIC, GgufHeader
from orbitlens.checkpoint.safetensors_header import header_bytes, tensor_places
from orbitlens.checkpoint.stored_file import DiskFile
from orbitlens.encodings.rows import Order
from orbitlens.errors import InputError
from orbitlens.files import open_regular, write_folder


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Where the rows of a tensor are in its file."""

    offset: int  # bytes from the start of the file
    n_bytes: int
    n_rows: int


def write_repaired(
    source: Path,
    target: Path,
    orders: Mapping[str, Order],
    config: Mapping[str, Any] | None = None,
) -> None:
    """Copy a model's folder, or its GGUF file, and reorder rows of some of its tensors.

    A folder may get another config.json.

    Raises:
        InputError: the model is of no such files, or the target is there already.
    """
    files = _files(source)
    if config is not None and source.is_file():
        raise InputError(
            f"{source}: what would put it right is metadata of a GGUF file, which are not written "
            "here. Set them with llama.cpp's gguf_set_metadata.py, or convert the model anew."
        )
    if target.exists():
        raise InputError(f"{target}: it exists already. Choose a folder that is not there yet.")

    def fill(draft: Path) -> None:
        left = dict(orders)
        for file in files:
            shutil.copyfile(file, draft / file.name)
            if file.suffix == ".safetensors" or file == source:
                for name in _reorder(draft / file.name, left):
                    del left[name]
        if config is not None:
            text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
            (draft / "config.json").write_text(text, encoding="utf-8")
        if left:
            raise InputError(f"{source}: tensor {next(iter(left))!r} is in none of its files.")

    target.parent.mkdir(parents=True, exist_ok=True)
    write_folder(target, fill)


def _files(source: Path) -> list[Path]:
    """Return what is copied: all files of a folder, or the one file."""
    if source.is_dir() and any(source.glob("*.safetensors")):
        return [file for file in sorted(source.iterdir()) if file.is_file()]
    if source.is_file() and _is_gguf(source):
        return [source]
    raise InputError(
        f"{source}: only a folder of safetensors files, or a GGUF file, is repaired. Load the "
        "model in transformers and save it with save_pretrained, or convert it anew."
    )


def _is_gguf(file: Path) -> bool:
    with open_regular(file) as opened:
        return opened.read(len(MAGIC)) == MAGIC


def _reorder(file: Path, orders: Mapping[str, Order]) -> list[str]:
    """Rewrite the rows of the tensors that a file has; return their names."""
    places = dict(_gguf_rows(file) if _is_gguf(file) else _safetensors_rows(file))
    here = [name for name in orders if name in places]
    with file.open("r+b") as opened:
        for name in here:
            place = places[name]
            opened.seek(place.offset)
            stored = np.frombuffer(opened.read(place.n_bytes), dtype=np.uint8)
            rows = stored.reshape(place.n_rows, -1)
            opened.seek(place.offset)
            opened.write(rows[orders[name][: place.n_rows].numpy()].tobytes())
    return here


def _safetensors_rows(file: Path) -> Iterator[tuple[str, StoredRows]]:
    opened = DiskFile(file)
    for name, place in tensor_places(opened, header_bytes(opened)).items():
        if place.info.shape:
            n_bytes, n_rows = place.info.n_bytes, place.info.shape[0]
            yield name, StoredRows(offset=place.offset, n_bytes=n_bytes, n_rows=n_rows)


def _gguf_rows(file: Path) -> Iterator[tuple[str, StoredRows]]:
    with open_regular(file) as opened:
        header = GgufHeader(opened, str(file), file.stat().st_size)
    for name, stored in header.stored.items():
        info = stored.info
        yield (
            name,
            StoredRows(offset=stored.offset, n_bytes=info.n_bytes, n_rows=info.shape[0]),
        )
