"""List a pool from ImageNet-21k: its classes, their images, and the part of each image."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from oodlit.base.checks import check_choice
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.datamodules.sets.imagenet21k.classes import RELEASES, class_name, fall11_wnids, is_wnid, left_out, wnid_of
from oodlit.datamodules.severity.split import Part, draw, read_split
from oodlit.datamodules.shards.class_files import Classes, Place, class_files
from oodlit.datamodules.shards.writer import Entry

ESTIMATION, TEST = 150, 50
_ImagesOfClass: TypeAlias = dict[str, tuple[Part, Place]]
"""Part and place of every image of a class, by the name of the image."""


@dataclass(frozen=True)
class PoolListing:
    """Images of a pool, ordered by class, with their part as the first folder of their path.

    Args:
        images: Part and place of every image, by wnid and name.
        class_names: Class names in the order of the wnids.
        reasons: Reasons of excluded classes, by wnid.
        facts: Facts for the manifest.
    """

    images: Mapping[str, _ImagesOfClass]
    class_names: tuple[str, ...]
    reasons: Mapping[str, str]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def shortfall(self) -> str:
        """One line about what is missing from the pool."""
        if (absent := self.facts.get("images_missing")) is not None:
            return f"{absent} images of the split are missing" if absent else "all images of the split were found"
        return f"{len(self.reasons)} classes are excluded (missing from the source: {self.facts['classes_missing']})"

    def __len__(self) -> int:
        """Number of images."""
        return sum(map(len, self.images.values()))

    def __iter__(self) -> Iterator[Entry]:
        """The entries; groups are the positions of the classes."""
        for group, (wnid, images) in enumerate(self.images.items()):
            for name, (part, place) in images.items():
                yield Entry(f"{part}/{wnid}/{name}", place.read, group=group)


def list_imagenet21k(
    source: str | Path,
    *,
    complete: bool = True,
    exclude: Collection[str | Path] = (),
    split: str | Path | None = None,
    release: str = "fall11",
    estimation: int = ESTIMATION,
    test: int = TEST,
) -> PoolListing:
    """List the pool in a folder or tar of ImageNet-21k.

    For every class that is not excluded (`left_out`) and has enough images, `estimation` and `test` images are drawn by
    the hash of `<wnid>/<file>`, independent of location and layout.

    Args:
        source: See `class_files`.
        complete: If True (default), all classes of the release must exist. If False, missing ones are listed next to
            the shards. Nothing is compared for winter21, whose list of classes is not available.
        exclude: Additional lists of classes to exclude, see `read_exclusions`.
        split: A published split that replaces drawing and choice of classes: a list of files and parts, see
            `read_split`. Files are identified by class and name. Classes in `left_out` are kept and counted.
        release: "fall11" (default) or "winter21", recorded in the manifest.
        estimation: Images per class that estimate its severity, default 150.
        test: Test images per class, default 50.

    Raises:
        DataError: The source or a list cannot be read, classes or listed files are missing, or no class remains.
        InvalidArgumentError: The release is unknown, a number is below 1, or `split` is combined with `exclude` or
            numbers.
    """
    check_choice("imagenet21k", "release", release, RELEASES)
    if split is not None and exclude:
        raise InvalidArgumentError("split and exclude cannot be combined; remove classes from the split instead")
    if split is not None and (estimation, test) != (ESTIMATION, TEST):
        raise InvalidArgumentError(
            f"split cannot be combined with estimation={estimation} and test={test}; pass either split or these numbers"
        )
    available = class_files(source, is_wnid)
    known = {*fall11_wnids(), *available}  # one ID class is missing from fall11
    reasons = {wnid: reason for wnid, reason in left_out(exclude).items() if wnid in known}
    missing, usable = list[str](), len(available.keys() - reasons.keys())
    chosen: dict[str, Any] = {"estimation": estimation, "test": test}
    if split is not None:
        listed = _by_class(read_split(split), split)
        images = {wnid: _listed(wnid, parts, available, complete) for wnid, parts in sorted(listed.items())}
        absent = sum(map(len, listed.values())) - sum(map(len, images.values()))
        kept = len(reasons.keys() & images.keys())
        chosen = {"split": Path(split).name, "images_missing": absent, "kept_though_left_out_by_rule": kept}
        reasons = {wnid: reason for wnid, reason in reasons.items() if wnid not in images}
    else:
        images = _drawn(available, reasons, estimation, test)
        missing = [wnid for wnid in fall11_wnids() if wnid not in reasons and wnid not in available]
    if missing and complete and release == "fall11":
        raise DataError(
            f"imagenet21k: could not find {len(missing)} classes of release {release} (first: {missing[0]}); download"
            " their images, or pass complete=False to build the pool without them (left_out.txt next to the shards"
            " will list them)"
        )
    reasons |= dict.fromkeys(missing, "not in the source")
    images = {wnid: found for wnid, found in images.items() if found}
    if not images:
        if split is not None:
            text = f"could not find any of the images that {split} lists"
            raise DataError(f"{source}: {text}; use the release that the split was made from")
        raise DataError(
            f"{source}: no class can be used. Found {len(available)} classes: {usable} with fewer than"
            f" {estimation + test} images, {len(available) - usable} excluded by a rule or a list"
        )
    chosen |= {"release": release, "classes": len(images), "classes_missing": len(missing), "parts": "folders"}
    return PoolListing(images, tuple(map(class_name, images)), dict(sorted(reasons.items())), chosen)


def _drawn(available: Classes, reasons: dict[str, str], estimation: int, test: int) -> dict[str, _ImagesOfClass]:
    """Draw the images of all classes without an exclusion reason; classes with too few images get one."""
    images: dict[str, _ImagesOfClass] = {}
    for wnid in available.keys() - reasons.keys():
        found = available[wnid]()
        if len(found) < estimation + test:
            reasons[wnid] = f"{len(found)} images, {estimation + test} required"
            continue
        drawn = draw([f"{wnid}/{name}" for name in found], estimation=estimation, test=test)
        images[wnid] = {name: (part, found[name]) for key, part in drawn.items() for name in [key.partition("/")[2]]}
    return dict(sorted(images.items()))


def _by_class(parts: Mapping[str, Part], split: str | Path) -> dict[str, dict[str, Part]]:
    """Return parts by wnid and name."""
    found: dict[str, dict[str, Part]] = {}
    for path, part in parts.items():
        pure = PurePosixPath(path)
        if not is_wnid(wnid := wnid_of(path)):
            raise DataError(f"{split}: expected a path <wnid>/<file> or <wnid>_<number>.JPEG, got {path!r}")
        if pure.name in found.setdefault(wnid, {}):
            raise DataError(f"{split}: {wnid}/{pure.name} is listed twice")
        found[wnid][pure.name] = part
    return found


def _listed(wnid: str, parts: Mapping[str, Part], available: Classes, complete: bool) -> _ImagesOfClass:
    """The listed images of one class."""
    found = available[wnid]() if wnid in available else {}
    if (missing := sorted(parts.keys() - found.keys())) and complete:
        raise DataError(
            f"imagenet21k: could not find {len(missing)} of {len(parts)} images of {wnid} that the split lists (first:"
            f" {missing[0]!r}); use the release that the split was made from, or pass complete=False"
            " to build the pool without them"
        )
    return {name: (parts[name], found[name]) for name in sorted(parts.keys() & found.keys())}
