"""RankFeat: the last feature map without its largest singular component."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import BackboneFacts, Outputs, Scores
from oodlit.detectors.contract import GivenDetector, Reference, TrainFreeDetector
from oodlit.detectors.formulas.shaping import checked_then
from oodlit.detectors.logits.energy import Energy


def _has_map(detector: object, facts: BackboneFacts) -> str:
    return "" if facts.feature_map else f"needs the feature map of a convolutional network; {facts.name} has none"


@final
class RankFeat(TrainFreeDetector):
    """S = `then` on the logits of M - s1 u1 v1', M the last block's map as a matrix of channels x positions.

    Repeats the layers after the map. Convolutional networks only.

    Args:
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`. Must require no fit
            and read only logits.

    Raises:
        InvalidArgumentError: `then` requires a fit, or reads more than logits.

    Example:
        >>> RankFeat()
        RankFeat()
    """

    needs = frozenset({"hidden", "model"})
    requirements = (_has_map,)
    layers = ("feature_map",)
    invariances = frozenset({"class_permutation"})
    reference = Reference(
        "RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection",
        "Y. Song",
        "NeurIPS",
        2022,
        "https://arxiv.org/abs/2209.08590",
        "uses the last block only, without the paper's fusion with the preceding block",
    )

    def __init__(self, then: GivenDetector = None) -> None:
        super().__init__()
        self.then = checked_then(self, then, "logits")

    def _score(self, outputs: Outputs) -> Scores:
        assert outputs.hidden is not None  # checked by `score`
        assert outputs.model is not None
        feature_map = outputs.hidden["feature_map"]
        if feature_map.ndim != 4:
            raise InvalidArgumentError(
                f"RankFeat: expected a feature map of 4 dimensions, got shape {tuple(feature_map.shape)}"
            )
        # Under mixed precision the map is in half precision but the layers after it are not.
        dtype = next((p.dtype for p in outputs.model.network.parameters()), feature_map.dtype)
        logits = outputs.model.logits_from_map(without_first_component(feature_map.double()).to(dtype))
        return (Energy() if self.then is None else self.then).score(Outputs(logits))


def without_first_component(
    feature_map: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """Remove the largest singular component of a map, M - s1 u1 v1'; a zero map stays zero.

    v1 is the first eigenvector of the smaller Gram matrix, in float64.
    """
    matrix = feature_map.flatten(2).double()
    wide = matrix.shape[1] < matrix.shape[2]
    tall = matrix.transpose(1, 2) if wide else matrix
    first = torch.linalg.eigh(tall.transpose(1, 2) @ tall).eigenvectors[:, :, -1:]
    rest: Tensor = tall - (tall @ first) @ first.transpose(1, 2)
    return (rest.transpose(1, 2) if wide else rest).reshape(feature_map.shape).to(feature_map.dtype)
