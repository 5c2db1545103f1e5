"""Probability of the classes against negative words."""

import math
from typing import final

from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.negative_words import NegativeDetector


@final
class NegLabel(NegativeDetector):
    """S = log mean_g sum_c e^(cos(x, t_c) / T) / (sum_c e^(cos(x, t_c) / T) + sum_(n in g) e^(cos(x, n) / T)).

    t_c is row c of the head, the text embedding of class c. The negatives n are text embeddings of nouns and
    adjectives of WordNet. The words that are farthest from the classes are kept, shuffled, and divided into
    groups g of equal size; words beyond the last full group are dropped. How far a word is from the classes is
    measured by a quantile of its cosines with them. `exp` of the score is the probability of the authors.

    Args:
        negatives: File of `oodlit.backbones.negatives.write_negatives`; empty = none, then it is not applicable.
        share: Fraction of the nouns, and of the adjectives, to keep, in (0, 1], default 0.15.
        quantile: Quantile of the cosines, in (0, 1], default 0.95.
        groups: Number of groups, default 100.
        temperature: T > 0, default 0.01.
        seed: Seed of the order of the words, default 0.

    Raises:
        InvalidArgumentError: An argument is out of range or, in the fit, the file is missing or damaged, has embeddings
            of another width, or has fewer selected words than groups.

    Example:
        >>> import tempfile, torch
        >>> from oodlit.backbones.negatives import write_negatives
        >>> from oodlit.detectors import fit
        >>> from oodlit.outputs import Head, Outputs
        >>> tower = lambda prompts: torch.tensor([[1.0, -float("river" in p)] for p in prompts])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = write_negatives(f"{folder}/a", tower, text_tower_name="-", words=(["oak", "river"], []))
        ...     detector = NegLabel(str(file), share=0.5, groups=1, temperature=1.0)
        ...     fit([detector], [], Head(torch.eye(2)))
        >>> [round(p, 3) for p in detector.score(Outputs(features=torch.eye(2))).exp().tolist()]
        [0.647, 0.883]
    """

    largest_cosine = math.inf
    display_name = "NegLabel"
    reference = Reference(
        "Negative Label Guided OOD Detection with Pretrained Vision-Language Models",
        "X. Jiang",
        "ICLR",
        2024,
        "https://arxiv.org/abs/2403.20078",
        "the score is the logarithm of the probability; words are shuffled by a CPU generator, whereas the authors"
        " use a GPU generator; a word in several WordNet files is assigned to the first of them by name, whereas"
        " the authors assign it to the first in the folder listing",
    )
