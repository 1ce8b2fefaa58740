"""Residual connections taken out of a trained model, by hooks, for the time of some calls.

Enters: a model. Leaves: a context in which chosen branches lose the stream they are added to: the
branch hands over b - x in place of b, so that x + (b - x) = b.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One branch of a layer: the module whose output is added, and where its residual is seen."""

    output: str  # path in the layer of the module that computes the branch
    source: str  # path of the module that meets the residual; "" is the layer itself
    argument: int | None = 0  # which input of it; None: its output


@dataclass(frozen=True, kw_only=True)
class Branches:
    """The residual branches of a layer; a parallel layer has one sum for both."""

    attention: Branch
    mlp: Branch | None  # None: attention and MLP share one residual sum


def _pre_norm(attention: str, mlp: str, norm: str) -> Branches:
    """Return x + attention(norm(x)), then y + mlp(norm(y)): y is what the second norm meets."""
    return Branches(
        attention=Branch(output=attention, source=""), mlp=Branch(output=mlp, source=norm)
    )


LLAMA = _pre_norm("self_attn", "mlp", "post_attention_layernorm")
GPT2 = _pre_norm("attn", "mlp", "ln_2")
BERT = Branches(
    attention=Branch(output="attention.output.dense", source="attention.output", argument=1),
    mlp=Branch(output="output.dense", source="output", argument=1),
)
NORMED = Branches(  # norms on what the branches hand over: Gemma 2 and 3
    attention=Branch(output="post_attention_layernorm", source=""),
    mlp=Branch(output="post_feedforward_layernorm", source="pre_feedforward_layernorm"),
)
BRANCHES: dict[str, Branches] = {
    "GPT2Block": GPT2,
    "GPTNeoBlock": GPT2,
    "GPTJBlock": replace(GPT2, mlp=None),
    "LlamaDecoderLayer": LLAMA,
    "MistralDecoderLayer": LLAMA,
    "Qwen2DecoderLayer": LLAMA,
    "Qwen3DecoderLayer": LLAMA,
    "OlmoDecoderLayer": LLAMA,
    "Phi3DecoderLayer": LLAMA,
    "GemmaDecoderLayer": LLAMA,
    "Gemma2DecoderLayer": NORMED,
    "Gemma3DecoderLayer": NORMED,
    "PhiDecoderLayer": replace(LLAMA, mlp=None),
    "BertLayer": BERT,
    "RobertaLayer": BERT,
    "XLMRobertaLayer": BERT,
    "ElectraLayer": BERT,
    "AlbertLayer": Branches(
        attention=Branch(output="attention.dense", source="attention"),
        mlp=Branch(output="ffn_output", source="attention", argument=None),
    ),
    "OrbitBlock": Branches(  # the lab's own: empty slots where a norm is switched off
        attention=Branch(output="attn_out_norm", source=""),
        mlp=Branch(output="mlp_out_norm", source="mlp_norm"),
    ),
    "ViTLayer": _pre_norm("attention", "mlp", "layernorm_after"),
    "DeiTLayer": _pre_norm("attention", "mlp", "layernorm_after"),
}


def residual_layers(model: nn.Module) -> list[tuple[nn.Module, Branches]]:
    """Return the layers whose residual connections can be taken out; none for unknown kinds."""
    layers = []
    for module in model.modules():
        branches = BRANCHES.get(type(module).__name__)
        if branches is not None and getattr(module, "keeps_all", True):
            layers.append((module, branches))
    return layers


def has_parallel_layers(model: nn.Module) -> bool:
    """Say whether attention and MLP share one residual sum, so that they cannot be taken apart."""
    return any(branches.mlp is None for _, branches in residual_layers(model))


@contextmanager
def without_residuals(
    model: nn.Module, *, attention: bool, mlp: bool, layers: set[int] | None = None
) -> Iterator[None]:
    """Take out residual connections around attention, MLP or both, in some layers or in all.

    Args:
        model: a transformers model of a known kind of layer.
        attention: the sums behind attention.
        mlp: the sums behind MLPs.
        layers: numbers of layers; all if None. Layers that share weights count once.
    """
    handles: list[Any] = []
    try:
        for number, (layer, branches) in enumerate(residual_layers(model)):
            if layers is not None and number not in layers:
                continue
            chosen = [branches.attention] if attention else []
            chosen += [branches.mlp] if mlp and branches.mlp is not None else []
            for branch in chosen:
                handles += _cut(layer, branch)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cut(layer: nn.Module, branch: Branch) -> list[Any]:
    stream: list[Tensor] = []

    def note_input(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        index = branch.argument or 0
        names = ("hidden_states", "input_tensor")
        stream[:] = [args[index] if len(args) > index else named[names[index]]]

    def note_output(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ANN401
        stream[:] = [output[0] if isinstance(output, tuple) else output]

    def subtract(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ANN401
        if isinstance(output, tuple):
            return (output[0] - stream[0], *output[1:])
        return output - stream[0]

    source = layer.get_submodule(branch.source)
    if branch.argument is None:
        noted = source.register_forward_hook(note_output)
    else:
        noted = source.register_forward_pre_hook(note_input, with_kwargs=True)
    return [noted, layer.get_submodule(branch.output).register_forward_hook(subtract)]
