"""verify: tries to break every certificate that is printed as held, and keeps a ledger."""
