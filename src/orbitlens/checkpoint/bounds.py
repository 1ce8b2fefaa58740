"""What a checkpoint may ask for: sizes of files, counts of layers and heads, and where files lie.

Enters: paths and numbers from untrusted files. Leaves: nothing, or a `CheckpointError`. Together
the bounds make memory and time of opening and scanning a checkpoint a multiple of its bytes on disk
(docs/promises.md gives the multiples, tests/checkpoint/test_bounds.py measures them). Each is
several times what the largest published models need.
"""

from pathlib import Path

from orbitlens.errors import CheckpointError

LARGEST_CONFIG = 4_000_000  # bytes; 21,000 names of classes make one of a million
LARGEST_INDEX = 32_000_000  # bytes; the 92,000 tensors of 256 experts make nine million
LARGEST_SIDE_FILE = 64_000_000  # bytes of tokenizers and the like; 262,000 tokens make 35 million
MOST_CONTAINERS = 100_000  # objects and lists in a config or an index
DEEPEST = 1024  # layers
DEEPEST_SHARED = 128  # layers that share one set of weights
MOST_HEADS = 32_768  # in a stack
WIDEST = 32_768  # coordinates of a token
WIDEST_FOR_HEADS = 16  # times the joint width of a layer's heads

WEIGHT_SUFFIXES = {".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx"}


def check_counts(path: str, *, n_layers: int, n_heads: int) -> None:
    """Refuse numbers of layers and heads that no bytes in the files stand for."""
    if n_layers > DEEPEST:
        raise CheckpointError(
            f"{path}: the config asks for {n_layers} layers; expected at most {DEEPEST}. "
            "Correct num_hidden_layers, or fetch the config again."
        )
    if n_layers * n_heads > MOST_HEADS:
        raise CheckpointError(
            f"{path}: the config asks for {n_layers} layers of {n_heads} heads; expected at most "
            f"{MOST_HEADS} heads in all. Correct num_attention_heads, or fetch the config again."
        )


def check_width(path: str, *, d_model: int, heads_width: int) -> None:
    """Refuse tokens so wide that a map between them is out of proportion to the weights stored."""
    if d_model > WIDEST or d_model > WIDEST_FOR_HEADS * heads_width:
        raise CheckpointError(
            f"{path}: by the config tokens are {d_model} wide and all heads of a layer together "
            f"{heads_width}; expected tokens of at most {WIDEST}, and at most {WIDEST_FOR_HEADS} "
            "times as wide as the heads. Correct hidden_size, or fetch the config again."
        )


def check_sharing(path: str, *, n_layers: int, n_sets: int) -> None:
    """Refuse layers beyond number that share one set of weights."""
    if n_layers > DEEPEST_SHARED * n_sets:
        raise CheckpointError(
            f"{path}: {n_layers} layers share {n_sets} set{'s' if n_sets > 1 else ''} of weights; "
            f"expected at most {DEEPEST_SHARED} layers a set. Correct num_hidden_layers, or fetch "
            "the config again."
        )


# --- files -----------------------------------------------------------------------------------


def inside(folder: Path, name: str) -> Path:
    """Return a file of the folder; a name or a link that leads out of it is refused."""
    file = folder / name
    try:
        target, home = file.resolve(), folder.resolve()
        is_odd = file.exists() and not file.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: {name!r} is not a usable file ({error}).") from error
    allowed = [home]
    if home.parent.name == "snapshots":  # the hub cache links its snapshots to its own blobs
        allowed.append(home.parent.parent / "blobs")
    plain = Path(name).name == name and name not in {"", ".", ".."}
    if not plain or not any(target.is_relative_to(place) for place in allowed):
        raise CheckpointError(
            f"{folder}: the file {name!r} lies outside the model's folder. "
            "Refused: a checkpoint may only name files beside it."
        )
    if is_odd:
        raise CheckpointError(
            f"{file}: this is not a file but a folder, a pipe or a device; expected a file. "
            "Fetch the model again."
        )
    return file


def beside_weights(folder: Path, name: str) -> Path | None:
    """Return a small file of a model's folder, or None where there is none.

    Raises:
        CheckpointError: its name or link leads out of the folder, or it is too large to be read.
    """
    file = inside(folder, name)
    if not file.exists():
        return None
    _refuse_large(file)
    return file


def _refuse_large(file: Path) -> None:
    size = file.stat().st_size if file.exists() else 0
    if size > LARGEST_SIDE_FILE and file.suffix not in WEIGHT_SUFFIXES:
        raise CheckpointError(
            f"{file}: {size} bytes are too many for a file beside the weights; at most "
            f"{LARGEST_SIDE_FILE} are read. Remove it, or fetch the model again."
        )


def check_folder(folder: Path) -> None:
    """Refuse a folder that another library would read beyond these bounds.

    Every file in it is one of the folder and, unless it holds weights, of a size that settings and
    tokenizers have. Folders in it are left alone: nothing is read from them.
    """
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            continue
        _refuse_large(inside(folder, entry.name))
