"""All problems of a file in one error."""

from pathlib import Path

from oodlit.base.errors import DataError


class Problems:
    """Problems of a file by kind, reported in one error with their number and the first occurrence of each kind.

    Args:
        path: The file.

    Example:
        >>> problems = Problems(Path("near.json"))
        >>> problems.add("boxes without area", "annotation 7", "repair=True drops them")
        >>> problems.add("boxes without area", "annotation 9", "repair=True drops them")
        >>> problems.check()
        Traceback (most recent call last):
        oodlit.base.errors.DataError: near.json: 2 boxes without area (first: annotation 7); repair=True drops them
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, example: str, hint: str = "", *, count: int = 1) -> None:
        """Add one problem, or several of a kind; `hint` follows the example."""
        before, first = self._found.get(kind, (0, f"(first: {example})" + (f"; {hint}" if hint else "")))
        self._found[kind] = before + count, first

    def check(self) -> None:
        """Raise a `DataError` with all problems, if there are any."""
        if self._found:
            text = ". ".join(f"{count} {kind} {first}" for kind, (count, first) in self._found.items())
            raise DataError(f"{self.path}: {text}")
