"""Severity levels on scikit-learn's digits: some digits are known, the others form a pool of classes."""

from pathlib import Path

import numpy as np
from typing_extensions import Unpack

from oodlit.base.roles import Role
from oodlit.datamodules.benchmarks.digits import DigitsData, entry, facts, id_sets, load_pictures
from oodlit.datamodules.benchmarks.packed import SmallSet, packed_streams, root_or_temporary
from oodlit.datamodules.loading_options import LoadingOptions
from oodlit.datamodules.severity.pool_streams import severity_pool

ID_CLASSES = ("zero", "one", "two", "three", "four")
OTHERS = ("five", "six", "seven", "eight", "nine")
TURNS = ("", " turned left", " upside down", " turned right")
POOL_CLASSES = tuple(f"{digit}{turn}" for digit in OTHERS for turn in TURNS)
_RECIPE = 1  # increased when the images change, so that old folders are not reused


class DigitPoolBenchmark(DigitsData):
    """The digits 0-4 as known classes, the digits 5-9 in four orientations as a pool of 20 OOD classes.

    | stream       | role  | images                                                          |
    |--------------|-------|-----------------------------------------------------------------|
    | digits_train | TRAIN | 60 % of the digits 0-4                                          |
    | digits_val   | ID    | the other 40 %                                                  |
    | digits_pool  | POOL  | the digits 5-9, upright and turned, a quarter of each as test   |

    Args:
        root: Folder for the shards, reused by later runs. None (default) = a temporary folder that is removed with this
            object.
        seed: Seed of the split of the known digits.
        loading: See `OODDataModule`; the default transform is `digits_transform()`.

    Example:
        >>> data = DigitPoolBenchmark()
        >>> [(stream.name, str(stream.role), len(stream)) for stream in data.streams]
        [('digits_train', 'train', 541), ('digits_val', 'id', 360), ('digits_pool', 'pool', 3584)]
    """

    def __init__(self, root: str | Path | None = None, *, seed: int = 0, **loading: Unpack[LoadingOptions]) -> None:
        folder = root_or_temporary(root, self) / f"digit-pool-{_RECIPE}-seed{seed}"
        *known, pool = packed_streams(folder, [*id_sets(ID_CLASSES, seed), _pool(seed)])
        super().__init__([*known, severity_pool(pool)], seed, loading)


def _pool(seed: int) -> SmallSet:
    pictures, targets = load_pictures()
    entries = [
        entry(name, index, np.rot90(pictures[index], turn).copy(), -1, group)
        for group, name in enumerate(POOL_CLASSES)
        for turn in [group % len(TURNS)]
        for index in np.flatnonzero(targets == len(ID_CLASSES) + group // len(TURNS)).tolist()
    ]
    return SmallSet("digits_pool", Role.OOD, entries, POOL_CLASSES, facts(seed))
