"""OOD sets for ImageNet-1k in folders: the MOS subsets, Textures, OpenImage-O, ImageNet-O, SSB, Species."""

from pathlib import PurePosixPath

from oodlit.datamodules.sets.description import Membership, published


def flat(path: PurePosixPath) -> Membership:
    """Every image is part of the set, without groups."""
    return Membership()


def by_folder(path: PurePosixPath) -> Membership | None:
    """The folder of a file is its OOD class; files without a folder are not part of the set."""
    return Membership(group=path.parent.name) if path.parent.name else None


INATURALIST = published("inaturalist", flat)
SUN = published("sun", flat)
PLACES = published("places", flat)
TEXTURES = published("textures", by_folder)
OPENIMAGE_O = published("openimage_o", flat)
IMAGENET_O = published("imagenet_o", by_folder)
IMAGENET_OOD = published("imagenet_ood", by_folder)
SSB_HARD = published("ssb_hard", by_folder)
SSB_EASY = published("ssb_easy", by_folder)
SPECIES = published("species", by_folder)
