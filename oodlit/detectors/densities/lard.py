"""Density of a hidden layer's channel means."""

from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_choice, check_ints, check_seed
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import BackboneFacts, Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.gaussian import class_distances, class_gaussians
from oodlit.detectors.formulas.neighbors import default_k, kth_distances
from oodlit.detectors.statistics import ClassMoments, HiddenSample, Statistics, channel_means, train_labels
from oodlit.detectors.statistics.feature_bank import exact_scaling


def _settings_fit(detector: "LaRD", facts: BackboneFacts) -> str:
    channels = facts.channels.get(detector.layer)
    if channels is not None and detector.dim is not None and detector.dim > channels:
        return f"has dim={detector.dim}, but layer {detector.layer!r} has {channels} channels; use dim <= {channels}"
    return "" if detector.is_fitted else _too_few(detector, detector.k or 1, facts.num_train)


def _too_few(detector: "LaRD", k: int, num_train: int) -> str:
    """Return which setting requires more training images than there are; empty if none does."""
    name, number = {"knn": ("k", k), "gmm": ("components", detector.components)}.get(detector.density, ("", 0))
    fault = f"has {name}={number}, but there are {num_train} training images; use {name} <= {num_train}, or more images"
    return fault if number > num_train else ""


@final
class LaRD(Detector):
    """S = a density of h, the channel means of a hidden layer, optionally reduced to their principal components.

    Density "mahalanobis": -min_c (h - mu_c)' Sigma^-1 (h - mu_c) over the labels; "knn": minus the distance to the k-th
    nearest direction; "gmm": the log density of a Gaussian mixture. Fitted on at most 50,000 training images.

    Args:
        layer: Name of the layer in `Outputs.hidden`: a submodule of the network, or "feature_map" for the last block.
        density: "mahalanobis" (default), "knn" or "gmm".
        dim: Number of principal components, at least 1; None (default) = all channels as they are.
        k: Neighbor of "knn"; None (default) = chosen by the number of training images as in `KNN`; a note states it.
        components: Number of Gaussians of "gmm", default 10.
        seed: Seed for initializing "gmm", 0 to 2^32 - 1, default 0.

    Raises:
        InvalidArgumentError: An argument is out of range or, during the fit, exceeds the layer or the sample.

    Example:
        >>> from oodlit.detectors import fit
        >>> noise = torch.randn(60, 3, 2, 2, generator=torch.Generator().manual_seed(0))
        >>> logits, labels = torch.zeros(60, 2), torch.arange(60) % 2
        >>> detector = LaRD("block")
        >>> fit([detector], [Outputs(logits, labels=labels, hidden={"block": noise})])
        >>> near, far = detector.score(Outputs(logits[:2], hidden={"block": torch.tensor([0.0, 9.0]).expand(3, 2).T}))
        >>> bool(near > far)
        True
    """

    needs = frozenset({"hidden", "labels"})
    statistics = (HiddenSample,)
    requirements = (_settings_fit,)
    invariances = frozenset({"class_permutation"})
    host_buffers = frozenset({"bank", "norms", "neighbour"})
    same_order_as: ClassVar = {
        "mahalanobis": (
            "with mean pooling, the features are the channel means of the last block, and both detectors use"
            " the nearest class, with one covariance for all classes"
        )
    }
    reference = Reference(
        "Latent Representation Entropy Density for Distribution Shift Detection",
        "F. Arnez",
        "UAI",
        2024,
        "https://proceedings.mlr.press/v244/arnez24a.html",
        "estimates the density of the latent representation, whereas the authors estimate the density of its"
        " entropy over dropout passes",
    )

    def __init__(
        self,
        layer: str = "feature_map",
        density: Literal["mahalanobis", "knn", "gmm"] = "mahalanobis",
        dim: int | None = None,
        k: int | None = None,
        components: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("LaRD", "density", density, ("mahalanobis", "knn", "gmm"))
        check_ints("LaRD", dim=dim, k=k, optional=True)
        check_ints("LaRD", components=components)
        check_seed("LaRD", seed)
        self.layer = layer
        self.density = density
        self.dim = dim
        self.k = k
        self.components = components
        self.seed = seed
        self.min_train = {"knn": k or 1, "gmm": components}.get(density, 0)
        self.layers = (layer,)
        self.compares_images = density == "knn"
        self.needs = frozenset({"hidden", "labels"} if density == "mahalanobis" else {"hidden"})

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        sample = statistics[HiddenSample]
        values = sample.column(self.layer).double()
        k = default_k(len(values)) if self.k is None else self.k
        if problem := _too_few(self, k, len(values)):
            raise InvalidArgumentError(f"{self!r} {problem}")
        self.keep(mean=values.mean(dim=0))
        self.keep(basis=self._principal(values - self.mean))
        reduced = self._reduce(values)
        if self.density == "mahalanobis":
            labels = train_labels(Outputs(features=reduced, labels=sample.column("labels")))
            moments = ClassMoments()
            moments.update(Outputs(features=reduced, labels=labels))
            state = class_gaussians(Statistics([moments]))
        elif self.density == "knn":
            bank = exact_scaling(reduced)
            state = {"bank": bank, "norms": torch.linalg.vector_norm(bank, dim=1), "neighbour": torch.tensor(k)}
            if self.k is None:
                self.note(f"k={k}, chosen for {len(bank)} training images")
        else:
            state = _mixture(reduced, self.components, self.seed)
        self.keep(**state)

    def _score(self, outputs: Outputs) -> Scores:
        reduced = self._reduce(channel_means(outputs, self.layer))
        if self.density == "mahalanobis":
            inner = Outputs(features=reduced)
            return -class_distances(inner, self.origin, self.whiten, self.whitened_means, self.class_means).amin(dim=1)
        if self.density == "knn":
            return -kth_distances(reduced, self.bank, self.norms, int(self.neighbour))
        # log sum_j w_j N(h; m_j, (L_j L_j')^-1)
        white = torch.einsum("bf,jfg->bjg", reduced, self.factors) - self.shifts
        return (self.log_weights - white.square().sum(dim=2) / 2).logsumexp(dim=1)

    def _principal(self, centered: Tensor) -> Tensor:
        width = centered.shape[1]
        if self.dim is None:
            return torch.eye(width, dtype=centered.dtype)
        if self.dim > width:
            raise InvalidArgumentError(f"{self!r}: layer {self.layer!r} has {width} channels; use dim <= {width}")
        vectors: Tensor = torch.linalg.eigh(centered.T @ centered).eigenvectors
        return vectors.flip(1)[:, : self.dim].contiguous()

    def _reduce(self, values: Float[Tensor, "batch channels"]) -> Float[Tensor, "batch dim"]:
        # Principal components require centered values; without them "knn" uses directions from zero, as KNN does.
        return values.double() if self.dim is None else (values.double() - self.mean) @ self.basis


def _mixture(values: Tensor, components: int, seed: int) -> dict[str, Tensor]:
    from sklearn.mixture import GaussianMixture  # noqa: PLC0415  # takes a second to import

    model = GaussianMixture(components, reg_covar=1e-6 * float(values.var(dim=0).mean()) or 1e-6, random_state=seed)
    model.fit(values.numpy())
    factors = torch.from_numpy(model.precisions_cholesky_)
    means, weights = torch.from_numpy(model.means_), torch.from_numpy(model.weights_)
    log_norms = factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    constant = values.shape[1] / 2 * torch.tensor(2 * torch.pi, dtype=values.dtype).log()
    return {
        "factors": factors,
        "shifts": torch.einsum("jf,jfg->jg", means, factors),
        "log_weights": weights.log() + log_norms - constant,
    }
