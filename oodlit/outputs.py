"""Outputs of a backbone for one batch, and facts about the backbone."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.base.outputs import NEEDS as NEEDS
    from oodlit.base.outputs import BackboneFacts as BackboneFacts
    from oodlit.base.outputs import Features as Features
    from oodlit.base.outputs import Head as Head
    from oodlit.base.outputs import Logits as Logits
    from oodlit.base.outputs import Model as Model
    from oodlit.base.outputs import Outputs as Outputs
    from oodlit.base.outputs import Scores as Scores
    from oodlit.base.outputs import unit as unit
    from oodlit.base.outputs import version_of as version_of

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
