"""Text as people read it: keys of images as paths, since shards escape dots, and one image instead of "1 images"."""

import re
from urllib.parse import unquote

from oodlit.base.text.singular import singular


def readable(text: str) -> str:
    """Decode the escapes of keys in a text, unless they are not printable, and see `singular`. Addresses do not change.

    Example:
        >>> readable("first near/nine/1658%2Epng"), readable("a/line%0Abreak"), readable("https://a.org/b%2Ec")
        ('first near/nine/1658.png', 'a/line%0Abreak', 'https://a.org/b%2Ec')
    """
    return re.sub(r"\S+", _shown, singular(text))


def _shown(word: re.Match[str]) -> str:
    return word[0] if "://" in word[0] else re.sub("(?:%[0-9A-F]{2})+", _decoded, word[0])


def _decoded(found: re.Match[str]) -> str:
    path = unquote(found[0])
    return path if path.isprintable() else found[0]
