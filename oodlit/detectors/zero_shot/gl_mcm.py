"""Largest softmax of the cosines with the text embeddings, of the whole image and of its local tokens."""

from typing import ClassVar, final

import torch

from oodlit.base.checks import check_positive
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import BackboneFacts, Outputs, Scores, unit
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.concepts import ConceptDetector
from oodlit.detectors.formulas.softmax import log_max_probability

TOKENS = 16
"""Tokens per image whose cosines are computed at a time."""


def _lacks_tokens(detector: "GLMCM", facts: BackboneFacts) -> str:
    if detector.layer in facts.layer_problems:
        return f"needs the layer {detector.layer!r}; build the network with from_open_clip(..., local_tokens=True)"
    channels = facts.channels.get(detector.layer, facts.width)
    if channels == facts.width:
        return ""
    return f"needs tokens with {facts.width} features, as the head has, but layer {detector.layer!r} has {channels}"


@final
class GLMCM(ConceptDetector):
    """S = p(x) + lambda max_l p(x_l), p(x) = max_c softmax_c(cos(x, t_c) / T): x_l local tokens, t_c row c of the head.

    The local tokens are embeddings of image patches in the space of the text embeddings, which
    `from_open_clip(..., local_tokens=True)` provides. They are read like a hidden layer.

    Args:
        weight: lambda >= 0, the weight of the local tokens, default 1. The authors' script for ImageNet uses 0.5.
        temperature: T > 0, default 1.
        layer: Name of the layer with the local tokens, (batch, features, ...) in `Outputs.hidden`.

    Raises:
        InvalidArgumentError: An argument is out of range, or tokens and head differ in width.

    Example:
        >>> from oodlit.detectors import fit
        >>> from oodlit.outputs import Head
        >>> detector = GLMCM()
        >>> fit([detector], [], Head(torch.eye(2)))
        >>> tokens = {"local_tokens": torch.tensor([[[1.0, 0.0], [1.0, 3.0]]])}  # (1, 2 features, 2 tokens)
        >>> round(float(detector.score(Outputs(features=torch.tensor([[5.0, 0.0]]), hidden=tokens))), 4)  # 2 sigmoid(1)
        1.4621
    """

    needs = frozenset({"features", "head", "hidden"})
    statistics = ()
    invariances = frozenset({"feature_scale", "class_permutation"})
    presets: ClassVar = {"imagenet": {"weight": 0.5}}
    display_name = "GL-MCM"
    reference = Reference(
        "GL-MCM: Global and Local Maximum Concept Matching for Zero-Shot Out-of-Distribution Detection",
        "A. Miyai",
        "IJCV",
        2025,
        "https://arxiv.org/abs/2304.04521",
    )
    requirements = (_lacks_tokens,)

    def __init__(self, weight: float = 1.0, temperature: float = 1.0, layer: str = "local_tokens") -> None:
        super().__init__("head")
        check_positive("GLMCM", weight=weight, or_zero=True)
        check_positive("GLMCM", temperature=temperature)
        self.weight, self.temperature, self.layer = weight, temperature, layer
        self.layers = (layer,)

    @classmethod
    def key(cls) -> str:
        """Return the name in tables and files."""
        return "gl_mcm"

    def _score(self, outputs: Outputs) -> Scores:
        tokens = (outputs.hidden or {})[self.layer].flatten(2)
        if tokens.shape[1] != self.directions.shape[1]:
            raise InvalidArgumentError(
                f"{self!r}: expected tokens with {self.directions.shape[1]} features, as the head has, got"
                f" {tokens.shape[1]}"
            )
        parts = [self._log_probability(part) for part in torch.split(tokens, TOKENS, dim=2)]
        whole = log_max_probability(self._cosines(outputs) / self.temperature)
        return whole.exp() + self.weight * torch.stack(parts).amax(dim=0).exp()

    def _log_probability(self, tokens: torch.Tensor) -> Scores:
        """Largest log probability over some tokens (batch, features, tokens) and the classes."""
        rows = unit(tokens.movedim(1, 2).flatten(0, 1).double())
        found = log_max_probability(rows @ self.directions.T / self.temperature)
        return found.view(tokens.shape[0], -1).amax(dim=1)
