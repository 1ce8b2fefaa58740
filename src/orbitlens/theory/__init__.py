"""Head -> prediction: rates, certificates and the effect of positions, as pure functions."""
