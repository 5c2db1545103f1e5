"""Find the name that a reader means: "KNN", "knn" and "Mahalanobis++" are names of detectors as pages show them."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeAlias

from oodlit.base.errors import UnknownNameError

ObjectName: TypeAlias = Annotated[str, "name of an object"]
"""Text that stands for an object: a configuration builds the object, as if the type did not accept text."""


def resolve(kind: str, name: str, known: Mapping[str, str] | Iterable[str]) -> str:
    """Return the known name that equals `name`, apart from case and separators if that is unambiguous.

    Args:
        kind: What the names are of, for the error.
        name: The name as written.
        known: The names, or a mapping of names to display names, which are also accepted.

    Raises:
        UnknownNameError: There is no such name, or several are alike; the message lists the nearest ones.

    Example:
        >>> resolve("detector", "Mahalanobis++", ["knn", "mahalanobis_plus_plus"]), resolve("detector", "KNN", ["knn"])
        ('mahalanobis_plus_plus', 'knn')
    """
    shown = known if isinstance(known, Mapping) else {given: given for given in known}
    alike = [key for key, text in shown.items() if plain(name) in (plain(key), plain(text))]
    if name in shown or len(alike) == 1:
        return name if name in shown else alike[0]
    raise UnknownNameError.of(kind, name, alike or shown)


def names_in(text: str) -> list[str]:
    """Names separated by commas, with or without brackets around them; commas within brackets of a name stay.

    Example:
        >>> names_in("KNN, MSP"), names_in("[KNN,MSP]"), names_in("knn[k=1, chunk=2],msp")
        (['KNN', 'MSP'], ['KNN', 'MSP'], ['knn[k=1, chunk=2]', 'msp'])
    """
    text = text.strip()
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [name.strip() for name in re.split(r",(?![^\[]*\])", inner) if name.strip()]


def plain(name: str) -> str:
    """A name without case and separators, to compare names.

    Example:
        >>> plain("GL-MCM"), plain("Mahalanobis++"), plain("mahalanobis_plus_plus")
        ('glmcm', 'mahalanobisplusplus', 'mahalanobisplusplus')
    """
    return re.sub(r"[\W_]", "", name.casefold().replace("+", "plus"))
