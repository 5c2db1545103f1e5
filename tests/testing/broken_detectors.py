"""Detectors whose score is broken in one way each, and sound ones to begin with."""

from typing import ClassVar

import torch

from oodlit.detectors import Detector, Reference, TrainFreeDetector
from oodlit.detectors.statistics import ClassMoments

PAPER = Reference("How to break a detector", "A. Nonymous", "example", 2024, "https://example.org")


class Logits(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = PAPER


class Nearest(Detector):
    """Minus the distance to the nearest class mean: sound, subclasses break it."""

    needs = frozenset({"features"})
    statistics = (ClassMoments,)
    reference = PAPER

    def _fit(self, statistics, head):
        self.register_buffer("means", self.means_of(statistics[self.statistics[0]]))

    def means_of(self, moments):
        return moments.class_means

    def _score(self, outputs):
        return -self.distances(outputs.require("features").double()).amin(dim=1)

    def distances(self, features):
        return torch.cdist(features, self.means, compute_mode="donot_use_mm_for_euclid_dist")


class Sound(Nearest):
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation", "mean_is_best"})


# What a score is


class CoarseScore(Logits):
    def _score(self, outputs):
        return outputs.max_logits.bfloat16()


class HalfScore(Logits):
    def _score(self, outputs):
        return outputs.max_logits.half()


class ReversedSign(Logits):
    def _score(self, outputs):
        return -outputs.max_logits


class Overflowing(Logits):
    def _score(self, outputs):
        return outputs.max_logits.exp()


class DeafToNaN(Logits):
    def score(self, outputs):
        return outputs.max_logits.nan_to_num(0.0)

    def _score(self, outputs):
        raise AssertionError("`score`, which is replaced, does not ask")


class LooksAtTheBatch(Logits):
    def _score(self, outputs):
        return outputs.max_logits - 0.01 * outputs.max_logits.mean()


class StaysInHalfPrecision(TrainFreeDetector):
    needs = frozenset({"logits", "hidden"})
    reference = PAPER

    def _score(self, outputs):
        return outputs.max_logits + outputs.hidden["pool"].mean(dim=1).float()


class NeedsAutograd(Logits):
    def _score(self, outputs):
        with torch.enable_grad():
            logits = outputs.require("logits").detach().requires_grad_()
            (gradient,) = torch.autograd.grad(logits.logsumexp(dim=1).sum(), logits)
        return (gradient * logits.detach()).sum(dim=1)


# What it may touch and read


class WritesToTheOutputs(Logits):
    """Past the guard of `Detector.score`, which counts writes of torch alone."""

    def _score(self, outputs):
        if outputs.groups is not None:
            outputs.groups.numpy()[...] += 7
        return outputs.max_logits


class WritesToWhatIsShared(Logits):
    def _score(self, outputs):
        outputs.log_probabilities.numpy()[...] = 0
        return outputs.max_logits


class WritesToTheStatistics(Nearest):
    """Written anew at every fit: other detectors would be fitted on something else."""

    def means_of(self, moments):
        return moments.class_means

    def _fit(self, statistics, head):
        shared = statistics.memo("mean_of_all", lambda: statistics[ClassMoments].mean)
        shared.numpy()[...] += 1
        super()._fit(statistics, head)


class ReadsMapsAsTheyLie(TrainFreeDetector):
    """Takes three dimensions for tokens before channels."""

    needs = frozenset({"logits", "hidden"})
    reference = PAPER

    def _score(self, outputs):
        value = outputs.hidden["act"].float()
        pooled = value.mean(dim=(1,)) if value.ndim == 3 else value.flatten(2).mean(dim=2)
        return outputs.max_logits + 0.01 * pooled.amax(dim=1)


class ReadsMemoryAsItLies(TrainFreeDetector):
    needs = frozenset({"logits", "hidden"})
    reference = PAPER

    def _score(self, outputs):
        value = outputs.hidden["act"].float()
        rows = value.as_strided(value.shape, torch.empty(value.shape).stride())
        return outputs.max_logits + 0.01 * rows.flatten(2).mean(dim=2).amax(dim=1)


class DrawsRandomNumbers(Logits):
    def _score(self, outputs):
        return outputs.max_logits + 0 * torch.rand(())


class CanBeRetuned(Logits):
    def __init__(self, temperature=1.0):
        super().__init__()
        self.temperature = temperature

    def __setattr__(self, name, value):
        torch.nn.Module.__setattr__(self, name, value)

    def _score(self, outputs):
        return outputs.max_logits / self.temperature


class ReadsLabels(Logits):
    def _score(self, outputs):
        return outputs.max_logits + (0 if outputs.labels is None else 0.01 * outputs.labels)


class UnknownInvariance(Logits):
    invariances = frozenset({"moon_phase"})

    def _score(self, outputs):
        return outputs.max_logits


class ForgetsWhichPresetWasTuned(Logits):
    presets: ClassVar = {"imagenet": {}}
    tuned_presets = frozenset({"imagenet-1k"})

    def _score(self, outputs):
        return outputs.max_logits


# Invariances that are declared and do not hold


class ShiftsWithLogits(Logits):
    invariances = frozenset({"logit_shift"})

    def _score(self, outputs):
        return outputs.max_logits


class IgnoresLogitShift(Logits):
    invariances = frozenset({"logit_shift_equivariance"})

    def _score(self, outputs):
        return outputs.log_probabilities.amax(dim=1)


class HasAnAbsoluteConstant(Nearest):
    invariances = frozenset({"feature_scale"})

    def _score(self, outputs):
        features = outputs.require("features").double()
        return -self.distances(features).amin(dim=1) / (1 + torch.linalg.vector_norm(features, dim=1))


class EuclideanOnly(Nearest):
    invariances = frozenset({"feature_affine"})


class CityBlock(Nearest):
    invariances = frozenset({"feature_rotation"})

    def distances(self, features):
        return torch.cdist(features, self.means, p=1)


class FavoursClassZero(Logits):
    invariances = frozenset({"class_permutation"})

    def _score(self, outputs):
        return outputs.max_logits + 0.01 * outputs.require("logits")[:, 0]


class PrefersALittleDistance(Nearest):
    invariances = frozenset({"mean_is_best"})

    def _score(self, outputs):
        return -(super()._score(outputs) + 0.3).abs()


class LikesLargeResiduals(TrainFreeDetector):
    needs = frozenset({"logits", "features"})
    reference = PAPER
    invariances = frozenset({"larger_residual_is_worse"})

    def _score(self, outputs):
        return outputs.max_logits + 0.001 * outputs.feature_norms


class DividesByScatter(Nearest):
    """Without a bound: a unit that is dead in training gives infinities."""

    def _fit(self, statistics, head):
        super()._fit(statistics, head)
        self.register_buffer("scatter", statistics[ClassMoments].within_covariance.diagonal().sqrt().clamp(min=1e-300))

    def distances(self, features):
        away = (features[:, None] - self.means) / self.scatter
        return away.square().sum(dim=2)


class TurnsRoundWithTheSign(Logits):
    """The product of two energies: where both are negative, the smaller one wins."""

    def _score(self, outputs):
        return outputs.max_logits * outputs.logsumexp


class TakesEnergyForALogarithm(Logits):
    log_probability = True

    def _score(self, outputs):
        return outputs.logsumexp
