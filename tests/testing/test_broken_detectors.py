"""The kit is tested by detectors that are broken in one way each: that check fails, and no other does."""

from oodlit.testing import check_detector, checks
from oodlit.testing.clauses import clause_of, peers
from tests.testing.broken_detectors import (
    CanBeRetuned,
    CityBlock,
    CoarseScore,
    DeafToNaN,
    DividesByScatter,
    DrawsRandomNumbers,
    EuclideanOnly,
    FavoursClassZero,
    ForgetsWhichPresetWasTuned,
    HalfScore,
    HasAnAbsoluteConstant,
    IgnoresLogitShift,
    LikesLargeResiduals,
    LooksAtTheBatch,
    NeedsAutograd,
    Overflowing,
    PrefersALittleDistance,
    ReadsLabels,
    ReadsMapsAsTheyLie,
    ReadsMemoryAsItLies,
    ReversedSign,
    ShiftsWithLogits,
    Sound,
    StaysInHalfPrecision,
    TakesEnergyForALogarithm,
    TurnsRoundWithTheSign,
    UnknownInvariance,
    WritesToTheOutputs,
    WritesToTheStatistics,
    WritesToWhatIsShared,
)
from tests.testing.broken_fits import (
    CountsBatches,
    ForgetsTheOtherHalf,
    ForgetsTheOtherProcess,
    KeepsStateOutsideBuffers,
    LosesClassIds,
    NaNForMissingClass,
    NaNForOneClass,
    NaNForSingleImage,
    RemembersTheFirstFit,
    ScoresUnfitted,
)

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
    ("check_declarations", ForgetsWhichPresetWasTuned),
    ("check_missing_class", LosesClassIds),
    ("check_layouts", ReadsMemoryAsItLies),
    ("check_score_form", HalfScore),
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
    overflow = {"check_finite_on_extremes"} if broken is HalfScore else set()  # large logits are infinite in float16
    assert check in found, broken
    assert set(found) - overflow == {check}, "\n".join(row.message for row in found.values())
    message = found[check].message
    clause = clause_of(checks()[check])
    assert repr(clause.id) in message
    assert clause.text in message
    assert f"expected_failures={{{check!r}: 'the reason'}}" in message
