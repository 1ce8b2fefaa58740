"""Weights and initial tokens -> Trajectory: the flow of tokens, integrated."""
