"""Results -> pictures and pages that work without a network."""
