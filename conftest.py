"""What is checked while tests of the library, of its doctests and of papers run."""

from shape_checks import install

install()
