"""The 1,000 classes of ImageNet-1k as WordNet ids; their sorted order defines the labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from oodlit.base.errors import DataError, InvalidArgumentError

COMMON_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The 15 corruptions of ImageNet-C, in the order of the paper."""


@cache
def wnids() -> tuple[str, ...]:
    """The WordNet 3.0 ids in sorted order, which is the class order of the usual classifiers.

    Example:
        >>> len(wnids()), wnids()[0]
        (1000, 'n01440764')
    """
    ids = tuple(info_lines("imagenet_synsets.txt"))
    if len(set(ids)) != 1000 or list(ids) != sorted(ids):
        raise DataError("expected timm's list of ImageNet classes to be 1,000 sorted WordNet ids; reinstall timm")
    return ids


@cache
def wnid_labels() -> Mapping[str, int]:
    """Class index by WordNet id.

    Example:
        >>> wnid_labels()["n01443537"]
        1
    """
    return {wnid: label for label, wnid in enumerate(wnids())}


@cache
def class_names() -> tuple[str, ...]:
    """Readable unique names: the first lemma of the synset, with the wnid if two classes share it.

    Example:
        >>> class_names()[1], [name for name in class_names() if name.startswith("crane")]
        ('goldfish', ['crane (n02012849)', 'crane (n03126707)'])
    """
    names = [first_lemmas()[wnid] for wnid in wnids()]
    counts = Counter(names)
    return tuple(name if counts[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids(), strict=True))


@cache
def first_lemmas() -> Mapping[str, str]:
    """The first lemma of every synset of ImageNet-21k, by wnid.

    Example:
        >>> first_lemmas()["n02512053"]
        'fish'
    """
    lines = (line.split("\t", 1) for line in info_lines("imagenet_synset_to_lemma.txt"))
    return {wnid: lemmas.strip('"').split(",")[0].strip() for wnid, lemmas in lines}


@cache
def subset_labels(name: str) -> tuple[int, ...]:
    """The 200 class indices of ImageNet-R ("imagenet_r") or ImageNet-A ("imagenet_a"), ascending.

    Raises:
        InvalidArgumentError: The name is neither.

    Example:
        >>> len(subset_labels("imagenet_r")), subset_labels("imagenet_a")[:3]
        (200, (6, 11, 13))
    """
    if name not in ("imagenet_a", "imagenet_r"):
        raise InvalidArgumentError(f"subset_labels: expected 'imagenet_a' or 'imagenet_r', got {name!r}")
    return tuple(sorted(wnid_labels()[wnid] for wnid in info_lines(f"{name}_synsets.txt")))


def labels_from_ground_truth(ids: Mapping[str, int], truth: Sequence[int]) -> list[int]:
    """Convert the development kit's class ids to labels.

    These ids 1..1000 have their own order; the label is the position of the wnid among the sorted wnids.

    Args:
        ids: Id by wnid, all ids distinct.
        truth: Id per image.

    Returns:
        Label per image, from 0.

    Raises:
        DataError: Two wnids share an id, or an image has an id that no wnid has.

    Example:
        >>> labels_from_ground_truth({"n03": 1, "n01": 2, "n02": 3}, [2, 3, 1])
        [0, 1, 2]
    """
    label_of = {ids[wnid]: label for label, wnid in enumerate(sorted(ids))}
    if twice := [number for number, count in Counter(ids.values()).items() if count > 1]:
        raise DataError(f"development kit: expected a different class id for every wnid, got {twice[0]} twice")
    if unknown := sorted(set(truth) - label_of.keys()):
        raise DataError(f"ground truth: expected class ids from {min(label_of)} to {max(label_of)}, got {unknown[0]}")
    return [label_of[number] for number in truth]


def info_lines(name: str) -> list[str]:
    """Read the lines of one of timm's class lists (`timm/data/_info`).

    Raises:
        DataError: timm is not installed.
    """
    spec = find_spec("timm")  # importing timm would import torch
    if spec is None or spec.origin is None:
        raise DataError("the list of ImageNet classes requires timm, which is not installed: pip install timm")
    return (Path(spec.origin).parent / "data" / "_info" / name).read_text(encoding="utf-8").splitlines()
