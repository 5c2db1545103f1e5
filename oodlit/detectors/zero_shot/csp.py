"""Probability of the classes against negative words, adjectives joined to general nouns."""

from typing import final

from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.negative_words import NegativeDetector


@final
class CSP(NegativeDetector):
    """S = the score of NegLabel, with other words and prompts.

    Write the file with `prompts=CSP_PROMPTS`: nouns and classes have eight prompts, whose embeddings are averaged;
    adjectives are joined to one of 14 general nouns, such as "scene"; and four files of WordNet are left out. Words
    with a cosine above 0.95 with a class are kept last. `exp` of the score is the probability of the authors.

    Args:
        negatives: File of `oodlit.backbones.negatives.write_negatives`; empty = none, then it is not applicable.
        share: Fraction of the nouns, and of the adjectives, to keep, in (0, 1], default 0.15.
        quantile: Quantile over the classes of the cosines of a word, in (0, 1], default 0.95.
        groups: Number of groups, default 100.
        temperature: T > 0, default 0.01.
        seed: Seed of the order of the words, default 0.

    Raises:
        InvalidArgumentError: An argument is out of range or, in the fit, the file is missing or damaged, has embeddings
            of another width, or has fewer selected words than groups.

    Example:
        >>> import tempfile, torch
        >>> from oodlit.backbones.negatives import CSP_PROMPTS, WordEmbeddings, write_negatives
        >>> lengths = lambda prompts: torch.tensor([[float(len(p)), 1.0] for p in prompts])
        >>> options = {"text_tower_name": "lengths", "prompts": CSP_PROMPTS, "words": (["oak"], ["shiny"])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     WordEmbeddings.load(write_negatives(f"{folder}/a", lengths, **options)).words
        ['oak', 'shiny creature']
        >>> CSP("words.safetensors")
        CSP(negatives='words.safetensors')
    """

    largest_cosine = 0.95
    reference = Reference(
        "Conjugated Semantic Pool Improves OOD Detection with Pre-trained Vision-Language Models",
        "M. Chen",
        "NeurIPS",
        2024,
        "https://arxiv.org/abs/2410.08611",
        "the same deviations as NegLabel; in addition, embeddings are normalized before they are averaged over prompts,"
        " unlike in the authors' code; every adjective is joined to a random noun, and the order"
        " of the adjectives differs from the authors', so most pairs differ from theirs",
    )
