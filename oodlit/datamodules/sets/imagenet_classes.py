"""The 1000 classes of ImageNet-1k: the WordNet id is the key, its place in sorted order the label."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from oodlit.errors import DataError, InvalidArgumentError


@cache
def wnids() -> tuple[str, ...]:
    """The WordNet ids (3.0) in sorted order: position = class index of the usual classifiers.

    Example:
        >>> len(wnids()), wnids()[0]
        (1000, 'n01440764')
    """
    ids = tuple(info_lines("imagenet_synsets.txt"))
    if len(set(ids)) != 1000 or list(ids) != sorted(ids):
        raise DataError("the installed timm lists other ImageNet classes than the 1000 wnids in sorted order")
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
    """A readable and unique name per class: the first word of the synset, with the wnid where two classes share it.

    Example:
        >>> class_names()[1], [name for name in class_names() if name.startswith("crane")]
        ('goldfish', ['crane (n02012849)', 'crane (n03126707)'])
    """
    lemmas = dict(line.split("\t", 1) for line in info_lines("imagenet_synset_to_lemma.txt"))
    names = [lemmas[wnid].strip('"').split(",")[0].strip() for wnid in wnids()]
    counts = Counter(names)
    return tuple(name if counts[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids(), strict=True))


@cache
def subset_labels(name: str) -> tuple[int, ...]:
    """The 200 class indices of ImageNet-R ("imagenet_r") or ImageNet-A ("imagenet_a"), ascending.

    Raises:
        InvalidArgumentError: Another name.

    Example:
        >>> len(subset_labels("imagenet_r")), subset_labels("imagenet_a")[:3]
        (200, (6, 11, 13))
    """
    if name not in ("imagenet_a", "imagenet_r"):
        raise InvalidArgumentError(f"subset_labels: {name!r}; 'imagenet_a' or 'imagenet_r' is needed")
    return tuple(sorted(wnid_labels()[wnid] for wnid in info_lines(f"{name}_synsets.txt")))


def labels_from_ground_truth(ids: Mapping[str, int], truth: Sequence[int]) -> list[int]:
    """Labels from a ground-truth file whose class ids follow another order than the sorted wnids.

    The development kit numbers the classes 1..1000 by its own order; the label is the position of the wnid among all
    wnids in sorted order.

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
    if len(label_of) < len(ids):
        twice = [number for number, count in Counter(ids.values()).items() if count > 1]
        raise DataError(f"class id {twice[0]} stands for more than one wnid; every wnid needs its own")
    if unknown := sorted(set(truth) - label_of.keys()):
        raise DataError(
            f"ground truth: class id {unknown[0]} belongs to no wnid; ids are {min(label_of)}..{max(label_of)}"
        )
    return [label_of[number] for number in truth]


def info_lines(name: str) -> list[str]:
    """Lines of one of timm's lists of classes (`timm/data/_info`).

    Raises:
        DataError: timm is not installed.
    """
    spec = find_spec("timm")  # importing timm would import torch
    if spec is None or spec.origin is None:
        raise DataError("timm is not installed; the list of ImageNet classes comes from it")
    return (Path(spec.origin).parent / "data" / "_info" / name).read_text(encoding="utf-8").splitlines()
