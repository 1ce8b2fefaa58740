"""A tokenizer of single characters, so that every command can run a model trained on a text.

Enters: a `TextTask`. Leaves: a tokenizer of transformers with the task's ids.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from orbitlens.lab.tasks.language import TextTask


def character_tokenizer(task: TextTask) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single characters; those the task does not know are dropped."""
    vocabulary = {character: number for number, character in enumerate(task.characters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern="\n", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=task.context,
        clean_up_tokenization_spaces=False,
    )
