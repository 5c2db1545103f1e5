"""From a user's ImageNet-21k to the listing of a pool: which classes, which images of them, and for which part."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from oodlit.datamodules.sets.imagenet21k.classes import RELEASES, class_name, fall11_wnids, is_wnid, left_out
from oodlit.datamodules.severity.split import Part, draw, read_split
from oodlit.datamodules.shards.class_files import Images, Place, class_files
from oodlit.datamodules.shards.writer import Entry
from oodlit.errors import DataError, InvalidArgumentError

ESTIMATION, TEST = 150, 50
_NEEDED = " are needed"
_ImagesOfClass: TypeAlias = dict[str, tuple[Part, Place]]
"""By name of the image."""


@dataclass(frozen=True)
class PoolListing:
    """Images of a pool in the order of their classes, each with its part as the first folder of its path.

    Args:
        images: By wnid, the name of each image with its part and where it lies.
        class_names: By the position of the wnid.
        reasons: Why a class is not in the pool, by wnid.
        facts: For the manifest.
    """

    images: Mapping[str, _ImagesOfClass]
    class_names: tuple[str, ...]
    reasons: Mapping[str, str]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def shortfall(self) -> str:
        """What is not in the pool, in one line."""
        if (absent := self.facts.get("images_missing")) is not None:
            return f"the split names the classes, {absent} of its images are not there"
        missing = self.facts["classes_missing"]
        return f"{len(self.reasons)} classes are left out, {missing} of them not in the source"

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
    """The pool in a folder or tar of ImageNet-21k.

    Of every class that is not left out (`left_out`) and has enough images, `estimation` and `test` images are drawn by
    the hash of `<wnid>/<file>`: the same images wherever and in whatever layout they lie.

    Args:
        source: See `class_files`.
        complete: Whether a class of the release that is not there is an error. False takes what is there; the missing
            ones are named beside the shards. Of winter21 no list is at hand, so nothing is compared.
        exclude: Further lists of classes to leave out, see `read_exclusions`.
        split: A published split in place of the drawing and of the choice of classes: a list of files and parts, see
            `read_split`; a file is known by its class and name. Classes that `left_out` names are kept and counted.
        release: "fall11" (default) or "winter21", for the record.
        estimation: Images per class that estimate its severity, default 150.
        test: Test images per class, default 50.

    Raises:
        DataError: The source or a list cannot be read, classes or listed files are missing, or no class is left.
        InvalidArgumentError: The release is unknown, a number is below 1, or a split comes with `exclude` or numbers.
    """
    if release not in RELEASES:
        raise InvalidArgumentError(f"release={release!r}; one of {', '.join(map(repr, RELEASES))} is needed")
    if split is not None and exclude:
        raise InvalidArgumentError("a split names the classes itself; take classes out of it, or leave the lists away")
    if split is not None and (estimation, test) != (ESTIMATION, TEST):
        raise InvalidArgumentError(
            f"a split names the images itself; leave estimation={estimation} and test={test} away, or the split"
        )
    there = class_files(source, is_wnid)
    reasons = left_out(exclude)
    missing: list[str] = []
    chosen: dict[str, Any]
    if split is not None:
        listed = _by_class(read_split(split), split)
        images = {wnid: _listed(wnid, parts, there, complete) for wnid, parts in sorted(listed.items())}
        absent = sum(map(len, listed.values())) - sum(map(len, images.values()))
        kept = len(reasons.keys() & images.keys())
        chosen = {"split": Path(split).name, "images_missing": absent, "kept_though_left_out_by_rule": kept}
        reasons = {wnid: reason for wnid, reason in reasons.items() if wnid not in images}
    else:
        images = _drawn(there, reasons, estimation, test)
        missing = [wnid for wnid in fall11_wnids() if wnid not in reasons and wnid not in there]
        chosen = {"estimation": estimation, "test": test}
    if missing and complete and release == "fall11":
        raise DataError(
            f"imagenet21k: {len(missing)} of {len(missing) + len(images)} classes of {release} are not there, first"
            f" {missing[0]}; fetch their images, or take what is there with complete=False, --incomplete on the command"
            " line (the missing ones are then named beside the shards)"
        )
    reasons |= dict.fromkeys(missing, "not in the source")
    images = {wnid: found for wnid, found in images.items() if found}
    if not images:
        few = sum(reason.endswith(_NEEDED) for reason in reasons.values())
        raise DataError(
            f"{source}: no class is left; {len(there)} are there, {few} of them with fewer images than are asked for"
            f" ({estimation} for estimation and {test} for the test), the others left out by a rule or a list"
        )
    chosen |= {"release": release, "classes": len(images), "classes_missing": len(missing), "parts": "folders"}
    return PoolListing(images, tuple(map(class_name, images)), dict(sorted(reasons.items())), chosen)


def _drawn(
    there: Mapping[str, Callable[[], Images]], reasons: dict[str, str], estimation: int, test: int
) -> dict[str, _ImagesOfClass]:
    """Draw the images of all classes without a reason to leave them out; too few images are such a reason."""
    images: dict[str, _ImagesOfClass] = {}
    for wnid in there.keys() - reasons.keys():
        found = there[wnid]()
        if len(found) < estimation + test:
            reasons[wnid] = f"{len(found)} images, {estimation + test}{_NEEDED}"
            continue
        drawn = draw([f"{wnid}/{name}" for name in found], estimation=estimation, test=test)
        images[wnid] = {name: (part, found[name]) for key, part in drawn.items() for name in [key.partition("/")[2]]}
    return dict(sorted(images.items()))


def _by_class(parts: Mapping[str, Part], split: str | Path) -> dict[str, dict[str, Part]]:
    """The parts by wnid and name: the last folder that is a wnid, else the wnid before the first "_" of the name."""
    found: dict[str, dict[str, Part]] = {}
    for path, part in parts.items():
        pure = PurePosixPath(path)
        wnid = next((n for n in reversed(pure.parent.parts) if is_wnid(n)), pure.name.partition("_")[0])
        if not is_wnid(wnid):
            raise DataError(f"{split}: {path!r} names no class; <wnid>/<file> or <wnid>_<number>.JPEG is needed")
        if pure.name in found.setdefault(wnid, {}):
            raise DataError(f"{split}: {wnid}/{pure.name} is listed twice")
        found[wnid][pure.name] = part
    return found


def _listed(
    wnid: str, parts: Mapping[str, Part], there: Mapping[str, Callable[[], Images]], complete: bool
) -> _ImagesOfClass:
    """The listed images of one class."""
    found = there[wnid]() if wnid in there else {}
    if (missing := sorted(parts.keys() - found.keys())) and complete:
        raise DataError(
            f"imagenet21k: {len(missing)} of {len(parts)} listed images of {wnid} are not there, first"
            f" {missing[0]!r}; is this the release that the split was made on? Take what is there with"
            " complete=False, --incomplete on the command line"
        )
    return {name: (parts[name], found[name]) for name in sorted(parts.keys() & found.keys())}
