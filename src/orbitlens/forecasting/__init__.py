"""`forecast`: what an untrained architecture does to tokens, without making its weights."""
