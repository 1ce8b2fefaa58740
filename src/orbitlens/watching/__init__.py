"""`Watch`: readings of a model while it trains, alarms with reasons, and the record of a run."""
