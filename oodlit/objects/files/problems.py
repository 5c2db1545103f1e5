"""Everything that does not fit in a file, in one error."""

from pathlib import Path

from oodlit.errors import DataError


class Problems:
    """What does not fit in a file, by kind: all kinds are told at once, with their number and the first of each.

    Args:
        path: The file.

    Example:
        >>> problems = Problems(Path("near.json"))
        >>> problems.add("annotations of unknown images", "annotation 7: image_id 12")
        >>> problems.add("annotations of unknown images", "annotation 8: image_id 12")
        >>> problems.check()
        Traceback (most recent call last):
        oodlit.errors.DataError: near.json: 2 annotations of unknown images (first: annotation 7: image_id 12)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, example: str, way_out: str = "", *, count: int = 1) -> None:
        """Take one problem, or several of a kind. `way_out` follows the first."""
        before, first = self._found.get(kind, (0, example + (f"; {way_out}" if way_out else "")))
        self._found[kind] = before + count, first

    def check(self) -> None:
        """Raise one `DataError` for all of them, if there are any."""
        if self._found:
            told = "; ".join(f"{count} {kind} (first: {first})" for kind, (count, first) in self._found.items())
            raise DataError(f"{self.path}: {told}")
