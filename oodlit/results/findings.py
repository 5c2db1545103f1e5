"""What makes the numbers of a run doubtful, or worth believing: looked for in every run, said before any number.

A classifier at chance, a class that it never names, detectors that separate backwards and an accuracy that is not the
published one nearly always have one cause: labels, transform or weights are not what they are taken for.
"""

import math
from collections.abc import Iterator

import numpy as np

from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.results.files.unfinished import broke_off
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo
from oodlit.results.published.cood import of_imagenet21k
from oodlit.results.published.timm import published_accuracy
from oodlit.results.run_results import RunResults
from oodlit.roles import NAMES_OF_LABELS, Role

LOW_KAPPA = 0.1
"""Agreement with the labels beyond chance, as a share of what is possible, below which a classifier is near chance."""
FEW_IMAGES = 10
"""With fewer images a class may be missed, or all of a set be wrong, by accident."""
CONFIDENCE = 0.99
"""Of the interval around a published accuracy."""
COMPUTED = ("accuracy", "backwards", "chance", "classes", "contaminated", "unfinished")
"""Kinds that follow from scores and table; others come from whoever made the run."""
CONTAMINATED = "38 %"
"""Table 1 (COOD) of: J. Bitterwolf, In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation, ICML 2023."""
CAUSES = (
    "usual causes: another transform or test size, another order of labels, other weights, or, for sets of 200 classes,"
    " masking"
)


def find(results: RunResults) -> list[Finding]:
    """All findings: those that the run brought, and those that follow from scores and table."""
    brought = [found for found in results.findings if found.kind not in COMPUTED]
    found = [*_of_the_classifier(results), *_backwards(results), *_published(results), *_contaminated(results)]
    return list(dict.fromkeys([*_broke_off(results), *brought, *found]))


def _broke_off(results: RunResults) -> Iterator[Finding]:
    if text := broke_off(results.run):
        yield Finding("unfinished", f"{text}; the values are those of the finished sets alone")


def chance_level(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Accuracy to expect if predictions had nothing to do with labels: sum over classes of both shares' product.

    Example:
        >>> chance_level(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
        0.5
    """
    size = int(max(labels.max(), predictions.max())) + 1
    shares = [np.bincount(values, minlength=size) / len(values) for values in (labels, predictions)]
    return float(shares[0] @ shares[1])


def _of_the_classifier(results: RunResults) -> Iterator[Finding]:
    """What labels and predictions of the ID images, and of the kept training images, have to do with each other."""
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
            f"all {n} images of {dataset!r} are predicted as class {_class_name(info, predictions[0])}; the network"
            " is untrained, or weights or transform are not its own",
        )
        return
    mostly_wrong = wilson_interval(correct, n, confidence=CONFIDENCE)[1] < 0.5
    accuracy, chance = correct / n, chance_level(labels, predictions) if len(classes) > 1 else 0.0
    kappa, spread = (accuracy - chance) / (1 - chance), math.sqrt(chance * (1 - chance) / n)
    is_near = kappa < LOW_KAPPA or (kappa < 0.5 and accuracy < chance + 3 * spread)
    if is_near and (mostly_wrong or others >= FEW_IMAGES):
        yield Finding(
            "chance",
            f"the classifier gets {100 * accuracy:.1f} % of the {n} labelled images of {dataset!r} right, by chance it"
            f" would get {100 * chance:.1f} %; look at the order of the labels, the transform and the weights",
        )
    predicted = set(predictions.tolist())
    missed = [int(c) for c in classes[counts >= FEW_IMAGES] if c not in predicted]
    if missed and len(classes) > 1:
        yield Finding(
            "classes",
            f"{len(missed)} of {len(classes)} classes of {dataset!r} are never predicted, first"
            f" {_class_name(info, missed[0])}; look at the order of the labels",
        )


def _class_name(info: DatasetInfo, label: int | np.integer) -> str:
    """A class by its index, and its name where there is one."""
    return f"{label} ({info.class_names[label]!r})" if label < len(info.class_names) else str(label)


def _backwards(results: RunResults) -> Iterator[Finding]:
    table = results.table
    for info in results.datasets:
        if info.role not in (Role.OOD, Role.POOL):
            continue
        name = "mean_auroc" if info.class_names else "auroc"
        rows = table[(table["dataset"] == info.name) & (table["ood_class"] == "") & (table["metric"] == name)]
        rows = rows[rows["value"].notna()]
        clearly = rows[rows["ci_high"] < 0.5]
        if len(clearly) * 2 > len(rows):
            yield Finding(
                "backwards",
                f"{len(clearly)} of {len(rows)} detectors score {info.name!r} higher than ID images (AUROC below"
                " one half); are ID and OOD exchanged, or does the OOD set hold what the classifier knows?",
            )


def _published(results: RunResults) -> Iterator[Finding]:
    """The classifier's accuracy against what timm publishes for these weights, size and crop."""
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
        place = f"{known.model} at {known.img_size} pixels and crop {known.crop_pct:g} on {dataset!r}"
        numbers = (
            f"accuracy {100 * correct / total:.2f} % here (n = {total}), {100 * found.accuracy:.2f} % published by timm"
        )
        if low <= found.accuracy <= high:
            yield Finding("accuracy", f"{place}: {numbers}; they agree", is_good=True)
        else:
            yield Finding("accuracy", f"{place}: {numbers}; they differ by more than chance - {CAUSES}")


def _contaminated(results: RunResults) -> Iterator[Finding]:
    """Pools of ImageNet-21k: what is known of ID objects in them."""
    for info in results.datasets:
        if info.role is Role.POOL and of_imagenet21k(info.class_names):
            yield Finding(
                "contaminated",
                f"{info.name} is made of ImageNet-21k: NINCO's authors found {CONTAMINATED} of a sample of this pool"
                " contaminated with ID objects, so errors at the hard levels are partly those of its labels",
            )
