"""Ids of COCO files: integers or text, with or without leading zeros, from 0 or from 1, with gaps."""

from collections.abc import Iterable


def id_text(value: object) -> str | None:
    """An id as text; None for values that are not ids.

    Example:
        >>> id_text(0), id_text("000139"), id_text("3f0a"), id_text(True), id_text(1.0), id_text("")
        ('0', '000139', '3f0a', None, None, None)
    """
    return None if isinstance(value, bool) or not isinstance(value, int | str) else str(value) or None


class Identifiers:
    """Maps ids, as other parts of a file or other files write them, to positions.

    An id is found by its text. An id of digits is also found by its number, unless two ids have the same: programs
    write 139 for "000000000139".

    Args:
        ids: The ids, as text.

    Example:
        >>> ids = Identifiers(["000139", "7", "3f0a"])
        >>> [ids.find(value) for value in (139, "139", 7, "007", "3f0a", 8, 1.0)]
        [0, 0, 1, 1, 2, None, None]
        >>> Identifiers(["1", "01"]).find("001") is None  # two ids have this number
        True
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._by_text: dict[str, int] = {}
        self._by_number: dict[str, int | None] = {}
        for position, text in enumerate(ids):
            self._by_text[text] = position
            if (number := _number(text)) is not None:
                self._by_number[number] = None if number in self._by_number else position

    def find(self, value: object) -> int | None:
        """Position of an id; None if there is none, or if it is ambiguous."""
        text = id_text(value)
        if text is None:
            return None
        if text in self._by_text:
            return self._by_text[text]
        number = _number(text)
        return None if number is None else self._by_number.get(number)


def _number(text: str) -> str | None:
    """The digits without leading zeros, as text: Python refuses to parse integers of thousands of digits."""
    return text.lstrip("0") or "0" if text.isascii() and text.isdigit() else None
