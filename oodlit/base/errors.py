"""Exceptions that oodlit raises on purpose.

OodlitError
 ├── InvalidArgumentError   (ValueError)       a value is outside its allowed range
 │    └── UsageError                           the command line cannot be parsed
 ├── UnknownNameError       (LookupError)      an unknown name; the message lists the nearest names
 ├── NotFittedError         (RuntimeError)     a detector scores before being fitted
 ├── RequirementError       (ValueError)       a detector is not applicable to this backbone or data
 ├── FingerprintError       (ValueError)       a saved fit belongs to another backbone
 ├── NonFiniteScoreError    (ValueError)       NaN scores in a ranking
 ├── DataError              (RuntimeError)     a shard, sample or label is missing or unreadable
 ├── PreprocessingError     (RuntimeError)     a custom transform, decoder or data set fails on a sample
 ├── ProcessFailedError     (RuntimeError)     another process of the run failed; the message contains its error
 ├── RunIsCompleteError     (RuntimeError)     the results of this run already exist
 ├── LoggingError           (RuntimeError)     a logger could not record the whole run
 └── MissingExtraError      (ImportError)      an optional dependency is not installed
"""

import difflib
import re
from collections.abc import Collection, Iterable

from oodlit.base.text.readable import readable

LONGEST = 4000
"""Largest number of characters of a message; names and values from files can have any length."""


class OodlitError(Exception):
    """Base class of all exceptions that oodlit raises on purpose. The middle of very long messages is left out.

    Keys of images are shown as paths.
    """

    def __init__(self, *parts: object) -> None:
        super().__init__(*(_shortened(readable(part)) if isinstance(part, str) else part for part in parts))


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 600]} ... ({len(text) - LONGEST + 100:,} characters left out) ... {text[-500:]}"


class InvalidArgumentError(OodlitError, ValueError):
    """A value is outside its allowed range; the message names the object, the value and the range."""


class UsageError(InvalidArgumentError):
    """The command line cannot be parsed, or its options contradict each other."""


class UnknownNameError(OodlitError, LookupError):
    """A name is unknown; the message lists the nearest known names."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Build the error for `name` with the nearest of the `known` names.

        Example:
            >>> str(UnknownNameError.of("detector", "mahalonobis", ["msp", "mahalanobis"]))
            "unknown detector 'mahalonobis'; did you mean 'mahalanobis'? Known: mahalanobis, msp"
            >>> str(UnknownNameError.of("preset of KNN", "paper", ["best"]))
            "unknown preset 'paper' of KNN. Known: best"
        """
        choices, name = sorted(known), name if len(name) <= 200 else f"{name[:200]}..."  # comparing takes time
        hint = suggestion(name, choices)
        listing = f" Known: {', '.join(choices)}" if len(choices) <= 60 else ""
        text = re.sub(r"(?= (?:of|in|beside) |$)", lambda _: f" {name!r}", kind, count=1)
        return cls(f"unknown {text}{f'; {hint}' if hint else '.'}{listing}")

    @classmethod
    def check(cls, kind: str, name: str, known: Collection[str]) -> None:
        """Raise the error of `of` unless `name` is one of the `known` names.

        Example:
            >>> UnknownNameError.check("detector", "msp", ["msp", "mahalanobis"])
        """
        if name not in known:
            raise cls.of(kind, name, known)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Ask whether one of the nearest `known` names is meant; empty if none is near, even in other case.

    Example:
        >>> suggestion("High_heels", ["donuts", "high heels"]), suggestion("x", ["donuts"])
        ("did you mean 'high heels'?", '')
    """
    for fold in (str, str.casefold):
        names = {fold(one): one for one in known}
        if near := difflib.get_close_matches(fold(name), names, n=3, cutoff=0.5):
            return f"did you mean {' or '.join(repr(names[one]) for one in near)}?"
    return ""


class NotFittedError(OodlitError, RuntimeError):
    """A detector was asked to score before being fitted."""


class RequirementError(OodlitError, ValueError):
    """A detector is not applicable to this backbone, head or data; the message states why."""


class FingerprintError(OodlitError, ValueError):
    """A saved fit belongs to another backbone or transform."""


class NonFiniteScoreError(OodlitError, ValueError):
    """NaN scores in a ranking; the message names detector, data set, count and first keys."""


class DataError(OodlitError, RuntimeError):
    """A shard, sample, image or label is missing, repeated or unreadable; the message names shard and key."""


class PreprocessingError(OodlitError, RuntimeError):
    """A custom transform, decoder or data set raised an exception; the message names the sample.

    This is an error in code rather than data, so the sample is never skipped.
    """


class ProcessFailedError(OodlitError, RuntimeError):
    """Another process of the run failed; the message contains that error, and its process prints the traceback."""


class RunIsCompleteError(OodlitError, RuntimeError):
    """The requested run is already complete and its results exist."""


class LoggingError(OodlitError, RuntimeError):
    """One or more loggers could not record the whole run. The results are complete."""


class MissingExtraError(OodlitError, ImportError):
    """An optional dependency is not installed; the message contains the pip command."""

    @classmethod
    def of(cls, feature: str, extra: str) -> "MissingExtraError":
        """Build the error for a `feature` of the optional `extra`.

        Example:
            >>> str(MissingExtraError.of("this", "corruptions"))
            "this requires an optional dependency: pip install 'oodlit[corruptions]', or '.[corruptions]' in a checkout"
        """
        return cls(
            f"{feature} requires an optional dependency: pip install 'oodlit[{extra}]', or '.[{extra}]' in a checkout"
        )


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, like `add_note` in Python 3.11; shown in tracebacks and by the command line."""
    notes = [*vars(error).get("__notes__", []), note]
    object.__setattr__(error, "__notes__", notes)  # a frozen dataclass does not allow a normal assignment
