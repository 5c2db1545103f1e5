"""Findings: what makes the numbers of a run doubtful, or confirms them. Every run reports them before its numbers.

A classifier at chance, a class that is never predicted, detectors that separate backwards and an accuracy that differs
from the published one usually have one cause: labels, transform or weights are not the expected ones.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.results.comparing.controls import control_findings
from oodlit.results.displayed import displayed
from oodlit.results.files.unfinished import interruption
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo
from oodlit.results.published.cood import of_imagenet21k
from oodlit.results.published.timm import published_accuracy
from oodlit.results.run_results import RunResults

LOW_KAPPA = 0.1
"""A classifier with a smaller Cohen's kappa, its agreement with the labels beyond chance, counts as near chance."""
FEW_IMAGES = 10
"""With fewer images, a class can be missed, or a whole set be misclassified, by accident."""
CONFIDENCE = 0.99
"""Coverage of the interval that a published accuracy is compared with."""
COMPUTED = ("accuracy", "backwards", "chance", "classes", "contaminated", "controls", "reversed", "ties", "unfinished")
"""Kinds of findings that are computed from scores and table; the caller adds the remaining kinds."""
TIED = 0.05
"""A larger share of the classes of a pool with equal severities is a finding."""
WIDEST = 0.1
"""A wider interval agrees with too many published accuracies to confirm anything."""
UNTRAINED = "the network has random weights (weights=None), so no number of this run applies to a trained network"
CONTAMINATED = "38 %"
"""Table 1 (COOD) of: J. Bitterwolf, In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation, ICML 2023."""
CAUSES = (
    "Usual causes: the transform, image size, weights or order of labels differ from timm's. On ImageNet-R and"
    " ImageNet-A, timm's logits are restricted to the 200 classes of the set"
)


def find(results: RunResults) -> list[Finding]:
    """All findings, with display names of detectors: the caller's, and the ones computed from scores and table."""
    results = displayed(results)
    brought = [found for found in results.findings if found.kind not in COMPUTED]
    of_scores = [*_of_the_classifier(results), *_backwards(results), *_reversed(results)]
    if of_scores and results.run.backbone.is_untrained:
        of_scores = [Finding("chance", UNTRAINED)]
    found = [*of_scores, *_published(results), *_contaminated(results), *_tied(results)]
    found += control_findings(results) if results.settings.controls else []
    if results.run.backbone.one_shape is False:
        text = "the images of this run differ in shape, so detectors may separate data sets by size; resize all images"
        found.append(Finding("sizes", f"{text} to one shape"))
    return list(dict.fromkeys([*_interrupted(results), *brought, *found]))


def _interrupted(results: RunResults) -> Iterator[Finding]:
    if text := interruption(results.run):
        yield Finding("unfinished", f"{text}. All values cover the finished data sets only")


