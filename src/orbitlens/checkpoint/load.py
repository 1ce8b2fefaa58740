"""A path or a hub name -> Checkpoint. Reads headers; no weight enters memory here.

Safe by default: safetensors and GGUF only, no pickle without leave, no remote code, no file outside
the model's folder (the hub cache's own links to its blobs excepted).
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.bounds import LARGEST_CONFIG, LARGEST_INDEX, MOST_CONTAINERS, inside
from orbitlens.checkpoint.build import build_architecture
from orbitlens.checkpoint.hub import HubModel, HubPlace, cached, hub_place, is_offline
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.checkpoint.packed import PackedSource, refusal
from orbitlens.checkpoint.safetensors_file import SafetensorsSource
from orbitlens.checkpoint.source import TensorSource
from orbitlens.checkpoint.stored_file import DiskFile
from orbitlens.checkpoint.zoo import find_in_zoo
from orbitlens.errors import CheckpointError, UnknownFamilyError
from orbitlens.files import json_of, read_bounded

SAFETENSORS_INDEX = "model.safetensors.index.json"
WHY_CONFIG = "a model's folder in Hugging Face layout has one"
AT_ONCE = 8  # shards whose headers are fetched side by side
PICKLE_INDEX = "pytorch_model.bin.index.json"


def load_checkpoint(model: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Open a checkpoint: a folder in Hugging Face layout, a `.gguf` file, or a name.

    Args:
        model: where the model is. A name of the zoo (`orbit-nano-rotary`, ...) that is no path is
            the model in this package; another name (`owner/model`, `owner/model@revision`,
            `hf://owner/model@revision/file.gguf`) is one of the hub: read from huggingface_hub's
            cache if that holds it whole, else on the hub itself, by ranges of its files.
        allow_pickle: read `.bin` files, as plain tensors, where there is nothing better.

    Raises:
        CheckpointError: the files are missing, broken, or do not fit together.
        UnknownFamilyError: no row of the family table describes the model.
    """
    place = _existing(str(model))
    if isinstance(place, HubModel):
        return _open_remote(place)
    path = place
    if path.is_dir():
        config = read_config(path)
        config.pop("_gguf", None)  # our own key, which no file may set
        source = _open_folder(path, allow_pickle)
    elif path.suffix == ".gguf":
        from orbitlens.checkpoint.gguf_config import config_of_gguf
        from orbitlens.checkpoint.gguf_file import GgufSource

        source = GgufSource(DiskFile(path))
        config = config_of_gguf(source)
    else:
        raise CheckpointError(
            f"{path}: this is a single file. Give the folder that holds it and its config.json, "
            "or a .gguf file."
        )
    return checkpoint_of(source, config, str(path))


def checkpoint_of(
    source: TensorSource, config: Mapping[str, Any], path: str, remote: HubModel | None = None
) -> Checkpoint:
    """Return the checkpoint of an opened source and its config, packed weights as weights."""
    quantised = config.get("quantization_config")
    if not isinstance(source, SafetensorsSource) or not isinstance(quantised, Mapping):
        architecture = build_architecture(config, source, path)
        return Checkpoint(
            path=path, architecture=architecture, source=source, config=config, remote=remote
        )
    packed = PackedSource(source, quantised, path)
    try:
        architecture = build_architecture(config, packed, path)
    except UnknownFamilyError:
        raise
    except CheckpointError as error:  # the packing may be why a weight was not found
        if packed.is_read:
            raise
        raise CheckpointError(f"{error} {refusal(packed.method)}") from error
    architecture = replace(architecture, flags=(*architecture.flags, *packed.notes))
    return Checkpoint(
        path=path, architecture=architecture, source=packed, config=config, remote=remote
    )


# --- finding the files -----------------------------------------------------------------------


def _existing(model: str) -> Path | HubModel:
    try:
        path = Path(model).expanduser()
        if path.exists():
            return path
    except RuntimeError:  # "~someone", and there is no such user
        pass
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{model!r} is not a usable path ({error}).") from error
    own = find_in_zoo(model)
    if own is not None:
        return own
    looks_like_path = model.startswith((".", "/", "~")) or (
        not model.startswith("hf://") and model.partition("@")[0].count("/") > 1
    )
    hub = None if looks_like_path else hub_place(model)
    if hub is None or (hub.file is None and hub.repo.endswith(".gguf")):
        raise CheckpointError(
            f"{model}: there is no such file or folder. Give the path of a model's folder or of a "
            ".gguf file, or a hub name such as owner/model."
        )
    return _from_hub(hub)


def _from_hub(place: HubPlace) -> Path | HubModel:
    """Return what the cache holds of a model, if that is all of it, else the model on the hub."""
    path = cached(place)
    if path is not None and (is_offline() or path.is_file() or _has_weights(path)):
        return path
    if not is_offline():
        return HubModel(place)
    from huggingface_hub import constants

    wanted = place.file or "config.json and *.safetensors"
    raise CheckpointError(
        f"{place if place.file else place.repo}: there is no such file or folder here, and the hub "
        f"cache ({constants.HF_HUB_CACHE}) does not hold {wanted} of a model of that name; the hub "
        "itself is switched off. Fetch the model where there is a network (hf download), or give "
        "the path of a local folder."
    )


def _has_weights(folder: Path) -> bool:
    """Say whether a folder of the cache has a config and all weights; it may have been cut off."""
    if not (folder / "config.json").is_file():
        return False
    if (folder / SAFETENSORS_INDEX).is_file():
        names = _shard_names(
            _read_settings(folder / SAFETENSORS_INDEX, "", LARGEST_INDEX),
            str(folder / SAFETENSORS_INDEX),
        )
        return all(inside(folder, name).is_file() for name in names)
    return any(folder.glob("*.safetensors"))


