"""Explanations of a prediction: a causal graph of attention, and a few tokens behind it."""
