"""Write a repaired copy of a checkpoint: rows of queries and keys reordered, not a byte else.

Enters: a folder of safetensors files and, by tensor, an order of rows. Leaves: a new folder. Files
are copied as they are; then the bytes of the named tensors are rewritten in place in the copy, so
that headers, types, other tensors, config and tokenizer are those of the original.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from orbitlens.checkpoint.safetensors_file import header_bytes
from orbitlens.encodings.rows import Order
from orbitlens.errors import InputError
from orbitlens.files import write_folder

LENGTH = 8  # bytes that state the size of a header


def write_repaired(source: Path, target: Path, orders: Mapping[str, Order]) -> None:
    """Copy a model's folder and reorder rows of some of its tensors.

    Raises:
        InputError: the model is no folder of safetensors files, or the target is there already.
    """
    if not source.is_dir() or not any(source.glob("*.safetensors")):
        raise InputError(
            f"{source}: only a folder of safetensors files is repaired. Load the model in "
            "transformers and save it with save_pretrained, or convert it anew."
        )
    if target.exists():
        raise InputError(f"{target}: it exists already. Choose a folder that is not there yet.")

    def fill(draft: Path) -> None:
        left = dict(orders)
        for file in sorted(source.iterdir()):
            if not file.is_file():
                continue
            shutil.copyfile(file, draft / file.name)
            if file.suffix == ".safetensors":
                for name in _reorder(draft / file.name, left):
                    del left[name]
        if left:
            raise InputError(f"{source}: tensor {next(iter(left))!r} is in none of its files.")

    target.parent.mkdir(parents=True, exist_ok=True)
    write_folder(target, fill)


def _reorder(file: Path, orders: Mapping[str, Order]) -> list[str]:
    """Rewrite the rows of the tensors that a file has; return their names."""
    start = header_bytes(file)
    header = json.loads(start[LENGTH:])
    here = [name for name in orders if name in header]
    with file.open("r+b") as opened:
        for name in here:
            begin, end = header[name]["data_offsets"]
            n_rows = header[name]["shape"][0]
            opened.seek(len(start) + begin)
            rows = np.frombuffer(opened.read(end - begin), dtype=np.uint8).reshape(n_rows, -1)
            opened.seek(len(start) + begin)
            opened.write(rows[orders[name][:n_rows].numpy()].tobytes())
    return here
