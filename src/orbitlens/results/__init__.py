"""What every result can do, and how results become files."""
