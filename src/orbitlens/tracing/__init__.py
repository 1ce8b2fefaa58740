"""Metrics of trajectories, simulated or measured; each exists once."""
