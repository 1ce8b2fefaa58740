"""Tiny models of transformers made as a user would, and a GGUF file it can build."""

import gguf
import numpy as np
import torch
import transformers


def tiny_llama(n_layers=2):
    """Return a model in float32, made as a user would make it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=n_layers,
        vocab_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config)


def tiny_filler():
    """Return an encoder that fills masks."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=16,
        vocab_size=40,
        max_position_embeddings=32,
        initializer_range=0.5,
        mask_token_id=39,  # there is no tokenizer that could name it
    )
    return transformers.BertForMaskedLM(config)


def write_small_gguf(path):
    """Write the file, without a tokenizer, and return its path."""
    model = tiny_llama()
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(4)
    for name, value in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(stored, np.ascontiguousarray(value.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
