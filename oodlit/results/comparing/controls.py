"""Controls: does a detector notice unknown classes, or something else?

A detector can separate data sets by leaks, by being fitted on the compared images, or by how images look, whatever
their classes. No control requires another pass of the trained network.
"""

import math
from collections.abc import Iterator

import pandas as pd

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.metrics.auroc import auroc_of
from oodlit.metrics.numerics.ranking import as_sorted, rank
from oodlit.metrics.uncertainty.intervals import auroc_interval_of
from oodlit.results.finding import Finding
from oodlit.results.key_parts import in_first_part
from oodlit.results.names import some
from oodlit.results.run_results import RunResults

COLUMNS = ("detector", "control", "dataset", "auroc", "ci_low", "ci_high")
WRONG = 0.001
"""Probability of a false finding among all detectors together."""
CLOSER = 0.6
"""A larger AUROC of training images against ID images is a finding."""


def controls(results: RunResults, untrained: RunResults | None = None) -> pd.DataFrame:
    """AUROC of comparisons whose result is known, or shows what a detector reacts to.

    | control | compares | expected |
    |---|---|---|
    | halves | one half of the ID images with the other, by a hash of the key | 0.5 within its interval |
    | training | training images with ID images: chance that a training image scores higher | near 0.5 |
    | covariate | ID images with shifted images of known classes | below "semantic" |
    | semantic | ID images with OOD images | above "covariate" |
    | untrained | the same as "semantic", with an untrained network | below "semantic" |

    Args:
        results: A run.
        untrained: A run on the same images with random weights (`OODModule(name, weights=None)`); None (default) =
            that of the run (`oodlit evaluate --untrained`), if it has one.

    Returns:
        One row per detector, control and data set: `detector, control, dataset, auroc, ci_low, ci_high`.

    Raises:
        InvalidArgumentError: `untrained` has other images, or none of the detectors.
    """
    rows: list[tuple[object, ...]] = list(_rows(results, results.settings.confidence))
    found = results.run.untrained if untrained is None else of_untrained(untrained, results)
    names = {info.name for info in results.datasets if info.role is Role.OOD}
    for detector in (name for name in results.detectors if name in found):
        rows += [(detector, "untrained", name, *v.values()) for name, v in found[detector].items() if name in names]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def of_untrained(untrained: RunResults, results: RunResults | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """AUROC and interval of a run with an untrained network, by detector and OOD set.

    Args:
        untrained: The run.
        results: The run with the trained network, to compare images and detectors; None (default) = no comparison.

    Raises:
        InvalidArgumentError: The runs have different images, or no detector in common.
    """
    if results is not None:
        for info in (one for one in results.datasets if one.role in (Role.ID, Role.OOD)):
            here, there = (set(run.images(info.name)["key"]) for run in (results, untrained))
            if here != there:
                raise InvalidArgumentError(
                    f"untrained: expected a run on the same images, but {len(here ^ there):,} images of {info.name} are"
                    f" in only one of the runs (trained: {len(here):,} images, untrained: {len(there):,})"
                )
        if not set(results.detectors) & set(untrained.detectors):
            raise InvalidArgumentError(
                f"untrained: expected a run with at least one of the detectors {', '.join(results.detectors)}; got"
                f" {', '.join(untrained.detectors)}"
            )
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in untrained.detectors}
    for detector, _, dataset, *values in _rows(untrained, untrained.settings.confidence, ("semantic",)):
        found[detector][dataset] = dict(zip(COLUMNS[3:], values, strict=True))
    return found


def control_findings(results: RunResults, untrained: RunResults | None = None) -> Iterator[Finding]:
    """What the controls say against the numbers of a run."""
    frame = controls(results, untrained)
    strict = 1 - WRONG / max(len(results.detectors), 1)
    for detector, _, _, auroc, low, high in _rows(results, strict, ("halves",)):
        if not low <= 0.5 <= high:
            yield Finding(
                "controls",
                f"detector {detector} separates two random halves of the ID images with an AUROC of {100 * auroc:.1f}"
                " % (expected: 50 %), so its scores depend on something other than the image, such as its key or its"
                " batch; check the detector",
            )
    training = frame[(frame["control"] == "training") & (frame["ci_low"] > 0.5) & (frame["auroc"] > CLOSER)]
    if len(training):
        rows = training.sort_values("auroc", ascending=False)
        der = ", ".join(results.settings.der_names)
        uses = f"only the detection error rate ({der}) uses such thresholds" if der else "nothing uses such thresholds"
        shown = [f"{name} {100 * auroc:.1f} %" for name, auroc in zip(rows["detector"], rows["auroc"], strict=True)]
        yield Finding(
            "controls",
            f"some detectors score training images higher than ID images (AUROC: {some(shown, 5)}; expected: 50 %), so"
            f" thresholds from training images are too high for these detectors. In this run, {uses}",
        )
    means = frame.pivot_table(index="detector", columns="control", values="auroc", sort=False)
    if {"covariate", "semantic"} <= set(means):
        lows = frame[frame["control"] == "covariate"].groupby("detector")["ci_low"].mean()
        shift = means[(means["covariate"] >= means["semantic"]) & (lows.reindex(means.index) > 0.5)]
        if len(shift):
            pairs = zip(shift.index, shift["covariate"], shift["semantic"], strict=True)
            texts = [f"{name} ({100 * of_shift:.1f} % and {100 * ood:.1f} %)" for name, of_shift, ood in pairs]
            yield Finding(
                "controls",
                "some detectors reject shifted images of known classes at least as readily as images of unknown"
                f" classes, so they detect shift, not novelty. Mean AUROC on shifted and OOD images: {some(texts, 5)}",
            )
    if {"untrained", "semantic"} <= set(means):
        both = frame.pivot_table(index=["detector", "dataset"], columns="control", values="auroc")  # of the same sets
        both = both[["untrained", "semantic"]].dropna().groupby("detector", sort=False).mean()
        as_good = both[both["untrained"] >= both["semantic"]]
        if len(as_good):
            yield Finding(
                "controls",
                "an untrained network separates the OOD sets at least as well as the trained one with these detectors:"
                f" {some([*map(str, as_good.index)], 5)}. The AUROC of these detectors does not show what the network"
                " learned",
            )


def _rows(
    results: RunResults, confidence: float, kinds: tuple[str, ...] = ("halves", "training", "covariate", "semantic")
) -> Iterator[tuple[str, str, str, float, float, float]]:
    inside = results.images(results.id_dataset.name)
    is_first = in_first_part(inside["key"])
    roles = {Role.TRAIN: "training", Role.SHIFT: "covariate", Role.OOD: "semantic"}
    others = [(roles[info.role], info.name) for info in results.datasets if roles.get(info.role) in kinds]
    images = {name: results.images(name) for _, name in others}
    for detector in results.detectors:
        scores = inside[detector].to_numpy()
        ranked = as_sorted(scores)
        compared = [(kind, name, ranked, images[name][detector].to_numpy()) for kind, name in others]
        if "halves" in kinds:
            compared.insert(0, ("halves", results.id_dataset.name, as_sorted(scores[is_first]), scores[~is_first]))
        for kind, name, reference, values in compared:
            if not len(reference) or not len(values) or pd.isna(values).any():  # not scored, or without images
                continue
            ranking = rank(reference, values)
            auroc, (low, high) = auroc_of(ranking), auroc_interval_of(ranking, confidence)
            if kind == "training":  # the chance that a training image scores higher
                auroc, low, high = 1 - auroc, 1 - high, 1 - low
            if not math.isnan(auroc):
                yield detector, kind, name, auroc, low, high
