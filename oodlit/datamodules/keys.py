"""Convert file paths to keys that are safe in WebDataset shards, and back without loss."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable
from urllib.parse import quote, unquote_to_bytes

import numpy as np

from oodlit.base.errors import InvalidArgumentError

_ODD = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of surrogate pairs, Unicode's own line breaks
_KEPT = "/ !#$&'()+,;=@[]^{}"  # besides letters, digits and "_.-~"
_OF_SYSTEMS = {
    *("__macosx", "@eadir", "@__thumb", "#recycle", "@recycle", "@recently-snapshot", "#snapshot", "lost+found"),
    *("$recycle.bin", "recycler", "system volume information"),
    *("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r"),
}
"""Folders and files that file servers and operating systems leave beside pictures, in lower case."""


def is_hidden(path: str) -> bool:
    """Whether a file or one of its folders is hidden, or left by a file server or an operating system.

    Args:
        path: Relative path with "/" between its parts.

    Example:
        >>> [is_hidden(path) for path in ("cat/._1.png", "cat/@eaDir/1.png", "cat/Thumbs.db", "cat/1.png")]
        [True, True, True, False]
    """
    return any(part.startswith(".") or part.lower() in _OF_SYSTEMS for part in path.split("/"))


def escape_key(path: str) -> str:
    """Percent-encode everything in a path that a shard reader could misread.

    WebDataset splits a file name at the first dot of its last part, so every dot there is encoded: two files never
    share a key, even if they differ only after a dot. The extension stays part of the key for the same reason.
    Non-ASCII bytes and control characters are encoded as well.

    Args:
        path: Relative path with "/" between its parts, as found in a folder or archive.

    Returns:
        The key; `unescape_key` returns `path`.

    Raises:
        InvalidArgumentError: The path is empty, absolute, ends in "/", or has an empty, "." or ".." part.

    Example:
        >>> escape_key("n01.x/a_0.9976.JPEG")
        'n01.x/a_0%2E9976%2EJPEG'
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidArgumentError(f"path {path!r}: expected a relative path without empty parts, '.' or '..'")
    folder, slash, name = path.rpartition("/")
    encoded = quote(name, safe=_KEPT, errors="surrogateescape").replace(".", "%2E")
    key = quote(folder, safe=_KEPT, errors="surrogateescape") + slash + encoded
    # names like __this__ and hidden folders would be read as metadata
    return "/".join(
        f"%{ord(part[0]):02X}{part[1:]}" if is_hidden(part) or part[:2] == "__" else part for part in key.split("/")
    )


def unescape_key(key: str) -> str:
    """The path that belongs to a key of `escape_key`.

    Example:
        >>> unescape_key("n01.x/a_0%2E9976%2EJPEG")
        'n01.x/a_0.9976.JPEG'
    """
    return unquote_to_bytes(key).decode("utf-8", errors="surrogateescape")


def key_digest(key: str, *, size: int = 8) -> int:
    """A hash of a key in `size` bytes, by default 64 bits: enough to find repeated keys among millions."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=size).digest(), "little")


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once.

    Example:
        >>> repeated(["cat", "dog", "cat"])
        ['cat']
    """
    return [name for name, count in Counter(names).items() if count > 1]


def repeated_digests(digests: np.ndarray) -> set[int]:
    """The values that occur more than once.

    Example:
        >>> repeated_digests(np.array([3, 1, 3], np.uint64))
        {3}
    """
    values, counts = np.unique(digests, return_counts=True)
    return set(values[counts > 1].tolist())


def printable(name: str) -> str:
    r"""A printable one-line form of a name: control characters and bytes that are not UTF-8 are escaped.

    Example:
        >>> printable("caf\udce9"), printable("two\nlines"), printable("café")
        ('caf\\xe9', 'two\\nlines', 'café')
    """
    if name.isascii() and name.isprintable():
        return name
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _ODD else character
        for character in text
    )
