"""Detectors whose fit is broken in one way each."""

import torch

from oodlit.detectors import Detector
from oodlit.detectors.statistics import ClassMoments
from tests.testing.broken_detectors import PAPER, Nearest


class _MeanOfBatchMeans(ClassMoments):
    """Every batch counts the same, however many images it has."""

    def __init__(self):
        super().__init__()
        self.add_state("batches", torch.zeros((), dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors):
        return cls()

    def accumulate(self, outputs):
        super().accumulate(outputs)
        self.batches += 1
        self.total += outputs.features.double().mean()

    def merge(self, other):
        super().merge(other)
        self.batches += other.batches
        self.total += other.total

    def synchronize(self, group):
        super().synchronize(group)
        from oodlit.base.processes.distributed import all_sum

        self.batches, self.total = all_sum(group, self.batches), all_sum(group, self.total)


class CountsBatches(Nearest):
    statistics = (_MeanOfBatchMeans,)

    def means_of(self, moments):
        return moments.class_means * (1 + moments.total / moments.batches)


class _MergesNothing(ClassMoments):
    @classmethod
    def for_detectors(cls, detectors):
        return cls()

    def merge(self, other):
        pass


class ForgetsTheOtherHalf(Nearest):
    statistics = (_MergesNothing,)


class _StaysAlone(ClassMoments):
    @classmethod
    def for_detectors(cls, detectors):
        return cls()

    def synchronize(self, group):
        pass


class ForgetsTheOtherProcess(Nearest):
    statistics = (_StaysAlone,)


class RemembersTheFirstFit(Nearest):
    def means_of(self, moments):
        before = self._buffers.get("means")
        return moments.class_means if before is None else (moments.class_means + before) / 2


class KeepsStateOutsideBuffers(Nearest):
    def _fit(self, statistics, head):
        self.means = statistics[ClassMoments].class_means


class ScoresUnfitted(Nearest):
    is_fitted = True

    def distances(self, features):
        return super().distances(features) if "means" in self._buffers else features


class NaNForMissingClass(Nearest):
    def means_of(self, moments):
        return moments.references + moments.differences / moments.counts[:, None]


class LosesClassIds(Detector):
    """The mean of the predicted class, looked up by its place among the classes that have images."""

    needs = frozenset({"logits", "features"})
    statistics = (ClassMoments,)
    invariances = frozenset({"class_permutation"})
    reference = PAPER

    def _fit(self, statistics, head):
        self.register_buffer("means", statistics[ClassMoments].class_means)

    def _score(self, outputs):
        means = self.means[outputs.predictions.clamp(max=len(self.means) - 1)]
        return -torch.linalg.vector_norm(outputs.require("features").double() - means, dim=1)


class NaNForSingleImage(Nearest):
    def means_of(self, moments):
        freedom = (moments.counts[moments.class_ids] - 1).double()
        return moments.class_means * (freedom / freedom)[:, None]


class NaNForOneClass(Nearest):
    def means_of(self, moments):
        between = moments.class_means.var(dim=0, correction=0).sum()
        return moments.class_means * (between / between)
