"""Files -> a module that runs, through transformers: no remote code, nothing fetched.

Enters: the path of a folder or GGUF file that `load_checkpoint` has opened. Leaves: a module in
evaluation mode, its tokenizer where there is one, or a module of the same config with fresh
weights. Files are untrusted: transformers is not given a folder that links out of itself, settings
that name code or other files, or a config whose model is out of proportion to the weights stored.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from orbitlens.checkpoint.bounds import WEIGHT_SUFFIXES, check_folder
from orbitlens.checkpoint.load import read_config
from orbitlens.errors import CheckpointError, MissingPackageError, OrbitlensError
from orbitlens.families.registry import FAMILIES

Task = Literal["declared", "base", "causal-lm"]
# Settings by which a config or a tokenizer could have transformers run code, or read other files.
NAMES_CODE = ("auto_map", "custom_pipelines", "transformers_weights")
WEIGHTS_A_BYTE = 8  # of a running model; the smallest types that are stored have one bit and more
FILLS = {  # with random numbers, in place
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.nn.init.kaiming_uniform_,
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
}
FREE_WEIGHTS = 64_000_000  # allowed beside: tables that are computed, heads that start untrained


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
    config = _config(source)
    _check_proportion(builder, config, source)
    what = f"{source}: transformers cannot build it"
    with quiet_transformers(), _foreign(what), WithoutValues():
        module = builder.from_pretrained(folder, config=config, **options).eval()
    _check_runs(module, source)
    _state_vocabulary(module)
    return module


def _config(source: Path) -> Any:  # noqa: ANN401 - a config of transformers
    """Return the config of a folder or GGUF file, without what would have code run."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    folder = source
    if source.is_dir():
        check_folder(source)
        if (source / "adapter_config.json").exists():
            raise CheckpointError(
                f"{source}: there is an adapter beside the weights (adapter_config.json), which "
                "is not part of what is read here. Merge it into the weights (merge_and_unload of "
                "peft), or move it to a folder of its own."
            )
    else:
        folder, options["gguf_file"] = source.parent, source.name
    with quiet_transformers(), _foreign(f"{source}: transformers cannot read its config"):
        config = _transformers().AutoConfig.from_pretrained(folder, **options)
        for name in NAMES_CODE:
            if hasattr(config, name):
                delattr(config, name)
        config._attn_implementation = None  # a file could name a kernel to be fetched
    return config


class WithoutValues(TorchFunctionMode):
    """Leaves tensors that have no values unfilled: torch would load its compiler to fill them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - as torch has it
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Return a tensor on the device "meta" as it is; do all else."""
        named = kwargs or {}
        if func in FILLS:
            tensor = args[0] if args else named["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **named)


def _check_proportion(builder: Any, config: Any, source: Path) -> None:  # noqa: ANN401
    """Refuse a config whose model is much larger than the weights that are stored."""
    with quiet_transformers(), _foreign(f"{source}: transformers cannot build it"):
        with torch.device("meta"), WithoutValues():  # nothing is allocated
            outline = _made(builder, config)
        tensors = [*outline.parameters(), *outline.buffers()]
        size = sum(tensor.numel() for tensor in tensors)
    files = source.iterdir() if source.is_dir() else [source]
    stored = sum(file.stat().st_size for file in files if file.suffix in WEIGHT_SUFFIXES)
    if size > WEIGHTS_A_BYTE * stored + FREE_WEIGHTS:
        raise CheckpointError(
            f"{source}: by its config the model has {size} numbers, and its files have {stored} "
            "bytes. The config and the weights are not of the same model: fetch them again."
        )


def _check_runs(module: Any, source: Path) -> None:  # noqa: ANN401 - a model of transformers
    """Refuse a module that cannot take two tokens, or returns no finite numbers for them."""
    if module.main_input_name != "input_ids":
        return
    ids = torch.zeros((1, 2), dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if module.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    with torch.no_grad(), _foreign(f"{source}: transformers cannot run it"):
        output = module(**inputs)
        value = next(value for value in output.values() if isinstance(value, torch.Tensor))
        is_finite = bool(torch.isfinite(value).all())
    if not is_finite:
        raise CheckpointError(
            f"{source}: the model returns NaN or infinity for its first tokens. Its weights are "
            "damaged or training diverged; nothing measured on it would mean much."
        )


def _state_vocabulary(module: Any) -> None:  # noqa: ANN401 - a model of transformers
    """Have the config say how many ids the table has: a GGUF file without a tokenizer does not."""
    if module.main_input_name != "input_ids":
        return
    table, config = module.get_input_embeddings(), module.config.get_text_config()
    if isinstance(table, torch.nn.Embedding) and len(table.weight) < config.vocab_size:
        config.vocab_size = len(table.weight)


@contextmanager
def _foreign(what: str) -> Iterator[None]:
    """Turn whatever another library raises about a file into our error, which begins with `what`.

    Inside are calls of transformers alone. A damaged file makes it, and the tokenizers below it,
    raise errors of every type, bare `Exception` included, so that no narrower list would do.
    """
    try:
        yield
    except OrbitlensError:
        raise
    except Exception as error:
        raise CheckpointError(f"{what} ({first_line(error)}).") from error


def model_class(folder: Path, task: Task) -> Any:  # noqa: ANN401 - a class of transformers
    """Return the class of transformers that builds the model in a folder."""
    transformers = _transformers()
    config = read_config(folder)
    home = transformers
    family = FAMILIES.get(str(config.get("model_type")))
    if family is not None and family.is_own:
        import orbitlens.orbit.auto as home  # makes the architecture known to transformers
    if task == "causal-lm":
        return transformers.AutoModelForCausalLM
    if task == "declared":
        names = config.get("architectures")
        for name in names if isinstance(names, list) else ():
            named = getattr(home, str(name), None)
            if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
                return named
    return transformers.AutoModel


def fresh_module(path: str | Path, *, seed: int, task: Task = "declared") -> Any:  # noqa: ANN401
    """Return an untrained model of a folder's config, its weights drawn anew by transformers."""
    folder = Path(path)
    builder, config = model_class(folder, task), _config(folder)
    _check_proportion(builder, config, folder)
    return drawn_anew(builder, config, seed=seed)


def drawn_anew(builder: Any, config: Any, *, seed: int) -> Any:  # noqa: ANN401
    """Return a model of a class and a config, its weights drawn by transformers from a seed."""
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        module = _made(builder, config)
    return module.float().eval()


def _made(builder: Any, config: Any) -> Any:  # noqa: ANN401
    return builder.from_config(config) if hasattr(builder, "from_config") else builder(config)


def load_tokenizer(path: str | Path) -> Any | None:  # noqa: ANN401 - a tokenizer of transformers
    """Return the tokenizer of a folder or a GGUF file, or None where a folder has no tokenizer."""
    source = Path(path)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    folder = source
    if not source.is_dir():
        folder, options["gguf_file"] = source.parent, source.name
    # vocab.txt alone does not say which rules split text into its entries.
    elif not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    else:
        check_folder(folder)
    what = f"{source}: the tokenizer cannot be read, so give token ids instead of text"
    with quiet_transformers(), _foreign(what):
        return _transformers().AutoTokenizer.from_pretrained(folder, **options)


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
