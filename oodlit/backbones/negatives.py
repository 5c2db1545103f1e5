"""Write the text embeddings of negative words, which NegLabel and CSP read."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from oodlit.backbones.clip import sketch_text, text_concepts
from oodlit.base.checks import check_seed
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fingerprint import difference, join
from oodlit.base.words.embeddings import WordEmbeddings
from oodlit.base.words.lexicon import lexicon

__all__ = ["CSP_PROMPTS", "NEG_LABEL_PROMPTS", "NegativePrompts", "WordEmbeddings", "lexicon", "write_negatives"]


@dataclass(frozen=True)
class NegativePrompts:
    """Prompts of negative words.

    Args:
        nouns: Templates of nouns, with the placeholder {class}.
        adjectives: Templates of adjectives, with the placeholder {class}.
        joined_to: Nouns, one of which is drawn for each adjective and put behind it; empty = none.
        leave_out: Lexicographer files of WordNet that are left out.
    """

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    joined_to: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()


NEG_LABEL_PROMPTS = NegativePrompts(("the nice {class}",), ("This is a {class} photo",))
"""Prompts of NegLabel. Use the prompt of nouns for the classes as well."""
CSP_PROMPTS = NegativePrompts(
    (
        *("a close-up photo of the nice {class}.", "a photo with the nice {class}.", "{class}", "the {class}"),
        *(
            "a good photo with the nice {class}.",
            "a photo of the nice {class}.",
            "the good {class}",
            "the nice {class}",
        ),
    ),
    ("{class}", "a nice photo of {class}", "a good photo of {class}", "a close-up photo of {class}"),
    (
        *("environment", "space", "object", "scene", "place", "item", "area", "view", "thing", "pattern", "structure"),
        *("landscape", "vista", "creature"),
    ),
    ("noun.person", "noun.quantity", "noun.group", "adj.pert"),
)
"""Prompts of CSP. Use the prompts of nouns for the classes as well."""


def write_negatives(
    file: str | Path,
    text_tower: Callable[[list[str]], Tensor],
    *,
    text_tower_name: str,
    prompts: NegativePrompts = NEG_LABEL_PROMPTS,
    words: tuple[Sequence[str], Sequence[str]] | None = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Path:
    """Write the text embeddings of negative words to a file, unless the file already has them.

    The detector selects the words that are far from the classes, so that one file serves all classes.

    Args:
        file: A safetensors file. If it has the same words, prompts and text tower, it is kept; else it is replaced.
        text_tower: Maps a list of prompts to embeddings (prompts, features).
        text_tower_name: Name of the text tower, which a run records with the prompts.
        prompts: `NEG_LABEL_PROMPTS` (default), `CSP_PROMPTS`, or your own.
        words: Nouns and adjectives; None (default) = those of WordNet, see `lexicon`.
        batch_size: Prompts per call of the tower.
        seed: Seed of the nouns that are drawn for adjectives.

    Returns:
        Path of the file.

    Raises:
        InvalidArgumentError: There are no words, the file exists and is another file, or the tower does not return one
            row per prompt.

    Example:
        >>> import tempfile
        >>> lengths = lambda prompts: torch.tensor([[float(len(p)), 1.0] for p in prompts])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     words = (["oak", "river"], ["shiny"])
        ...     file = write_negatives(f"{folder}/words.safetensors", lengths, text_tower_name="lengths", words=words)
        ...     WordEmbeddings.load(file).embeddings.shape
        torch.Size([3, 2])
    """
    check_seed("write_negatives", seed)
    nouns, adjectives = map(list, lexicon(leave_out=prompts.leave_out) if words is None else words)
    if prompts.joined_to:
        drawn = random.Random(seed)  # not for cryptography
        adjectives = [f"{adjective} {drawn.choice(prompts.joined_to)}" for adjective in adjectives]
    kinds = [(kind, t) for kind, t in ((nouns, prompts.nouns), (adjectives, prompts.adjectives)) if kind]
    if not kinds:
        raise InvalidArgumentError("write_negatives: expected at least one word, got none")

    def embed(kind: list[str], templates: Sequence[str]) -> Tensor:
        return text_concepts(kind, text_tower, templates=templates, batch_size=batch_size).cpu()

    templates = {"nouns": list(prompts.nouns), "adjectives": list(prompts.adjectives)}
    identity = nouns + adjectives, templates, text_tower_name
    sketched = sketch_text(text_tower)
    kept = WordEmbeddings.load(file) if Path(file).exists() else None
    known = kept.text_sketch if kept and (kept.words, kept.prompts, kept.text_tower) == identity else ""
    if difference(join(text=known or "unknown"), join(text=sketched)):
        embeddings = torch.cat([embed(*kind) for kind in kinds])
        WordEmbeddings(embeddings, torch.arange(len(embeddings)) >= len(nouns), *identity, sketched).save(file)
    return Path(file)
