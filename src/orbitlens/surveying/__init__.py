"""`atlas`: many checkpoints scanned, and traced where they fit, into one comparable table."""
