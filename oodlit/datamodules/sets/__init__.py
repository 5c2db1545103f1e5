"""The known data sets. The export list is the registry: a set is one description in a file and one line here."""

from typing import TYPE_CHECKING

from oodlit.base import lazy
from oodlit.datamodules.sets.description import DatasetDescription
from oodlit.errors import UnknownNameError

if TYPE_CHECKING:
    from oodlit.datamodules.sets.imagenet import IMAGENET_TRAIN as IMAGENET_TRAIN
    from oodlit.datamodules.sets.imagenet import IMAGENET_VAL as IMAGENET_VAL
    from oodlit.datamodules.sets.imagenet21k.description import IMAGENET21K as IMAGENET21K
    from oodlit.datamodules.sets.imagenet_shift import IMAGENET_A as IMAGENET_A
    from oodlit.datamodules.sets.imagenet_shift import IMAGENET_C as IMAGENET_C
    from oodlit.datamodules.sets.imagenet_shift import IMAGENET_R as IMAGENET_R
    from oodlit.datamodules.sets.imagenet_shift import IMAGENET_SKETCH as IMAGENET_SKETCH
    from oodlit.datamodules.sets.imagenet_shift import IMAGENET_V2 as IMAGENET_V2
    from oodlit.datamodules.sets.ninco import NINCO as NINCO
    from oodlit.datamodules.sets.ninco import NINCO_POPULAR as NINCO_POPULAR
    from oodlit.datamodules.sets.ninco import NINCO_UNIT_TESTS as NINCO_UNIT_TESTS
    from oodlit.datamodules.sets.ninco import UNIT_TEST_SET as UNIT_TEST_SET
    from oodlit.datamodules.sets.ood import IMAGENET_O as IMAGENET_O
    from oodlit.datamodules.sets.ood import INATURALIST as INATURALIST
    from oodlit.datamodules.sets.ood import OPENIMAGE_O as OPENIMAGE_O
    from oodlit.datamodules.sets.ood import PLACES as PLACES
    from oodlit.datamodules.sets.ood import SPECIES as SPECIES
    from oodlit.datamodules.sets.ood import SSB_EASY as SSB_EASY
    from oodlit.datamodules.sets.ood import SSB_HARD as SSB_HARD
    from oodlit.datamodules.sets.ood import SUN as SUN
    from oodlit.datamodules.sets.ood import TEXTURES as TEXTURES

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)


def descriptions() -> dict[str, DatasetDescription]:
    """All known data sets by name, sorted.

    Example:
        >>> descriptions()["ninco"].expected_count
        5879
    """
    found = [value for name in __all__ if isinstance(value := __getattr__(name), DatasetDescription)]
    return {description.name: description for description in sorted(found, key=lambda d: d.name)}


def describe(name: str) -> DatasetDescription:
    """The data set of this name.

    Raises:
        UnknownNameError: There is none; the nearest names are given.
    """
    known = descriptions()
    if name not in known:
        raise UnknownNameError.of("data set", name, known)
    return known[name]
