"""A checkpoint's folder -> a model that runs, through transformers: safely, and ready to measure.

Enters: the path of a folder that `load_checkpoint` has opened. Leaves: a model in evaluation mode,
and its tokenizer where there is one. No remote code, no pickles, nothing fetched.
"""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from orbitlens.errors import CheckpointError, InputError, MissingPackageError
from orbitlens.running.workers import torch_threads

SMALL_MODEL = 5_000_000  # parameters
# Architectures of orbitlens itself. Their modules make themselves known to transformers; named
# here and imported when a file asks for them.
OWN = {"orbit": "orbitlens.orbit.auto"}
Task = Literal["declared", "base", "causal-lm"]


def load_model(
    path: str | Path,
    *,
    task: Task = "declared",
    dtype: torch.dtype = torch.float32,
    attention: Literal["eager", "sdpa"] | None = None,
) -> tuple[Any, Any | None]:
    """Return the model of a folder, in evaluation mode, and its tokenizer or None.

    Args:
        path: a folder in Hugging Face layout.
        task: which head to put on: "declared" is the class that config.json names, "base" none.
        dtype: of weights and states; half-precision checkpoints are raised to it.
        attention: the implementation; transformers' own choice if not given.

    Raises:
        CheckpointError: transformers cannot build the model from these files.
        MissingPackageError: transformers is not installed.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: running a model needs its folder in Hugging Face layout (config.json and "
            "safetensors). A GGUF file can be scanned, not run."
        )
    builder = model_class(folder, task)
    options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "dtype": dtype}
    if attention is not None:
        options["attn_implementation"] = attention
    try:
        model = builder.from_pretrained(folder, **options)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder}: transformers cannot build it ({first_line(error)})."
        ) from error
    return model.eval(), load_tokenizer(folder)


def model_class(folder: Path, task: Task) -> Any:  # noqa: ANN401 - a class of transformers
    """Return the class of transformers that builds the model in a folder."""
    transformers = _transformers()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    own = OWN.get(str(config.get("model_type")))
    home = importlib.import_module(own) if own is not None else transformers
    if task == "causal-lm":
        return transformers.AutoModelForCausalLM
    if task == "declared":
        for name in config.get("architectures") or []:
            found = getattr(home, str(name), None)
            if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
                return found
    return transformers.AutoModel


def fresh_twin(path: str | Path, *, seed: int, task: Task = "declared") -> Any:  # noqa: ANN401
    """Return an untrained model of the same config, its weights drawn anew by transformers."""
    folder = Path(path)
    builder = model_class(folder, task)
    config = _transformers().AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = builder.from_config(config) if _is_auto(builder) else builder(config)
    return model.float().eval()


def load_tokenizer(folder: Path) -> Any | None:  # noqa: ANN401 - a tokenizer of transformers
    """Return the folder's tokenizer, or None where it has no tokenizer files."""
    # vocab.txt alone does not say which rules split text into its entries.
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        return _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be read ({first_line(error)}). "
            "Give token ids instead of text."
        ) from error


def quiet_transformers() -> None:
    """Keep transformers' own bars and notices off the terminal, where it is installed."""
    try:
        from transformers.utils import logging
    except ImportError:  # load_model says what to install
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def threads_for(n_parameters: int) -> Iterator[None]:
    """Run a small model on one thread: several wait for each other longer than they help."""
    with torch_threads(1 if n_parameters < SMALL_MODEL else torch.get_num_threads()):
        yield


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its name."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _is_auto(builder: Any) -> bool:  # noqa: ANN401
    return hasattr(builder, "from_config")


def _transformers() -> Any:  # noqa: ANN401 - a module
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            "running a model needs transformers: pip install 'orbitlens[measure]'"
        ) from error
    return transformers
