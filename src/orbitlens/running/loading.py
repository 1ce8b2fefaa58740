"""Files -> a module that runs, through transformers: no remote code, nothing fetched.

Enters: the path of a folder or GGUF file that `load_checkpoint` has opened. Leaves: a module in
evaluation mode, its tokenizer where there is one, or a module of the same config with fresh
weights.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from orbitlens.errors import CheckpointError, MissingPackageError
from orbitlens.families.registry import FAMILIES
from orbitlens.running.workers import torch_threads

SMALL_MODEL = 5_000_000  # parameters
Task = Literal["declared", "base", "causal-lm"]
LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError, AttributeError)


def build_module(
    path: str | Path,
    *,
    task: Task = "declared",
    dtype: torch.dtype = torch.float32,
    attention: Literal["eager", "sdpa"] | None = None,
    allow_pickle: bool = False,
) -> Any:  # noqa: ANN401 - a model of transformers
    """Return the model of a folder or GGUF file, in evaluation mode.

    Args:
        path: a folder in Hugging Face layout, or a GGUF file of an architecture transformers reads.
        task: which head to put on: "declared" is the class that config.json names, "base" none.
        dtype: of weights and states; half-precision checkpoints are raised to it.
        attention: the implementation; transformers' own choice if not given.
        allow_pickle: read `.bin` files, as plain tensors, where there is nothing better.

    Raises:
        CheckpointError: transformers cannot build the model from these files.
        MissingPackageError: transformers is not installed.
    """
    source = Path(path)
    options: dict[str, Any] = {"local_files_only": True, "dtype": dtype}
    if attention is not None:
        options["attn_implementation"] = attention
    if source.is_dir():
        builder, folder = model_class(source, task), source
        options["use_safetensors"] = None if allow_pickle else True
    else:
        builder, folder = _transformers().AutoModelForCausalLM, source.parent
        options["gguf_file"] = source.name
    with quiet_transformers():
        try:
            return builder.from_pretrained(folder, **options).eval()
        except LOAD_ERRORS as error:
            raise CheckpointError(
                f"{source}: transformers cannot build it ({first_line(error)})."
            ) from error


def model_class(folder: Path, task: Task) -> Any:  # noqa: ANN401 - a class of transformers
    """Return the class of transformers that builds the model in a folder."""
    transformers = _transformers()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    home = transformers
    family = FAMILIES.get(str(config.get("model_type")))
    if family is not None and family.is_own:
        import orbitlens.orbit.auto as home  # makes the architecture known to transformers
    if task == "causal-lm":
        return transformers.AutoModelForCausalLM
    if task == "declared":
        for name in config.get("architectures") or []:
            named = getattr(home, str(name), None)
            if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
                return named
    return transformers.AutoModel


def fresh_module(path: str | Path, *, seed: int, task: Task = "declared") -> Any:  # noqa: ANN401
    """Return an untrained model of a folder's config, its weights drawn anew by transformers."""
    folder = Path(path)
    builder = model_class(folder, task)
    config = _transformers().AutoConfig.from_pretrained(folder, local_files_only=True)
    return drawn_anew(builder, config, seed=seed)


def drawn_anew(builder: Any, config: Any, *, seed: int) -> Any:  # noqa: ANN401
    """Return a model of a class and a config, its weights drawn by transformers from a seed."""
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        is_auto = hasattr(builder, "from_config")
        module = builder.from_config(config) if is_auto else builder(config)
    return module.float().eval()


def load_tokenizer(path: str | Path) -> Any | None:  # noqa: ANN401 - a tokenizer of transformers
    """Return the tokenizer of a folder or a GGUF file, or None where a folder has no tokenizer."""
    source = Path(path)
    options: dict[str, Any] = {"local_files_only": True}
    folder = source
    if not source.is_dir():
        folder, options["gguf_file"] = source.parent, source.name
    # vocab.txt alone does not say which rules split text into its entries.
    elif not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    with quiet_transformers():
        try:
            return _transformers().AutoTokenizer.from_pretrained(folder, **options)
        except LOAD_ERRORS as error:
            raise CheckpointError(
                f"{source}: the tokenizer cannot be read ({first_line(error)}). "
                "Give token ids instead of text."
            ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' own bars and notices off the terminal for a while."""
    logging = _transformers().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def eager_attention(module: Any) -> Iterator[None]:  # noqa: ANN401 - a model of transformers
    """Have a module compute attention so that it can return its patterns, for a while."""
    before = getattr(module.config, "_attn_implementation", None)
    if before in {None, "eager"} or not hasattr(module, "set_attn_implementation"):
        yield
        return
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)


@contextmanager
def threads_for(n_parameters: int) -> Iterator[None]:
    """Run a small model on one thread: several wait for each other longer than they help."""
    with torch_threads(1 if n_parameters < SMALL_MODEL else torch.get_num_threads()):
        yield


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its name."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _transformers() -> Any:  # noqa: ANN401 - a module
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            "running a model needs transformers: pip install 'orbitlens[measure]'"
        ) from error
    return transformers
