"""The images of a run that the page shows."""

import hashlib
import heapq
from itertools import islice, zip_longest

import numpy as np
import pandas as pd

from oodlit.base.roles import Role
from oodlit.results.run_results import RunResults

IMAGES = 240
"""Maximum number of images of all data sets together: a third selected by a hash, the others with extreme scores."""
SETS = 4
"""Number of OOD sets with a sample."""


def sampled_images(results: RunResults, *, per_detector: int = 12) -> dict[str, list[str]]:
    """Keys of a bounded sample of the first OOD sets and of the ID set, by data set.

    Args:
        results: A run.
        per_detector: Maximum number of images with extreme scores per detector: accepted OOD images and rejected ID
            images. They are taken in turns, so that every detector has some.

    Returns:
        Keys by data set, those with extreme scores first.
    """
    infos = [*[info for info in results.datasets if info.role is Role.OOD][:SETS], results.id_dataset]
    limit = IMAGES // len(infos)
    return {info.name: _sample(results, info.name, per_detector, limit, info.role is Role.ID) for info in infos}


def _sample(results: RunResults, dataset: str, per_detector: int, limit: int, of_id: bool) -> list[str]:
    rows = results.images(dataset)
    keys, columns = rows["key"].to_numpy(), []
    for name in results.detectors:
        scores, threshold = rows[name].to_numpy(dtype=float), results.threshold(name)
        wrong = np.flatnonzero(scores < threshold if of_id else scores >= threshold)
        order = np.argsort(scores[wrong] if of_id else -scores[wrong], kind="stable")[:per_detector]
        columns.append(keys[wrong[order]].tolist())
    turns = (key for turn in zip_longest(*columns) for key in turn if key is not None)
    extreme = islice(dict.fromkeys(turns), limit - limit // 3)
    return list(dict.fromkeys([*extreme, *heapq.nsmallest(limit // 3, keys.tolist(), key=hash_of)]))


def accepted_by_most(results: RunResults, dataset: str, keys: list[str], limit: int) -> list[str]:
    """Those of some images that most detectors accept, and at least one does, in descending order of their number."""
    rows = results.images(dataset).set_index("key").loc[keys]
    accepted = pd.Series(0, index=rows.index)
    for name in results.detectors:
        accepted += rows[name].to_numpy(dtype=float) >= results.threshold(name)
    return accepted[accepted > 0].sort_values(ascending=False, kind="stable").index[:limit].tolist()


def hash_of(key: str) -> str:
    """A hash of the key of an image."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
