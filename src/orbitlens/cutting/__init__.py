"""`cut`: which heads, blocks and layers a model can do without, measured and predicted."""
