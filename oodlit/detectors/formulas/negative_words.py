"""Negative words of zero-shot detectors, shared by NegLabel and CSP."""

import hashlib
import math
from abc import abstractmethod
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oodlit.base.checks import check_ints, check_positive, check_seed, number_of
from oodlit.base.errors import InvalidArgumentError, RequirementError
from oodlit.base.fingerprint import difference, join
from oodlit.base.fractions import exact_number
from oodlit.base.outputs import BackboneFacts, Features, Head, Outputs, Scores, unit
from oodlit.base.words.embeddings import WordEmbeddings
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import Statistics

ENTRIES = 2**22
"""Cosines of words with classes that are computed at a time in a fit."""
GROUPS = 16
"""Groups whose cosines with a batch are computed at a time."""
MISSING = (
    "needs text embeddings of negative words; write a file with oodlit.backbones.negatives.write_negatives and"
    " pass negatives=FILE"
)


def _no_negatives(detector: "NegativeDetector", facts: BackboneFacts) -> str:
    if not Path(detector.negatives).is_file():
        return "" if detector.negatives else MISSING
    words = WordEmbeddings.load(detector.negatives)
    if not difference(join(text=words.text_sketch), facts.fingerprint):
        return ""
    return (
        f"needs text embeddings from the text tower of {facts.name}, but {detector.negatives} was written with another"
        f" one ({words.text_tower or 'name not recorded'}); write the file again with the text tower of this network"
    )


class NegativeDetector(Detector):
    """Base class of detectors that compare the classes with negative words.

    Args:
        negatives: File of `write_negatives`; empty = none, then the detector is not applicable.
        share: Fraction of the words to keep, in (0, 1].
        quantile: Quantile over the classes that defines the distance of a word, in (0, 1].
        groups: Number of groups, at least 1.
        temperature: Temperature of the softmax, positive.
        seed: Seed of the order in which words are put into groups.

    Raises:
        InvalidArgumentError: An argument is out of range.
    """

    needs = frozenset({"features", "head"})
    invariances = frozenset({"feature_scale", "class_permutation"})
    requirements = (_no_negatives,)
    log_probability = True

    def __init__(
        self,
        negatives: str = "",
        share: float = 0.15,
        quantile: float = 0.95,
        groups: int = 100,
        temperature: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(negatives, str | Path):
            raise InvalidArgumentError(f"{name}: expected negatives to be a path, got {type(negatives).__name__}")
        for key, value in (("share", share), ("quantile", quantile)):
            if not 0 < number_of(value) <= 1:
                raise InvalidArgumentError(f"{name}: expected {key} to be in (0, 1], got {value!r}")
        check_ints(name, groups=groups)
        check_positive(name, temperature=temperature)
        check_seed(name, seed)
        self.negatives, self.share, self.quantile = str(negatives), share, quantile
        self.groups, self.temperature, self.seed = groups, temperature, seed

    @property
    @abstractmethod
    def largest_cosine(self) -> float:
        """Words with a larger cosine with a class are kept last."""

    @property
    def content(self) -> str:
        """Hash of the file of negatives, so that a run with another file is another run."""
        file = Path(self.negatives)
        return hashlib.blake2b(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""

    @final
    def _fit(self, statistics: Statistics, head: Head) -> None:
        if not self.negatives:
            raise RequirementError(f"{self!r} {MISSING}")
        stored = WordEmbeddings.load(self.negatives)
        if stored.embeddings.shape[1] != head.width:
            raise InvalidArgumentError(
                f"{self!r}: expected negatives with {head.width} features, as the head has, got"
                f" {stored.embeddings.shape[1]}; write the file with the text tower of the backbone"
            )
        classes = unit(head.unmasked.weight.double())
        chosen = select(
            *(stored.embeddings, stored.is_adjective, classes),
            share=self.share,
            quantile=self.quantile,
            largest_cosine=self.largest_cosine,
        )
        count = len(chosen) // self.groups * self.groups
        if not count:
            raise InvalidArgumentError(
                f"{self!r}: expected at least {self.groups} selected words, one per group, got {len(chosen)} of"
                f" {len(stored.words)} words; reduce groups or raise share"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        rows = unit(stored.embeddings[chosen[order]].to(classes))
        self.keep(directions=classes, words=rows.view(self.groups, -1, head.width))
        prompts = [f"; prompts of {kind}: {', '.join(map(repr, used))}" for kind, used in stored.prompts.items()]
        tower = f"(text tower: {stored.text_tower or 'not recorded'})"
        self.notes = (*self.notes, f"uses {count} of {len(stored.words)} words {tower}{''.join(prompts)}")

    @final
    def _score(self, outputs: Outputs) -> Scores:
        x = unit(outputs.require("features").double())
        inside = self._log_sum(x, self.directions[None])
        # Log odds of the classes against each group: the softmax of both, without overflow.
        odds = torch.cat([inside - self._log_sum(x, part) for part in torch.split(self.words, GROUPS)], dim=1)
        # By hand, because exported programs in ONNX round the probability before they take its logarithm.
        log_inside = odds.clamp(max=0) - (-odds.abs()).exp().log1p()
        outside = (log_inside - odds).exp().mean(dim=1)
        small = log_inside.logsumexp(dim=1) - math.log(self.groups)
        return torch.where(outside < 0.5, (-outside).log1p(), small)  # each is exact where it is used

    def _log_sum(self, x: Features, groups: Float[Tensor, "groups words features"]) -> Float[Tensor, "batch groups"]:
        cosines = x @ groups.flatten(0, 1).T
        return (cosines / self.temperature).view(-1, *groups.shape[:2]).logsumexp(dim=2)


def select(
    embeddings: Float[Tensor, "words features"],
    is_adjective: Bool[Tensor, " words"],
    classes: Float[Tensor, "classes features"],
    *,
    share: float,
    quantile: float,
    largest_cosine: float,
) -> Int[Tensor, " chosen"]:
    """Select the words that are far from the classes: a share of the nouns, and the same share of the adjectives.

    The distance of a word is a quantile of its cosines with the classes, the smaller the farther.

    Returns:
        Indices of nouns, then adjectives, the farthest first, on the CPU.

    Example:
        >>> rows = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> flags = torch.tensor([False, False, False, True])
        >>> classes = torch.tensor([[1.0, 0.0]])
        >>> select(rows, flags, classes, share=1.0, quantile=0.95, largest_cosine=0.9).tolist()
        [0, 2, 1, 3]
    """
    exact = exact_number(share) or 0  # 29 of 100 words, not 28, at a share of 0.29
    distances = []
    for part in torch.split(embeddings, max(1, ENTRIES // len(classes))):
        cosines = unit(part.to(classes)) @ classes.T
        distance = cosines.quantile(quantile, dim=1)
        distances.append(distance.masked_fill(cosines.amax(dim=1) > largest_cosine, math.inf))
    distance = torch.cat(distances).cpu()
    chosen = []
    for kind in (~is_adjective, is_adjective):
        of_kind = kind.nonzero().flatten()
        chosen.append(of_kind[distance[of_kind].argsort(stable=True)[: int(len(of_kind) * exact)]])
    return torch.cat(chosen)
