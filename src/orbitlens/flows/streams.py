"""Random streams: one seed, an independent generator for each thing that is drawn.

Enters: a seed and what is to be drawn. Leaves: a generator. Generators that start from the same
seed give the same numbers: weights and tokens drawn from two of them would be one matrix.
"""

import zlib

import numpy as np
import torch


def random_stream(seed: int, purpose: str) -> torch.Generator:
    """Return the generator of `purpose` under `seed`.

    >>> draws = {torch.rand(1, generator=random_stream(0, p)).item() for p in ("weights", "noise")}
    >>> len(draws)
    2
    """
    entropy = np.random.SeedSequence([seed % 2**64, zlib.crc32(purpose.encode())])
    return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0]) >> 1)
