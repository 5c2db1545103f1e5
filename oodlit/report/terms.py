"""The meaning of metrics that the page mentions."""

import re
from urllib.parse import unquote

from oodlit.results import Results
from oodlit.results.glossary import meaning


def readable(key: str) -> str:
    """Decode a key to its path, or return it unchanged if the path is not printable.

    Example:
        >>> readable("near/nine/1658%2Epng"), readable("a/line%0Abreak")
        ('near/nine/1658.png', 'a/line%0Abreak')
    """
    path = unquote(key)
    return path if path.isprintable() else key


def terms(results: Results) -> dict[str, str]:
    """Metrics mentioned in notes and undefined values, with their meaning."""
    found: dict[str, str] = {}
    lines = list(results.run.notes)
    lines += [one.metric for one in results.run.undefined]
    for line in lines:
        for word in re.findall(r"[a-z_]+[\d.]*\d|[a-z_]+", line.partition(" not computed")[0]):
            names = results.settings.der_names if word == "der" else [word]
            found |= {name: text for name in names if (text := meaning(name, results.settings))}
    return found
