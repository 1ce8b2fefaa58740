"""Results -> typed data -> JSON -> one self-contained page."""
