"""The verb `positions`: what weights say of a model's position encoding, tested by running it."""
