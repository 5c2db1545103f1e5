"""The kit is tested by detectors that are broken in one way each: that check fails, and no other does."""

import torch

from oodlit.detectors import Detector, Reference, TrainFreeDetector
from oodlit.detectors.statistics import ClassMoments
from oodlit.testing import check_detector, checks
from oodlit.testing.clauses import clause_of, peers

PAPER = Reference("How to break a detector", "A. Nonymous", "example", 2024, "https://example.org")


class _Logits(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = PAPER


class _Nearest(Detector):
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


class Sound(_Nearest):
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation", "mean_is_best"})


# What a score is


class CoarseScore(_Logits):
    def _score(self, outputs):
        return outputs.max_logits.bfloat16()


class ReversedSign(_Logits):
    def _score(self, outputs):
        return -outputs.max_logits


class Overflowing(_Logits):
    def _score(self, outputs):
        return outputs.max_logits.exp()


class DeafToNaN(_Logits):
    def score(self, outputs):
        return outputs.max_logits.nan_to_num(0.0)

    def _score(self, outputs):
        raise NotImplementedError


class LooksAtTheBatch(_Logits):
    def _score(self, outputs):
        return outputs.max_logits - 0.01 * outputs.max_logits.mean()


class StaysInHalfPrecision(TrainFreeDetector):
    needs = frozenset({"logits", "hidden"})
    reference = PAPER

    def _score(self, outputs):
        return outputs.max_logits + outputs.hidden["pool"].mean(dim=1).float()


class NeedsAutograd(_Logits):
    def _score(self, outputs):
        with torch.enable_grad():
            logits = outputs.require("logits").detach().requires_grad_()
            (gradient,) = torch.autograd.grad(logits.logsumexp(dim=1).sum(), logits)
        return (gradient * logits.detach()).sum(dim=1)


# What it may touch and read


class WritesToTheOutputs(_Logits):
    """Past the guard of `Detector.score`, which counts writes of torch alone."""

    def _score(self, outputs):
        if outputs.groups is not None:
            outputs.groups.numpy()[...] += 7
        return outputs.max_logits


class WritesToWhatIsShared(_Logits):
    def _score(self, outputs):
        outputs.log_probabilities.numpy()[...] = 0
        return outputs.max_logits


class WritesToTheStatistics(_Nearest):
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


class DrawsRandomNumbers(_Logits):
    def _score(self, outputs):
        return outputs.max_logits + 0 * torch.rand(())


class CanBeRetuned(_Logits):
    def __init__(self, temperature=1.0):
        super().__init__()
        self.temperature = temperature

    def __setattr__(self, name, value):
        torch.nn.Module.__setattr__(self, name, value)

    def _score(self, outputs):
        return outputs.max_logits / self.temperature


class ReadsLabels(_Logits):
    def _score(self, outputs):
        return outputs.max_logits + (0 if outputs.labels is None else 0.01 * outputs.labels)


class UnknownInvariance(_Logits):
    invariances = frozenset({"moon_phase"})

    def _score(self, outputs):
        return outputs.max_logits


# What a fit is


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
        from oodlit.distributed import all_sum

        self.batches, self.total = all_sum(group, self.batches), all_sum(group, self.total)


class CountsBatches(_Nearest):
    statistics = (_MeanOfBatchMeans,)

    def means_of(self, moments):
        return moments.class_means * (1 + moments.total / moments.batches)


class _MergesNothing(ClassMoments):
    @classmethod
    def for_detectors(cls, detectors):
        return cls()

    def merge(self, other):
        pass


class ForgetsTheOtherHalf(_Nearest):
    statistics = (_MergesNothing,)


class _StaysAlone(ClassMoments):
    @classmethod
    def for_detectors(cls, detectors):
        return cls()

    def synchronize(self, group):
        pass


class ForgetsTheOtherProcess(_Nearest):
    statistics = (_StaysAlone,)


class RemembersTheFirstFit(_Nearest):
    def means_of(self, moments):
        before = self._buffers.get("means")
        return moments.class_means if before is None else (moments.class_means + before) / 2


class KeepsStateOutsideBuffers(_Nearest):
    def _fit(self, statistics, head):
        self.means = statistics[ClassMoments].class_means


class ScoresUnfitted(_Nearest):
    is_fitted = True

    def distances(self, features):
        return super().distances(features) if "means" in self._buffers else features


class NaNForMissingClass(_Nearest):
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


class NaNForSingleImage(_Nearest):
    def means_of(self, moments):
        freedom = (moments.counts[moments.class_ids] - 1).double()
        return moments.class_means * (freedom / freedom)[:, None]


class NaNForOneClass(_Nearest):
    def means_of(self, moments):
        between = moments.class_means.var(dim=0, correction=0).sum()
        return moments.class_means * (between / between)


# Invariances that are declared and do not hold


class ShiftsWithLogits(_Logits):
    invariances = frozenset({"logit_shift"})

    def _score(self, outputs):
        return outputs.max_logits


class IgnoresLogitShift(_Logits):
    invariances = frozenset({"logit_shift_equivariance"})

    def _score(self, outputs):
        return outputs.log_probabilities.amax(dim=1)


class HasAnAbsoluteConstant(_Nearest):
    invariances = frozenset({"feature_scale"})

    def _score(self, outputs):
        features = outputs.require("features").double()
        return -self.distances(features).amin(dim=1) / (1 + torch.linalg.vector_norm(features, dim=1))


class EuclideanOnly(_Nearest):
    invariances = frozenset({"feature_affine"})


class CityBlock(_Nearest):
    invariances = frozenset({"feature_rotation"})

    def distances(self, features):
        return torch.cdist(features, self.means, p=1)


class FavoursClassZero(_Logits):
    invariances = frozenset({"class_permutation"})

    def _score(self, outputs):
        return outputs.max_logits + 0.01 * outputs.require("logits")[:, 0]


class PrefersALittleDistance(_Nearest):
    invariances = frozenset({"mean_is_best"})

    def _score(self, outputs):
        return -(super()._score(outputs) + 0.3).abs()


class LikesLargeResiduals(TrainFreeDetector):
    needs = frozenset({"logits", "features"})
    reference = PAPER
    invariances = frozenset({"larger_residual_is_worse"})

    def _score(self, outputs):
        return outputs.max_logits + 0.001 * outputs.feature_norms


class DividesByScatter(_Nearest):
    """Without a bound: a unit that is dead in training gives infinities."""

    def _fit(self, statistics, head):
        super()._fit(statistics, head)
        self.register_buffer("scatter", statistics[ClassMoments].within_covariance.diagonal().sqrt().clamp(min=1e-300))

    def distances(self, features):
        away = (features[:, None] - self.means) / self.scatter
        return away.square().sum(dim=2)


class TurnsRoundWithTheSign(_Logits):
    """The product of two energies: where both are negative, the smaller one wins."""

    def _score(self, outputs):
        return outputs.max_logits * outputs.logsumexp


class TakesEnergyForALogarithm(_Logits):
    log_probability = True

    def _score(self, outputs):
        return outputs.logsumexp


BROKEN = {
    "check_batches_in_fit": CountsBatches,
    "check_batches_in_score": LooksAtTheBatch,
    "check_class_permutation": FavoursClassZero,
    "check_confidence": TakesEnergyForALogarithm,
    "check_declarations": UnknownInvariance,
    "check_degenerate_training": DividesByScatter,
    "check_feature_affine": EuclideanOnly,
    "check_feature_rotation": CityBlock,
    "check_feature_scale": HasAnAbsoluteConstant,
    "check_finite_on_extremes": Overflowing,
    "check_half_precision": StaysInHalfPrecision,
    "check_higher_is_id": ReversedSign,
    "check_inference_mode": NeedsAutograd,
    "check_larger_residual_is_worse": LikesLargeResiduals,
    "check_layouts": ReadsMapsAsTheyLie,
    "check_logit_constant": TurnsRoundWithTheSign,
    "check_logit_shift": ShiftsWithLogits,
    "check_logit_shift_equivariance": IgnoresLogitShift,
    "check_mean_is_best": PrefersALittleDistance,
    "check_merged_halves": ForgetsTheOtherHalf,
    "check_missing_class": NaNForMissingClass,
    "check_nan_is_refused": DeafToNaN,
    "check_needs_are_enough": ReadsLabels,
    "check_one_class": NaNForOneClass,
    "check_one_image_per_class": NaNForSingleImage,
    "check_outputs_unchanged": WritesToTheOutputs,
    "check_random_state": DrawsRandomNumbers,
    "check_refit": RemembersTheFirstFit,
    "check_saved": KeepsStateOutsideBuffers,
    "check_score_form": CoarseScore,
    "check_settings_frozen": CanBeRetuned,
    "check_shared_tensors": WritesToWhatIsShared,
    "check_two_processes": ForgetsTheOtherProcess,
    "check_unfitted": ScoresUnfitted,
}
MORE = [
    ("check_missing_class", LosesClassIds),
    ("check_layouts", ReadsMemoryAsItLies),
    ("check_shared_tensors", WritesToTheStatistics),
]
"""Further faults that a check must find."""
CASES = [*BROKEN.items(), *MORE]
EVERYONE = (Sound, *(broken for _, broken in CASES))


def failures(factory):
    with peers(EVERYONE):
        return {row.check: row for row in check_detector(factory, examples=5).rows if row.status == "failed"}


def test_every_check_has_its_broken_detector():
    assert set(BROKEN) == set(checks())


def test_sound_detector_passes():
    assert failures(Sound) == {}


def pytest_generate_tests(metafunc):
    if "broken" in metafunc.fixturenames:
        metafunc.parametrize(("check", "broken"), CASES, ids=[broken.__name__ for _, broken in CASES])


def test_broken_detector_fails_its_check_and_no_other(check, broken):
    found = failures(broken)
    assert set(found) == {check}, "\n".join(row.message for row in found.values())
    message = found[check].message
    clause = clause_of(checks()[check])
    assert repr(clause.id) in message
    assert clause.text in message
    assert f"expected_failures={{{check!r}: 'the reason'}}" in message
