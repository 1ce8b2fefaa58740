"""Figures as data, drawn as HTML and PNG."""