def chance_level(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Accuracy of predictions that are independent of the labels: the sum over classes of the product of both shares.

    Example:
        >>> chance_level(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
        0.5
    """
    size = int(max(labels.max(), predictions.max())) + 1
    shares = [np.bincount(values, minlength=size) / len(values) for values in (labels, predictions)]
    return float(shares[0] @ shares[1])


def _of_the_classifier(results: RunResults) -> Iterator[Finding]:
    """Agreement of labels and predictions of the ID images and the training images in the results."""
    for info in results.datasets:
        if info.role in NAMES_OF_LABELS:
            rows = results.scores[(results.scores["dataset"] == info.name) & (results.scores["label"] >= 0)]
            rows = rows[rows["prediction"] >= 0]
            if len(rows):
                yield from _of_labels(info, rows["label"].to_numpy(), rows["prediction"].to_numpy())


def _of_labels(info: DatasetInfo, labels: np.ndarray, predictions: np.ndarray) -> Iterator[Finding]:
    dataset = info.name
    classes, counts = np.unique(labels, return_counts=True)
    n, correct = len(labels), int((labels == predictions).sum())
    others = n - int(counts.max())
    if len(np.unique(predictions)) == 1 and others >= FEW_IMAGES:
        yield Finding(
            "classes",
            f"all {n} images of {dataset!r} are predicted as class {_class_name(info, predictions[0])}; probably the"
            " network is untrained, or has the wrong weights or transform",
        )
        return
    mostly_wrong = wilson_interval(correct, n, confidence=CONFIDENCE)[1] < 0.5
    accuracy, chance = correct / n, chance_level(labels, predictions) if len(classes) > 1 else 0.0
    kappa, spread = (accuracy - chance) / (1 - chance), math.sqrt(chance * (1 - chance) / n)
    is_near = kappa < LOW_KAPPA or (kappa < 0.5 and accuracy < chance + 3 * spread)
    if is_near and (mostly_wrong or others >= FEW_IMAGES):
        level = 100 * (chance or 1 / len(info.class_names or classes))  # few images may not share any class
        yield Finding(
            "chance",
            f"the classifier has an accuracy of {100 * accuracy:.1f} % on the {n} labeled images of {dataset!r};"
            f" chance level is {level:{'.1f' if level >= 1 else '.2g'}} %. The weights may be random; else check the"
            " order of the labels and the transform",
        )
    predicted = set(predictions.tolist())
    missed = [int(c) for c in classes[counts >= FEW_IMAGES] if c not in predicted]
    if missed and len(classes) > 1:
        yield Finding(
            "classes",
            f"the classifier never predicts {len(missed)} of {len(classes)} classes of {dataset!r} (first:"
            f" {_class_name(info, missed[0])}); check the order of the labels",
        )


def _class_name(info: DatasetInfo, label: int | np.integer) -> str:
    """A class by its index and, if known, its name."""
    return f"{label} ({info.class_names[label]!r})" if label < len(info.class_names) else str(label)


def _backwards(results: RunResults) -> Iterator[Finding]:
    for dataset, rows, clearly, _ in _ranked_backwards(results):
        if len(clearly) * 2 > len(rows):
            yield Finding(
                "backwards",
                f"detectors that score {dataset!r} higher than ID images (AUROC below 50 %): {len(clearly)} of"
                f" {len(rows)}. Are ID and OOD swapped, or does the OOD set contain known classes?",
            )


def _reversed(results: RunResults) -> Iterator[Finding]:
    """Single detectors that score a set backwards, although at least two, and most, of the other detectors do not."""
    sets: dict[str, list[str]] = {}
    for dataset, rows, clearly, others in _ranked_backwards(results):
        for detector, value in zip(clearly["detector"], clearly["value"], strict=True):
            if len(others) > max(1, (len(rows) - 1) / 2):
                sets.setdefault(detector, []).append(f"{dataset!r} {100 * value:.1f} %")
    for detector, found in sets.items():
        config, overview = results.run.detector_settings.get(detector), results.run.overview.get(detector)
        values = ", ".join(found)
        text = f"detector {detector} ranks OOD images above ID images, unlike most other detectors: AUROC on {values}."
        settings = [f"{key}={value}" for key, value in config.init_args.items() if value is not None] if config else []
        if settings:
            text += f" Its settings: {', '.join(settings)}."
        if overview and overview.tuned:
            text += f" These settings equal the preset {overview.tuned}, which was tuned on OOD data."
        yield Finding("reversed", f"{text} Choose settings that suit this network, or ignore this detector")


def _ranked_backwards(results: RunResults) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    """Rows of the AUROC of each OOD set: all, those clearly below one half, and those clearly above."""
    table = results.table
    for info in results.datasets:
        if info.role not in (Role.OOD, Role.POOL):
            continue
        name = "mean_auroc" if info.class_names else "auroc"
        rows = table[(table["dataset"] == info.name) & (table["ood_class"] == "") & (table["metric"] == name)]
        rows = rows[rows["value"].notna()]
        yield info.name, rows, rows[rows["ci_high"] < 0.5], rows[rows["ci_low"] > 0.5]


def _published(results: RunResults) -> Iterator[Finding]:
    """Compare the accuracy with the one that timm publishes for these weights, size and crop."""
    known, masked = results.run.backbone.published_as, results.run.masked_accuracy
    if known is None:
        return
    accuracies = results.table[(results.table["metric"] == "accuracy") & (results.table["ood_class"] == "")]
    for dataset, value, n in zip(accuracies["dataset"], accuracies["value"], accuracies["n_id"].tolist(), strict=True):
        found = published_accuracy(known.model, dataset, img_size=known.img_size, crop_pct=known.crop_pct)
        if found is None or n == 0:
            continue
        correct, total = masked.get(dataset, (round(value * n), n))
        low, high = wilson_interval(correct, total, confidence=CONFIDENCE)
        numbers = (
            f"the accuracy of {known.model} at {known.img_size} pixels and crop {known.crop_pct:g} on {dataset!r} is"
            f" {100 * correct / total:.2f} % in this run (n = {total}) and {100 * found:.2f} % in timm's table"
        )
        if low <= found <= high and high - low <= WIDEST:
            yield Finding("accuracy", f"{numbers}. The two values agree", is_good=True)
        elif not low <= found <= high:
            yield Finding("accuracy", f"{numbers}. The difference is significant. {CAUSES}")


def _contaminated(results: RunResults) -> Iterator[Finding]:
    """Pools of ImageNet-21k, which are known to contain ID objects."""
    for info in results.datasets:
        if info.role is Role.POOL and of_imagenet21k(info.class_names):
            yield Finding(
                "contaminated",
                f"pool {info.name!r} consists of ImageNet-21k images. The authors of NINCO found ID objects in"
                f" {CONTAMINATED} of a sample of such images, so some errors at the hard levels are probably label"
                " errors",
            )


def _tied(results: RunResults) -> Iterator[Finding]:
    """Pools whose severities are equal for many classes, as where confidences saturate at 1."""
    if results.estimates is None:
        return
    for dataset, of_pool in results.estimates.groupby("dataset", sort=False):
        tied = of_pool.duplicated(["detector", "severity"], keep=False) & of_pool["severity"].notna()
        shares = tied.groupby(of_pool["detector"], sort=False).mean()
        if len(many := shares[shares > TIED]):
            detectors = ", ".join(f"{100 * share:.0f} % with {name}" for name, share in many.items())
            yield Finding(
                "ties",
                f"pool {dataset!r}: many classes ({detectors}) have the same severity as another class, usually because"
                " confidences saturate. The order of these classes, and thus their level, is arbitrary",
            )
