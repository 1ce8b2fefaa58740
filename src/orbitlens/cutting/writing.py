"""Write a checkpoint without some layers: the others renumbered, its config made to fit.

Enters: a folder of safetensors files and the layers that go. Leaves: a new folder. Tensors keep
their bytes; those of layers behind a cut get the names of their new numbers. In the config the
number of layers changes, and so does every list that has an entry a layer, whether the file spells
it out or the model class fills it in. The caller checks that what was written loads and loses what
was promised, before it gets its name: settings that depend on a layer's number in other ways are
not known here, and show there.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from orbitlens.cutting.parts import Trunk
from orbitlens.errors import InputError
from orbitlens.families.registry import FAMILIES
from orbitlens.families.settings import SPELLINGS
from orbitlens.files import write_folder
from orbitlens.running.capture import block_name

INDEX = "model.safetensors.index.json"


def write_cut(
    trunk: Trunk, target: Path, cut: Collection[int], check: Callable[[Path], None]
) -> None:
    """Write a model without some layers; `check` is given the draft and refuses by raising.

    Raises:
        InputError: the model is no folder of safetensors files, or the target is there already.
    """
    source = Path(trunk.model.checkpoint.local_path)
    if not source.is_dir() or not any(source.glob("*.safetensors")):
        raise InputError(
            f"{source}: only a folder of safetensors files is written without layers. For a GGUF "
            "file use the list of layers with llama-quantize --prune-layers; else load the model "
            "in transformers and save it with save_pretrained."
        )
    if target.exists():
        raise InputError(f"{target}: it exists already. Choose a folder that is not there yet.")

    def fill(draft: Path) -> None:
        renamed = _renaming(trunk, cut)
        for file in sorted(source.iterdir()):
            if file.suffix == ".safetensors":
                _copy_tensors(file, draft / file.name, renamed)
            elif file.name == INDEX:
                _copy_index(file, draft / file.name, renamed)
            elif file.name == "config.json":
                config = _shorter_config(trunk, json.loads(file.read_text("utf-8")), cut)
                (draft / file.name).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
            elif file.is_file() and file.suffix != ".bin":
                shutil.copyfile(file, draft / file.name)
        check(draft)

    target.parent.mkdir(parents=True, exist_ok=True)
    write_folder(target, fill)


Renamed = Callable[[str], str | None]


def _renaming(trunk: Trunk, cut: Collection[int]) -> Renamed:
    """Return what names tensors have in the shorter model; None: they go."""
    if trunk.is_shared:
        return lambda name: name
    checkpoint = trunk.model.checkpoint
    hooks = FAMILIES[checkpoint.architecture.family].hooks
    places = [block_name(tensors["o"], hooks).rpartition(".")[0] for tensors in trunk.stack.tensors]
    gone = {trunk.stack.layers[layer].number for layer in cut}
    pattern = re.compile(rf"({re.escape(places[0])}\.)(\d+)(\..*)")

    def renamed(name: str) -> str | None:
        match = pattern.fullmatch(name)
        if match is None:
            return name
        number = int(match[2])
        if number in gone:
            return None
        return f"{match[1]}{number - sum(other < number for other in gone)}{match[3]}"

    return renamed


def _copy_tensors(file: Path, target: Path, renamed: Renamed) -> None:
    with safe_open(file, framework="pt") as handle:
        names = {name: renamed(name) for name in handle.keys()}
        kept = {new: handle.get_tensor(name) for name, new in names.items() if new is not None}
        save_file(kept, target, metadata=handle.metadata() or {"format": "pt"})


def _copy_index(file: Path, target: Path, renamed: Renamed) -> None:
    index = json.loads(file.read_text("utf-8"))
    entries = {renamed(name): shard for name, shard in index["weight_map"].items()}
    index["weight_map"] = {name: shard for name, shard in entries.items() if name is not None}
    index.get("metadata", {}).pop("total_size", None)
    target.write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _shorter_config(
    trunk: Trunk, config: Mapping[str, Any], cut: Collection[int]
) -> dict[str, Any]:
    """Return a config with fewer layers, and a shorter list wherever there is one entry a layer."""
    gone = {trunk.stack.layers[layer].number for layer in cut}
    filled_in = trunk.model.module.config.to_dict()
    key = next(key for key in SPELLINGS["n_layers"] if config.get(key) is not None)
    n_layers = config[key]
    new = dict(config) | {key: n_layers - len(gone)}
    for name, value in {**filled_in, **config}.items():
        if isinstance(value, list) and len(value) == n_layers and name != "architectures":
            new[name] = [entry for layer, entry in enumerate(value) if layer not in gone]
    return new
