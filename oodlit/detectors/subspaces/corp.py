"""Kernel PCA with a Gaussian kernel of unit features."""

from dataclasses import replace
from typing import ClassVar, final

from torch import Tensor

from oodlit.base.checks import check_ints, check_positive, check_seed
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.detectors.formulas.principal_axes import KernelPCA, check_share
from oodlit.detectors.statistics import (
    FeatureMean,
    Statistics,
    UnitMoments,
    fourier_features,
    fourier_map,
    fourier_moments,
)
from oodlit.detectors.subspaces.cop import CoP


@final
class CoRP(KernelPCA):
    """S = -|(I - UU')(f - mean)|, f = sqrt(2 / M) cos(A x / |x| + u): `CoP` with M random Fourier features.

    A has normal entries with variance 2 gamma, and u uniform ones in [0, 2 pi). The product of f for two images
    approximates the kernel exp(-gamma |a - b|^2) of their unit features a and b. A and u follow from the seed
    and are part of the fit. The fit takes 7 M x M doubles of memory.

    Args:
        variance: Fraction of the variance that U reaches, between 0 and 1, default 0.5.
        gamma: > 0, default 3. Both are the authors' values for a ResNet-50 on ImageNet; they use others for other
            networks, and do not state on which data they chose them.
        size: M, at least 1. None (default) = twice the number of features, at most 4096, like the authors' 4096 for
            2048.
        seed: Seed of A and u, 0 to 2^32 - 1, default 0.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> CoRP.preset("imagenet-resnet50-supcon")
        CoRP(gamma=1.0, size=4096)
    """

    needs = frozenset({"features"})
    statistics = (fourier_moments(None, 3.0, 0), FeatureMean)
    invariances = frozenset({"feature_scale", "class_permutation"})
    presets: ClassVar = {
        "imagenet-resnet50": {"variance": 0.5, "gamma": 3.0, "size": 4096},
        "imagenet-resnet50-supcon": {"variance": 0.5, "gamma": 1.0, "size": 4096},
        "cifar10-resnet18": {"variance": 0.8, "gamma": 2.0, "size": 2048},
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = replace(
        CoP.reference,
        deviations=(
            "the authors' product of the reconstruction error and another score is not offered; axes of equal"
            " variance are kept or removed together, and at least one axis is removed; the default of size (M) depends"
            " on the number of features; the authors do not state how they chose settings, so the presets count as"
            " tuned on OOD data"
        ),
    )

    def __init__(self, variance: float = 0.5, gamma: float = 3.0, size: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.variance = check_share("CoRP", "variance", variance)
        check_positive("CoRP", gamma=gamma)
        check_ints("CoRP", size=size, optional=True)
        check_seed("CoRP", seed)
        self.gamma, self.size, self.seed = gamma, size, seed
        self.statistics = (fourier_moments(size, gamma, seed), FeatureMean)

    def kept_bytes(self, facts: BackboneFacts) -> int:
        """Return the memory of the remaining axes and of A."""
        size = fourier_moments(self.size, self.gamma, self.seed).dimensions(facts.width)
        return 8 * size * (size + facts.width)

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        moments = statistics[fourier_moments(self.size, self.gamma, self.seed)]
        self._keep_rest(moments, self.variance)
        width = len(statistics[FeatureMean].mean)
        size = moments.dimensions(width)
        self.note_setting("size", size, f"{width} features")
        directions, phases = fourier_map(width, size, self.gamma, self.seed, self.rest.device)
        self.keep(directions=directions.clone(), phases=phases.clone())

    def _rows(self, outputs: Outputs) -> Tensor:
        return fourier_features(UnitMoments.rows_of(outputs), self.directions, self.phases)
