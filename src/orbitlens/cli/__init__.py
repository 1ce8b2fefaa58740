"""A file a command: parse, call one verb, show."""
