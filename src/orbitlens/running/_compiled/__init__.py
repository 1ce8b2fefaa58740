"""Compiled code that more than flows use: numba's decorator, tiles in registers, products."""
