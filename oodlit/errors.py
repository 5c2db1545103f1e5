"""Errors that oodlit raises on purpose."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.base.errors import DataError as DataError
    from oodlit.base.errors import FingerprintError as FingerprintError
    from oodlit.base.errors import InvalidArgumentError as InvalidArgumentError
    from oodlit.base.errors import LoggingError as LoggingError
    from oodlit.base.errors import MissingExtraError as MissingExtraError
    from oodlit.base.errors import NonFiniteScoreError as NonFiniteScoreError
    from oodlit.base.errors import NotFittedError as NotFittedError
    from oodlit.base.errors import OodlitError as OodlitError
    from oodlit.base.errors import PreprocessingError as PreprocessingError
    from oodlit.base.errors import ProcessFailedError as ProcessFailedError
    from oodlit.base.errors import RequirementError as RequirementError
    from oodlit.base.errors import RunIsCompleteError as RunIsCompleteError
    from oodlit.base.errors import UnknownNameError as UnknownNameError
    from oodlit.base.errors import UsageError as UsageError
    from oodlit.base.errors import add_note as add_note

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