def _open_remote(model: HubModel) -> Checkpoint:
    """Open a model where it lies: its config and the headers of its weights are fetched."""
    if model.place.file is not None:
        from orbitlens.checkpoint.gguf_config import config_of_gguf
        from orbitlens.checkpoint.gguf_file import GgufSource

        gguf = GgufSource(model.file(model.place.file))
        return checkpoint_of(gguf, config_of_gguf(gguf), str(model.place), model)
    shown = str(model.place)
    if "config.json" not in model.names:
        raise CheckpointError(f"{shown}: no config.json here; {WHY_CONFIG}.{_ggufs(model.names)}")
    config = settings_in(
        model.small("config.json", LARGEST_CONFIG), f"{shown}/config.json", MOST_CONTAINERS
    )
    config.pop("_gguf", None)  # our own key, which no file may set
    names = _remote_weights(model, shown)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        files = list(pool.map(model.file, names))
    return checkpoint_of(SafetensorsSource(files), config, shown, model)


def _remote_weights(model: HubModel, shown: str) -> list[str]:
    if SAFETENSORS_INDEX in model.names:
        place = f"{shown}/{SAFETENSORS_INDEX}"
        index = settings_in(model.small(SAFETENSORS_INDEX, LARGEST_INDEX), place, MOST_CONTAINERS)
        return _shard_names(index, place)
    if "model.safetensors" in model.names:
        return ["model.safetensors"]
    loose = sorted(n for n in model.names if n.endswith(".safetensors") and "/" not in n)
    if not loose:
        raise CheckpointError(
            f"{shown}: no weights here that are read from afar. Expected model.safetensors, or "
            f"shards with {SAFETENSORS_INDEX}.{_ggufs(model.names)}"
        )
    return loose


def _ggufs(names: Collection[str]) -> str:
    ggufs = ", ".join(sorted(name for name in names if name.endswith(".gguf"))[:8])
    return f" Give one of its GGUF files: {ggufs}." if ggufs else ""


def _open_folder(folder: Path, allow_pickle: bool) -> TensorSource:
    """Open the best weights in a folder: safetensors, sharded or not; pickles only with leave."""
    if (folder / SAFETENSORS_INDEX).exists():
        return _safetensors(_shards(folder, SAFETENSORS_INDEX))
    if (folder / "model.safetensors").exists():
        return _safetensors([inside(folder, "model.safetensors")])
    loose = sorted(file.name for file in folder.glob("*.safetensors"))
    if loose:
        return _safetensors([inside(folder, name) for name in loose])
    return _open_pickles(folder, allow_pickle)


def _safetensors(files: list[Path]) -> TensorSource:
    return SafetensorsSource([DiskFile(file) for file in files])


def _open_pickles(folder: Path, allow_pickle: bool) -> TensorSource:
    if (folder / PICKLE_INDEX).exists():
        files = _shards(folder, PICKLE_INDEX)
    else:
        files = [inside(folder, file.name) for file in sorted(folder.glob("*.bin"))]
    if not files:
        ggufs = ", ".join(sorted(file.name for file in folder.glob("*.gguf")))
        hint = f" Give one of its GGUF files as the path: {ggufs}." if ggufs else ""
        raise CheckpointError(
            f"{folder}: no weights here. Expected model.safetensors, or shards with "
            f"{SAFETENSORS_INDEX}.{hint}"
        )
    if not allow_pickle:
        raise CheckpointError(
            f"{folder}: the only weights are pickles ({files[0].name}), which can run code when "
            "read. Convert them to safetensors, or pass allow_pickle=True to read "
            "them as plain tensors (torch.load with weights_only)."
        )
    from orbitlens.checkpoint.pickle_file import PickleSource

    return PickleSource(files)


def _shards(folder: Path, index: str) -> list[Path]:
    stored = _read_settings(folder / index, "shards need their index", LARGEST_INDEX)
    names = _shard_names(stored, str(folder / index))
    files = [inside(folder, name) for name in names]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(files)} shards are missing: "
            f"{', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}. "
            "Fetch the model again; shards must lie beside their index."
        )
    return files


def _shard_names(stored: Mapping[str, Any], place: str) -> list[str]:
    weight_map = stored.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(f"{place}: expected an object 'weight_map' of file names.")
    values = list(weight_map.values())
    if not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{place}: 'weight_map' holds something that is no name.")
    return sorted(set(values))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config of a folder in Hugging Face layout.

    Raises:
        CheckpointError: there is none, it is too large, or it is something else.
    """
    return _read_settings(folder / "config.json", WHY_CONFIG, LARGEST_CONFIG)


def _read_settings(file: Path, why: str, largest: int) -> dict[str, Any]:
    file = inside(file.parent, file.name)
    try:
        data = read_bounded(file, largest)
    except FileNotFoundError as error:
        raise CheckpointError(f"{file.parent}: no {file.name} here; {why}.") from error
    except OSError as error:
        raise CheckpointError(f"{file}: this cannot be read ({error.strerror}).") from error
    return settings_in(data, str(file), MOST_CONTAINERS)


def settings_in(data: bytes, place: str, most_containers: int) -> dict[str, Any]:
    """Return the settings in a JSON file, given its bytes.

    Raises:
        CheckpointError: it is something else.
    """
    try:
        value = json_of(data, most_containers=most_containers)
    except ValueError as error:
        raise CheckpointError(f"{place}: this is not JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{place}: holds a {type(value).__name__}, expected an object.")
    return value
