"""Combination of detectors by the p-values of their scores."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_choice, check_items, plain_mode
from oodlit.base.errors import InvalidArgumentError, NotFittedError
from oodlit.base.outputs import BackboneFacts, Head, Outputs, Scores
from oodlit.base.text.resolve import ObjectName
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.contract.registry import as_detector
from oodlit.detectors.distances.knn import KNN
from oodlit.detectors.distances.mahalanobis import Mahalanobis
from oodlit.detectors.formulas.combination import Combination
from oodlit.detectors.formulas.p_values import p_values, simes
from oodlit.detectors.logits.energy import Energy
from oodlit.detectors.statistics import Statistic, Statistics, TrainSample, hash_rows


def _calibrated(detector: "Combined", facts: BackboneFacts) -> str:
    """Requirement: held-out calibration scores, which a run does not have."""
    if detector.calibration == "train" or hasattr(detector, "ascending"):
        return ""
    return "needs calibration scores; fit, calibrate and save the detector, and pass fitted=FOLDER (--fitted FOLDER)"


@final
class Combined(Combination):
    """S = min_i K p_(i) / i: p_(1) <= ... <= p_(K) are the p-values of the scores of K detectors (Simes).

    p = (1 + r) / (n + 1), where r is the number of the n calibration scores that are not above the score,
    interpolated between two calibration scores. All images that score below every calibration image have the
    same p.

    `p_values` returns the p-values of the parts. `benjamini_yekutieli` returns which images to refuse, so that
    at most a fraction alpha of the in-distribution images is refused on average.

    Calibration scores are those of training images or of held-out images. Most detectors score training images
    higher than new images, above all detectors that keep training images, such as KNN. With training images,
    p-values of new images are therefore too small, and more than a fraction alpha is refused. For a ranking of
    images, training images are enough; the guarantee requires held-out images.

    Args:
        parts: Detectors of different settings, or their names; None (default) = [Mahalanobis(), Energy(), KNN()].
        calibration: Scores that p-values refer to: "train" (default), of a sample of the training images, or
            "validation", of in-distribution images that were not trained on. Pass these to `calibrate` after the fit.
        size: Largest number of calibration images, default 50,000, chosen by the hash of their keys. "train" has at
            most 50,000.

    Raises:
        InvalidArgumentError: An argument is out of range, two parts are equal, or a part of a "train" calibration reads
            more than logits and features.
        NotFittedError: `calibrate` was not called for a "validation" calibration, or a part was fitted or calibrated
            afterwards.

    Example:
        >>> from oodlit.detectors import MSP, MaxLogit, fit
        >>> detector = Combined([MSP(), MaxLogit()])
        >>> fit([detector], [Outputs(torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]]))])
        >>> outputs = Outputs(torch.tensor([[3.0, 0.0], [3.0, 2.5]]))
        >>> detector.p_values(outputs)  # MSP, MaxLogit
        tensor([[0.9300, 0.8750],
                [0.2500, 0.8750]], dtype=torch.float64)
        >>> detector.score(outputs)
        tensor([0.9300, 0.5000], dtype=torch.float64)
    """

    needs = frozenset({"features", "logits"})  # of the default parts
    statistics: tuple[type[Statistic], ...] = (TrainSample,)
    requirements = (_calibrated,)
    reference = Reference(
        "Multiple Testing Framework for Out-of-Distribution Detection",
        "A. Magesh",
        "arXiv",
        2022,
        "https://arxiv.org/abs/2206.09522",
        "the score is the p-value of Simes, whereas the paper refuses images with a p-value below a level; ranks are"
        " interpolated, unlike in the paper; by default, calibration uses training images instead of held-out images",
    )

    def __init__(
        self,
        parts: Sequence[Detector | ObjectName] | None = None,
        calibration: Literal["train", "validation"] = "train",
        size: int = TrainSample.default_rows,
    ) -> None:
        own: Any = [Mahalanobis(), Energy(), KNN()] if parts is None else parts
        built = [as_detector(one, "detector in Combined") for one in own] if isinstance(own, list | tuple) else own
        check_items("Combined", "parts", built, Detector)
        super().__init__(built, size)
        if not self.nested_detectors():
            raise InvalidArgumentError("Combined: expected at least one part, got none")
        check_choice("Combined", "calibration", calibration, ("train", "validation"))
        self.parts = None if parts is None else list(built)
        self.calibration, self.needs = calibration, frozenset()
        self.statistics = (TrainSample,) if calibration == "train" else ()
        if calibration == "train":
            self._check_recorded('set calibration="validation"')

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        parts = self.nested_detectors()
        if self.calibration == "validation":
            self._buffers.pop("ascending", None)
            return
        self._keep_scores(torch.stack([self._score_sample(part, statistics, head) for part in parts]))
        if keeping := [part for part in parts if part.compares_images]:
            self.note(
                "calibrated on training images. If they are in the bank of"
                f" {', '.join(map(repr, keeping))}, their scores are too high and p-values of new images too small. To"
                ' refuse a known fraction of images, pass calibration="validation"'
            )

    def calibrate(self, batches: Iterable[Outputs]) -> None:
        """Set the calibration scores of a fitted detector, replacing earlier ones.

        Args:
            batches: Outputs of in-distribution images that were not trained on and are not evaluated, in any order and
                batch size.

        Raises:
            InvalidArgumentError: There are no images, or the detector is calibrated on training images.
            NotFittedError: A part is not fitted.

        Example:
            >>> from oodlit.detectors import MSP
            >>> detector = Combined([MSP()], calibration="validation")
            >>> detector.calibrate([Outputs(torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]]))])
            >>> detector.score(Outputs(torch.tensor([[0.5, 0.0]])))
            tensor([0.2500], dtype=torch.float64)
        """
        if self.calibration != "validation":
            raise InvalidArgumentError(f'{self!r}: calibrate requires the setting calibration="validation"')
        hashes, scores = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, len(self.nested_detectors()))]
        for outputs in batches:
            hashes.append(hash_rows(outputs))
            scores.append(self._part_scores(outputs).T.cpu())
        chosen = torch.cat(hashes).argsort(stable=True)[: self.size]
        if not len(chosen):
            raise InvalidArgumentError(f"{self!r}: expected at least one image to calibrate on, got none")
        with plain_mode():
            self._keep_scores(torch.cat(scores)[chosen].double().T.contiguous())
        self.fit_id = object()

    def p_values(self, outputs: Outputs) -> Float[Tensor, "batch parts"]:
        """Return the p-values of the parts in their order, float64.

        Args:
            outputs: A batch with every field that a part reads.

        Raises:
            NotFittedError: There are no calibration scores, or a part was fitted or calibrated after this detector.
        """
        if "ascending" not in self._buffers:
            how = "fit" if self.calibration == "train" else "fit, and then calibrate"
            raise NotFittedError(f"{self!r} has no calibration scores; call {how}")
        self._check_parts()
        scores = self._part_scores(outputs)
        return p_values(self.ascending.to(scores.device), scores).T

    def _part_scores(self, outputs: Outputs) -> Float[Tensor, "parts batch"]:
        return torch.stack([self._score_part(part, outputs) for part in self.nested_detectors()])

    def _keep_scores(self, scores: Float[Tensor, "parts images"]) -> None:
        self.keep(ascending=scores.sort(dim=1).values)
        self._check_parts()

    def _score(self, outputs: Outputs) -> Scores:
        return simes(self.p_values(outputs))
