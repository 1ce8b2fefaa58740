"""`trace`: what the layers of a running model do to tokens, beside what was predicted."""
