"""Divide images by a hash of their keys, which depends on nothing else."""

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool


def in_first_part(keys: Iterable[str], share: float = 0.5) -> Bool[np.ndarray, " n"]:
    """Return which images belong to the first of two parts; a smaller part is contained in a larger one.

    Args:
        keys: Keys of the images.
        share: Size of the first part as a fraction of all keys, in (0, 1], in steps of 1/256.

    Example:
        >>> in_first_part(["val/0", "val/1", "val/2", "val/3"]).tolist()
        [True, True, True, False]
    """
    digests = (hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=1).digest()[0] for key in keys)
    # The bits in reverse order: the last bit, which is the most significant one here, divides the keys into halves.
    return np.array([int(f"{digest:08b}"[::-1], 2) < 256 * share for digest in digests], dtype=bool)
