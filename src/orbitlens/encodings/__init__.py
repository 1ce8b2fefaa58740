"""The verb `positions`: what the weights say of a model's position encoding, tested by running it."""
