"""The commands of `oodlit`, one plain function each. Heavy imports stay inside the functions: `--help` needs none."""

from oodlit.errors import InvalidArgumentError

__all__ = ["UsageError"]


class UsageError(InvalidArgumentError):
    """The command line cannot be understood, or its options do not fit each other."""
