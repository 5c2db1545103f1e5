"""Nouns and adjectives of WordNet, as published by the authors of NegLabel (license in `WORDNET_LICENSE.txt`)."""

import lzma
from collections.abc import Collection
from importlib import resources

from oodlit.base.errors import UnknownNameError

LISTS = ("wordnet_words", "neg_label_imagenet1k")
"""The whole list, and the words that NegLabel's authors selected for ImageNet-1k with CLIP ViT-B/16."""


def lexicon(name: str = "wordnet_words", *, leave_out: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Read a published list of words.

    A word that occurs in several files of WordNet counts once, in the first of them; adjectives come first.

    Args:
        name: "wordnet_words" (70,000 words), or "neg_label_imagenet1k", the words that NegLabel's authors selected for
            ImageNet-1k with CLIP ViT-B/16, sorted by their distance.
        leave_out: Lexicographer files to leave out, such as "noun.person".

    Returns:
        Nouns and adjectives.

    Raises:
        UnknownNameError: There is no such list, or no such file in it.

    Example:
        >>> [len(words) for words in lexicon()]
        [56909, 13091]
        >>> nouns, adjectives = lexicon("neg_label_imagenet1k")
        >>> nouns[0], len(nouns) + len(adjectives)
        ('yellow clintonia', 10499)
    """
    UnknownNameError.check("list of words", name, LISTS)
    text = lzma.decompress((resources.files(__package__) / f"{name}.tsv.xz").read_bytes()).decode()
    rows = [line.split("\t") for line in text.splitlines()]
    files = {file for file, _ in rows}
    for file in leave_out:
        UnknownNameError.check("lexicographer file", file, files)
    kinds: dict[str, str] = {}
    for file, word in rows:
        if file not in leave_out:
            kinds.setdefault(word, file.partition(".")[0])
    return tuple([word for word, kind in kinds.items() if kind == wanted] for wanted in ("noun", "adj"))  # type: ignore[return-value]  # two lists
