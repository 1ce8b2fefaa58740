"""Studies: papers as executable claims, each with a verdict."""
