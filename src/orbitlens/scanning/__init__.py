"""`scan`: what the weights of every head say."""
