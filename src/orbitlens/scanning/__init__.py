"""`scan`: what the weights of every head say, and with a text what it does to tokens."""
