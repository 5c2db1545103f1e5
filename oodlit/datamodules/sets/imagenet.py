"""ImageNet-1k: training and validation images, from class folders or from the official flat validation archive."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import scipy.io

from oodlit.base.errors import DataError
from oodlit.base.known_classes.imagenet import labels_from_ground_truth, wnid_labels
from oodlit.datamodules.sets.description import DatasetDescription, Membership, Placement, published
from oodlit.datamodules.shards.listing import read_text

_N_VAL = 50_000
_VAL_NAME = re.compile(r"ILSVRC2012_val_\d{8}")


def by_wnid(path: PurePosixPath) -> Membership | None:
    """Label of a file in a folder named after its wnid; None for other files.

    Example:
        >>> by_wnid(PurePosixPath("val/n01443537/ILSVRC2012_val_00000236.JPEG"))
        Membership(label=1, group='', path='')
    """
    label = wnid_labels().get(path.parent.name)
    return None if label is None else Membership(label=label)


def split(name: str) -> Placement:
    """`by_wnid` for files of one split, or for all files if there are no folders of splits."""
    others = {"train", "val", "test"} - {name}
    return lambda path: None if others.intersection(path.parts) else by_wnid(path)


IMAGENET_TRAIN = published("imagenet_train", split("train"))
IMAGENET_VAL = published("imagenet_val", split("val"))


def flat_val(labels: Mapping[str, int]) -> DatasetDescription:
    """`IMAGENET_VAL` for the official archive, which has all 50,000 files in one folder.

    A validation image without a label is a `DataError`.

    Args:
        labels: Class index by file name without extension, as `read_val_labels` returns it.

    Example:
        >>> flat_val({"ILSVRC2012_val_00000001": 65}).place(PurePosixPath("ILSVRC2012_val_00000001.JPEG"))
        Membership(label=65, group='', path='')
    """

    def place(path: PurePosixPath) -> Membership | None:
        label = labels.get(path.stem)
        if label is None and _VAL_NAME.fullmatch(path.stem):
            raise DataError(f"imagenet_val: {path.as_posix()!r} is not in the list of labels; pass a complete list")
        return None if label is None else Membership(label=label)

    return replace(IMAGENET_VAL, layout="ILSVRC2012_val_<number>.JPEG", place=place)


def read_val_labels(source: str | Path, *, count: int | None = _N_VAL) -> dict[str, int]:
    """Read the class index by file name (without extension) of the flat validation images.

    Supported sources are the folder of the development kit (with `data/meta.mat` and
    `ILSVRC2012_validation_ground_truth.txt`) and common lists: one wnid per line in the order of the images,
    `<file> <class index>` per line, or a CSV with the columns `ImageId` and `PredictionString`.

    Args:
        source: The folder or file.
        count: Expected number of images; None = any.

    Raises:
        DataError: The format is unknown, or a number of lines or a class is wrong.
    """
    source = Path(source)
    labels = _from_devkit(source) if source.is_dir() else _from_list(source)
    if not labels or count not in (None, len(labels)):
        raise DataError(f"{source}: expected labels of {count or 'all'} images, got {len(labels)}")
    if wrong := set(labels.values()).difference(range(len(wnid_labels()))):
        raise DataError(f"{source}: expected class indices from 0 to {len(wnid_labels()) - 1}, got {max(wrong)}")
    return labels


def _from_devkit(folder: Path) -> dict[str, int]:
    meta = next(iter(sorted(folder.rglob("meta.mat"))), None)
    truth = next(iter(sorted(folder.rglob("ILSVRC2012_validation_ground_truth.txt"))), None)
    if meta is None or truth is None:
        raise DataError(
            f"{folder}: expected the ILSVRC2012 development kit, with meta.mat and"
            " ILSVRC2012_validation_ground_truth.txt"
        )
    synsets = scipy.io.loadmat(str(meta), squeeze_me=True)["synsets"]
    ids = {str(s["WNID"]): int(s["ILSVRC2012_ID"]) for s in synsets if int(s["num_children"]) == 0}
    if set(ids) != set(wnid_labels()):
        raise DataError(f"{meta}: its {len(ids)} leaf classes are not those of ImageNet-1k; use the original kit")
    numbers = [int(line) for line in truth.read_text().split()]
    return {_val_name(i): label for i, label in enumerate(labels_from_ground_truth(ids, numbers), start=1)}


def _from_list(path: Path) -> dict[str, int]:
    text = read_text(path)
    known = wnid_labels()
    try:
        if "PredictionString" in text[:200]:
            rows = csv.DictReader(io.StringIO(text))
            return {row["ImageId"]: known[row["PredictionString"].split()[0]] for row in rows}
        lines = [line.split() for line in text.splitlines() if line.strip()]
        if all(len(words) == 1 and words[0] in known for words in lines):
            return {_val_name(i): known[words[0]] for i, words in enumerate(lines, start=1)}
        return {PurePosixPath(name).stem: int(label) for name, label in lines}
    except (KeyError, ValueError, IndexError) as error:
        raise DataError(
            f"{path}: cannot read the labels ({type(error).__name__}: {error}); expected one wnid per line,"
            " '<file> <class index>' per line, or a CSV with the columns ImageId and PredictionString"
        ) from error


def _val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}"
