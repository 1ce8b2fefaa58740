"""A griffe extension: doctests in docstrings are shown as code, not as quotations."""

import re

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts the doctests of every docstring into code blocks."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Fence what starts with >>> and goes on to the next blank line."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
