"""Files -> Checkpoint: which weights a model has, and where. No maths, no model is built."""
