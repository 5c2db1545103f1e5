"""The checks, one file per group. A new check takes a function there and its line here."""

from oodlit.testing.contract.declarations import check_declarations
from oodlit.testing.contract.fits import (
    check_batches_in_fit,
    check_merged_halves,
    check_missing_class,
    check_one_class,
    check_one_image_per_class,
    check_refit,
    check_unfitted,
)
from oodlit.testing.contract.invariances import (
    check_class_permutation,
    check_feature_affine,
    check_feature_rotation,
    check_feature_scale,
    check_larger_residual_is_worse,
    check_logit_shift,
    check_logit_shift_equivariance,
    check_mean_is_best,
)
from oodlit.testing.contract.processes import check_saved, check_two_processes
from oodlit.testing.contract.scores import (
    check_batches_in_score,
    check_finite_on_extremes,
    check_half_precision,
    check_higher_is_id,
    check_inference_mode,
    check_nan_is_refused,
    check_score_form,
)
from oodlit.testing.contract.side_effects import (
    check_needs_are_enough,
    check_outputs_unchanged,
    check_random_state,
    check_settings_frozen,
)

__all__ = [
    "check_batches_in_fit",
    "check_batches_in_score",
    "check_class_permutation",
    "check_declarations",
    "check_feature_affine",
    "check_feature_rotation",
    "check_feature_scale",
    "check_finite_on_extremes",
    "check_half_precision",
    "check_higher_is_id",
    "check_inference_mode",
    "check_larger_residual_is_worse",
    "check_logit_shift",
    "check_logit_shift_equivariance",
    "check_mean_is_best",
    "check_merged_halves",
    "check_missing_class",
    "check_nan_is_refused",
    "check_needs_are_enough",
    "check_one_class",
    "check_one_image_per_class",
    "check_outputs_unchanged",
    "check_random_state",
    "check_refit",
    "check_saved",
    "check_score_form",
    "check_settings_frozen",
    "check_two_processes",
    "check_unfitted",
]
