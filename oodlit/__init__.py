"""oodlit: evaluate what a trained image classifier should refuse.

Names are imported on first use, so `import oodlit` costs next to nothing.
"""

from typing import TYPE_CHECKING

from oodlit._version import __version__ as __version__
from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.base.outputs import Head as Head
    from oodlit.base.outputs import Outputs as Outputs
    from oodlit.base.roles import Role as Role
    from oodlit.gate.gate import Gate as Gate
    from oodlit.module import OODModule as OODModule
    from oodlit.recorded import evaluate_arrays as evaluate_arrays
    from oodlit.results import Results as Results

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
