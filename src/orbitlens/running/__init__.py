"""A model opened once: checkpoint, running module, tokenizer, inputs and hooks."""
