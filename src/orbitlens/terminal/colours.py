"""The two colours of signed numbers in a terminal, told apart by every kind of colour vision.

Whether above zero means aligned maps, spreading tokens or divergence is for the view to say.
"""

ABOVE = "orange3"
BELOW = "dodger_blue1"
NEITHER = "dim"


def sign_style(value: float) -> str:
    """Return the colour of a number by its sign.

    >>> sign_style(-0.1)
    'dodger_blue1'
    """
    return ABOVE if value > 0 else BELOW
