"""Show keys of images as paths: shards escape dots and other characters."""

import re
from urllib.parse import unquote


def readable(text: str) -> str:
    """Decode the escapes of keys in a text, unless they are not printable. Addresses stay as they are.

    Example:
        >>> readable("first near/nine/1658%2Epng"), readable("a/line%0Abreak"), readable("https://a.org/b%2Ec")
        ('first near/nine/1658.png', 'a/line%0Abreak', 'https://a.org/b%2Ec')
    """
    return re.sub(r"\S+", _shown, text)


def _shown(word: re.Match[str]) -> str:
    return word[0] if "://" in word[0] else re.sub("(?:%[0-9A-F]{2})+", _decoded, word[0])


def _decoded(found: re.Match[str]) -> str:
    path = unquote(found[0])
    return path if path.isprintable() else found[0]
