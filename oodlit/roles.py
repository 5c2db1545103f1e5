"""Roles of data sets."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.base.roles import KNOWN_CLASSES as KNOWN_CLASSES
    from oodlit.base.roles import NAMES_OF_LABELS as NAMES_OF_LABELS
    from oodlit.base.roles import UNKNOWN_CLASSES as UNKNOWN_CLASSES
    from oodlit.base.roles import Role as Role

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
