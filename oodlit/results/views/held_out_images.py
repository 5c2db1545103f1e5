"""The numbers of a run on ID images that do not calibrate the p-values of a gate."""

from dataclasses import replace

from msgspec import structs

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.results.key_parts import in_first_part
from oodlit.results.results import Results


def held_out(results: Results, calibration: ShareLike) -> Results:
    """Recompute all metrics without the ID images that `Gate.load(..., calibration=...)` calibrates p-values on.

    Numbers by which a detector is chosen should not depend on the images that calibrate its p-values.

    Args:
        results: A run.
        calibration: Fraction of the ID images, in (0, 1), as for `Gate.load`.

    Returns:
        Results with the other ID images, and with all images of other sets; `run.notes` states the number.

    Raises:
        InvalidArgumentError: The fraction is out of range, or no ID image is left.
    """
    share, info = exact_share(calibration, "calibration", below_one=True), results.id_dataset
    is_id = (results.scores["dataset"] == info.name).to_numpy()
    left_out = is_id & in_first_part(results.scores["key"], float(share))
    number, total = int(is_id.sum() - left_out.sum()), int(is_id.sum())
    if not number:
        reason = f"calibration={float(share):g} leaves none of the {total} ID images for the metrics"
        raise InvalidArgumentError(f"held_out: {reason}; pass a smaller fraction")
    infos = [replace(each, num_samples=number) if each == info else each for each in results.datasets]
    settings = {"run": results.run, "estimates": results.estimates, **results.settings.to_json()}
    found = Results.from_scores(results.scores[~left_out], infos, results.detectors, **settings)
    note = f"metrics use {number} of the {total} images of {info.name}; the other images calibrate p-values"
    return found.with_record(structs.replace(found.run, notes=[*found.run.notes, note]))
