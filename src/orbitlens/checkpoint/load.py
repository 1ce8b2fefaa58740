"""A path or a hub name -> Checkpoint. Reads headers; no weight enters memory here.

Safe by default: safetensors and GGUF only, no pickle without leave, no remote code, no file outside
the model's folder (the hub cache's own links to its blobs excepted).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.bounds import LARGEST_CONFIG, LARGEST_INDEX, MOST_CONTAINERS, inside
from orbitlens.checkpoint.build import build_architecture
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.checkpoint.source import TensorSource
from orbitlens.checkpoint.zoo import find_in_zoo
from orbitlens.errors import CheckpointError
from orbitlens.files import read_json

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_ERRORS = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError)
SAFETENSORS_INDEX = "model.safetensors.index.json"
PICKLE_INDEX = "pytorch_model.bin.index.json"


def load_checkpoint(model: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Open a checkpoint: a folder in Hugging Face layout, a `.gguf` file, or a name.

    Args:
        model: where the model is. A name of the zoo (`orbit-nano-rotary`, ...) that is no path is
            the model in this package; another name like `owner/model` is looked up through
            huggingface_hub, in its cache first.
        allow_pickle: read `.bin` files, as plain tensors, where there is nothing better.

    Raises:
        CheckpointError: the files are missing, broken, or do not fit together.
        UnknownFamilyError: no row of the family table describes the model.
    """
    path = _existing(str(model))
    if path.is_dir():
        config = read_config(path)
        config.pop("_gguf", None)  # our own key, which no file may set
        source = _open_folder(path, allow_pickle)
    elif path.suffix == ".gguf":
        from orbitlens.checkpoint.gguf_config import config_of_gguf
        from orbitlens.checkpoint.gguf_file import GgufSource

        source = GgufSource(path)
        config = config_of_gguf(source)
    else:
        raise CheckpointError(
            f"{path}: this is a single file. Give the folder that holds it and its config.json, "
            "or a .gguf file."
        )
    architecture = build_architecture(config, source, str(path))
    return Checkpoint(path=str(path), architecture=architecture, source=source, config=config)


# --- finding the files -----------------------------------------------------------------------


def _existing(model: str) -> Path:
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
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_like_path or model.endswith(".gguf") or not HUB_NAME.fullmatch(model):
        raise CheckpointError(
            f"{model}: there is no such file or folder. Give the path of a model's folder or of a "
            ".gguf file, or a hub name such as owner/model."
        )
    return _from_hub(model)


def _from_hub(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted = ["config.json", "*.safetensors", SAFETENSORS_INDEX]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name}: there is no such file or folder here, and the hub cache "
            f"({constants.HF_HUB_CACHE}) does not hold config.json and *.safetensors of a model of "
            "that name; the hub itself is switched off or out of reach. Fetch the model where "
            "there is a network (hf download), or give the path of a local folder."
        ) from error
    except _hub_errors() as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{name}: there is no such file or folder here, and asking the hub failed ({reason}). "
            "Check the name and the connection, or give the path of a local folder."
        ) from error


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return what asking the hub may raise, errors of whichever HTTP library it uses included."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    return (*HUB_ERRORS, *bases)


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
    from orbitlens.checkpoint.safetensors_file import SafetensorsSource

    return SafetensorsSource(files)


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
    weight_map = stored.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(f"{folder / index}: expected an object 'weight_map' of file names.")
    values = list(weight_map.values())
    if not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{folder / index}: 'weight_map' holds something that is no name.")
    names = sorted(set(values))
    files = [inside(folder, name) for name in names]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(files)} shards are missing: "
            f"{', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}. "
            "Fetch the model again; shards must lie beside their index."
        )
    return files


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config of a folder in Hugging Face layout.

    Raises:
        CheckpointError: there is none, it is too large, or it is something else.
    """
    why = "a model's folder in Hugging Face layout has one"
    return _read_settings(folder / "config.json", why, LARGEST_CONFIG)


def _read_settings(file: Path, why: str, largest: int) -> dict[str, Any]:
    file = inside(file.parent, file.name)
    try:
        value = read_json(file, largest, most_containers=MOST_CONTAINERS)
    except FileNotFoundError as error:
        raise CheckpointError(f"{file.parent}: no {file.name} here; {why}.") from error
    except OSError as error:
        raise CheckpointError(f"{file}: this cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: this is not JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds a {type(value).__name__}, expected an object.")
    return value
