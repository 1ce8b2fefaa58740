"""Checkpoint -> heads: transposes, fused and grouped weights settled once."""
